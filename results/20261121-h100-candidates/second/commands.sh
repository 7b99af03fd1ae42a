at tests
T=60 job mega.crowd $G/mega/test_cuda_model test_crowd; T=60 job mega1.crowd $G/mega1/test_cuda_model test_crowd
T=60 job ends.kernels $G/ends/test_cuda_kernels
T=60 job mega.ways $G/mega/test_cuda_model test_ways; T=60 job mega1.ways $G/mega1/test_cuda_model test_ways
for t in "" late=2 slots=2 parts=3 from=33,parts=4,slots=2,w48=1; do for k in every_batch_size ways same_bits; do job halves.$k."$t" env ROSE_CUDA_TRY=$t $G/halves/test_cuda_model test_$k; done; done
job mega.ahead $G/mega/test_cuda_ahead; job mega.mega $G/mega/test_cuda_model test_megakernel; job halves.attention $G/halves/test_cuda_attention
wait
sort $O/tests.txt | grep -v "rc=0 "; echo "tests: $(grep -c 'rc=0 ' $O/tests.txt) of $(wc -l < $O/tests.txt) pass"; grep -h "FAILED  \]\|fail_msg\|differ\|rror:" $O/test.*.log | sort | uniq -c | sort -rn | head -8
at "steps mega"
for n in 2 4 8; do for p in mega mega1; do steps $p.$n $p 288:decode=$n "" crowd; done; done; steps base.8 base 288:decode=8 ""; for p in mega mega1; do steps $p.1k $p 1000:decode=8 "" crowd; done; steps mega.1 mega 288:decode=1 ""; steps base.1 base 288:decode=1 ""
at "steps halves"
steps h.128 halves 288:decode=128 @from=999 @ @late=2 @slots=2 @grid=112 @parts=3 @parts=3,slots=2,w48=1 @from=999,list=1 @noatt=1 @from=999,noatt=1
steps h.256 halves 288:decode=256 @from=999 @ @late=2 @slots=2 @grid=112 @parts=3 @parts=3,slots=2,w48=1 @parts=4,slots=2,w48=1 @from=999,list=1 @noatt=1 @from=999,noatt=1
for n in 80 96 112 192; do steps h.$n halves 288:decode=$n @from=999 @ @parts=3,slots=2,w48=1; done
for n in 64 32; do for r in 1 2; do steps h.$n.$r halves 288:decode=$n @; steps base.$n.$r base 288:decode=$n ""; done; done
for n in 128 256; do ROSE_STEPS_MIXED=1 steps mixed.$n halves 576:decode=$n @from=999 @ @parts=3,slots=2,w48=1; done
at ends
LIB=$(python3 -c 'import glob, sys
print(next((f for p in sys.path for f in sorted(glob.glob(p + "/nvidia/*/lib/libcublasLt.so.1[23]"), reverse=True)), ""))')
for k in wide-192 wide-192-ends wide-96 wide-96-ends; do timeout 50 $G/ends/roseinfer bench kernels --device cuda --max-rows 32768 --repeats 5 --kernel $k --json ${LIB:+--library "$LIB"} > $O/ends.$k.json 2> $O/ends.$k.err || tail -1 $O/ends.$k.err; done
python3 - $O <<'P'
import json,sys
d={}
for k in ('wide-192','wide-192-ends','wide-96','wide-96-ends'):
    try: j=json.load(open(f'{sys.argv[1]}/ends.{k}.json'))
    except Exception as e: print(k,e); continue
    for p in j['products']: d.setdefault((p['matrix'],p['rows']),{})[k]=(p['own_us'],p['library_us'],p.get('library_same_us'))
for m in d:
    if m[1]>=256: print('%-5s %6d '%m+'  '.join('%s %.2f'%(k,v[0]) for k,v in d[m].items()),' lib %.2f same %s'%(list(d[m].values())[0][1],list(d[m].values())[0][2]))
P
