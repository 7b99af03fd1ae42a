build/roseinfer bench stream models/gpt2-random -n 256 --input-len 16 --output-len 64 --repeats 3 --roseinfer-args '--device cuda --prefill-max-batch-size 16' 
