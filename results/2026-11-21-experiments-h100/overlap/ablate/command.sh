build/roseinfer bench ablate models/gpt2-random --switches overlap-schedule --pairs 4 --roseinfer-args '--device cuda' -n 256 --rate 100 --input-len 256 --output-len 64 --num-prompts 128 
