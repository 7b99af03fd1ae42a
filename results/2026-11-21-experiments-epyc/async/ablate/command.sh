build/roseinfer bench ablate models/rose-tiny --switches async-admit --pairs 5 --roseinfer-args '--device cpu' -n 96 --rate 28 
