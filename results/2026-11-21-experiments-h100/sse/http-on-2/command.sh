build/roseinfer bench http models/gpt2-random --streams 64,500 --rate 0 --fast-sse 
