import random
def run(STAGES, chunks, tiles, warps, first, BIASES, late, seed):
    rnd=random.Random(seed)
    nst=chunks*3
    biased = (0 if first else nst-1)
    buf=[None]*BIASES
    full=[0]*(tiles*nst)   # loaded
    freed=[0]*(tiles*nst)
    def producer():
        for t in range(tiles):
            for s in range(nst):
                i=t*nst+s
                while i>=STAGES and freed[i-STAGES]<warps: yield
                if s==biased: buf[t%BIASES]=t
                full[i]=1
                yield
    def consumer():
        def stage(i):
            while not full[i]: yield
        nxt=0
        # first chunk
        for s in range(3):
            yield from stage(nxt+s)
        for s in range(3):
            freed[nxt+s]+=1; yield
        nxt+=3
        for t in range(tiles):
            for c in range(1,chunks):
                for s in range(3):
                    yield from stage(nxt+s)
                    if s>0: freed[nxt+s-1]+=1
                    yield
                freed[nxt+2]+=1; nxt+=3; yield
            more=t+1<tiles
            early=2 if late else 3
            if more:
                for s in range(early): yield from stage(nxt+s)
            for part in range(3):
                for _ in range(rnd.randint(1,6)):
                    assert buf[t%BIASES]==t,(STAGES,chunks,first,BIASES,t,part,buf)
                    yield
                if part==0 and late and more: yield from stage(nxt+2)
                if more and part<2: freed[nxt+part]+=1
            if more: freed[nxt+2]+=1; nxt+=3
            yield
    ps=[producer()]+[consumer() for _ in range(warps)]
    steps=0
    while ps:
        g=rnd.choice(ps)
        for _ in range(rnd.choice([1,1,1,20,100])):
            try: next(g)
            except StopIteration: ps.remove(g); break
        steps+=1
        assert steps<2000000
ok=0; bad=0
for S,B in ((5,3),(7,4)):
    for ch in (1,2,4,16):
        for w in (4,8,16):
            for seed in range(30):
                for late in (0,1):
                    run(S,ch,7,w,ch>1,B,late,seed); ok+=1
print("ok",ok)
for S,B in ((5,3),(7,4)):
    n=0
    for seed in range(300):
        try: run(S,1,7,8,True,B,0,seed)
        except AssertionError: n+=1
    print("one chunk, first stage:",S,B,"overwritten in",n,"of 300")
