#!/bin/bash
# old, new and few in turn on AMX hardware
set -u
HERE=$(cd "$(dirname "$0")" && pwd); G=/tmp/amx3; O=/tmp/amx3-log; C=${ROSE_CORES:-0,2}; ROOT=$PWD
rm -rf $G $O; mkdir -p $G $O; tar xJf "$HERE/two.tar.xz" -C $G && mkdir $G/llama && mkdir -p $G/../tools/drivers && cp -r tools/drivers/. $G/../tools/drivers && tar xJf "$HERE/llama.tar.xz" -C $G/llama || exit 1
B=$(date +%s); now() { echo $(($(date +%s) - B)); }; at() { echo "=== $1 at $(now) s"; }
export ROSE_ROOT=$ROOT; GOMP=; ldconfig -p | grep -q libgomp.so.1 || { tar xJf "$HERE/dnnl.tar.xz" -C $G; GOMP=:$G/lib; echo "own libgomp"; }
{ date -u +%FT%TZ; cat $G/commit; lscpu; uptime; } > $O/about.txt 2>&1; grep -E "Model name|^(old|new|few|try)" $O/about.txt; tail -1 $O/about.txt
M=/tmp/amx3-g; $G/new random-model $M --dtype BF16 --tokenizer $G/tok > $O/model.txt 2>&1
PY=${PY:-python3}; mkdir -p /tmp/peers; for k in bf16 q8_0; do PYTHONPATH=$G/llama/py taskset -c ${LC:-8-15} timeout 60 $PY $G/llama/convert/convert_hf_to_gguf.py --outtype $k --outfile /tmp/peers/amx3-g-$k.gguf $M > $O/convert.$k.txt 2>&1 & done; wait; ls -la /tmp/peers | tail -2; at converted
T=""; i=0; for f in matmul_bf16 matmul_i8 share; do ( taskset -c ${TC:-$((10 + 2 * i))} timeout 230 $G/test_kernels.few --isa ${ISA:-amx} --filter $f > $O/test.$f.log 2>&1; echo "test_kernels few $f rc=$? $(tail -1 $O/test.$f.log) at $(now)" > $O/tests.$f ) & T="$T $!"; i=$((i + 1)); done
( cd $ROOT; taskset -c ${TC2:-4,6} timeout 250 python3 tests/api/same_bits.py $G/few models/rose-tiny --args "--device cpu --isa ${ISA:-amx}" > $O/same_bits.log 2>&1; echo "same_bits few rc=$? $(tail -1 $O/same_bits.log) at $(now)" > $O/tests.bits ) & T="$T $!"
RB="R8.t0.2048:8,1,2048 R4.t1.4096:4,2,4096 R2.two16:2,4,2048,16384 R1.two16:1,4,2048,16384 R2.t0.8192:2,1,8192"
RN="R8n.512:8,1,512,0,0,8,0,0,0,1 R8n.1024:8,1,1024,0,0,8,0,0,0,1 R4n.1024:4,1,1024,0,0,8,0,0,0,1 R8n.t1:8,2,4096,0,0,8,0,0,0,1"
s() { echo "$1:$2,1,$3,0,0,8,0,0,${5:-0},$4"; }   # name panels ahead apart
ONE="own:0 $(s p8turn 8 1024 2) $(s p8turn512 8 512 2) $(s p8turn2k 8 2048 2) $(s p8 8 1024 0) $(s p8apart 8 1024 1) $(s p8apart512 8 512 1) $(s p4turn 4 2048 2) $(s p4turn1k 4 1024 2) $(s p4apart 4 2048 1) $(s p4apart1k 4 1024 1) $(s p2turn 2 4096 2) $(s p2apart 2 4096 1) p1.8192:1,1,8192"
AM="eng:0,9 $(s amx2 -2 4096 0) $(s amx2turn -2 4096 2) $(s amx4turn -4 2048 2) $(s amx4turn1k -4 1024 2) $(s amx6turn -6 1024 2) $(s amx6turn2k -6 2048 2)"
grep -q amx_bf16 /proc/cpuinfo || AM="avx:0"
try() { local f=$1; shift; timeout 40 $G/row_try "$@" > $O/$f.txt 2>> $O/err.txt || echo "$f: rc $?"; grep -E "DIFF|best read" $O/$f.txt; grep "^[a-zR].* p50" $O/$f.txt | sort -n -k3 | awk '{split($1,a,":"); printf "  %s %s/%s over %s/%s", a[1], $3, $5, $7, $8; if(NR%4==0)print ""} END{print ""}'; }
R=${R:-15}
try one.bf16 bf16 $R $C huge op $ONE $AM $RB $RN
try one.i8 i8 $R $C huge op $ONE $RB $RN
for m in 8 16; do ROWS=$m try rows$m bf16 $R $C huge op $AM $RB $RN; done
for t in bf16 i8; do try cache.$t $t 5 $C huge cache own:0 $(s p8turn 8 1024 2) $(s p4turn 4 2048 2) p1.8192:1,1,8192; done
at products
lat() { # program round name batch input args
  taskset -c $C timeout 40 $G/$1 bench latency $M --device cpu --batch-size $4 --input-len $5 --output-len 64 --num-iters-warmup 1 --num-iters ${IT:-3} ${6:-} > $O/lat.$3.$1.$2.json 2>> $O/err.txt
  echo "lat $3 $1: $(python3 -c "
import json; x=json.load(open('$O/lat.$3.$1.$2.json')); f=x.get('floor') or {}; print('TPOT %.2f TTFT %.1f read %.1f over %.3f'%(x['tpot_ms']['p50'],x['ttft_ms']['p50'],x['machine']['read_gb_per_s'],f.get('tpot_p50_over_floor') or 0))" 2>&1 | tail -1)"; }
for r in $(seq ${ROUNDS:-3}); do
  for p in old new; do lat $p $r 1 1 256; lat $p $r 1i8 1 256 "--quantization int8"; done
  for p in new few; do lat $p $r 8 8 32; lat $p $r 16 16 32; done; at "round $r"
