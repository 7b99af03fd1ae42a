#!/usr/bin/env python3
"""bench/rivals without a GPU: `test_rivals.py BINARY MODEL`; closes with `N passed, N failed`.

Our own server on the CPU stands in for the rivals. The loads are tiny, so the figures say nothing; what is checked is that
each cell is measured once for each server, that a second call goes on where the first one stopped, what happens to servers
that fail, and that differing answers are counted.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RIVALS = os.path.join(ROOT, "bench", "rivals")
sys.path.insert(0, RIVALS)
sys.dont_write_bytecode = True
import fleet  # noqa: E402
import results as report  # noqa: E402

BIN, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CELLS, VARIANT_CELLS = ("closed-16", "trace-0.4", "offline-128"), ("closed-16", "offline-128")
passed = failed = 0

# Answers differ from the second time on that the same request comes: the first time it comes alone.
FICKLE = """import http.server, json, sys
asked = {}
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body):
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self): self.reply(b"{}")
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        n, again = json.loads(text)["max_tokens"], asked.setdefault(text, [])
        again.append(1)
        ids = list(range(n))
        if len(again) > 1: ids[3] += 1
        self.reply(json.dumps({"choices": [{"token_ids": ids}]}).encode())
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def check(name, ok, detail=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:3000]}"), flush=True)


