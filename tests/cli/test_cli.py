#!/usr/bin/env python3
"""The command line as a person uses it: `test_cli.py BINARY MODEL`; closes with `N passed, N failed`.

Every command, its --help, its errors (one clear line, exit code 1 or 2), pipes against terminals. Standard
library only.
"""
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time

BIN, MODEL = sys.argv[1], sys.argv[2]
results = {"passed": 0, "failed": 0}
COMMANDS = ["serve", "generate", "tokenize", "detokenize", "inspect", "random-model",
            "bench offline", "bench online", "bench stream", "bench ablate", "bench start", "bench plot",
            "bench merge", "bench tokenizer", "bench scheduler", "bench engine",
            "bench abuse", "bench soak"]
WITHOUT_OPTIONS = ["bench plot", "bench merge"]


def run(*args, stdin=b"", timeout=120):
    p = subprocess.run([BIN, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:2000]}"), flush=True)


def one_line_error(name, result, code, *fragments):
    rc, out, err = result
    ok = rc == code and err.count("\n") == 1 and all(f in err for f in fragments)
    check(name, ok, (rc, out, err, fragments))


def test_help():
    rc, out, err = run("--help")
    check("help lists every command", rc == 0 and all(c.split()[-1] in out for c in COMMANDS), out)
    for c in COMMANDS:
        rc, out, err = run(*c.split(), "--help")
        ok = rc == 0 and err == "" and out.startswith("Usage: ") and max(map(len, out.splitlines())) <= 100
        opts = re.findall(r"^\s+(?:-\w, )?--(?:\[no-\])?[\w-]+", out, re.M)
        check(f"{c} --help", ok and (len(opts) >= 2 or c in WITHOUT_OPTIONS), out)
        if c in WITHOUT_OPTIONS:
            continue
        defaults = [l for l in out.splitlines() if "(default" in l]
        check(f"{c} --help shows defaults", defaults != [], out)
    check("--version", re.match(r"roseinfer \d+\.\d+\.\d+ \(\S+\)\n$", run("--version")[1]) is not None)
    one_line_error("soak: no duration", run("bench", "soak", MODEL, "--duration", "5x"), 2, "--duration '5x'")
    rc, _, err = run("bench", "abuse", MODEL, "--backend", "vllm")
    check("abuse: another server than ours", rc == 1 and "--backend: one server" in err, (rc, err))
    check("no command is a usage error", run()[0] == 2)
    check("unknown command", run("surf")[0] == 2 and "unknown command 'surf'" in run("surf")[2])


def test_usage_errors():
    one_line_error("a misspelt option suggests", run("serve", MODEL, "--prot", "1"), 2, "--prot", "--port")
    one_line_error("a value out of range", run("serve", MODEL, "--port", "70000"), 2, "--port 70000", "65535")
    one_line_error("a negative number", run("generate", MODEL, "-n", "-3"), 2, "max-tokens")
    one_line_error("a float that is no number", run("generate", MODEL, "--temperature", "hot"), 2, "temperature")
    one_line_error("a value that is no choice", run("generate", MODEL, "--isa", "sse9"), 2, "scalar|avx2")
    one_line_error("a missing value", run("generate", MODEL, "--seed"), 2, "needs a value")
    check("a missing argument", run("generate")[0] == 2 and "Usage:" in run("generate")[2])
    check("an extra argument", run("generate", MODEL, "x")[0] == 2)


def test_devices():
    rc, _, err = run("inspect", MODEL, "--device", "cpu", "--dtype", "float16")
    check("float16 on a CPU is refused by name", rc == 1 and "float16" in err and err.count("\n") == 1, (rc, err))
    if not os.path.exists("/dev/nvidia0"):
        rc, _, err = run("generate", MODEL, "-n", "1", "--device", "cuda", stdin=b"x")
        check("cuda without a GPU is refused by name", rc == 1 and "CUDA" in err and err.count("\n") == 1, (rc, err))


def test_model_errors():
    one_line_error("no such folder", run("inspect", "/nonexistent/model"), 1, "/nonexistent/model")
    with tempfile.TemporaryDirectory() as d:
        one_line_error("an empty folder", run("inspect", d), 1, "config.json")
        bad = os.path.join(d, "bad")
        subprocess.run(["cp", "-r", MODEL, bad], check=True)
        path = os.path.join(bad, "model.safetensors")
        size = os.path.getsize(path)
        with open(path, "r+b") as f:
            f.truncate(size - 1)
        for command in (["inspect"], ["generate"], ["serve", "--port", "0"]):
            one_line_error(f"{command[0]}: a truncated file", run(command[0], bad, *command[1:], stdin=b"x"), 1,
                           "model.safetensors")
        with open(path, "r+b") as f:
            f.write(struct.pack("<Q", 1 << 62))
        one_line_error("a lying header length", run("inspect", bad), 1, "model.safetensors")
        with open(os.path.join(bad, "config.json"), "w") as f:
            f.write('{"model_type": "mamba"}')
        one_line_error("an unknown architecture is named", run("inspect", bad), 1, "mamba")


