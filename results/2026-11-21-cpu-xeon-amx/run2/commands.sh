#!/bin/bash
export LD_LIBRARY_PATH=$PWD/build ROSE_ROOT=$PWD
D=build
mkdir -p build tools2; cp $D/roseinfer build/roseinfer
lscpu > $OUT/lscpu.txt
( for i in scalar avx2 avx512 amx; do /usr/bin/time -f "$i %e s" timeout 120 stdbuf -oL $D/test_kernels --isa $i > $OUT/test_kernels_$i.log 2>&1; echo "test_kernels $i rc=$?: $(tail -2 $OUT/test_kernels_$i.log | tr '\n' ' ')"; done ) > $OUT/k.txt 2>&1 &
K=$!
for t in test_cpu_model test_golden test_engine_cpu; do timeout 100 $D/$t > $OUT/$t.log 2>&1; echo "$t rc=$?"; grep -E "levels|PASSED|FAILED" $OUT/$t.log | head -4; done
wait $K; cat $OUT/k.txt
$D/roseinfer random-model /tmp/g --dtype BF16
run() { taskset -c $1 $D/roseinfer bench offline /tmp/g --isa $2 --num-prompts $3 --max-batch-size $3 --output-len 64 --repeats 3 --warmup 1 $5 2>$OUT/err > $OUT/offline_$4_$2_$3.json; echo "$4 $2 $3: $(tail -1 $OUT/err)"; }
for s in 1 8 64; do run 0,2 amx $s 2cores; done
for s in 1 8 64; do run 0-15 amx $s 16cpus; done
sed -i 's#"..", "build"#"..", "build"#' $D/start_time
for m in models/rose-tiny /tmp/g; do taskset -c 0,2 python3 tools/start_time $m 10 > $OUT/start_$(basename $m).json; grep -E "median|resident|idle" $OUT/start_$(basename $m).json; done
taskset -c 0,2 $D/roseinfer bench scheduler > $OUT/scheduler.json; head -c 1500 $OUT/scheduler.json
tar cf $OUT/all.tar -C $OUT $(ls $OUT | grep -v all.tar); find $OUT -type f ! -name all.tar -delete
