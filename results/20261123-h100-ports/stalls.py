import csv,sys
f=sys.argv[1]; thr=float(sys.argv[2]) if len(sys.argv)>2 else 0.004
rows=list(csv.reader(open(f)))
i=[k for k,r in enumerate(rows) if r and r[0]=='Address'][0]
h=rows[i]; R=rows[i+1:]
ix={n:k for k,n in enumerate(h)}
S=ix['# Samples']; src=ix['Source']; ex=ix['Instructions Executed']
st=[k for n,k in ix.items() if n.startswith('stall_') and 'Not' not in n]
tot=sum(int(r[S] or 0) for r in R)
print('instructions',len(R),'samples',tot)
acc=0; a0=0
for n,r in enumerate(R):
    v=int(r[S] or 0)
    s=r[src].strip()
    key=any(t in s for t in ('HGMMA','DEPBAR','BAR.','SYNCS','WARPGROUP','BRA','EXIT'))
    if v>=thr*tot or (key and v>=thr*tot/4):
        print(f"{n:5d} {acc/tot*100:5.1f}% | {v/tot*100:5.2f}% x{r[ex]:>8} {s[:70]:70s}", ' '.join(f"{h[k][6:]}:{int(r[k])*100//max(v,1)}" for k in st if int(r[k] or 0)*5>v)); acc=0
    else: acc+=v
