build/roseinfer bench ablate models/gpt2-random --switches prefill-backend --pairs 4 --roseinfer-args '--device cuda' -n 512 --rate 300 --input-len 512 --output-len 16 --num-prompts 128 
