build/roseinfer bench online models/gpt2-random --scales 0.4,0.8,1.6 -n 1000 --rate 200 --roseinfer-args '--device cuda' 
