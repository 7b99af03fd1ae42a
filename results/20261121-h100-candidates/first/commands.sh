#!/bin/bash
set -u
HERE=$(cd "$(dirname "$0")" && pwd); cd "$HERE/.." || exit 1
G=/tmp/rose-r1; rm -rf $G; mkdir -p $G; tar xJf "$HERE/bin.tar.xz" -C $G || exit 1
O=/tmp/rose-log; rm -rf $O; mkdir -p $O; M=/tmp/g B=$(date +%s)
export LD_LIBRARY_PATH="$G" ROSE_ROOT="$PWD" TMPDIR=/tmp
at() { echo "=== $1 at $(($(date +%s) - B)) s"; }
{ nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader; date -u +%FT%TZ; cat $G/*/commit; } | tee $O/about.txt
( mkdir -p $O/amx; OUT=$O/amx ROSE_CORES=${AMXC:-12,14} timeout 200 bash .gpu-amx2/run.sh quick > $O/amx.txt 2>&1; echo "amx rc=$?" >> $O/amx.txt ) & AMX=$!
$G/base/roseinfer random-model $M --tokenizer $G/tok > $O/model.txt 2>&1 || exit 1
at tests
job() { while [ "$(jobs -rp | wc -l)" -ge 10 ]; do wait -n; done; local n=$1; shift; ( s=$(date +%s); timeout 100 "$@" > $O/test.$n.log 2>&1; echo "$n rc=$? $(grep -hoE 'PASSED  . [0-9]+ test|FAILED  . [0-9]+ test' $O/test.$n.log | tail -1) $(($(date +%s) - s)) s" >> $O/tests.txt ) & }
job mega.model $G/mega/test_cuda_model; job ttft.model $G/ttft/test_cuda_model; job halves.attention $G/halves/test_cuda_attention; job halves.kernels $G/halves/test_cuda_kernels; job ttft.attention $G/ttft/test_cuda_attention
for t in "" edges=2 from=17,blocks=2,w48=1,fc2=2,head=1,late=0 from=999,list=3,fc2=3,head=2; do job halves.model."$t" env ROSE_CUDA_TRY=$t $G/halves/test_cuda_model test_every_batch_size; job halves.ways."$t" env ROSE_CUDA_TRY=$t $G/halves/test_cuda_model test_ways; done
job halves.ahead $G/halves/test_cuda_ahead
job halves.same $G/halves/test_cuda_model test_same_bits
while [ "$(jobs -rp | grep -vc "^$AMX$")" -gt 0 ]; do wait -n; done
sort $O/tests.txt | grep -v "rc=0 "; echo "tests: $(grep -c 'rc=0 ' $O/tests.txt) of $(wc -l < $O/tests.txt) programs pass"; grep -h "FAILED\|fail_msg\|differ\|rror:" $O/test.*.log | sort | uniq -c | sort -rn | head -8
steps() { local n=$1 p=$2 c=$3; shift 3; timeout 70 $G/$p/gpu_steps $M cuda float16 $c "$@" > $O/steps.$n.json 2> $O/steps.$n.txt || { echo "steps $n rc=$?"; tail -2 $O/steps.$n.txt; }
python3 - $O/steps.$n.json $n "$@" <<'P'
import json,sys,re
s=open(sys.argv[1]).read()
try: d=json.loads(s)
except Exception:
    print('partial json'); d={'x':[json.loads(m) for m in re.findall(r'\{"[^{}\[\]]*(?:\[[^\]]*\][^{}\[\]]*)*\}',s)]}
print(sys.argv[2].ljust(16),'base     ',' '.join(a[-14:] for a in sys.argv[4:]))
for part in d:
    if not isinstance(d[part],list): continue
    rows={}
    for r in d[part]:
        if not isinstance(r,dict): continue
        rows.setdefault(tuple((x,r[x]) for x in r if x in('sequences','sampled','with_rules','max_step_tokens','tokens','pause_ms')),[]).append(r.get('us_median',r.get('ms_median')))
    for k,v in rows.items():
        if v and v[0]: print(' '.join(str(x[1]) for x in k).ljust(14),'%9.2f'%v[0],' '.join('%.3f'%(x/v[0]) for x in v[1:] if x))
P
}
at "steps mega"
for n in 1 2 4 8; do steps mega.$n mega 288:decode=$n "" crowd no-megakernel; done
steps mega.1k mega 1000:decode=8 "" crowd; steps base.8 base 288:decode=8 "" no-megakernel; steps base.1 base 288:decode=1 ""
at "steps halves"
W="@from=999 @ @blocks=2 @edges=0 @edges=2 @carve=0 @once=0 @late=0 @w48=1 @fc2=2"
for n in 64 128 256; do steps h1.$n halves 288:decode=$n $W; done
steps h2.32 halves 288:decode=32 @from=999 @ @from=17 @from=17,head=1 @from=17,blocks=2,head=1 @from=999,head=1
for n in 64 128; do steps h2.$n halves 288:decode=$n @from=999 @ @w48=1,fc2=2 @fc2=1 @from=999,list=3 @from=999,fc2=3 @blocks=2,fc2=2 @w48=1,carve=0; done
for n in 32 64 128 256; do steps base.$n base 288:decode=$n ""; done
timeout 30 $G/halves/gpu_steps $M cuda float16 288:decode=128 @ @edges=3 > $O/edges3.json 2> $O/edges3.txt; echo "edges3 rc=$?"; tail -2 $O/edges3.txt
at "ttft"
steps prompt ttft 288:prompt "" prompts spread prompts,spread
for r in 1 2 3; do for p in base ttft; do timeout 40 $G/$p/roseinfer bench stream $M -n 48 --input-len 256 --output-len 16 --interval-ms 25 --repeats 2 --roseinfer-args "--device cuda" > $O/http.$p.$r.json 2> $O/http.$p.$r.txt; echo "ttft $p: $(grep 'TTFT (client)' $O/http.$p.$r.txt)"; done; done
for a in "--inline-admit-bytes 0" "--no-early-wake" "--io-poll-us 0" "--cuda-without prompts,spread"; do timeout 40 $G/ttft/roseinfer bench stream $M -n 48 --input-len 256 --output-len 16 --interval-ms 25 --repeats 2 --roseinfer-args "--device cuda $a" > "$O/http.ttft$a.json" 2> "$O/http.ttft$a.txt"; echo "ttft '$a': $(grep 'TTFT (client)' "$O/http.ttft$a.txt") $(grep -h 'roseinfer:' "$O/http.ttft$a.txt" | tail -1)"; done
cat $O/http.ttft.2.txt | tail -20
at equal
OUT=$O timeout 70 bash .gpu-equal/run.sh; at "equal bench"; mkdir -p $O/eq; OUT=$O/eq timeout 110 bash .gpu-equal/bench.sh
at amx; for i in $(seq 20); do grep -q "amx rc" $O/amx.txt && break; sleep 1; done; cat $O/amx.txt | tail -45
tar cJf - -C /tmp rose-log | split -b 15M - $OUT/log.tar.xz.; echo "=== $(($(date +%s) - B)) s in all"
