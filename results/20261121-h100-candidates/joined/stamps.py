# Sums up the stamps of a decode step: `stamps.py FILE [kernels a layer]`. A line of FILE: launch, block, then the
# nanoseconds at: start, wait over, -, rows normed (or first sum), multiplied, q k v received, attended, end, -, -, parameters there, K and V there.
import sys,collections
rows=[list(map(int,l.split())) for l in open(sys.argv[1]) if l[:1].isdigit() and len(l.split())==14]
L=collections.defaultdict(list)
for r in rows: L[r[0]].append((r[1],r[2:]))
base={}
mx=max(r[2] for r in rows)
L={k:[(b,s) for b,s in v if s[0]>mx-600000] for k,v in L.items()}
L={k:v for k,v in L.items() if v}
names=['start','wait','x','normed','mult','sent','att','end','w0','-','sync1','kv']
order=[0,8,1,10,2,3,4,5,11,6,7]
t0=min(s[0] for v in L.values() for b,s in v)
prev=None
per=int(sys.argv[2]) if len(sys.argv)>2 else 4
for k in sorted(L):
    v=L[k]
    if k>=per*3 and k<max(L)-1: continue
    def rng(i):
        x=[s[i] for b,s in v if s[i]>=0]
        return (min(x)-t0,sorted(x)[len(x)//2]-t0,max(x)-t0) if x else None
    print(k,len(v),' '.join('%s %s'%(names[i],'/'.join('%.2f'%(y/1000) for y in rng(i))) for i in order if rng(i)))
# mean phase durations over layers
print('--- mean by kernel of layer')
for j in range(per):
    acc=collections.defaultdict(list)
    for k in sorted(L):
        if k%per!=j or k>=per*12 or k<per: continue
        v=L[k]
        med=lambda i: sorted(s[i] for b,s in v if s[i]>=0)
        prevend=max([s[7] for b,s in L[k-1] if s[7]>=0] or [0])
        acc['start-prevend'].append(med(0)[len(v)//2]-prevend)
        acc['laststart-prevend'].append(med(0)[-1]-prevend)
        w=med(1); acc['wait-prevend'].append(w[len(w)//2]-prevend)
        acc['lastwait-prevend'].append(w[-1]-prevend)
        last=w[len(w)//2]
        for i in (10,2,3,4,5,11,6,7):
            x=med(i)
            if x: acc[names[i]+' after wait (med,max)'].append((x[len(x)//2]-last, x[-1]-last))
    print(j)
    for n,x in acc.items():
        if isinstance(x[0],tuple): print('   %-28s %.2f  %.2f'%(n,sum(a for a,b in x)/len(x)/1000,sum(b for a,b in x)/len(x)/1000))
        else: print('   %-28s %.2f'%(n,sum(x)/len(x)/1000))
