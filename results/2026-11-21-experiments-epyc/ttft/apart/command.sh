build/roseinfer bench stream models/gpt2-random -n 48 --input-len 16 --output-len 32 --interval-ms 250 --repeats 3 --roseinfer-args '--device cpu' 
