build/roseinfer bench stream models/gpt2-random -n 48 --input-len 16 --output-len 32 --repeats 3 --roseinfer-args '--device cpu --prefill-max-batch-size 16' 
