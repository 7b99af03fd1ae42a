#!/bin/bash
# one row of weights on AMX hardware; even tokens under load
set -u
HERE=$(cd "$(dirname "$0")" && pwd); G=/tmp/amx3; O=/tmp/amx3-log; C=${ROSE_CORES:-0,2}
rm -rf $G $O; mkdir -p $G $O; tar xJf "$HERE/one.tar.xz" -C $G || exit 1
B=$(date +%s); at() { echo "=== $1 at $(($(date +%s) - B)) s"; }
export LD_LIBRARY_PATH=$G/lib ROSE_ROOT=/tmp
{ date -u +%FT%TZ; cat $G/commit; lscpu; lscpu -e; cat /sys/kernel/mm/transparent_hugepage/{enabled,defrag}; grep . /sys/devices/system/cpu/cpu[0-3]/topology/thread_siblings_list; grep -m1 flags /proc/cpuinfo; uptime; } > $O/about.txt 2>&1
grep -E "Model name|Thread|L2|L3|\[" $O/about.txt
S=${SMALL:-0}; R1=${R1:-22}; R2=${R2:-10}; IT=${IT:-18}
READS="R1:1,0 R2:2,0 R4:4,0 R8:8,0"
for s in 1 2 4 8; do for d in 1024 2048 4096; do READS="$READS R$s.t0.$d:$s,1,$d"; done; for d in 4096 8192; do READS="$READS R$s.t1.$d:$s,2,$d"; done; READS="$READS R$s.nta:$s,3,2048 R$s.two:$s,4,1024,8192"; done
READS="$READS R1.t0.8192:1,1,8192 R2.t0.8192:2,1,8192 R1.two16:1,4,2048,16384 R2.two16:2,4,2048,16384"
V="own:0 p1:1,0 p2:2,0 p4:4,0 p8:8,0"
for d in 512 1024 2048 4096 8192 16384; do V="$V p1.t0.$d:1,1,$d"; done
for d in 1024 2048 4096 8192 16384 32768; do V="$V p1.t1.$d:1,2,$d"; done
for p in 2 4 8; do for d in 512 1024 2048 4096; do V="$V p$p.t0.$d:$p,1,$d"; done; for d in 1024 2048 4096 8192; do V="$V p$p.t1.$d:$p,2,$d"; done; V="$V p$p.two4:$p,4,512,4096 p$p.two8:$p,4,1024,8192 p$p.apart:$p,1,2048,0,0,8,0,0,0,1 p$p.apart1:$p,2,4096,0,0,8,0,0,0,1"; done
V="$V p1.nta2:1,3,2048 p1.nta8:1,3,8192 p1.two2:1,4,512,2048 p1.two4:1,4,1024,4096 p1.two8:1,4,1024,8192 p1.two16:1,4,2048,16384 p1.two32:1,4,2048,32768"
A="amx2:-2,0 amx2.t0.2048:-2,1,2048 amx2.t0.4096:-2,1,4096 amx2.t1.4096:-2,2,4096 amx2.t1.8192:-2,2,8192 amx4:-4,0 amx4.t0.2048:-4,1,2048 amx4.t1.4096:-4,2,4096"
grep -q amx_bf16 /proc/cpuinfo || A=""
try() { local f=$1; shift; timeout ${TMO:-60} $G/row_try "$@" > $O/$f.txt 2>> $O/err.txt || echo "$f: rc $?"; grep -E "DIFF|best read" $O/$f.txt; }
best() { grep -E "$2" $O/$1.txt | sed 's/ p50 / /' | sort -n -k2 | head -$3 | cut -d' ' -f1 | tr '\n' ' '; }   # name:spec
show() { grep "^[a-zR].* p50" $O/$1.txt | sort -n -k3 | awk -v n=$2 'NR<=n{split($1,a,":"); printf "  %s p50 %s over %s", a[1], $3, $7; if(NR%4==0)print ""} END{print ""}'; }
for t in bf16 i8; do
  [ $t = bf16 ] && K="$V $A" || K="$V"
  try scan.$t $t $R1 $C huge op $K $READS; show scan.$t 44; grep -E "^(own|p1):" $O/scan.$t.txt | cut -c1-90
  at "scan $t"
  T3=$(best scan.$t '^p[1-8]' 3); RB=$(best scan.$t '^R[0-9]' 5); T1=${T3%% *}; echo "best: " $T3; echo "reads: " $RB
  N=${T1%%:*}; IFS=, read -r np h d1 d2 rest <<< "${T1#*:}"; K="own:0 $T3"
  for p in "0,0,$h,$d1,$d2" ; do :; done
  k() { echo "$1:$np,$h,$d1,$d2,$2,$3,${4:-0},${5:-0},${6:-0},${apart:-0}"; }
  apart=${rest##*,}
  Q="$(k turns1 1 8) $(k turns8 1 16) $(k turns64 1 64) $(k dyn8 2 8) $(k dyn16 2 16) $(k dyn32 2 32) $(k ends8 3 8) $(k ends16 3 16) $(k link8k 0 8 8192) $(k link32k 0 8 32768) $(k link128k 0 8 131072) $(k endslink 3 8 32768)"
  try share.$t $t $R2 $C huge op $K $Q $RB; show share.$t 30; at "share $t"
  for L in ${LAYOUTS:-0,1 0,8 4,6 0}; do try cpus.$L.$t $t 5 $L huge op $K $RB; show cpus.$L.$t 9; done
  try small.$t $t 5 $C small op $K $RB; show small.$t 9; try whole.$t $t 7 $C huge whole $K $RB; show whole.$t 9
  at "places $t"
  eval "B_$t=\"$K\"; RB_$t=\"$RB\"; Q_$t=\"$(k dyn8 2 8) $(k ends8 3 8) $(k ends16 3 16) $(k link32k 0 8 32768) $(k kv1 0 8 0 -1) $(k kv6 0 8 0 -6) $(k att512k 0 8 0 524288) $(k samp1m 0 8 0 0 1048576) $(k all 3 8 32768 -1 1048576)\""
done
$G/roseinfer random-model /tmp/amx3-g --dtype BF16 --tokenizer $G/tok > $O/model.txt 2>&1
AX="amx2.t0.4096:-2,1,4096"; [ -n "$A" ] || AX=""
for q in bf16 i8; do
  [ $q = bf16 ] && { K="$B_bf16 $AX $Q_bf16 $RB_bf16"; X=""; } || { K="$B_i8 $Q_i8 $RB_i8"; X="--quantization int8"; }
  ROSE_TRY="$K" taskset -c $C timeout 60 $G/roseinfer bench latency /tmp/amx3-g --device cpu --batch-size 1 --input-len 256 --output-len 128 --num-iters-warmup 0 --num-iters $IT $X > $O/steps.$q.json 2> $O/steps.$q.txt; echo "steps $q rc=$?"; grep -E "TRY|of weights|reads" $O/steps.$q.txt | sed 's/^TRY //'
  at "steps $q"
done
# ---- even tokens
load() { # NAME ARGS N RATE SCALE
  taskset -c $C $G/roseinfer serve /tmp/amx3-g --device cpu --port 18931 --threads 2 $2 > $O/serve.$1.log 2>&1 & local P=$!
  for i in $(seq 200); do python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:18931/ready",timeout=1)' 2>/dev/null && break; sleep 0.05; done
  taskset -c ${LC:-8,10,12} timeout 60 $G/roseinfer bench online /tmp/amx3-g --backends url=rose=http://127.0.0.1:18931 --scales $5 -n $3 --rate $4 --input-median 64 --output-median 32 --output-dir $O/load.$1 > $O/load.$1.txt 2>&1
  kill $P; wait $P 2>/dev/null
  python3 - "$1" $O/load.$1/*/online_results.json <<'P'
import json,sys
x=json.load(open(sys.argv[2]))['summaries'][0]; i=x['itl_ms']; f=lambda k: '%.0f/%.0f'%(x[k]['p50'],x[k]['p99'])
print('load %s: ok %d err %d %.2f req/s %.0f tok/s ITL p50 %.1f p90 %.1f p99 %.1f ratio %.2f TTFT %s TPOT %s E2E %s'%(sys.argv[1],x['num_success'],x['num_error'],x['req_per_s'],x['tok_per_s'],i['p50'],i['p90'],i['p99'],i['p99']/i['p50'],f('ttft_ms'),f('tpot_ms'),f('e2e_ms')))
open('/tmp/amx3-rate','w').write('%.2f'%(0.8*x['req_per_s']))
P
}
SEC=${SEC:-18}
load capacity "" ${CAPN:-100} 5 0; RATE=$(cat /tmp/amx3-rate); N=$(python3 -c "print(int($RATE*$SEC))"); echo "rate $RATE, $N requests"
for s in 0 64 32 16 ${MORE-24 48}; do [ $s = 0 ] && a="" || a="--prefill-max-tokens $s"; [ $(($(date +%s) - B)) -gt ${LAST:-238} ] || load max$s "$a" $N $RATE 1; done; at load
tail -3 $O/err.txt 2>/dev/null; tar cJf ${OUT:-/tmp}/amx3-one.tar.xz -C /tmp amx3-log; at end