def script(name):
    """A program of bench/rivals as a module."""
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(RIVALS, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def run(out, *options, vllm=None, cells=CELLS):
    """One call with stand-ins; returns it and rivals.json."""
    stand_in = f"{shlex.quote(BIN)} serve {{model}} --port {{port}} --device cpu --served-model-name model --threads 1"
    p = subprocess.run([sys.executable, os.path.join(RIVALS, "run"), out, "--model", MODEL, "--rivals", "vllm,sglang", "--quick",
                        "--program", BIN, "--device", "cpu", "--work", out + ".work", "--repeats", "2", "--cells", ",".join(cells),
                        "--command", f"vllm={vllm or stand_in}", "--command", f"sglang={stand_in}", *options],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return p.stdout, p.returncode, read(out)


def read(out):
    path = os.path.join(out, "rivals.json")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def keys(data):
    return sorted((r["server"], r["cell"], r["repeat"]) for r in data["rows"] if "+inproc" not in r["server"])


def seed(row):
    words = shlex.split(row["command"])
    return words[words.index("--seed") + 1]


def lives(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return fleet.stat_of(pid)[0] != "Z"
    except OSError:
        return False


def wanted(repeats):
    return sorted([(s, c, r) for s in ("roseinfer", "vllm", "sglang") for c in CELLS for r in range(repeats)] +
                  [(s + "+deterministic", c, r) for s in ("vllm", "sglang") for c in VARIANT_CELLS for r in range(repeats)])


def test_whole(tmp):
    out = os.path.join(tmp, "whole")
    said, rc, data = run(out)
    check("exit code 0 and no failure", rc == 0 and data["failures"] == [], (said, data and data["failures"]))
    check("each server once in each of its cells and repeats", keys(data) == wanted(2), keys(data))
    for cell in CELLS:
        seeds = {r: {seed(x) for x in data["rows"] if (x["cell"], x["repeat"]) == (cell, r) and "+inproc" not in x["server"]} for r in (0, 1)}
        check(f"{cell}: the same prompts for all servers", all(len(s) == 1 for s in seeds.values()), seeds)
        order = [[x["server"] for x in data["rows"] if (x["cell"], x["repeat"]) == (cell, r) and "+inproc" not in x["server"]] for r in (0, 1)]
        check(f"{cell}: turns are reversed", order[0] == order[1][::-1] and order[0][0] == "roseinfer", order)
    used = [(r["cell"], r["repeat"], seed(r)) for r in data["rows"] if r["server"] == "vllm"]
    check("other prompts in each cell and repeat", len({s for _, _, s in used}) == len(used), used)
    online = [r for r in data["rows"] if "tok_per_s" in r]
    check("tokens are counted, none is missing", all(r["itl_counts_tokens"] and r["num_error"] == r["num_short"] == 0 for r in online))
    check("CPU time of the servers", all(r["server_cpu_s"] >= 0 for r in online) and sum(r["server_cpu_s"] for r in online) > 0)
    check("the engine in process too", [r["cell"] for r in data["rows"] if r["server"] == "roseinfer+inproc"] == ["offline-128"])
    check("command lines of all servers", all(MODEL in s["argv"] and s["settings"]["kv_tokens"] for s in data["servers"]))
    check("the deterministic mode's environment", {"VLLM_BATCH_INVARIANT": "1"} in [s["env"] for s in data["servers"]])
    side = [s for s in data["servers"] if s["started_beside"]]
    check("five side by side, idle CPU and memory known", len(side) == 5 and all(s["idle_cpu_s_per_s"] < 1 and s["host_bytes"] > 1e6 for s in side), side)
    check("starts alone", [s["server"] for s in data["servers"] if not s["started_beside"]] == ["roseinfer"] * 2 + ["vllm", "sglang"])
    check("all answers are equal under load", len(data["answers"]) == 10 and all(a["differ"] == 0 and a["asked"] == 8 for a in data["answers"]),
          data["answers"])
    check("the table is said", "### rose-tiny: ours against theirs" in said, said)
    if shutil.which("gnuplot"):
        for f in ("online/figures/online_latency_compare.png", "offline-128/figures/offline_throughput_compare.png"):
            check(f, os.path.getsize(os.path.join(out, "pictures", "rose-tiny", f)) > 0)
    again = run(out)[2]
    check("a second call measures nothing again", len(again["rows"]) == len(data["rows"]) and len(again["answers"]) == 10, len(again["rows"]))
    again["rows"] = [r for r in again["rows"] if (r["server"], r["cell"], r["repeat"]) != ("vllm+deterministic", "closed-16", 1)]
    with open(os.path.join(out, "rivals.json"), "w", encoding="utf-8") as f:
        json.dump(again, f)
    said, rc, third = run(out)
    new = [(r["server"], r["cell"], r["repeat"]) for r in third["rows"] if r["session"] == third["sessions"][-1]["session"]]
    check("a missing cell is measured beside ours and the engine's default",
          sorted(new) == [(s, "closed-16", 1) for s in ("roseinfer", "vllm", "vllm+deterministic")], new)
    check("the table says that it joins sessions", "joined from several sessions" in said, said)


def test_failures(tmp):
    out = os.path.join(tmp, "failures")
    _, rc, data = run(out, "--variants", "none", "--phases", "cells", vllm="sh -c 'echo boom; exit 3'", cells=("closed-16",))
    first = data["failures"][0]
    check("a rival that ends: exit code 1, its code and log are kept",
          rc == 1 and "ended with 3" in first["error"] and first["log_tail"] == ["boom"] and first["what"] == "rose-tiny: start of vllm", data["failures"])
    check("the others are measured", keys(data) == [(s, "closed-16", r) for s in ("roseinfer", "sglang") for r in (0, 1)], keys(data))
    wrong = f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1 {{port}} --directory {shlex.quote(tmp)}"
    open(os.path.join(tmp, "health"), "w").close()
    _, rc, data = run(os.path.join(tmp, "wrong"), "--variants", "none", "--phases", "cells", vllm=wrong, cells=("closed-16",))
    what = [f["what"] for f in data["failures"]]
    check("a server that cannot answer fails its cells only", rc == 1 and what == [f"rose-tiny: vllm closed-16 repeat {r}" for r in (0, 1)] and
          len(data["rows"]) == 4, (what, keys(data)))
    said, rc, data = run(os.path.join(tmp, "short"), "--budget-s", "10")
    check("without time nothing is begun, and the call says what is left", rc == 1 and data["rows"] == [] and "call again for the rest of" in said, said)


def test_answers(tmp):
    fickle = os.path.join(tmp, "fickle.py")
    with open(fickle, "w", encoding="utf-8") as f:
        f.write(FICKLE)
    _, _, data = run(os.path.join(tmp, "answers"), "--variants", "none", "--phases", "answers",
                     vllm=f"{shlex.quote(sys.executable)} {shlex.quote(fickle)} {{port}}")
    got = {(a["server"], a["kind"]): (a["differ"], a["first_difference_at_token"]) for a in data["answers"]}
    check("differing answers are counted, with their place", all(got["vllm", k] == (8, [3] * 8) for k in ("greedy", "seeded")), got)
    check("equal ones are not", all(got[s, k] == (0, []) for s in ("roseinfer", "sglang") for k in ("greedy", "seeded")), got)


class Asked:
    """A server that notes what it is asked."""

    def __init__(self, speaks, reply):
        self.speaks, self.reply = speaks, reply

    def ask(self, method, path, body, timeout):
        self.path, self.body = path, body
        return 200, json.dumps(self.reply).encode()


def test_dialects(tmp):
    answer = script("run").answer
    s = Asked("generate", {"text": "x", "output_ids": [4, 5]})
    check("SGLang gives ids by /generate", answer(s, [1, 2, 3], 2, None) == [4, 5] and s.path == "/generate", s.body)
    check("its greedy request", s.body == {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True, "temperature": 0}}, s.body)
    answer(s, [1, 2, 3], 2, 9)
    p = s.body["sampling_params"]
    check("its seed has another name", p["sampling_seed"] == 9 and "seed" not in p and p["top_k"] == 50, p)
    v = Asked("completions", {"choices": [{"token_ids": [4, 5]}]})
    check("ours and vLLM by /v1/completions", answer(v, [1], 2, 9) == [4, 5] and v.path == "/v1/completions" and v.body["seed"] == 9 and
          v.body["return_token_ids"] and v.body["prompt"] == [1], v.body)
    try:
        answer(v, [1], 3, None)
        check("an answer of another length is an error", False)
    except OSError as e:
        check("an answer of another length is an error", "2 tokens of 3" in str(e), e)
    equal = {"model": "m", "dtype": "bfloat16", "context": 4096, "max_num_seqs": 256, "kv_tokens": 1600, "kv_bytes": 160000, "prefix_cache": "off"}
    words = {e: fleet.server_words(e, equal, 1234) for e in ("roseinfer", "vllm", "sglang")}
    after = {e: (lambda flag, w=w: w[w.index(flag) + 1]) for e, w in words.items()}
    check("equal settings under each engine's names",
          [after[e](f) for e, f in (("roseinfer", "--num-kv-pages"), ("vllm", "--kv-cache-memory-bytes"), ("sglang", "--max-total-tokens"))] ==
          ["100", "160000", "1600"] and all(after[e]("--dtype") == "bfloat16" for e in words) and
          [w[-1] for w in words.values()] == ["--no-prefix-cache", "--no-enable-prefix-caching", "--disable-radix-cache"], words)


def test_kept(tmp):
    out = os.path.join(tmp, "kept")
    options = ("--variants", "none", "--phases", "cells")
    data = run(out, *options, "--keep-servers", cells=("closed-16",))[2]
    pids = [a["pid"] for a in data["alive"].values()]
    check("the servers are left running", len(pids) == 3 and all(map(lives, pids)), data["alive"])
    said, rc, data = run(out, *options, "--repeats", "3", cells=("closed-16",))
    check("the next call goes on with them", said.count("is still running") == 3 and len(data["sessions"]) == 1 and len(data["rows"]) == 9, said)
    check("and stops them", rc == 0 and data["alive"] == {} and not any(map(lives, pids)), pids)


def fatbin(entries):
    """A CUDA fatbin: entries of kind (1 PTX, 2 cubin), architecture and code."""
    body = b"".join(struct.pack("<HHIQIIIIQ", kind, 1, 64, len(code), 0, 0, 0, arch, 0).ljust(64, b"\0") + code for kind, arch, code in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_trim(tmp):
    prepare = script("prepare")
    kernels = {a: (b"name_%d_" % a) * 16 for a in (80, 90, 100)}
    path = os.path.join(tmp, "lib.so")
    data = b"head" + fatbin([(2, 80, kernels[80]), (2, 90, kernels[90]), (1, 90, b"ptx90___" * 8)]) + b"middle" + \
        fatbin([(2, 100, kernels[100]), (1, 80, b"ptx80___" * 8)]) + b"tail"
    with open(path, "wb") as f:
        f.write(data)
    prepare.trim(path, 90)
    with open(path, "rb") as f:
        got = f.read()
    check("trim keeps sm_90, and PTX only where there is no sm_90",
          len(got) == len(data) and got.count(kernels[90]) == 1 and b"ptx80" in got and not any(x in got for x in (b"name_80", b"name_100", b"ptx90")))
    check("and what is not GPU code", all(x in got for x in (b"head", b"middle", b"tail")))
    with open(path, "wb") as f:
        f.write(fatbin([(2, 90, b"wanted" * 8), (2, 90, b"other_" * 8)]))
    prepare.trim(path, 90, keep="wanted")
    with open(path, "rb") as f:
        got = f.read()
    check("trim by the names of kernels", b"wanted" in got and b"other_" not in got)
    try:
        prepare.trim(path, 90, keep="gone")
        check("a wheel whose kernels changed is refused", False)
    except SystemExit as e:
        check("a wheel whose kernels changed is refused", "nothing for sm_90 is left" in str(e))


def test_packs(tmp):
    prepare, work = script("prepare"), os.path.join(tmp, "packer")
    os.makedirs(os.path.join(work, "own"))
    content = os.urandom(300000)
    with open(os.path.join(work, "own", "roseinfer"), "wb") as f:
        f.write(content)
    o = argparse.Namespace(work=work, out=os.path.join(tmp, "packs"), part_mb=0.1, jobs=1)
    prepare.pack(o, "own", "own")
    parts = sorted(os.listdir(o.out))
    check("a pack is cut into parts", parts == [f"own.txz.0{i}" for i in range(4)], parts)
    to = argparse.Namespace(packs=o.out, work=os.path.join(tmp, "unpacked"))
    os.makedirs(to.work)
    fleet.unpack(to)
    with open(os.path.join(to.work, "own", "roseinfer"), "rb") as f:
        check("and comes back whole", f.read() == content)
    os.unlink(os.path.join(o.out, "own.txz.03"))
    shutil.rmtree(to.work)
    os.makedirs(to.work)
    try:
        fleet.unpack(to)
        check("a missing part is noticed", False)
    except SystemExit as e:
        check("a missing part is noticed", "is the last part there" in str(e))


def test_tables(tmp):
    def row(server, session, ms):
        q = {"p50": ms, "p90": 2 * ms, "p99": 3 * ms}
        return {"model": "m", "server": server, "cell": "closed-1", "repeat": 0, "session": session, "tok_per_s": 1000 / ms, "server_cpu_s": 1,
                "total_output_tokens": 100, "ttft_ms": q, "tpot_ms": q, "itl_ms": q, "e2e_ms": q}
    rows = [row("roseinfer", 0, 100), row("roseinfer", 1, 2), row("vllm", 1, 6), row("sglang", 1, 1), row("vllm+deterministic", 1, 15)]
    text = report.tables({"meta": {"cells": {"closed-1": {}}}, "rows": rows, "servers": [], "answers": [], "failures": []})
    check("a ratio is of one session", "| closed-1 | vllm | 3.00 | 3.00 | TTFT p50 | nothing |" in text, text)
    check("what a variant costs", "| closed-1 | vllm+deterministic | 0.40 | 2.50 | 2.50 |" in text, text)
    check("each lost figure is named", "| closed-1 | sglang | 0.50 | 0.50 | TTFT p50 | TTFT p50, TTFT p90, TTFT p99, TPOT p50" in text, text)


def test_groups(tmp):
    folder = os.path.join(tmp, "model")
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 32, "vocab_size": 1000}, f)
    o = argparse.Namespace(model=folder, label="model", out=tmp, work=tmp, commands={}, program=BIN, python="python3", device="cuda",
                           kv_tokens=98304, max_num_seqs=256, prefix_cache="on")  # 12 GiB of KV cache, variants 2 GiB
    fleet.gpu_memory = lambda: (81559, 0)
    names = ["roseinfer", "vllm", "sglang", "vllm+deterministic", "sglang+deterministic", "vllm+overlap-off", "sglang+overlap-off"]
    got = [[s.name for s in g] for g in fleet.groups(o, folder, names)]
    check("servers that do not fit side by side come later, each time beside ours", got == [names[:6], ["roseinfer", names[6]]], got)
    o.kv_tokens = 400000
    try:
        fleet.groups(o, folder, names)
        check("a pair that cannot fit is refused", False)
    except SystemExit as e:
        check("a pair that cannot fit is refused", "needs about" in str(e))


def test_tokenizer(tmp):
    folder = os.path.join(tmp, "tokenizer")
    os.makedirs(folder)
    with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as f:
        json.dump({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}, f)
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\na b\n")
    t = fleet.tokenizer_json(folder, 10)
    check("a tokenizer has an entry for each id of the model", sorted(t["model"]["vocab"].values()) == list(range(10)) and
          t["model"]["merges"] == [["a", "b"]] and t["added_tokens"][0]["id"] == 3)


def main():
    for test in (test_trim, test_packs, test_tokenizer, test_groups, test_tables, test_whole, test_failures, test_answers, test_dialects, test_kept):
        with tempfile.TemporaryDirectory() as tmp:
            print(f"== {test.__name__[5:]}", flush=True)
            test(tmp)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
