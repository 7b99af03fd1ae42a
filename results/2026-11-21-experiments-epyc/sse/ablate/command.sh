build/roseinfer bench ablate models/rose-tiny --switches fast-sse --pairs 5 --roseinfer-args '--device cpu' -n 256 --concurrency 32 
