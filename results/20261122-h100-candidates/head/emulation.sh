#!/bin/sh
# linear_head.cuh's kernel, a CPU thread for each of a block's threads, in one or two blocks (so that a warp has several
# tiles), against exact sums: values are small multiples of 1/8, so every order of additions gives the same fp32.
# From the repository's root: sh results/20261122-h100-candidates/head/emulation.sh -> "121 cases, 0 fail"
set -eu
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
sed -n '/^enum {/,/^\/\* ---- launchers/p' src/backend/cuda/linear_head.cuh | sed -e '/^\/\* ---- launchers/d' \
    -e 's/extern __shared__ __align__(128) uint4 rows\[\];.*/uint4 *rows = g_rows;/' \
    -e 's/__shared__ uint64_t arrived\[HEAD_CHUNKS\];/uint64_t *arrived = g_arrived;/' \
    -e 's/__shared__ unsigned long long keys\[HEAD_WARPS\]\[MT \* SIDES \* 8\];/auto keys = reinterpret_cast<unsigned long long (*)[MT * SIDES * 8]>(g_keys);/' \
    -e 's/static __global__ void __launch_bounds__(HEAD_WARPS \* 32, HEAD_BLOCKS)/static void/' > "$T/head.inc"
g++ -std=c++20 -O2 -I"$T" results/20261122-h100-candidates/head/emulation.cpp -o "$T/emulation" -pthread
"$T/emulation"