done
steps() { ROSE_TRY="$2" taskset -c $C timeout 40 $G/try bench latency $M --device cpu --batch-size 1 --input-len 256 --output-len 128 --num-iters-warmup 0 --num-iters ${SI:-5} ${3:-} > $O/steps.$1.json 2> $O/steps.$1.txt; grep -E "TRY" $O/steps.$1.txt | sed 's/^TRY //'; at "steps $1"; }
steps bf16 "own:0 $(s p8turn 8 1024 2) $(s p8turn512 8 512 2) $(s p8apart 8 1024 1) $(s p4turn 4 2048 2) $RB"
steps i8 "own:0 $(s p8turn 8 1024 2) $(s p8turn512 8 512 2) $(s p8apart 8 1024 1) $(s p4turn 4 2048 2) $(s p4apart 4 2048 1) $(s p2apart 2 4096 1) $RB" "--quantization int8"
for r in 1 2; do for p in old few; do taskset -c $C timeout 30 $G/$p bench offline $M --device cpu --num-prompts 1 --max-batch-size 1 --input-len 512 --output-len 2 --repeats 5 > $O/p512.$p.$r.json 2>> $O/err.txt; echo "prefill 512 $p $(grep -o '"ttft_p50_ms": [0-9.]*' $O/p512.$p.$r.json | cut -d' ' -f2 | sort -n | tr '\n' ' ')"; done; done
for n in ${PS:-1 8 32 16 2}; do [ $(now) -gt ${PEERS:-250} ] || ( cd $ROOT; export LD_LIBRARY_PATH=$G/llama/bin$GOMP PYTHONPATH=$G/llama/py; taskset -c $C timeout $((282 - $(now))) $PY tools/peers $O/peers --bin $G/few --kinds offline --streams $n --rivals ${RIV:-transformers-bf16,llama-bf16,llama-q8_0} --threads 2 --work /tmp/peers --model $M --llama-python ${LPY:-$PY} --transformers-python $PY > $O/peers.$n.txt 2>&1; echo "peers $n rc=$?"; grep -E "tok/s" $O/peers.$n.txt | cut -c1-130 ); at "peers $n"; done
[ $(now) -gt 284 ] || wait $T; cat $O/tests.*; at tests
tail -3 $O/err.txt; tar cJf ${OUT:-/tmp}/amx3-two.tar.xz -C /tmp amx3-log; at end
