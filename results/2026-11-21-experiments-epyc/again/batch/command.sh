build/roseinfer bench ablate models/gpt2-random --switches max-num-seqs --pairs 5 --roseinfer-args '--device cpu' -n 40 --rate 5 --input-len 64 --output-len 32 --num-prompts 32 