def test_tokenize():
    text = "Once upon a time, caf\u00e9 \U0001F642 <|endoftext|> it's 123\n\n"
    rc, out, err = run("tokenize", MODEL, stdin=text.encode())
    check("tokenize stdin", rc == 0 and re.fullmatch(r"[\d ]+\n", out) is not None, (out, err))
    rc, back, err = run("detokenize", MODEL, stdin=out.encode())
    check("detokenize gives the text back", rc == 0 and back == text, (back, err))
    rc, count, _ = run("tokenize", MODEL, "--count", "-p", text)
    check("--count agrees", count.strip() == str(len(out.split())), count)
    rc, pieces, _ = run("tokenize", MODEL, "--pieces", "-p", text)
    check("--pieces has a line per token", len(pieces.splitlines()) == len(out.split()), pieces)
    check("detokenize -i", run("detokenize", MODEL, "-i", ",".join(out.split()))[1] == text)
    one_line_error("an id that is no number", run("detokenize", MODEL, "-i", "12 x"), 1, "'x'")
    one_line_error("an id out of range", run("detokenize", MODEL, "-i", "4000000"), 1, "4000000")
    check("an empty text", run("tokenize", MODEL, "-p", "")[:2] == (0, ""))


def test_generate():
    a = run("generate", MODEL, "-p", "Once upon a time", "-n", "24")
    b = run("generate", MODEL, "-n", "24", stdin=b"Once upon a time")
    check("generate writes text", a[0] == 0 and len(a[1]) > 20, a)
    check("nothing on stderr in a pipe", a[2] == "", a[2])
    check("prompt from stdin is the same", a[1] == b[1], (a[1], b[1]))
    s = [run("generate", MODEL, "-p", "The", "-n", "40", "--temperature", "0.9", "--seed", str(i))[1] for i in (1, 1, 2)]
    check("same seed, same text; other seed, other text", s[0] == s[1] != s[2], s)
    for isa in ("scalar", "avx2", "avx512", "amx"):
        rc, out, err = run("generate", MODEL, "-p", "Once upon a time", "-n", "24", "--isa", isa)
        if rc == 0:
            check(f"--isa {isa} gives the same text", out == a[1], out)
        else:
            check(f"--isa {isa} is refused by name where the CPU lacks it", rc == 1 and isa in err, err)
    one_line_error("a prompt that is too long", run("generate", MODEL, stdin=b"word " * 20000), 1, "context")
    one_line_error("an empty prompt", run("generate", MODEL, "-p", ""), 1)
    p = subprocess.Popen([BIN, "generate", MODEL, "-p", "Once", "-n", "200", "--ignore-eos"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.stdout.close()
    p.wait(timeout=30)
    check("a reader that leaves ends the run quietly", first != b"" and p.stderr.read() == b"", p.returncode)


def on_terminal(*args, timeout=60):
    """Runs with stdout and stderr on a pseudo-terminal; returns what it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(BIN, [BIN, *args])
    out, end = b"", time.monotonic() + timeout
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.5)[0]:
            continue
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        out += data
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out.decode("utf-8", "replace")


def test_terminal():
    args = ["bench", "offline", MODEL, "--num-prompts", "4", "--input-len", "8", "--output-len", "40", "--repeats", "1"]
    rc, shown = on_terminal(*args)
    check("a progress bar on a terminal", rc == 0 and "[#" in shown and "100%" in shown, shown)
    rc, out, err = run(*args)
    check("no progress bar in a pipe", rc == 0 and "[#" not in err and "\r" not in err, err)
    rc, shown = on_terminal("generate", MODEL, "-p", "Once", "-n", "8")
    check("generate shows times on a terminal", rc == 0 and "tok/s" in shown, shown)


def test_bench_offline():
    rc, out, err = run("bench", "offline", MODEL, "--num-prompts", "6", "--input-len", "20", "--output-len", "5",
                       "--max-batch-size", "4", "--repeats", "2", "--warmup", "0")
    check("bench offline runs", rc == 0, err)
    j = json.loads(out)
    ok = len(j["results"]) == 2 and all(r["total_output_tokens"] == 30 and r["total_input_tokens"] == 120
                                        for r in j["results"])
    check("bench offline counts every token", ok and j["meta"]["max_batch_size"] == 4, j)
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run("bench", "offline", MODEL, "--num-prompts", "2", "--input-len", "4", "--output-len", "2",
                           "--repeats", "1", "--warmup", "0", "--output-dir", os.path.join(d, "r"))
        found = [os.path.join(p, f) for p, _, fs in os.walk(d) for f in fs]
        check("--output-dir writes the results", rc == 0 and len(found) == 1 and
              found[0].endswith("offline_results.json") and json.load(open(found[0]))["results"] != [], (found, err))
    one_line_error("a prompt longer than the context", run("bench", "offline", MODEL, "--input-len", "100000"), 1,
                   "context")


ONLINE = ["bench", "online", MODEL, "-n", "6", "--rate", "100", "--input-median", "20", "--output-median", "6",
          "--warmup-requests", "1", "--warmup-input-len", "4", "--warmup-output-len", "2"]
FAKE_SERVER = """#!/usr/bin/env python3
import http.server, json, os, sys
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("fake server starts", sys.argv[1:], flush=True)
if "--die" in args:
    print("no such device", flush=True)
    sys.exit(3)
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 0
    def log_message(self, *a): pass
    def reply(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply(json.dumps({"data": [{"id": "fake"}]}).encode())
    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        H.count += 1
        if "--crash-at" in args and H.count == int(args["--crash-at"]):
            print("crashed on purpose", flush=True)
            os._exit(4)
        assert q["model"] == "fake" and q["stream"]
        chunk = {"choices": [{"index": 0, "text": " x", "finish_reason": None}]}
        body = "".join("data: " + json.dumps(chunk) + "\\n\\n" for _ in range(q["max_tokens"]))
        lie = int(args.get("--lie", 0))
        body += "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 1,
                                       "completion_tokens": q["max_tokens"] - lie}}) + "\\n\\n"
        self.reply((body + "data: [DONE]\\n\\n").encode(), "text/event-stream")
