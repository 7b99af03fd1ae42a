#!/usr/bin/env python3
"""Encoding speed against Hugging Face `tokenizers`, one thread each, in one run.

    python3 tools/bench_tokenizer.py MODEL_DIR FILE [--ours "build/roseinfer bench tokenizer"]
                                     [--rounds 5] [--chunk-bytes 4096] [--json]

Each round runs both, one after the other, on the same texts (FILE cut at line ends into texts of
about --chunk-bytes), with a cold cache on our side; the ratio is taken within the round and its
median and range printed. The token counts must agree (parity.py compares the ids). For `tokenizers` we take the faster of
encode() per text and encode_batch_fast() with parallelism off.

Needs: pip install tokenizers (and transformers for a folder without tokenizer.json).
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers
from tokenizers import Tokenizer


def load(folder):
    path = os.path.join(folder, "tokenizer.json")
    if os.path.exists(path):
        return Tokenizer.from_file(path)
    files = os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")
    tok = tokenizers.ByteLevelBPETokenizer(*files)._tokenizer
    tok.add_special_tokens(["<|endoftext|>"])  # as every GPT-2 folder has it
    return tok


def chunks(data, size):
    """The texts that `bench tokenizer` cuts: up to the first line end at or after size bytes."""
    out, at = [], 0
    while at < len(data):
        end = len(data)
        if size and end - at > size:
            nl = data.find(b"\n", at + size)
            end = nl + 1 if nl >= 0 else end
        out.append(data[at:end].decode())
        at = end
    return out


def theirs(tok, texts):
    start = time.perf_counter()
    n = sum(len(tok.encode(t, add_special_tokens=False).ids) for t in texts)
    single = time.perf_counter() - start
    start = time.perf_counter()
    batch = tok.encode_batch_fast(texts, add_special_tokens=False)
    return n, min(single, time.perf_counter() - start), sum(len(e.ids) for e in batch)


def ours(command, folder, path, chunk):
    out = subprocess.run(command + [folder, "--file", path, "--chunk-bytes", str(chunk), "--repeats", "1", "--json"],
                         check=True, capture_output=True, text=True).stdout
    result = json.loads(out)
    return result["tokens"], result["repeats"][0]["encode_ns"] * 1e-9, result["round_trip"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--ours", default="build/roseinfer bench tokenizer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunk-bytes", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with open(args.file, "rb") as f:
        data = f.read()
    texts, tok, command = chunks(data, args.chunk_bytes), load(args.model), shlex.split(args.ours)
    rounds = []
    for i in range(args.rounds):
        n_theirs, s_theirs, n_batch = theirs(tok, texts)
        n_ours, s_ours, same = ours(command, args.model, args.file, args.chunk_bytes)
        if n_ours != n_theirs or n_batch != n_theirs:
            sys.exit(f"token counts differ: ours {n_ours}, theirs {n_theirs}")
        rounds.append({"ours_mb_s": len(data) / s_ours / 1e6, "theirs_mb_s": len(data) / s_theirs / 1e6,
                       "ratio": s_theirs / s_ours})
        if not args.json:
            r = rounds[-1]
            print(f"round {i + 1}: ours {r['ours_mb_s']:.1f} MB/s, tokenizers {r['theirs_mb_s']:.2f} MB/s, "
                  f"ratio {r['ratio']:.1f}", flush=True)
    ratios = [r["ratio"] for r in rounds]
    result = {"bytes": len(data), "tokens": n_ours, "texts": len(texts), "round_trip": same,
              "tokenizers": tokenizers.__version__, "rounds": rounds,
              "ratio_median": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{len(data)} bytes, {n_ours} tokens; tokenizers {tokenizers.__version__}; ours / theirs: median "
              f"{result['ratio_median']:.1f}, from {result['ratio_min']:.1f} to {result['ratio_max']:.1f}")


main()
