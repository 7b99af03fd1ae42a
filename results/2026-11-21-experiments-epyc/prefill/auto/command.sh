build/roseinfer bench offline models/gpt2-random --backends inproc=auto --device cpu --isa auto --repeats 3 --num-prompts 1 --input-len 64 --output-len 1 