http.server.ThreadingHTTPServer((args["--host"], int(args["--port"])), H).serve_forever()
"""


def online_results(d):
    found = [os.path.join(p, f) for p, _, fs in os.walk(d) for f in fs if f == "online_results.json"]
    return os.path.dirname(found[0]), json.load(open(found[0]))


def test_bench_online():
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*ONLINE, "--scales", "0,1", "--concurrency", "2", "--output-dir", d)
        check("bench online runs", rc == 0, err)
        where, j = online_results(d)
        rows = j["summaries"]
        check("a row for every load", [(r["scale"], r["concurrency"]) for r in rows] == [(0, 0), (1, 0), (None, 2)], rows)
        check("every request answered", all(r["num_success"] == 6 and r["num_error"] == 0 for r in rows), rows)
        runs = j["by_backend"]["roseinfer"]["runs"]
        for r in runs:
            for q in r["request_metrics"]:
                ok = (q["output_tokens"] == q["output_len"] and q["error"] is None and
                      0 < q["ttft_s"] <= q["e2e_s"] and q["lateness_s"] >= 0 and q["server_times"] is not None)
                if not ok:
                    check("each request's figures", False, q)
        check("prompts have the tokens that were asked for", all(r["num_prompt_len_differs"] == 0 for r in rows), rows)
        values = sorted(q["ttft_s"] * 1e3 for q in runs[1]["request_metrics"])
        check("p50 is the median", abs(rows[1]["ttft_ms"]["p50"] - (values[2] + values[3]) / 2) < 1e-6, values)
        check("where it comes from", all(j["meta"][k] for k in ("command", "device", "versions", "run_start_time")) and
              j["meta"]["versions"]["commit"] and j["by_backend"]["roseinfer"]["timing"]["server_ready_s"] > 0, j["meta"])
        files = os.listdir(where)
        check("log and summary", "roseinfer.server.log" in files and "online_summary.md" in files, files)
        check("the server was stopped", "stopped" in open(os.path.join(where, "roseinfer.server.log")).read())
        merged = os.path.join(d, "merged")
        rc, out, err = run("bench", "merge", merged, where, where)
        again = json.load(open(os.path.join(merged, "online_results.json")))
        check("merge: the later folder wins", rc == 0 and len(again["summaries"]) == 3 and
              len(again["by_backend"]["roseinfer"]["runs"]) == 3, err)
        if shutil.which("gnuplot"):
            rc, out, err = run("bench", "plot", merged)
            figures = os.path.join(merged, "figures")
            made = os.listdir(figures) if os.path.isdir(figures) else []
            check("bench plot", rc == 0 and "online_latency_compare.png" in made and "online_ttft_ms.svg" in made and
                  "online_cdf_scale_1.png" in made, (err, made))
            png = open(os.path.join(figures, "online_latency_compare.png"), "rb").read()
            check("the overview is a picture", png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 10000, len(png))


def test_bench_online_failures():
    with tempfile.TemporaryDirectory() as d:
        fake = os.path.join(d, "fake.py")
        with open(fake, "w") as f:
            f.write(FAKE_SERVER)
        out_dir = os.path.join(d, "out")
        rc, out, err = run(*ONLINE, "--scales", "0.5,1", "--output-dir", out_dir, "--backends",
                           "vllm,sglang,trtllm,llama,url=gone=http://127.0.0.1:9", "--vllm-cmd", f"python3 {fake}",
                           "--sglang-cmd", f"python3 {fake}", "--sglang-args", "--die 1",
                           "--trtllm-cmd", "/nonexistent/trtllm", "--llama-cmd", f"python3 {fake}",
                           "--llama-args", "--crash-at 10")
        _, j = online_results(out_dir)
        by = j["by_backend"]
        good = [r for r in j["summaries"] if r["backend"] == "vllm"]
        check("a good server beside failing ones", rc == 1 and len(good) == 2 and
              all(r["num_success"] == 6 for r in good), (rc, err))
        check("exit code and last log line of one that dies", "exit code 3" in by["sglang"]["error"] and
              "no such device" in by["sglang"]["error"], by["sglang"])
        check("a program that is not there", "trtllm" in by["trtllm"]["error"], by["trtllm"])
        check("nobody at a URL", "error" in by["gone"], by["gone"])
        crashed = by["llama"]
        check("a crash keeps what was measured", len(crashed["runs"]) == 2 and "exit code 4" in crashed["error"] and
              crashed["runs"][0]["summary"]["num_success"] == 6 and
              crashed["runs"][1]["summary"]["num_error"] > 0, crashed.get("error"))
        rc, out, err = run(*ONLINE, "--scales", "1", "--output-dir", os.path.join(d, "lie"), "--backends", "vllm",
                           "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--lie 2")
        _, j = online_results(os.path.join(d, "lie"))
        check("a server that lies about usage is caught", rc == 0 and "contradicts" in err and
              j["summaries"][0]["num_usage_contradicted"] > 0, err)
        bad = os.path.join(d, "bad.csv")
        with open(bad, "w") as f:
            f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,9,4\nnonsense\n"
                    "2023-11-16 18:15:46.70,9,4\n")
        rc, out, err = run(*ONLINE, "--scales", "1", "--trace", bad, "--output-dir", os.path.join(d, "t"))
        check("a bad trace line is named and left out", rc == 0 and "bad.csv:3:" in err, err)
    one_line_error("no such trace", run(*ONLINE, "--trace", "/nonexistent/t.csv"), 1, "/nonexistent/t.csv")
    one_line_error("an unknown backend", run(*ONLINE, "--backends", "gpt"), 1, "'gpt'")
    one_line_error("bad scales", run(*ONLINE, "--scales", "1,x"), 1, "--scales")
    one_line_error("a folder without results", run("bench", "plot", "/tmp"), 1, "online_results.json")
    check("online needs a model", run("bench", "online")[0] == 2)


def test_bench_stream_start_ablate():
    small = ["--input-len", "12", "--output-len", "4"]
    rc, out, err = run("bench", "stream", MODEL, "-n", "5", "--repeats", "2", "--warmup", "0", *small)
    t = json.loads(out)["times"] if rc == 0 else {}
    check("bench stream", rc == 0 and t["ttft_ms"]["n"] == 10 and t["queue_wait_ms"]["n"] == 10, (out, err))
    parts = ("receive", "worker_wait", "parse", "tokenize", "queue_wait", "prefill_to_first")
    total = sum(t[p + "_ms"]["mean"] for p in parts)
    check("the parts add up to the server's TTFT", abs(total - t["server_ttft_ms"]["mean"]) < 0.05, t)
    check("the client sees no less than the server", t["ttft_outside_server_ms"]["min"] > -0.1, t)
    rc, out, err = run("bench", "start", MODEL, "--repeats", "2")
    j = json.loads(out) if rc == 0 else {}
    check("bench start", rc == 0 and j["ready_ms"]["n"] == 2 and 0 < j["ready_ms"]["p50"] < j["first_token_ms"]["p50"],
          (out, err))
    rc, out, err = run("bench", "ablate", MODEL, "--switches", "chunked-prefill", "--pairs", "1", "-n", "4", "--rate", "100",
                       "--num-prompts", "4", *small)
    j = json.loads(out)["switches"]["chunked-prefill"] if rc == 0 else {}
    check("bench ablate", rc == 0 and j["offline_s_per_token"]["off_over_on"] > 0 and
          j["online_ttft_p50_s"]["verdict"] == "no change", (out, err))
    rc, out, err = run("bench", "ablate", MODEL, "--switches", "prefix-cache,stream-interval", "--pairs", "1", "-n", "3",
                       "--rate", "100", "--num-prompts", "2", *small)
    j = json.loads(out)["switches"] if rc == 0 else {}
    check("bench ablate: a workload of its own, values, a table", rc == 0 and
          j["prefix-cache"]["setting"]["workload"] == "shared prefixes" and
          j["stream-interval"]["setting"]["on"] == "--stream-interval 8" and
          "offline_s_per_token" not in j["stream-interval"] and
          "| stream-interval | `--stream-interval 8` | `--stream-interval 1` | plain |" in err, (out, err))
    r = run("bench", "ablate", MODEL, "--switches", "fast-sse,magic")
    one_line_error("ablate: an unknown switch", r, 2, "'magic'")
    known = r[2].split("known are:")[1].split()
    options = run("serve", "--help")[1]
    check("every switch is an option of the server", len(known) >= 10 and
          all(f"--{k}" in options or f"--[no-]{k}" in options for k in known), known)


def test_inspect():
    rc, out, err = run("inspect", MODEL)
    check("inspect", rc == 0 and "gpt2" in out and "wte.weight" in out and "Memory plan" in out and "KV pages" in out,
          (out, err))
    rc, out, err = run("inspect", MODEL, "--json")
    j = json.loads(out)
    check("inspect --json", j["memory_plan"]["total_bytes"] == sum(
        j["memory_plan"][k] for k in ("weights_bytes", "kv_bytes", "scratch_bytes")) and j["tensors"] != [], j)
    rc, out, _ = run("inspect", MODEL, "--num-kv-pages", "100", "--json")
    check("the plan follows the options", json.loads(out)["memory_plan"]["kv_pages"] >= 1 and
          json.loads(out)["memory_plan"]["kv_pages"] != j["memory_plan"]["kv_pages"], out)
    rc, out, err = run("inspect", MODEL, "--kv-cache-memory", "900000G")
    check("a plan over the memory is refused with its parts", rc == 1 and "kv" in err.lower(), err)


def test_lost_output():
    for c in (["--help"], ["--version"], ["inspect", MODEL], ["tokenize", MODEL, "-p", "hello"],
              ["generate", MODEL, "-p", "hello", "-n", "3"]):
        with open("/dev/full", "wb") as full:
            p = subprocess.run([BIN, *c], stdout=full, stderr=subprocess.PIPE, timeout=60)
        check(f"{c[0]} into a full disk fails and says so", p.returncode == 1 and b"standard output" in p.stderr,
              (p.returncode, p.stderr))
    closed = lambda: (os.close(1), os.close(2))  # noqa: E731
    p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0"], preexec_fn=closed)
    try:
        for _ in range(200):
            fds = {n: os.readlink(f"/proc/{p.pid}/fd/{n}") for n in os.listdir(f"/proc/{p.pid}/fd")}
            if any("socket" in v for v in fds.values()):
                break
            time.sleep(0.02)
        check("closed stdout and stderr are not taken by sockets", fds["1"] == fds["2"] == "/dev/null", fds)
    finally:
        p.kill()
        p.wait()


def test_random_model():
    with tempfile.TemporaryDirectory() as d:
        args = ["--layers", "2", "--d-model", "32", "--heads", "2", "--vocab-size", "300", "--max-positions", "64"]
        outs = [os.path.join(d, n) for n in ("a", "b", "c")]
        for i, o in enumerate(outs):
            rc, out, err = run("random-model", o, *args, "--seed", "7" if i < 2 else "8")
            check(f"random-model {i}", rc == 0, err)
        w = [open(os.path.join(o, "model.safetensors"), "rb").read() for o in outs]
        check("same seed, same bytes; other seed, other bytes", w[0] == w[1] != w[2])
        one_line_error("it does not overwrite", run("random-model", outs[0], *args), 1, outs[0])
        rc, out, err = run("generate", outs[0], "-p", "hello", "-n", "5", "--ignore-eos")
        check("a random model generates", rc == 0, err)


for name, fn in sorted((n, f) for n, f in globals().items() if n.startswith("test_")):
    try:
        fn()
    except Exception as e:  # a crash of one test is its failure; the others go on
        check(name, False, repr(e))
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
