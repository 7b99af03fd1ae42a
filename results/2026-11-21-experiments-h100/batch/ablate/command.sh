build/roseinfer bench ablate models/gpt2-random --switches max-num-seqs --pairs 4 --roseinfer-args '--device cuda' -n 512 --rate 400 --input-len 256 --output-len 64 --num-prompts 128 
