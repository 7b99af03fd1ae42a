build/roseinfer bench offline models/gpt2-random --backends inproc,roseinfer --device cuda --repeats 3 --num-prompts 128 --input-len 256 --output-len 64 
