build/roseinfer bench offline models/gpt2-random --backends inproc=naive --device cuda --prefill-backend naive --repeats 3 --num-prompts 128 --input-len 512 --output-len 1 
