build/roseinfer bench ablate models/rose-tiny --switches overlap-schedule --pairs 5 --roseinfer-args '--device cpu' -n 64 --rate 40 --num-prompts 64 
