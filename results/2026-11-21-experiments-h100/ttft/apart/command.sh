build/roseinfer bench stream models/gpt2-random -n 256 --input-len 16 --output-len 64 --interval-ms 5 --repeats 3 --roseinfer-args '--device cuda' 
