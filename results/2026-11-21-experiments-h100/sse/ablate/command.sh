build/roseinfer bench ablate models/gpt2-random --switches fast-sse --pairs 4 --roseinfer-args '--device cuda' -n 512 --concurrency 64 
