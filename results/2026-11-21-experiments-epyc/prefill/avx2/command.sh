build/roseinfer bench offline models/gpt2-random --backends inproc=avx2 --device cpu --isa avx2 --repeats 3 --num-prompts 1 --input-len 64 --output-len 1 
