#!/usr/bin/env python3
"""JSON schemas of MaskBench: this engine beside llguidance and xgrammar, in one run, with one tokenizer.

tests/grammar/maskbench.py SAMPLE TOKENIZER [--tool build/tests/tools/grammar_bench] [--engines ours,llguidance,xgrammar]
                           [--list KIND] [--json FILE]

SAMPLE: one schema a line, {"name", "schema", "tests": [{"data", "valid"}]}, as guidance-ai/jsonschemabench has them.
TOKENIZER: a folder with vocab.json and merges.txt (or encoder.json and vocab.bpe) of GPT-2. Needs `tokenizers`,
`jsonschema-rs`, `llguidance` and `numpy` from PyPI, and `xgrammar` with its dependencies for the third engine.

An instance is written as the benchmark does: json.dumps(data, ensure_ascii=False). A schema is passed if it compiles and
each instance is judged as jsonschema-rs judges it; refused if it does not compile; wrong otherwise. All masks are computed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import jsonschema_rs
import numpy
import tokenizers


def load(path, tok):
    jobs, differ, unjudged = [], 0, 0
    for line in open(path, encoding="utf-8"):
        job = json.loads(line)
        try:
            judge = jsonschema_rs.validator_for(job["schema"], validate_formats=True)
        except Exception:  # a reference to the network, for example: the file's word counts
            judge = None
        for test in job["tests"]:
            test["text"] = json.dumps(test["data"], ensure_ascii=False)
            test["ids"] = tok.encode(test["text"]).ids
            test["want"] = judge.is_valid(test["data"]) if judge else test["valid"]
            differ += test["want"] != test["valid"]
        unjudged += judge is None
        jobs.append(job)
    print(f"{len(jobs)} schemas, {sum(len(j['tests']) for j in jobs)} instances; "
          f"jsonschema-rs differs from the file in {differ} and refuses {unjudged} schemas")
    return jobs


def ours(jobs, args, folder):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
        for job in jobs:
            f.write(json.dumps({"name": job["name"], "schema": job["schema"],
                                "tests": [t["ids"] for t in job["tests"]]}) + "\n")
        f.flush()
        run = subprocess.run([args.tool, folder, f.name] + ["ordered"] * args.schema_order, capture_output=True, text=True)
    lines = [json.loads(x) for x in run.stdout.splitlines()]
    if lines:
        print(f"ours: vocabulary {lines[0]['vocabulary_ns'] / 1e6:.0f} ms")
    if run.returncode != 0:
        print("ours: crashed:", run.stderr[-2000:])
    return [{"error": x.get("error"), "compile": x.get("compile_ns", 0) / 1e3, "first": x.get("first_ns", 0) / 1e3,
             "allowed": x.get("allowed", []), "masks": [n / 1e3 for n in x.get("mask_ns", [])],
             "bytes": x.get("bytes", 0), "failed": x.get("failed")} for x in lines[1:]]


def with_matcher(jobs, make, mask, take, ends):
    """Runs an engine of Python: make(schema) -> a function that gives a new matcher."""
    out = []
    for job in jobs:
        got = {"error": None, "allowed": [], "masks": [], "first": 0}
        start = time.perf_counter()
        try:
            fresh = make(job["schema"])
            got["compile"] = (time.perf_counter() - start) * 1e6
            mask(fresh())
            got["first"] = (time.perf_counter() - start) * 1e6
            for test in job["tests"]:
                m, ok = fresh(), True
                for i in test["ids"]:
                    start = time.perf_counter()
                    ok = take(m, mask(m), i)
                    got["masks"].append((time.perf_counter() - start) * 1e6)
                    if not ok:
                        break
                got["allowed"].append(ok and ends(m))
        except Exception as e:  # an engine says in its own way that it does not take a schema
            got["error"] = f"{type(e).__name__}: {e}"
            got.setdefault("compile", (time.perf_counter() - start) * 1e6)
        out.append(got)
    return out


def llguidance_engine(jobs, tok):
    import llguidance
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
    tokenizer = llguidance.LLTokenizer(tok.to_str(), n_vocab=tok.get_vocab_size())
    bits = allocate_token_bitmask(1, tokenizer.vocab_size)

    def make(schema):
        first = llguidance.LLMatcher(tokenizer, json.dumps({"grammars": [{"json_schema": schema}]}))
        if first.is_error():
            raise ValueError(first.get_error())
        return first.deep_copy

    def mask(m):
        fill_next_token_bitmask(m, bits, 0)

    def take(m, _, i):
        ok = bool(bits[0, i // 32] >> (i % 32) & 1)
        if ok:
            m.consume_token(i)
        if m.is_error():
            raise ValueError(m.get_error())
        return ok

    return with_matcher(jobs, make, mask, take, lambda m: m.is_accepting())


def xgrammar_engine(jobs, tok):
    import xgrammar
    vocab = [None] * tok.get_vocab_size()
    for text, i in tok.get_vocab().items():
        vocab[i] = text
    info = xgrammar.TokenizerInfo(vocab, vocab_type=xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[len(vocab) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def make(schema):
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        return lambda: xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=False)

    def mask(m):
        m.fill_next_token_bitmask(bits)

    def take(m, _, i):
        ok = bool(int(bits[0, i // 32]) >> (i % 32) & 1)
        return ok and m.accept_token(i)

    def ends(m):
        m.fill_next_token_bitmask(bits)
        i = len(vocab) - 1
        return bool(int(bits[0, i // 32]) >> (i % 32) & 1)

    return with_matcher(jobs, make, mask, take, ends)


def at(values, q):
    return numpy.percentile(values, q) if len(values) else 0


def judge(jobs, got):
    kinds = {"passed": [], "refused": [], "wrong": []}
    rejects = accepts = 0
    for job, g in zip(jobs, got):
        bad = [i for i, t in enumerate(job["tests"]) if not g["error"] and (i >= len(g["allowed"]) or g["allowed"][i] != t["want"])]
        rejects += sum(job["tests"][i]["want"] for i in bad)
        accepts += sum(not job["tests"][i]["want"] for i in bad)
        kind = "refused" if g["error"] else "wrong" if bad else "passed"
        kinds[kind].append((job, g, bad))
    return kinds, rejects, accepts


def report(name, jobs, got, args):
    kinds, rejects, accepts = judge(jobs, got)
    masks = [m for g in got for m in g["masks"]]
    first = [g["first"] for g in got if not g["error"]]
    compile_us = [g["compile"] for g in got if not g["error"]]
    row = {"passed": len(kinds["passed"]), "refused": len(kinds["refused"]), "wrong": len(kinds["wrong"]),
           "valid_rejected": rejects, "invalid_accepted": accepts, "missing": len(jobs) - len(got), "masks": len(masks),
           "mask_p50_us": at(masks, 50), "mask_p99_us": at(masks, 99), "mask_max_us": max(masks, default=0),
           "mask_mean_us": statistics.fmean(masks) if masks else 0, "first_mask_p50_us": at(first, 50),
           "first_mask_p99_us": at(first, 99), "compile_p50_us": at(compile_us, 50), "compile_max_us": max(compile_us, default=0)}
    print(f"{name}: " + ", ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    for job, g, bad in kinds.get(args.list, []) if name == args.list_of else []:
        print("  ", job["name"], g["error"] or "", g.get("failed") or "")
        for i in bad[:2]:
            print("      should be", job["tests"][i]["want"], ":", job["tests"][i]["text"][:300])
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("sample")
    p.add_argument("tokenizer")
    p.add_argument("--tool", default="build/tests/tools/grammar_bench")
    p.add_argument("--engines", default="ours,llguidance,xgrammar")
    p.add_argument("--list", choices=["refused", "wrong"], help="print the schemas of this kind")
    p.add_argument("--list-of", default="ours")
    p.add_argument("--schema-order", action="store_true", help="ours: properties only in the order of the schema")
    p.add_argument("--json", help="write the figures to this file")
    args = p.parse_args()
    files = [os.path.join(args.tokenizer, n) for n in ("vocab.json", "merges.txt", "encoder.json", "vocab.bpe")]
    files = files[:2] if os.path.exists(files[0]) else files[2:]
    with tempfile.TemporaryDirectory() as folder:
        for source, n in zip(files, ("vocab.json", "merges.txt")):
            os.symlink(os.path.abspath(source), os.path.join(folder, n))
        tok = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
        tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = tokenizers.decoders.ByteLevel()
        tok.add_special_tokens(["<|endoftext|>"])
        jobs = load(args.sample, tok)
        rows = {}
        for name in args.engines.split(","):
            got = ours(jobs, args, folder) if name == "ours" else globals()[name + "_engine"](jobs, tok)
            rows[name] = report(name, jobs, got, args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    ok = all(r["missing"] == 0 for r in rows.values())
    if "ours" in rows and "llguidance" in rows:
        ok = ok and rows["ours"]["passed"] > rows["llguidance"]["passed"]
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
