build/roseinfer bench http models/rose-tiny --streams 64,500 --rate 0 --no-fast-sse 
