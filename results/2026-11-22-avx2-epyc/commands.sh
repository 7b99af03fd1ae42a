# Two cores of an EPYC (Zen 3: AVX2, no AVX-512), 2026-11-22. BEFORE: c62d950. G: `roseinfer random-model G --dtype BF16`.
# kernels.txt
roseinfer bench kernels --device cpu --max-rows 512 --repeats 7
# int8_products.txt: matmul_avx2.c and vec_avx2.h of before and of now, linked into one program
F="-std=c11 -O2 -mavx2 -mfma -mf16c -DNDEBUG -D_GNU_SOURCE -ffp-contract=off -fno-strict-aliasing -fPIC"
gcc $F -I$BEFORE/src -Drose_matmul_f32_avx2=a -Drose_matmul_bf16_avx2=b -Drose_matmul_i8_avx2=before_i8 -c $BEFORE/src/backend/cpu/matmul_avx2.c -o before.o
gcc $F -Isrc -Drose_matmul_f32_avx2=c -Drose_matmul_bf16_avx2=d -Drose_matmul_i8_avx2=after_i8 -c src/backend/cpu/matmul_avx2.c -o after.o
gcc -O3 -D_GNU_SOURCE -DBEFORE=before_i8 -DAFTER=after_i8 -Isrc results/2026-11-22-avx2-epyc/two_products.c before.o after.o build/librose_all.a \
    $(make -pn 2>/dev/null | sed -n 's/^STATIC_LIBS := //p') -ldl -lm -pthread && ./a.out
# bf16_products.txt: the same with -DBEFORE=b -DAFTER=d (one code, twice)
# int8_engine.txt: the two programs in turn, three rounds of
roseinfer bench offline G --device cpu --quantization int8 --num-prompts N --max-batch-size N --input-len 256 --output-len 64 --warmup 1 --repeats 1 --temperature 0
# peers.json, tables.md: $L, $V, $C as in results/2026-11-21-peers-epyc/commands.sh (llama-cpp-python 0.3.36 built natively: AVX2, FMA, F16C;
# torch 2.15.0, transformers 5.23.0); int8-now is int8 after the last change here, with llama-q8_0 once more beside it
P="tools/peers results/2026-11-22-avx2-epyc --threads 2 --tokenizer T --llama-python $V --transformers-python $V --kinds offline"
$P --llama-convert "$C" --rivals llama-bf16,llama-q8_0,transformers-f32 --ours bf16= --ours 'int8=--quantization int8' --ours 'f32=--dtype float32' --streams 1,8 --rounds 2
$P --llama-convert "$C" --rivals llama-bf16,llama-q8_0,transformers-f32 --ours bf16= --ours 'int8=--quantization int8' --ours 'f32=--dtype float32' --streams 32
$P --rivals llama-q8_0 --ours 'int8-now=--quantization int8' --streams 1,8 --rounds 2
$P --rivals llama-q8_0 --ours 'int8-now=--quantization int8' --streams 32
# sampler.txt: before (b480aa5) and after (36bc22a), each with its own librose_all.a of `make CUDA=0`
gcc -O2 -D_GNU_SOURCE -Isrc -Iinclude results/2026-11-22-avx2-epyc/sampler.c build/librose_all.a -l:libevent_core.a -l:libevent_pthreads.a -l:libjansson.a -lm -pthread && ./a.out
