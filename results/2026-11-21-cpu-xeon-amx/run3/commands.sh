#!/bin/bash
# CPU part on the device machine
lscpu | grep -E "Model name|Thread|Core|L1d|L2|L3|MHz" ; lscpu -e=CPU,CORE,SOCKET | head -20 > $O/lscpu.txt; head -6 $O/lscpu.txt
./r-old random-model /tmp/g --dtype BF16 2>/dev/null
T="taskset -c 0,2"
one() { $T ./$1 bench offline /tmp/g --device cpu --isa amx ${5:-} --num-prompts $2 --max-batch-size $2 --input-len $3 --output-len $4 --repeats ${6:-3} > $O/j.json 2>/dev/null; python3 - $1 $2 $3 "$5" <<'P'
import json,sys,os
d=json.load(open(os.environ.get('OUT','/tmp/out')+'/j.json')); r=d['results']
m=lambda k: sorted(x[k] for x in r)
a=m('ttft_p50_ms'); b=m('tpot_p50_ms')
print(f"{sys.argv[1]:10s} n={sys.argv[2]} in={sys.argv[3]} {sys.argv[4]} ttft {a[len(a)//2]:.1f} ({a[0]:.1f}-{a[-1]:.1f}) tpot {b[len(b)//2]:.2f} ({b[0]:.2f}-{b[-1]:.2f}) tok/s {d['output_throughput_tps']:.0f}",flush=True)
P
cat $O/j.json >> $O/all.jsonl; }
echo "== prefill 512"
for i in 1 2; do for v in old 1000-2 1000-16 6-8 6-16 6-32 8-16 9-16 12-16; do one r-$v 1 512 2 "" 5; done; done
echo "== decode"
for i in 1 2; do for v in old 6-16; do for n in 1 8 16 64; do one r-$v $n 256 32; done; done; done
for n in 1 8 64; do one r-6-16 $n 256 32 "--quantization int8"; done
echo "== correctness"; ./tk --isa amx | tail -12
echo "== kernels"
for k in tk-old tk-1000 tk; do echo "-- $k"; $T ./$k --bench --isa amx --filter matmul_bf16 | grep -E "2 threads" ; $T ./$k --bench --isa amx --filter attention; done
$T ./tk --bench --isa amx --filter matmul_i8 | grep -E "2 threads"
echo "== torch"
cat > /tmp/t.py <<'P'
import torch,time,os
torch.set_num_threads(2)
print(torch.__version__, torch.backends.mkldnn.is_available())
def t(f,n=7):
    f(); b=[]
    for _ in range(n):
        s=time.perf_counter(); f(); b.append(time.perf_counter()-s)
    return sorted(b)[len(b)//2]*1e3
sh=[(2304,768),(768,768),(3072,768),(768,3072)]
for M in (1,2,4,8,16,32,64,128,512,2048):
    tot=0
    for n,k in sh:
        W=[torch.randn(n,k).bfloat16() for _ in range(12)]; x=torch.randn(M,k).bfloat16(); B=torch.randn(n).bfloat16()
        with torch.no_grad(): tot+=t(lambda:[torch.nn.functional.linear(x,w,B) for w in W], 5 if M<512 else 3)
    print("torch linear bf16, 12 layers, M",M,round(tot,2),"ms",flush=True)
try:
    import transformers
    from transformers import GPT2Config,GPT2LMHeadModel
    m=GPT2LMHeadModel(GPT2Config()).bfloat16().eval()
    ids=torch.randint(0,50257,(1,512))
    with torch.no_grad(): print("transformers prefill 512 bf16:",round(t(lambda:m(ids,logits_to_keep=1)),1),"ms")
    ids=torch.randint(0,50257,(1,256))
    with torch.no_grad():
        s=time.perf_counter(); m.generate(ids,max_new_tokens=33,min_new_tokens=33,do_sample=False); a=time.perf_counter()-s
        print("transformers generate 256+32:",round(a*1e3/33,2),"ms a token with prefill")
except Exception as e: print("transformers:",e)
P
timeout 150 $T python3 /tmp/t.py
tar cf $O/all.tar -C $O lscpu.txt all.jsonl; rm -f $O/j.json $O/all.jsonl $O/lscpu.txt
