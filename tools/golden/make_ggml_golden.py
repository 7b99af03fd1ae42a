#!/usr/bin/env python3
"""Write tests/golden/ggml-blocks.bin: random blocks of every quantized type that roseinfer reads,
and their values as the `gguf` package dequantises them.

The file is a sequence of records, all little-endian: the number of the type in GGUF, the bytes of
the blocks, the number of values (three uint32), then the blocks, then the values as fp32.

usage: make_ggml_golden.py [OUTPUT]      (needs gguf and numpy, see requirements.txt)
"""
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

# Offsets of the fp16 factors in a block; every other byte may have any value.
FACTORS = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2],
           T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
VALUES = 512


def random_blocks(rng, kind):
    size, n_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (VALUES // size, n_bytes), dtype=np.uint8)
    for at in FACTORS[kind]:
        factors = (rng.standard_normal(len(blocks)) * 2.0 ** rng.integers(-20, 8, len(blocks)))
        blocks[:, at:at + 2] = factors.astype("<f2").view(np.uint8).reshape(-1, 2)
    blocks[-1, FACTORS[kind][0]:FACTORS[kind][0] + 2] = [1, 0]  # the smallest subnormal
    return blocks


def main():
    rng = np.random.default_rng(20261124)
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/ggml-blocks.bin"
    with open(path, "wb") as out:
        for kind in FACTORS:
            blocks = random_blocks(rng, kind)
            values = dequantize(blocks, kind).astype("<f4").reshape(-1)
            out.write(struct.pack("<III", int(kind), blocks.size, values.size))
            out.write(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
