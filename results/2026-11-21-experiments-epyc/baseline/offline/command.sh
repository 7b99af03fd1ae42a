build/roseinfer bench offline models/gpt2-random --backends inproc,roseinfer --device cpu --repeats 3 --num-prompts 16 --input-len 256 --output-len 64 
