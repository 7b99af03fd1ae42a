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
import struct
import subprocess
import sys
import tempfile
import time

BIN, MODEL = sys.argv[1], sys.argv[2]
results = {"passed": 0, "failed": 0}
COMMANDS = ["serve", "generate", "tokenize", "detokenize", "inspect", "random-model",
            "bench offline", "bench tokenizer", "bench scheduler"]


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
        check(f"{c} --help", ok and len(opts) >= 2, out)
        defaults = [l for l in out.splitlines() if "(default" in l]
        check(f"{c} --help shows defaults", defaults != [], out)
    check("--version", re.match(r"roseinfer \d+\.\d+\.\d+ \(\S+\)\n$", run("--version")[1]) is not None)
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
