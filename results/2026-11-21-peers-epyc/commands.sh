# What was run, piece by piece on a machine that had nothing else to do meanwhile; peers.json holds every command that came of it.
# $L: llama.cpp as llama-cpp-python 0.3.36 ships it (0.5.0-dev), built by `cmake -DCMAKE_BUILD_TYPE=Release`: GGML_NATIVE, GGML_LLAMAFILE,
# GGML_OPENMP, GGML_CPU_REPACK on; system_info: AVX512 = 1, AVX512_VBMI = 1, AVX512_VNNI = 1, AVX512_BF16 = 1, LLAMAFILE = 1, OPENMP = 1,
# REPACK = 1. $V: an environment with llama-cpp-python 0.3.36, the same flags. $T: one with torch 2.15.0, transformers 5.23.0.
# $G: a folder with GPT-2's vocab.json and merges.txt.
P="tools/peers results/2026-11-21-peers-epyc --threads 2 --tokenizer $G --llama-server $L/b/bin/llama-server --llama-python $V/bin/python \
 --transformers-python $T/bin/python"
C="$T/bin/python $L/convert_hf_to_gguf.py"
$P --llama-convert "$C" --kinds offline --streams 1,2,4,8 --repeats 2
$P --llama-convert "$C" --kinds offline --streams 16,32
$P --llama-convert "$C" --kinds offline --streams 64
$P --llama-convert "$C" --kinds online --streams 1,2,4,8
$P --llama-convert "$C" --kinds online --streams 16,32,64 --waves 1.5
# BF16: this program merged with the branch of the level avx512-bf16.
$P --bin $BF16 --rivals= --ours 'avx512-bf16=--isa avx512-bf16' --kinds offline
$P --bin $BF16 --rivals llama-bf16 --ours 'avx512-bf16=--isa avx512-bf16' --ours bf16= --kinds online --streams 64 --waves 1.5
$P --bin $BF16 --rivals= --ours 'avx512-bf16=--isa avx512-bf16' --kinds online --streams 1,2,4,8
$P --bin $BF16 --rivals= --ours 'avx512-bf16=--isa avx512-bf16' --kinds online --streams 16,32 --waves 1.5
# start/1.json to 8.json: bf16, int8, llama bf16, llama q8_0, twice, five starts each
build/roseinfer bench start MODEL --roseinfer-args '--threads 2'
build/roseinfer bench start MODEL --roseinfer-args '--threads 2 --quantization int8'
build/roseinfer bench start MODEL --backend llama --llama-cmd $L/b/bin/llama-server --llama-model MODEL-bf16.gguf \
 --llama-args '-t 2 -np 1 -c 512 --cache-ram 0'
