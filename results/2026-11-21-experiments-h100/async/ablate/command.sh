build/roseinfer bench ablate models/gpt2-random --switches async-admit --pairs 4 --roseinfer-args '--device cuda' -n 512 --rate 300 
