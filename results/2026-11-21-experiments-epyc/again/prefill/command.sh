build/roseinfer bench ablate models/gpt2-random --switches isa --pairs 5 --roseinfer-args '--device cpu' -n 12 --rate 1 --input-len 256 --output-len 16 --num-prompts 4 
