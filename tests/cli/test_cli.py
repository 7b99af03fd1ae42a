#!/usr/bin/env python3
"""The command line as a person uses it: `test_cli.py BINARY MODEL`; closes with `N passed, N failed`.

Every command, its --help, its errors (one clear line, exit code 1 or 2), pipes against terminals. Standard
library only.
"""
import base64
import concurrent.futures
import contextlib
import ctypes
import fcntl
import html.parser
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request

BIN, MODEL = sys.argv[1], sys.argv[2]
results = {"passed": 0, "failed": 0}
last_run = []  # of run(): arguments, exit code, what it said; a failed check shows it
COMMANDS = ["serve", "batch", "chat", "generate", "tokenize", "detokenize", "health", "pull", "inspect", "random-model", "tune"]
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here may reach the hub
BENCHES = ["bench offline", "bench latency", "bench online", "bench stream", "bench ablate", "bench start",
            "bench plot", "bench merge", "bench report", "bench tokenizer"]
WITHOUT_OPTIONS = ["bench plot", "bench merge"]


def run(*args, stdin=b"", timeout=120, program=BIN):
    last_run[:] = [args]
    p = subprocess.run([program, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
    result = p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")
    last_run[1:] = result
    return result


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:2000]}\n    last run: {[str(x)[-1000:] for x in last_run]}", flush=True)


def one_line_error(name, result, code, *fragments):
    rc, out, err = result
    ok = rc == code and err.count("\n") == 1 and all(f in err for f in fragments)
    check(name, ok, (rc, out, err, fragments))


def test_help():
    rc, out, err = run("--help")
    check("help lists every command", rc == 0 and all(c in out for c in COMMANDS + ["bench"]), out)
    rc, out, err = run("bench", "--help")
    check("bench --help lists every benchmark", rc == 0 and all(c.split()[-1] in out for c in BENCHES), out)
    for c in COMMANDS + BENCHES:
        rc, out, err = run(*c.split(), "--help-all")
        ok = rc == 0 and err == "" and out.startswith("Usage: ") and max(map(len, out.splitlines())) <= 100
        opts = re.findall(r"^\s+(?:-\w, )?--(?:\[no-\])?[\w-]+", out, re.M)
        check(f"{c} --help", ok and (len(opts) >= 2 or c in WITHOUT_OPTIONS), out)
        if c in WITHOUT_OPTIONS:
            continue
        entries = re.split(r"^ {2,6}(?=-)", re.sub(r"^\S.*$", "", out, flags=re.M), flags=re.M)[1:]  # no headings
        bad = [e for e in entries if not e.startswith("--help") and not re.search(r"\(default:\s.+\)\s*$", e, re.S)]
        check(f"{c} --help-all says every default, whole", bad == [], bad)
    check("--version", re.match(r"roseinfer \d+\.\d+\.\d+ \(\S+\)\n$", run("--version")[1]) is not None)
    check("no command is a usage error", run()[0] == 2)
    check("no benchmark is a usage error", run("bench")[0] == 2)
    one_line_error("an unknown benchmark", run("bench", "surf"), 2, "unknown command 'surf'", "roseinfer-bench --help")
    one_line_error("a load test is no benchmark", run("bench", "http"), 2, "build/tests/load/load http")
    for names in (("run-batch",), ("bench", "serve"), ("bench", "throughput")):
        want = {"run-batch": "batch", "serve": "online", "throughput": "offline"}[names[-1]]
        one_line_error(f"vLLM's {names}", run(*names), 2, f"did you mean {want}?", "--help")
    one_line_error("unknown command", run("surf"), 2, "unknown command 'surf'", "roseinfer --help")
    one_line_error("a misspelt command suggests", run("sreve"), 2, "did you mean serve?")


def names(text):
    """The options of a help text, without those of help itself."""
    return set(re.findall(r"^\s+(?:-\w, )?--(?:\[no-\])?([\w-]+)", text, re.M)) - {"help", "help-all", "help-foreign"}


def test_help_of_serve():
    first, everything = run("serve", "--help")[1], run("serve", "--help-all")[1]
    check("serve --help shows 16 options and names --help-all", len(names(first)) == 16 and "access-log" in names(first) and "/v1/responses, /v1/messages" in first and "--help-all" in first, first)
    groups = re.findall(r"^(\S.*):$", everything, re.M)
    check("serve --help-all goes by group, CUDA tuning last", groups == [
        "Server", "Limits and time-outs", "Server threads", "Files and batches", "Model and device", "Speculative decoding", "Scheduling",
        "KV and prefix cache", "CPU", "Profiling", "CUDA tuning", "Help"], groups)
    check("--help-all has what --help has", names(first) < names(everything), names(first) - names(everything))
    n = int(re.search(r"show all (\d+) options", first).group(1))
    check("--help counts what --help-all shows", n == len(names(everything)), (n, len(names(everything))))
    check("--help wins over a mistake", run("serve", "--prot", "--help")[0] == 0)
    check("the serve groups of --help have their headings", "Server:" in first and "CUDA tuning" not in first, first)
    text = run("bench", "latency", "--help")[1]
    check("a benchmark's own options are all in --help, the engine's in part", {"batch-size", "num-iters", "dtype"} <= names(text)
          and "lookahead" not in names(text), text)
    check("a short table is shown whole by --help", "--help-all" not in run("tokenize", "--help")[1])


def test_man_page():
    rc, page, err = run("--man")
    plain = page.replace("\\-", "-")
    missing = [o for o in names(run("serve", "--help-all")[1]) if f"--{o}\\fR" not in plain]
    check("the man page has every option of serve", rc == 0 and err == "" and missing == [], (err, missing))
    for tool in (["groff", "-man", "-ww", "-Tutf8"], ["mandoc", "-T", "utf8", "-W", "warning"], ["man", "--warnings", "-l"]):
        if shutil.which(tool[0]) is None:
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".1") as f:
            f.write(page)
            f.flush()
            p = subprocess.run([*tool, f.name], capture_output=True, env=dict(os.environ, MANWIDTH="100", PAGER="cat"))
        check(f"the man page: {tool[0]} has no complaint", p.returncode == 0 and p.stderr == b"" and b"max-num-seqs" in
              p.stdout.replace("\u2010".encode(), b"-"), (p.returncode, p.stderr, p.stdout[:300]))


def completed(script, *words):
    """What bash offers for the last of the words."""
    run_it = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _roseinfer; printf "%s\\n" "${COMPREPLY[@]}"'
    p = subprocess.run(["bash", "-c", run_it, "-", script, *words], capture_output=True, text=True)
    return p.stdout.split() if p.returncode == 0 and p.stderr == "" else p.stderr


def test_completion():
    rc, script, err = run("completion", "bash")
    check("completion bash", rc == 0 and err == "", err)
    with tempfile.TemporaryDirectory() as d:
        path, model = os.path.join(d, "roseinfer"), os.path.join(d, "model")
        os.mkdir(model)
        with open(path, "w") as f:
            f.write(script)
        for name, words, want in (
                ("a command", ["ser"], ["serve"]),
                ("options", ["serve", "m", "--max-num-"],
                 ["--max-num-batched-tokens", "--max-num-queued-reqs", "--max-num-queued-tokens", "--max-num-seqs"]),
                ("the negative of a switch", ["serve", "--no-prefix"], ["--no-prefix-cache"]),
                ("choices", ["serve", "m", "--device", "c"], ["cpu", "cuda"]),
                ("choices after =", ["serve", "m", "--device", "=", "c"], ["cpu", "cuda"]),
                ("a value that nobody knows", ["serve", "m", "--port", "8"], []),
                ("a folder for MODEL", ["serve", model[:-2]], [model]),
                ("a folder for --profiler-dir", ["serve", "m", "--profiler-dir", model[:-2]], [model]),
                ("another command's options", ["tokenize", "m", "--max-num-"], []),
                ("a benchmark", ["bench", "on"], ["online"]),
                ("a benchmark's options", ["bench", "online", "m", "--scal"], ["--scales"]),
                ("choices of a benchmark", ["bench", "online", "m", "--endpoint", "ch"], ["chat"]),
                ("a shell", ["completion", "z"], ["zsh"])):
            got = completed(path, BIN, *words)
            check(f"bash completes {name}", isinstance(got, list) and sorted(got) == want, got)
    rc, script, err = run("completion", "zsh")
    check("completion zsh", rc == 0 and err == "" and script.startswith("#compdef roseinfer\n") and
          "'--max-num-seqs[" in script, err)
    check("--help-all helps without a command as well", run("--help-all")[1] == run("--help")[1])
    for where, listed in (([], COMMANDS), (["bench"], [b.split()[1] for b in BENCHES])):
        script = run(*where, "completion", "zsh")[1]
        try:
            words = shlex.split(script.split("commands=(\n")[1].split("\n)\n")[0])
        except ValueError as e:  # a quote that does not end
            words = [str(e)]
        got = [w.split(":")[0] for w in words]
        check(f"zsh: {' '.join(where) or 'the program'} lists its commands", set(listed) <= set(got) and " " not in "".join(got), words)
    if shutil.which("zsh") is not None:
        p = subprocess.run(["zsh", "-n"], input=script.encode(), capture_output=True)
        check("zsh reads its script", p.returncode == 0 and p.stderr == b"", p.stderr)
    one_line_error("completion of another shell", run("completion", "tcsh"), 2, "completion bash")


def test_usage_errors():
    one_line_error("a misspelt option suggests", run("serve", MODEL, "--prot", "1"), 2, "--prot", "--port")
    one_line_error("a value out of range", run("serve", MODEL, "--port", "70000"), 2, "--port 70000", "65535")
    one_line_error("a negative number", run("generate", MODEL, "-n", "-3"), 2, "max-tokens")
    one_line_error("a float that is no number", run("generate", MODEL, "--temperature", "hot"), 2, "temperature")
    one_line_error("a value that is no choice", run("generate", MODEL, "--isa", "sse9"), 2, "scalar|avx2")
    one_line_error("a backend that was removed: why, and where its figures are", run("serve", MODEL, "--prefill-backend", "cudnn"), 2,
                   "--prefill-backend cudnn: removed", "slower than our own kernel", "other bits", "docs/PERFORMANCE.md")
    one_line_error("a missing value", run("generate", MODEL, "--seed"), 2, "needs a value")
    for c in ("serve", "generate"):
        one_line_error(f"{c} without MODEL", run(c), 2, "MODEL is missing", f"usage: roseinfer {c} MODEL")
    one_line_error("an option that is like no other", run("serve", MODEL, "--foo"), 2, "unknown option --foo (see --help-all)")
    check("an extra argument", run("generate", MODEL, "x")[0] == 2)


NOWHERE = "/no/such/model"


def foreign_fault(words, wanted):
    """What is wrong with the server's answer to options of another server (foreign.txt); "" is nothing."""
    named = any(w.startswith((NOWHERE, "org/name")) for w in words)
    p = subprocess.run([BIN] + (["serve"] if words[0][1:] not in ("m", "hf") else []) + ([] if named else [NOWHERE]) + words,
                       capture_output=True, text=True, timeout=60)
    kind, _, text = wanted.partition(" ")
    taken = "".join(line for line in p.stderr.splitlines() if "options as taken here" in line)
    if kind == "no":
        ok = p.returncode == 2 and text in p.stderr and p.stderr.count("\n") == 1 and "secret" not in p.stderr
    else:
        last = p.stderr.splitlines()[-1] if p.stderr else ""
        ok = p.returncode == 1 and (NOWHERE in last or "org/name" in last)
        ok = ok and ("warning" in p.stderr) == (kind == "idle") and (kind == "is" or taken == "" or "MODEL" in taken)
    if kind == "idle":
        ok = ok and text in p.stderr
    if kind == "is":
        ok = ok and all(f"is {t.removeprefix('is ')}" in taken for t in text.split(", "))
    return "" if ok else (p.returncode, p.stderr)


def test_foreign_options():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "foreign.txt")) as f:
        cases = [line.rstrip("\n").split(" => ") for line in f if line.strip() and not line.startswith("#")]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        faults = list(pool.map(lambda c: foreign_fault(c[0].split(), c[1]), cases))
    bad = [(*c, fault) for c, fault in zip(cases, faults) if fault]
    check(f"{len(cases)} command lines of other servers: accepted, an alias, or refused with words that help", not bad, bad)
    rc, out, err = run("serve", "--help-foreign")
    with open(os.path.join(os.path.dirname(MODEL), "..", "docs", "FLAGS.md")) as f:
        check("docs/FLAGS.md has the table of --help-foreign", rc == 0 and err == "" and f.read().endswith(out), "write it anew")
    check("--help-all names --help-foreign, --help stays short",
          "--help-foreign" in run("serve", "--help-all")[1] and "gpu-layers" not in run("serve", "--help-all")[1])


def test_foreign_keys():
    with tempfile.TemporaryDirectory() as d:
        for text, ok, *words in (
                ("parallel: 4\nctx_size: 4096\nn-gpu-layers: 0\n", True, "ctx-size 4096", "is --max-model-len 1024", "is --device cpu"),
                ("tensor-parallel-size: 1\nenable-prefix-caching: false\nenforce_eager: false\n", True, "is --no-prefix-cache"),
                ("dtype: half\nmax-model-len: 1k\ntrust-remote-code: true\n", True, "is --dtype float16"),
                ('{"allowed-origins": ["*"], "jinja": true, "model-path": "/no/such/model"}', True, "is MODEL /no/such/model"),
                ("port: 1\nkv-cache-dtype: fp8\n", False, "c.yaml:2: kv-cache-dtype fp8: not yet"),
                ("parallel: 0\n", False, "c.yaml:1: parallel 0: --max-num-seqs 0: expected"),
                ("hf-token: secret\n", False, "c.yaml:1: hf-token: set the environment variable")):
            put(d, "c.yaml", text)
            rc, _, err = run("serve", *([] if "model-path" in text else [NOWHERE]), "--config", d + "/c.yaml")
            check(f"a file with {text.split()[0]} of another server", rc == (1 if ok else 2) and all(w in err for w in words), err)
        put(d, "c.yaml", "parallel: 4\nmax-num-seqs: 100\n")
        one_line_error("two keys for one option", run("serve", NOWHERE, "--config", d + "/c.yaml"), 2, "c.yaml:1: parallel 4 is 'max-num-seqs'", "line 2")
        put(d, "c.yaml", "parallel: 4\nmax-model-len: 100\n")
        err = run("serve", MODEL, "--config", d + "/c.yaml", "-np", "0")[2]
        check("the command line is read before the file", "-np 0: --max-num-seqs 0" in err, err)


def test_served_as_llama_server():
    p = subprocess.Popen([BIN, "-m", MODEL, "--port", "0", "-c", "256", "-np", "2", "-a", "small", "-ngl", "0", "--chat-template", "chatml"],
                         stderr=subprocess.PIPE, text=True)
    try:
        port = next(int(m[1]) for line in p.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=60) as r:
            model = json.load(r)["data"][0]
        check("-m FILE serves: -c is shared out over -np, -a names the model", (model["id"], model["max_model_len"]) == ("small", 128), model)
        ask = urllib.request.Request(f"http://127.0.0.1:{port}/apply-template", b'{"messages": [{"role": "user", "content": "a"}]}',
                                     {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask, timeout=60) as r:
            prompt = json.load(r)["prompt"]
        check("--chat-template chatml", prompt == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", prompt)
    finally:
        p.terminate()
        p.communicate()
    check("options without a command that name no model are no server", "unknown command '--port'" in run("--port", "1")[2])


def test_server_seed():
    def replies(*args):
        with serving(MODEL, *args) as port:
            return [posted(port, {"prompt": "Once", "max_tokens": 12, "temperature": 1, **more})["choices"][0]["text"]
                    for more in ({}, {}, {"seed": 3}, {"n": 2})]
    first, again, other = replies("--seed", "5"), replies("--random-seed", "5"), replies("--seed", "6")
    check("--seed: the same requests in the same order get the same replies", first == again, (first, again))
    check("each request gets its own seed, and another --seed other ones", first[0] != first[1] and first[0] != other[0], (first, other))
    check("a request's seed takes precedence", first[2] == other[2], (first, other))
    one_line_error("a seed that is no number", run("serve", MODEL, "--port", "0", "--seed", "x"), 2, "--seed x")


def test_devices():
    rc, _, err = run("inspect", MODEL, "--device", "cpu", "--dtype", "float16")
    check("float16 on a CPU is refused by name", rc == 1 and "float16" in err and err.count("\n") == 1, (rc, err))
    for flag, value in (("--prefill-backend", "flash"), ("--cuda-without", "wide")):
        one_line_error(f"{flag} on a CPU is refused by name", run("serve", MODEL, "--port", "0", "--device", "cpu", flag, value),
                       1, value)
    one_line_error("tune on a CPU is refused", run("tune", MODEL, "--device", "cpu"), 1, "tune measures GPU kernels", "cpu")
    if not os.path.exists("/dev/nvidia0"):
        rc, _, err = run("generate", MODEL, "-n", "1", "--device", "cuda", stdin=b"x")
        check("cuda without a GPU is refused by name", rc == 1 and "device cuda: " in err and err.count("\n") == 1, (rc, err))


# A driver of CUDA 11.0, as far as the runtime asks before it gives up.
OLD_DRIVER = """
int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDriverGetVersion(int *version) { *version = 11000; return 0; }
"""


def test_old_driver():
    if "built without" in run("generate", MODEL, "-n", "1", "--device", "cuda", stdin=b"x")[2]:
        return  # no code that asks for a driver
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", d + "/libcuda.so.1"], input=OLD_DRIVER.encode(), check=True)
        before = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = d + (":" + before if before else "")
        try:
            rc, _, err = run("generate", MODEL, "-n", "1", "--device", "cuda", stdin=b"x")
            check("a driver that is too old is named with its version, and what is needed", rc == 1 and err.count("\n") == 1 and
                  "the driver is for CUDA 11.0, and this program needs one for " in err, (rc, err))
            rc, out, err = run("generate", MODEL, "-n", "1", stdin=b"x")
            check("without --device the CPU serves then", rc == 0 and out != "", (rc, err))
        finally:
            if before is None:
                del os.environ["LD_LIBRARY_PATH"]
            else:
                os.environ["LD_LIBRARY_PATH"] = before


def copy_of(d, name):
    """A copy of MODEL that a test may damage."""
    where = os.path.join(d, name)
    subprocess.run(["cp", "-r", MODEL, where], check=True)
    return where


def put(folder, name, text):
    with open(os.path.join(folder, name), "w") as f:
        f.write(text)


def refused(what, model, *fragments, tokenizer=True):
    """Every command that opens MODEL says the same in one line."""
    for command in (["inspect"], ["generate", "-p", "x"], ["serve", "--port", "0"]) + ((["tokenize", "-p", "x"],) if tokenizer else ()):
        one_line_error(f"{command[0]}: {what}", run(command[0], model, *command[1:]), 1, *fragments)


def test_model_errors():
    one_line_error("no such folder", run("inspect", "/nonexistent/model"), 1, "/nonexistent/model")
    refused("a name of the hub", "openai-community/gpt2", "roseinfer pull openai-community/gpt2")
    refused("another name of the hub", "Qwen/Qwen3-0.6B", "roseinfer pull Qwen/Qwen3-0.6B")
    refused("a mistyped path", os.path.join(os.path.dirname(MODEL), "rose-tinny"), "rose-tinny", "no such folder")
    refused("a folder that is not there", "gpt2", "no such folder", "roseinfer pull ORG/NAME")
    refused("a file that is not there", "none.gguf", "none.gguf", "no such file", tokenizer=False)
    refused("the weights instead of the folder", os.path.join(MODEL, "model.safetensors"), "is a weight file", "the folder")
    refused("a file", os.path.join(MODEL, "config.json"), "is a file", "Hugging Face folder")
    with tempfile.TemporaryDirectory() as d:
        refused("an empty folder", d, "no config.json", "roseinfer pull ORG/NAME", tokenizer=False)
        put(d, "model.gguf", "GGUF")
        put(d, "renamed", "GGUF and more")
        for name, word in (("model.gguf", "truncated"), ("renamed", "GGUF version")):
            refused(f"GGUF, {name}", os.path.join(d, name), name, word, tokenizer=False)
        refused("a folder of GGUF", d, "model.gguf", "truncated", tokenizer=False)
        put(d, "other.gguf", "GGUF")
        refused("two GGUF models", d, "several GGUF models", "model.gguf", "other.gguf", tokenizer=False)
        os.remove(os.path.join(d, "model.gguf"))
        os.remove(os.path.join(d, "other.gguf"))
        cache = os.path.join(d, "models--a--b")
        os.makedirs(os.path.join(cache, "snapshots"))
        refused("the hub's cache", cache, "one of the folders in its snapshots/", tokenizer=False)
        link = os.path.join(d, "link")
        os.symlink("gone", link)
        refused("a link without a target", link, link, "'gone', which does not exist")
    with tempfile.TemporaryDirectory() as d:
        bad = copy_of(d, "bad")
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
        put(bad, "config.json", '{"model_type": "mamba"}')
        one_line_error("an unknown architecture is named", run("inspect", bad), 1, "mamba")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 55000000\n"
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            of_tokenizer = name == "tokenizer.json"
            for what, change in (("lfs", lambda p: put(*os.path.split(p), pointer)), ("link", lambda p: os.symlink("../../blobs/0b0b", p))):
                bad = copy_of(d, f"{what}-{name}")
                path = os.path.join(bad, name)
                os.unlink(path)
                change(path)
                words = ("Git LFS pointer", "git lfs pull") if what == "lfs" else ("symbolic link to '../../blobs/0b0b'", "does not exist")
                for command in ("tokenize", "generate") if of_tokenizer else ("inspect", "generate"):
                    more = [] if command == "inspect" else ["-p", "x"]
                    one_line_error(f"{command}: {what}, {name}", run(command, bad, *more), 1, path, *words)


TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 64, "tie_word_embeddings": False,
        "bos_token_id": 299, "eos_token_id": 299}


def made_of(d, name, **fields):
    """A random model with the fields of TINY and these."""
    put(d, name + ".json", json.dumps({**TINY, **fields}))
    where = os.path.join(d, name)
    rc, _, err = run("random-model", where, "--config", os.path.join(d, name + ".json"))
    check(f"random-model {name}", rc == 0, err)
    return where


def test_family_errors():
    """What a model asks for and we lack is refused by name, with what to do."""
    one_line_error("more memory than there is", run("serve", MODEL, "--port", "0", "--device", "cpu", "--num-kv-pages", "1000000000"), 1,
                   "are available", "num-kv-pages")
    with tempfile.TemporaryDirectory() as d:
        model = made_of(d, "llama")
        config = json.load(open(os.path.join(model, "config.json")))
        for what, change, words in (
                ("another family", {"model_type": "mixtral"}, ("'mixtral' is not supported", "qwen3")),
                ("a multimodal model", {"model_type": "gemma3", "text_config": config}, ("'gemma3'", "text_config", "GGUF file")),
                ("quantized safetensors", {"quantization_config": {"quant_method": "gptq"}},
                 ("quantization_config", "GPTQ (gptq)", "--quantization int8", "GGUF")),
                ("another scaling", {"rope_scaling": {"rope_type": "new", "factor": 2.0}}, ("rope_type 'new'", "llama3")),
                ("experts", {"num_local_experts": 8}, ("'num_local_experts' is 8",))):
            put(model, "config.json", json.dumps({**config, **change}))
            refused(what, model, "config.json", *words, tokenizer=False)
        put(model, "config.json", json.dumps(config))
        for command in (["inspect"], ["serve", "--port", "0"]):
            one_line_error(f"{command[0]}: a context beyond the model's", run(command[0], model, *command[1:], "--max-model-len", "65"), 1,
                           "max-model-len 65", "the model has 64 positions", "at most 64")
        rc, out, err = run("generate", model, "-p", "x" * 99)
        check("a prompt beyond the context", rc == 1 and "context holds 64" in err and err.count("\n") == 1, (rc, out, err))
        odd = made_of(d, "odd", head_dim=10)
        refused("heads that are not stacked", odd, "4 query heads of head_dim 10", "multiple of 16", tokenizer=False)


def test_model_warnings():
    """What can be served is served, and what is wrong with it is said once."""
    with tempfile.TemporaryDirectory() as d:
        odd = copy_of(d, "odd")
        config = json.load(open(os.path.join(odd, "config.json")))
        config.update(eos_token_id=[1000000, 0, 1000005], bos_token_id=1000001)
        put(odd, "config.json", json.dumps(config))
        tok = json.load(open(os.path.join(odd, "tokenizer.json")))
        tok["model"]["vocab"]["zzq"] = 1000002
        tok["added_tokens"].append(dict(tok["added_tokens"][0], content="", id=77))
        put(odd, "tokenizer.json", json.dumps(tok))
        rc, out, err = run("generate", odd, "-p", "Once", "-n", "3")
        lines = err.splitlines()
        check("odd ids are warned of at load", rc == 0 and out.startswith("Once") and len(lines) == 4 and all(" WARN " in x for x in lines), err)
        for words in (("eos_token_id 1000000", "vocabulary of 4096"), ("bos_token_id 1000001",), ("1 added token has an empty text",),
                      ("1 token is beyond", "zzq", "1000002")):
            check(f"warned: {words[0]}", sum(all(w in x for w in words) for x in lines) == 1, lines)
        huge = copy_of(d, "huge")
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
            path = os.path.join(huge, name)
            old = json.load(open(path)) if os.path.exists(path) else {}
            put(huge, name, json.dumps({**old, "model_max_length": 10 ** 30, "x": [float("nan"), float("-inf"), 10 ** 400, -1e308]}))
        for command in (["inspect"], ["generate", "-p", "Once", "-n", "3"]):
            rc, out, err = run(command[0], huge, *command[1:])
            check(f"{command[0]}: numbers that do not fit", rc == 0 and " WARN " not in err, (rc, err))


def test_weights_that_are_no_numbers():
    """Refused at load by the tensor's name, whatever the type of the file and of the arithmetic."""
    small = ["--layers", "2", "--d-model", "64", "--heads", "2", "--vocab-size", "300", "--max-positions", "64"]
    bits = {"F32": (0x7FC00000, 0xFF800000), "F16": (0x7E00, 0xFC00), "BF16": (0x7FC0, 0xFF80)}
    with tempfile.TemporaryDirectory() as d:
        for dtype, (nan, inf) in bits.items():
            model = os.path.join(d, dtype)
            run("random-model", model, *small, "--dtype", dtype)
            path = os.path.join(model, "model.safetensors")
            good = open(path, "rb").read()
            head = 8 + struct.unpack("<Q", good[:8])[0]
            tensors = json.loads(good[8:head])
            size = 4 if dtype == "F32" else 2
            for name, element, value, word in (("h.1.mlp.c_fc.weight", -1, nan, "NaN"), ("wte.weight", 700, inf, "infinite"),
                                               ("ln_f.bias", 3, inf, "infinite")):
                full = next(t for t in tensors if t.endswith(name))
                begin, end = tensors[full]["data_offsets"]
                at = head + (begin + element * size if element >= 0 else end + element * size)
                with open(path, "wb") as f:
                    f.write(good[:at] + value.to_bytes(size, "little") + good[at + size:])
                where = f"element {(at - head - begin) // size}"
                one_line_error(f"{dtype}: {word} in {name}", run("generate", model, "-p", "x", "-n", "1"), 1, path, full, word, where)
                one_line_error(f"{dtype}: the same for serve", run("serve", model, "--port", "0", "--log-level", "warn"), 1, full, word)
            with open(path, "wb") as f:
                f.write(good)
            check(f"{dtype}: the whole file serves", run("generate", model, "-p", "x", "-n", "1")[0] == 0)


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
    one_line_error("the bad word alone is quoted", run("detokenize", MODEL, stdin=b"1 2 x 99999\n"), 1, "'x' is not a token id")
    one_line_error("a number with a tail", run("detokenize", MODEL, "-i", "1,12abc,3"), 1, "'12abc' is not a token id")
    one_line_error("an id out of range", run("detokenize", MODEL, "-i", "4000000"), 1, "4000000")
    check("an empty text", run("tokenize", MODEL, "-p", "")[:2] == (0, ""))


def test_bench_missing():
    """The benchmarks are a program beside this one."""
    with tempfile.TemporaryDirectory() as d:
        alone = shutil.copy(BIN, d)
        one_line_error("bench without roseinfer-bench", run("bench", "offline", program=alone), 1,
                       os.path.join(os.path.realpath(d), "roseinfer-bench"), "make install")
        os.symlink(os.path.realpath(os.path.join(os.path.dirname(BIN), "roseinfer-bench")), os.path.join(d, "roseinfer-bench"))
        rc, out, err = run("bench", "offline", "--help", program=alone)
        check("bench with it", rc == 0 and out.startswith("Usage: roseinfer bench offline"), (out, err))
    with tempfile.TemporaryDirectory() as d:
        bench = shutil.copy(os.path.join(os.path.dirname(BIN), "roseinfer-bench"), d)
        path, os.environ["PATH"] = os.environ["PATH"], d
        one_line_error("roseinfer-bench without roseinfer", run("start", MODEL, "--repeats", "1", program=bench), 1, "--roseinfer-cmd")
        os.environ["PATH"] = path


def test_generate():
    a = run("generate", MODEL, "-p", "Once upon a time", "-n", "24")
    b = run("generate", MODEL, "-n", "24", stdin=b"Once upon a time")
    check("generate writes text", a[0] == 0 and len(a[1]) > 20, a)
    check("nothing on stderr in a pipe", a[2] == "", a[2])
    check("prompt from stdin is the same", a[1] == b[1], (a[1], b[1]))
    check("the prompt comes before the text", a[1].startswith("Once upon a time"), a[1])
    c = run("generate", MODEL, "-p", "Once upon a time", "-n", "24", "--no-echo")
    check("--no-echo leaves the prompt out", "Once upon a time" + c[1] == a[1], (a[1], c[1]))
    c = run("generate", MODEL, "-p", "Once upon a time", "-n", "24", "--temperature", "0.8", "--top-p", "0.95", "--top-k", "40",
            "--seed", "0")
    check("the default is sampled with a fixed seed", c[1] == a[1], (a[1], c[1]))
    c = run("generate", MODEL, "-p", "Once upon a time", "-n", "24", "--temperature", "0")
    check("--temperature 0 is greedy: other text", c[0] == 0 and c[1] != a[1], (a[1], c[1]))
    c = run("generate", MODEL, "-n", "1", "--temperature", "0", stdin=b"Once\n")
    check("a newline from a pipe stays in the prompt", c[1].startswith("Once\n"), c[1])
    s = [run("generate", MODEL, "-p", "The", "-n", "40", "--temperature", "0.9", "--seed", str(i))[1] for i in (1, 1, 2)]
    check("same seed, same text; other seed, other text", s[0] == s[1] != s[2], s)
    for isa in ("scalar", "avx2", "avx512", "amx"):
        rc, out, err = run("generate", MODEL, "-p", "Once upon a time", "-n", "24", "--isa", isa)
        if rc == 0:
            check(f"--isa {isa} gives the same text", out == a[1], out)
        else:
            check(f"--isa {isa} is refused by name where the CPU lacks it", rc == 1 and isa in err, err)
    # Its own bits: chosen by name alone, the same alone and on other threads; never with float32.
    bf16 = ["--isa", "avx512-bf16", "--dtype", "bfloat16"]
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        has = " avx512_bf16" in f.read()
    runs = [run("generate", MODEL, "-p", "Once upon a time", "-n", "24", *bf16, "--threads", t) for t in ("1", "2")]
    if has:
        check("--isa avx512-bf16 generates, the same on any threads",
              runs[0][0] == 0 and len(runs[0][1]) > 20 and runs[0][1] == runs[1][1], runs)
        one_line_error("--isa avx512-bf16 with float32", run("generate", MODEL, "-p", "x", *bf16[:2], "--dtype", "float32"),
                       1, "avx512-bf16", "float32")
        rc, out, err = run("bench", "kernels", *bf16[:2], "--dtype", "float32")
        check("bench kernels the same", rc == 1 and err.count("\n") == 1 and "avx512-bf16" in err, (rc, out, err))
    else:
        print("NOT RUN: --isa avx512-bf16: this CPU lacks it")
        one_line_error("--isa avx512-bf16 where the CPU lacks it", runs[0], 1, "avx512_bf16")
    one_line_error("a prompt that is too long", run("generate", MODEL, stdin=b"word " * 20000), 1, "context")
    one_line_error("an empty prompt", run("generate", MODEL, "-p", ""), 1)
    p = subprocess.Popen([BIN, "generate", MODEL, "-p", "Once", "-n", "200", "--ignore-eos"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.stdout.close()
    p.wait(timeout=30)
    check("a reader that leaves ends the run quietly", first != b"" and p.stderr.read() == b"", p.returncode)


JOINED = "{{ messages | map(attribute='content') | join(' ') }}"  # a chat is then a text that generate can continue


def test_chat():
    args = ["chat", MODEL, "--temperature", "0", "-n", "12", "--chat-template"]

    def told(text):
        return run("generate", MODEL, "-p", text, "-n", "12", "--temperature", "0", "--no-echo")[1]

    first = told("Once upon a time")
    second = told("Once upon a time" + " " + first + " The king")
    shown = [t.removeprefix(" ") for t in (first, second)]
    a = run(*args, JOINED, stdin=b"Once upon a time\nThe king\n")
    check("chat answers each line with the conversation so far", a == (0, "".join(t + "\n" for t in shown), ""), (a, shown))
    a = run(*args, JOINED, stdin=b"Once upon a time\n\n/reset\nOnce upon a time")
    check("/reset begins anew, an empty line is no message", a == (0, (shown[0] + "\n") * 2, ""), a)
    lines = told("Once\nupon").removeprefix(" ") + "\n"
    a = [run(*args, JOINED, stdin=b"\"\"\"" + text) for text in (b"Once\nupon\"\"\"\n", b"\nOnce\nupon\n\"\"\"")]
    check("a message of several lines", a == [(0, lines, "")] * 2, (a, lines))
    one_line_error("a message without its end", run(*args, JOINED, stdin=b"\"\"\"Once\n"), 1, "does not end")
    system = told("You are a king. Once").removeprefix(" ") + "\n"
    a = run(*args, JOINED, "--system-prompt", "You are a king.", stdin=b"Once\n/reset\nOnce\n")
    check("--system-prompt stays after /reset", a == (0, system * 2, ""), (a, system))
    a = run(*args, JOINED, stdin=b"/system You are a king.\nOnce\n/system\n/reset\nOnce upon a time\n")
    check("/system sets and removes it", a == (0, system + shown[0] + "\n", ""), a)
    a = run(*args, JOINED, "--timings", stdin=b"Once upon a time there was a king who had three sons and no money\nAnd\n")
    counts = [tuple(map(int, m)) for m in re.findall(r"prompt of (\d+) tokens, (\d+) of them cached", a[2])]
    check("--timings shows that the conversation stays cached", a[0] == 0 and len(counts) == 2 and counts[0][1] == 0 and
          counts[1][1] == counts[0][0] // 16 * 16 > 0 and a[2].count("first token after") == 2, a)

    rc, out, err = run(*args, JOINED, stdin=b"/help\n/set top-k 7\n/set\n/quit\nOnce\n")
    check("/help, /set and /quit", rc == 0 and err == "" and all(f"/{c}" in out for c in ("reset", "system", "timings", "quit")) and
          re.search(r"^top-k +7$", out, re.M) is not None and out.rstrip().splitlines()[-1].startswith("seed"), (rc, out, err))
    one_line_error("an unknown command", run(*args, JOINED, stdin=b"/rest\n"), 1, "no command /rest", "/help")
    one_line_error("/set checks the value", run(*args, JOINED, stdin=b"/set temperature 1000\n"), 1, "temperature", "1000")
    one_line_error("/set knows the name", run(*args, JOINED, stdin=b"/set temprature 1\n"), 1, "did you mean --temperature")
    rc, out, err = run(*args, JOINED, stdin=b"\xff\nOnce upon a time\n")
    check("a line that is not UTF-8 is refused, the next one answered", (rc, out) == (1, shown[0] + "\n") and "UTF-8" in err and
          err.count("\n") == 1, (rc, out, err))
    rc, out, err = run(*args, JOINED, "--max-model-len", "32", stdin=b"Once upon a time\n" * 3)
    check("a full context says so, and what to do", rc == 1 and err.count("\n") >= 1 and all("/reset" in l for l in err.splitlines()),
          (rc, out, err))
    one_line_error("no chat template", run("chat", MODEL, stdin=b"Once\n"), 1, "no chat template", "--chat-template", "generate")
    one_line_error("a template that is wrong", run(*args, "{% if %}", stdin=b"Once\n"), 1, "line 1")
    one_line_error("a template that refuses", run(*args, "{{ raise_exception('only Latin') }}", stdin=b"Once\n"), 1, "only Latin")
    seeds = [run("chat", MODEL, "-n", "12", "--chat-template", JOINED, "--seed", s, stdin=b"Once\n")[1] for s in ("1", "1", "2")]
    check("--seed", seeds[0] == seeds[1] != seeds[2], seeds)
    with tempfile.TemporaryDirectory() as d:
        folder = copy_of(d, "greedy")
        put(folder, "generation_config.json", json.dumps({"temperature": 0.0, "max_new_tokens": 12}))
        a = run("chat", folder, "--chat-template", JOINED, stdin=b"Once upon a time\n")
        check("what the model recommends is the default", a == (0, shown[0] + "\n", ""), a)
        a = run("chat", folder, "--chat-template", JOINED, "-n", "3", stdin=b"Once upon a time\n")
        check("an option counts more", a[0] == 0 and shown[0].startswith(a[1].rstrip("\n")) and len(a[1]) < len(shown[0]), a)
        put(folder, "generation_config.json", json.dumps({"temperature": -1, "max_new_tokens": 12}))
        a = run("chat", folder, "--chat-template", JOINED, stdin=b"Once upon a time\n")
        check("a wrong recommendation: the nearest one", a[:2] == (0, shown[0] + "\n") and "temperature is -1, expected 0" in a[2], a)
        a = run(*args[:1], folder, *args[2:], JOINED, "--generation-config", "none", stdin=b"Once upon a time\n")
        check("--generation-config none ignores it", a == (0, shown[0] + "\n", ""), a)
        put(folder, "chat_template.jinja", "{% if %}")
        a = run("generate", folder, "-p", "Once upon a time", "--no-echo", *args[2:6])
        check("generate needs neither of the two", a[0] == 0 and a[1].strip() == shown[0].strip(), (a, shown[0]))


class Terminal:
    """A program on a pseudo-terminal. Each wait looks only at what came after the wait before."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BIN, [BIN, *args], dict(os.environ, TERM="xterm", LANG="C"))
        self.out, self.seen = b"", 0

    def wait(self, text, timeout=60):
        end = time.monotonic() + timeout
        while (at := self.out.find(text, self.seen)) < 0 and time.monotonic() < end:
            if not select.select([self.fd], [], [], 0.5)[0]:
                continue
            try:
                self.out += os.read(self.fd, 65536)
            except OSError:
                break
        self.seen = at + len(text) if at >= 0 else self.seen
        return at >= 0

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        self.wait(b"\0")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_chat_terminal():
    """The model writes | for ever: 200,000 tokens, each of which reads the keys of all before it."""
    with tempfile.TemporaryDirectory() as d:
        folder = os.path.join(d, "m")
        run("random-model", folder, "--arch", "llama", "--layers", "1", "--d-model", "32", "--heads", "1", "--d-ff", "64",
            "--vocab-size", "257", "--max-positions", "200000")
        t = Terminal("chat", folder, "--temperature", "0", "--chat-template", "{% for m in messages %}{{ m.content }}|{% endfor %}")
        check("chat greets and names the context", t.wait(b"context of 200000 tokens") and t.wait(b"> "), t.out)
        t.type(b"nonsense\x03")
        check("Ctrl-C at the prompt gives the line up", t.wait(b"^C") and t.wait(b"> "), t.out)
        t.type("hellö\n".encode())
        check("a reply comes", t.wait("hellö".encode()) and t.wait(b"|" * 50), t.out[-300:])
        t.type(b"\x03")
        check("Ctrl-C stops it, and the program goes on", t.wait(b"[stopped]") and t.wait(b"> "), t.out[-300:])
        t.type(b"/timings\n")
        check("a command", t.wait(b"[timings after each reply]") and t.wait(b"> "), t.out[-300:])
        t.type(b"more\n")
        check("the next message gets a reply", t.wait(b"more") and t.wait(b"|" * 50), t.out[-300:])
        t.type(b"\x03")
        done = t.wait(b"[prompt of ") and t.wait(b"]") and t.wait(b"[stopped]") and t.wait(b"> ")
        m = re.search(rb"prompt of (\d+) tokens, (\d+) of them cached", t.out)
        check("the stopped reply is part of the conversation, and cached", done and m is not None and int(m[1]) > 50 and
              0 < int(m[2]) < int(m[1]), t.out[-300:])
        t.type(b"\x1b[A\x03")
        check("the key up shows the last message", t.wait(b"more") and t.wait(b"^C") and t.wait(b"> "), t.out[-300:])
        t.type(b"\x04")
        check("Ctrl-D quits", t.end() == 0, t.out[-300:])


def spm_model(d):
    """A model that repeats the last token, with a SentencePiece-style tokenizer."""
    folder, mark = os.path.join(d, "spm"), "\u2581"
    vocab = ["<unk>", "<s>", "</s>", mark, "a", mark + "a"] + [f"<0x{i:02X}>" for i in range(256)]
    run("random-model", folder, "--arch", "llama", "--layers", "1", "--d-model", "64", "--heads", "1", "--vocab-size", str(len(vocab)))
    put(folder, "tokenizer_config.json", "{}")  # the one of random-model names a token that this vocabulary lacks
    put(folder, "tokenizer.json", json.dumps({
        "added_tokens": [{"id": i, "content": vocab[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": mark}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": mark}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
                  "vocab": {t: i for i, t in enumerate(vocab)}, "merges": [f"{mark} a"]}}))
    return folder


@contextlib.contextmanager
def serving(model, *options):
    """The port of a server."""
    p = subprocess.Popen([BIN, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
    try:
        yield next(int(m[1]) for line in p.stderr if (m := re.search(r"listening on http://127.0.0.1:(\d+)", line)))
    finally:
        p.terminate()
        p.communicate()


def posted(port, body, path="completions"):
    """The reply to a completion; a stream's is a list."""
    r = urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/v1/{path}", json.dumps(body).encode(),
                                                      {"Content-Type": "application/json"}), timeout=60)
    text = r.read().decode()
    return [json.loads(l[6:]) for l in text.splitlines() if l.startswith("data: {")] if body.get("stream") else json.loads(text)


def test_chat_like_serve():
    """With a seed both give the same text, whatever says how to sample."""
    seen = set()
    with tempfile.TemporaryDirectory() as d:
        folder = copy_of(d, "m")
        put(folder, "chat_template.jinja", JOINED)
        put(folder, "generation_config.json", json.dumps({"temperature": 0.5, "top_k": 5}))
        for options in ([], ["--generation-config", "none"], ["--override-generation-config", '{"temperature": 2, "max_new_tokens": 9}']):
            with serving(folder, *options) as port:
                ask = {"messages": [{"role": "user", "content": "Once upon a time"}], "seed": 5}
                if "none" in " ".join(options) or not options:
                    ask["max_tokens"] = 30
                text = posted(port, ask, "chat/completions")["choices"][0]["message"]["content"]
            limit = ["-n", str(ask["max_tokens"])] if "max_tokens" in ask else []
            a = run("chat", folder, "--seed", "5", *options, *limit, stdin=b"Once upon a time\n")
            check(f"chat and serve write the same: {options}", a == (0, text.removeprefix(" ") + "\n", ""), (a, text))
            seen.add(text)
        check("the defaults matter", len(seen) == 3, seen)
        one_line_error("an unknown default", run("chat", folder, "--override-generation-config", '{"temp": 1}'), 1, "there is no 'temp'")
        one_line_error("of serve", run("serve", folder, "--port", "0", "--log-level", "error", "--override-generation-config", "5"), 1,
                       "expected a JSON object")


def shown_lines(out):
    """What a terminal shows: cursor left, erase to the end of the line."""
    lines, at = [""], 0
    for m in re.finditer(r"\x1b\[(\d*)([DK])|([^\x1b])", out.replace("\r", "")):
        if m[2] == "D":
            at -= int(m[1])
        elif m[2] == "K":
            lines[-1] = lines[-1][:at]
        elif m[3] == "\n":
            lines, at = lines + [""], 0
        else:
            lines[-1], at = lines[-1][:at] + m[3] + lines[-1][at + 1:], at + 1
    return lines


def test_chat_wraps():
    """Lines of a reply end between words."""
    args = ["chat", MODEL, "--temperature", "0", "-n", "150", "--chat-template", JOINED]
    want = run(*args, stdin=b"Once upon a time\n")[1]
    for columns in (24, 40):
        t = Terminal(*args)
        fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        t.wait(b"> ")
        t.type(b"Once upon a time\n")
        t.wait(b"time\r\n")
        begin = t.seen
        t.wait(b"\r\n\r\n> ")
        lines = shown_lines(t.out[begin:].decode())[:-2]
        check(f"{columns} columns: no line is longer", len(lines) > 10 and max(map(len, lines)) < columns, lines)
        check(f"{columns} columns: no word is broken", " ".join(lines).split() == want.split(), (lines, want))
        t.type(b"\x04")
        t.end()


def test_space_at_start():
    with tempfile.TemporaryDirectory() as d:
        folder = spm_model(d)
        args = [folder, "-n", "3", "--temperature", "0"]
        check("one token has the space before a word", run("tokenize", folder, "-p", "a a")[1] == "5 5\n", run("tokenize", folder, "-p", "a a"))
        check("generate keeps the space between prompt and text", run("generate", *args, "-p", "a")[1] == "a a a a", run("generate", *args, "-p", "a"))
        a = run("chat", *args, "--chat-template", "{{ messages[0].content }}", stdin=b"a\n")
        check("chat shows the reply without it", a == (0, "a a a\n", ""), a)
        with serving(folder) as port:
            ask = {"prompt": "a", "max_tokens": 3, "temperature": 0, "logprobs": 1}
            whole = posted(port, ask)["choices"][0]
            check("a whole completion keeps the space", whole["text"] == " a a a", whole)
            check("and the names of its tokens join to it", "".join(whole["logprobs"]["tokens"]) == " a a a", whole)
            echoed = posted(port, {**ask, "echo": True})["choices"][0]
            check("an echoed prompt has none at its start", echoed["text"] == "a a a a" and
                  echoed["logprobs"]["tokens"] == ["a", " a", " a", " a"] and echoed["logprobs"]["text_offset"] == [0, 1, 3, 5], echoed)
            chunks = posted(port, {**ask, "stream": True})
            check("a streamed completion is the same", "".join(c["choices"][0]["text"] for c in chunks) == " a a a", chunks)


def on_terminal(*args, typed=b"", timeout=60):
    """Runs on a pseudo-terminal, types when asked to end the input; returns what it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(BIN, [BIN, *args])
    out, end = b"", time.monotonic() + timeout
    while time.monotonic() < end:
        if typed and b"Ctrl-D" in out:
            os.write(fd, typed)
            typed = b""
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
    check("no word of Ctrl-D where there is a prompt", "Ctrl-D" not in shown, shown)
    rc, shown = on_terminal("tokenize", MODEL, typed=b"Once upon\n\x04")
    ids = run("tokenize", MODEL, "-p", "Once upon")[1].strip()
    check("on a terminal it says how to end the input, and the last newline is no part of it",
          rc == 0 and "Ctrl-D" in shown and shown.splitlines()[-1].lstrip("^D\b") == ids, (shown, ids))
    rc, shown = on_terminal("generate", MODEL, "-n", "8", "--no-stats", typed=b"Once upon\n\x04")
    text = run("generate", MODEL, "-n", "8", "-p", "Once upon")[1]
    check("generate from a terminal", rc == 0 and shown.replace("\r\n", "\n").rstrip("\n").endswith(text.rstrip("\n")), (shown, text))


def test_bench_offline():
    rc, out, err = run("bench", "offline", MODEL, "--num-prompts", "6", "--input-len", "20", "--output-len", "5",
                       "--max-batch-size", "4", "--repeats", "2", "--warmup", "0")
    check("bench offline runs", rc == 0, err)
    j = json.loads(out)
    row = j["results"][0]
    ok = len(j["results"]) == 1 and len(row["repeats"]) == 2 and all(
        r["total_output_tokens"] == 30 and r["total_input_tokens"] == 120 for r in row["repeats"])
    check("bench offline counts every token", ok and j["meta"]["max_batch_size"] == 4 and
          row["extra"]["max_batch_size"] == 4 and row["backend"] == "roseinfer+inproc", j)
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run("bench", "offline", MODEL, "--num-prompts", "2", "--input-len", "4", "--output-len", "2",
                           "--repeats", "1", "--warmup", "0", "--output-dir", os.path.join(d, "r"))
        found = [os.path.join(p, f) for p, _, fs in os.walk(d) for f in fs]
        names = sorted(os.path.basename(f) for f in found)
        check("--output-dir writes the results", rc == 0 and names == ["offline_results.json", "offline_summary.md"] and
              json.load(open(found[names[0] != os.path.basename(found[0])]))["results"] != [], (found, err))
    one_line_error("a prompt longer than the context", run("bench", "offline", MODEL, "--input-len", "100000"), 1,
                   "context")


DRIVER = """import json, sys, time
w = json.load(open(sys.argv[1]))
assert w["options"]["max_batch_size"] == 4 and w["options"]["warmup"] == 1 and len(w["runs"]) == 3
mode = dict(a.split("=") for a in sys.argv[2:]).get("mode")
if mode == "die":
    sys.exit("no such \\xe2 device")
print("chatter")
if mode == "babble":
    sys.exit(0)
lens = [(sum(map(len, r["prompts"])), sum(r["output_lens"])) for r in w["runs"][1:]]
times = {"times": {"first_s": [0.1, 0.1, 0.1, 0.1, 0.2, 0.3], "last_s": [0.5] * 6}, "after": {"first_s": [1] * 6, "last_s": [9] * 6},
         "short": {"first_s": [0.1] * 5, "last_s": [0.5] * 6}}.get(mode, {})
print(json.dumps({"runs": [{"total_s": 0.5 + i, "input_tokens": a, "output_tokens": b, **times} for i, (a, b) in
                           enumerate(lens[mode == "few":])], "extra": {"device": "nothing"},
                  "ready_at_s": time.clock_gettime(time.CLOCK_MONOTONIC), "resident_peak_bytes": 5 << 20}))
"""


def test_bench_offline_backends():
    small = ["--num-prompts", "6", "--input-len", "20", "--output-len", "5", "--max-batch-size", "4", "--repeats", "2"]
    with tempfile.TemporaryDirectory() as d:
        for name in ("vllm", "sglang", "trtllm", "transformers"):
            with open(os.path.join(d, name + ".py"), "w") as f:
                f.write(DRIVER)
        rc, out, err = run("bench", "offline", MODEL, *small, "--backends",
                           "vllm,inproc,sglang,roseinfer,trtllm,llama,transformers", "--drivers", d,
                           "--sglang-args", "mode=die", "--trtllm-args", "mode=babble", "--transformers-args", "mode=few",
                           "--output-dir", os.path.join(d, "out"))
        where = out.strip()
        j = json.load(open(where))
        rows = {r["backend"]: r for r in j["results"]}
        check("a row for every backend, failures too", rc == 1 and len(rows) == 7, (rc, err, rows.keys()))
        for label in ("vllm", "roseinfer+inproc", "roseinfer"):
            r = rows[label]
            check(f"{label} counts every token", len(r["repeats"]) == 2 and "error" not in r["extra"] and
                  r["total_input_tokens"] == 120 and r["total_output_tokens"] == 30, r)
        check("a script's own words", rows["vllm"]["device"] == "nothing" and rows["vllm"]["total_s"] == 0.5, rows["vllm"])
        check("our server has the same options", "--max-num-seqs 4" in rows["roseinfer"]["extra"]["cmd"], rows["roseinfer"])
        for label, why in (("sglang", "exit code 1: no such"), ("trtllm", "not JSON: chatter"), ("llama", "no llama.py"),
                           ("transformers", "1 runs of 2")):
            check(f"{label}: a failure with its cause", why in rows[label]["extra"]["error"] and
                  rows[label]["output_throughput_tps"] == 0, rows[label])
        check("ready and memory of each", all(0 < rows[n]["ready_s"] < 60 and rows[n]["resident_peak_bytes"] >= 5 << 20
                                              for n in ("vllm", "roseinfer+inproc", "roseinfer")) and
              rows["sglang"]["ready_s"] is None and rows["sglang"]["resident_peak_bytes"] is None, rows)
        check("no times where a driver gives none", rows["vllm"]["ttft_p50_ms"] is None, rows["vllm"])
        rc, out, err = run("bench", "offline", MODEL, *small, "--backends", "vllm,sglang,transformers", "--drivers", d,
                           "--vllm-args", "mode=times", "--sglang-args", "mode=after", "--transformers-args", "mode=short")
        r = json.loads(out)["results"]
        check("a driver's times", abs(r[0]["ttft_p50_ms"] - 100) < 1e-6 and abs(r[0]["ttft_p99_ms"] - 295) < 1e-6 and
              abs(r[0]["tpot_p50_ms"] - 100) < 1e-6 and abs(r[0]["tpot_p99_ms"] - 100) < 1e-6, r[0])
        check("times that cannot be", "times for prompt 0" in r[1]["extra"]["error"] and
              "for 6 prompts" in r[2]["extra"]["error"], r)
        rc, out, err = run("bench", "merge", os.path.join(d, "merged"), os.path.dirname(where), os.path.dirname(where))
        check("merge of offline results", rc == 0 and
              len(json.load(open(os.path.join(d, "merged", "offline_results.json")))["results"]) == 7, err)
    one_line_error("an unknown offline backend", run("bench", "offline", MODEL, "--backends", "gpt"), 1, "'gpt'")
    rc, out, err = run("bench", "offline", MODEL, "--workload", "nano-vllm", "--max-model-len", "24", "--repeats", "1",
                       "--warmup", "0", "--temperature", "0")
    j = json.loads(out)
    check("nano-vllm's workload, cut to the context", rc == 0 and j["results"][0]["num_prompts"] == 256 and
          "256 of 256 requests cut" in err, err)


def test_peers():
    """tools/peers without rivals: ours both ways, added to by a second run, and a rival that is not there."""
    peers = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "peers")
    with tempfile.TemporaryDirectory() as d:
        def call(*args):
            p = subprocess.run([sys.executable, peers, d, "--bin", BIN, "--model", MODEL, "--work", d, "--input-len", "8",
                                "--output-len", "4", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
            return p.returncode, p.stdout, p.stderr
        rc, out, err = call("--rivals", "", "--streams", "1,2", "--ours", "a=", "--ours", "b=--quantization int8")
        runs = json.load(open(os.path.join(d, "peers.json")))["runs"]
        check("peers: a run for each", rc == 0 and sorted((r["kind"], r["program"], r["streams"]) for r in runs) ==
              [(k, p, n) for k in ("offline", "online") for p in ("roseinfer-a", "roseinfer-b") for n in (1, 2)], err)
        check("peers: every token there", all(r["row"]["total_output_tokens"] == 4 * (r["row"].get("num_prompts") or
                                                                                     r["row"]["num_success"]) for r in runs), runs)
        table = [line for line in out.splitlines() if line.startswith("| roseinfer-b |")]
        check("peers: ten tables", len(table) == 10 and all(line.count("|") == 4 and "failed" not in line for line in table), out)
        rc, out, err = call("--rivals", "transformers-bf16", "--kinds", "offline", "--streams", "1", "--ours", "a=",
                            "--transformers-python", os.path.join(d, "no-python"))
        again = json.load(open(os.path.join(d, "peers.json")))["runs"]
        check("peers: a second run adds, a rival that is not there is told", rc == 1 and again[:len(runs)] == runs and
              len(again) == len(runs) + 2 and "| transformers-bf16 | failed |" in out, (rc, out, err))


def interrupted_offline(d, backends, seconds, *more):
    """Results of a `bench offline` that gets Ctrl-C so long after its start, or when the script of its driver has begun."""
    out_dir = os.path.join(d, f"out-{seconds}")
    begun = os.path.join(d, "begun")
    p = subprocess.Popen([BIN, "bench", "offline", MODEL, "--num-prompts", "16", "--input-len", "8", "--output-len", "20",
                          "--warmup", "0", "--backends", backends, "--drivers", d, "--output-dir", out_dir, *more],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while "," in backends and not os.path.exists(begun) and time.monotonic() < deadline and p.poll() is None:
        time.sleep(0.02)
    time.sleep(seconds)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    if p.returncode == -signal.SIGINT:  # it had not begun
        return p.returncode, [{}], err
    return p.returncode, json.load(open(out.decode().strip()))["results"], err


def test_bench_offline_interrupted():
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "vllm.py"), "w") as f:
            f.write(f"import time\nopen({os.path.join(d, 'begun')!r}, 'w').close()\ntime.sleep(60)\n")
        rc, rows, err = interrupted_offline(d, "inproc,vllm", 0, "--repeats", "1")
        check("Ctrl-C in the second backend", rc == 1 and len(rows) == 2 and rows[1]["extra"]["error"] == "interrupted",
              (rc, rows, err))
        check("Ctrl-C: the row before it stays", rows[0]["output_throughput_tps"] > 0 and "error" not in rows[0]["extra"], rows)
        for seconds in (1, 4, 16):  # until some repeats were done by then
            rc, rows, err = interrupted_offline(d, "inproc", seconds, "--repeats", "1000")
            if "repeats" in rows[0]:
                break
        check("Ctrl-C: the repeats before it stay", rc == 1 and 0 < len(rows[0].get("repeats", [])) < 1000 and
              rows[0]["extra"]["error"] == "interrupted", (rc, rows, err))


def test_bench_latency():
    rc, out, err = run("bench", "latency", MODEL, "--batch-size", "3", "--input-len", "8", "--output-len", "4",
                       "--num-iters", "5", "--num-iters-warmup", "1")
    j = json.loads(out)
    v = sorted(j["latencies"])
    check("bench latency, vllm's keys", rc == 0 and len(v) == 5 and j["percentiles"]["50"] == v[2] and
          abs(j["avg_latency"] - sum(v) / 5) < 1e-9 and set(j["percentiles"]) == {"10", "25", "50", "75", "90", "99"}, j)
    one, by = j["one_token_latency_ms"], j["tpot_by_difference_ms"]
    check("bench latency, a token by difference", one["n"] == by["n"] == 5 and 0 < one["min"] <= one["p50"] and
          abs(by["mean"] * 3 - (j["latency_ms"]["mean"] - one["mean"])) < 1e-6 and f"by difference {by['p50']:.3f} ms" in err, (one, by, err))
    machine, floor = j["machine"], j["floor"]
    arch = json.load(open(os.path.join(MODEL, "config.json")))
    d, layers = arch["n_embd"], arch["n_layer"]
    matrices = 2 * (layers * 12 * d * d + arch["vocab_size"] * d)
    vectors = 4 * (layers * 13 * d + 2 * d)
    check("bench latency, the floor", machine["threads"] >= 1 and machine["read_gb_per_s"] > 0.1 and
          0 < machine["barrier_us"] <= machine["barrier_p99_us"] and machine["job_us"] > 0 and
          matrices + vectors <= floor["weights_read_bytes"] <= matrices + vectors + 65536 and
          abs(floor["tpot_ms"] - floor["weights_read_bytes"] / machine["read_gb_per_s"] * 1e-6) < 1e-9 and
          abs(floor["tpot_p50_over_floor"] * floor["tpot_ms"] / j["tpot_ms"]["p50"] - 1) < 1e-9, (machine, floor))
    rc, out, err = run("bench", "latency", MODEL, "--batch-size", "1", "--input-len", "8", "--output-len", "1", "--num-iters", "1",
                       "--num-iters-warmup", "0")
    check("one token has no TPOT to compare", rc == 0 and json.loads(out)["floor"]["tpot_p50_over_floor"] is None and err.count("nan") == 0 and "TPOT p50 -, by difference -" in err and json.loads(out)["tpot_by_difference_ms"]["n"] == 0, (out, err))
    one_line_error("latency over the context", run("bench", "latency", MODEL, "--input-len", "100000"), 1, "")


def test_bench_kernels():
    """Our products are always timed; oneDNN's where its header was there for the build and its library is now."""
    # The leak checker of a sanitizer build dies of the OpenMP threads that oneDNN leaves behind.
    os.environ["ASAN_OPTIONS"] = (asan := os.environ.get("ASAN_OPTIONS", "")) + ":detect_leaks=0"
    rc, out, err = run("bench", "kernels", "--max-rows", "1", "--repeats", "1", "--json")
    check("bench kernels", rc == 0, err)
    if rc == 0:
        j = json.loads(out)
        products, row = j["products"], j["one_row"]
        missing = "no oneDNN" in j["about"]
        check("five products of one row, all timed", [p["rows"] for p in products] == [1] * 5 and
              all(p["own_us"] > 0 and "library_same_us" not in p for p in products), out)
        check("oneDNN is also timed, or one line says that it is missing and how to get it",
              err.count("\n") == 1 and "comparison with oneDNN is missing" in err and "libdnnl2" in err and
              all(p["library_us"] is None for p in products) if missing else
              err == "" and all(p["library_us"] > 0 for p in products), (out, err))
        us = sum(p["own_us"] * (1 if p["matrix"] == "head" else 12) for p in products)
        floor = row["weight_bytes"] / j["machine"]["read_gb_per_s"] * 1e-3
        check("one row and its floor", row["weight_bytes"] == 2 * sum(p["n_out"] * p["n_in"] * (1 if p["matrix"] == "head" else 12)
              for p in products) and abs(row["own_us"] / us - 1) < 1e-3 and abs(row["floor_us"] / floor - 1) < 1e-3 and
              abs(row["own_over_floor"] * row["floor_us"] / row["own_us"] - 1) < 0.01, out)
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # as on a CPU that has no more: oneDNN has no bfloat16 then
        rc, out, err = run("bench", "kernels", "--max-rows", "1", "--repeats", "1")
        del os.environ["ONEDNN_MAX_CPU_ISA"]
        check("oneDNN in float32 where it has no bfloat16", rc == 0 and (missing or "in float32" in out.split("\n")[0]) and
              "; roseinfer in bfloat16; 2 ms of rest" in out.split("\n")[0], (rc, out, err))
        one_line_error("a library that is named must be there", run("bench", "kernels", "--library", "/nonexistent/lib"), 1, "oneDNN")
    for rows in ("1,3", "3"):
        rc, out, err = run("bench", "kernels", "--matrix", "proj", "--rows", rows, "--repeats", "1", "--json")
        if rc == 0:
            j = json.loads(out)
            check(f"--matrix proj --rows {rows} is that and no more", [(p["matrix"], p["rows"]) for p in j["products"]] ==
                  [("proj", int(n)) for n in rows.split(",")] and "one_row" not in j, out)
    rc, out, err = run("bench", "kernels", "--width", "64", "--vocab", "192", "--rows", "1", "--repeats", "1", "--json")
    if rc == 0:
        j = json.loads(out)
        check("--width 64 --vocab 192: those products, and no floor", [(p["n_out"], p["n_in"]) for p in j["products"]] ==
              [(192, 64), (64, 64), (256, 64), (64, 256), (192, 64)] and "one_row" not in j, out)
    with tempfile.TemporaryDirectory() as d:  # a config.json without weights
        model = os.path.join(d, "m")
        run("random-model", model, "--no-weights", "--arch", "llama", "--layers", "1", "--d-model", "64", "--heads", "2", "--d-ff", "192", "--vocab-size", "320")
        rc, out, err = run("bench", "kernels", "--model", model, "--load-format", "dummy", "--rows", "1", "--repeats", "1", "--json")
        check("bench kernels of a folder without weights", rc == 0 and [(p["n_out"], p["n_in"]) for p in json.loads(out)["products"]] ==
              [(192, 64), (64, 64), (384, 64), (64, 192), (320, 64)], (rc, out, err))
        one_line_error("bench kernels wants weight files otherwise", run("bench", "kernels", "--model", model, "--rows", "1"), 1, "safetensors")
        one_line_error("tune opens a folder without weights", run("tune", model, "--load-format", "dummy", "--device", "cpu"), 1, "GPU kernels", "cpu")
    one_line_error("--width 100", run("bench", "kernels", "--width", "100"), 1, "--width 100", "multiple of 64")
    one_line_error("--vocab 50257", run("bench", "kernels", "--vocab", "50257"), 1, "--vocab 50257", "multiple of 64")
    one_line_error("--width 32", run("bench", "kernels", "--width", "32"), 2, "--width", "64")
    for rows in ("", "0", "1,,2", "8x", "40000", ",".join(map(str, range(1, 34)))):
        one_line_error(f"--rows '{rows[:9]}'", run("bench", "kernels", "--rows", rows), 1, "--rows", "32768")
    rested = ["bench", "kernels", "--matrix", "proj", "--rows", "1", "--repeats", "3", "--json", "--rest-ms"]
    start = time.monotonic()
    rc, out, err = run(*rested, "1000")
    if rc == 0:
        check("--rest-ms 1000 before each run", json.loads(out)["rest_ms"] == 1000 and
              time.monotonic() - start >= (3 if "no oneDNN" in out else 6), out)
        check("a CPU rests 2 ms", json.loads(run(*rested, "0")[1])["rest_ms"] == 2)
    one_line_error("--rest-ms 10001", run("bench", "kernels", "--rest-ms", "10001"), 2, "--rest-ms", "10000")
    one_line_error("a number of rows twice", run("bench", "kernels", "--rows", "2,1,2"), 1, "--rows '2,1,2'", "2 twice")
    one_line_error("no row left", run("bench", "kernels", "--rows", "16,32", "--max-rows", "8"), 1, "--rows", "above 8")
    os.environ["ASAN_OPTIONS"] = asan
    check("float16 is refused or timed", run("bench", "kernels", "--device", "cpu", "--dtype", "float16")[0] == 1)
    check("a device that there is not", run("bench", "kernels", "--device", "tpu")[0] == 2)


ONLINE = ["bench", "online", MODEL, "-n", "6", "--rate", "100", "--input-median", "20", "--output-median", "6",
          "--warmup-requests", "1", "--warmup-input-len", "4", "--warmup-output-len", "2"]
FAKE_SERVER = """#!/usr/bin/env python3
import http.server, json, os, sys, threading
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("fake server starts", sys.argv[1:], flush=True)
if "--die" in args:
    print("no such device", flush=True)
    sys.exit(3)
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count, lock = 0, threading.Lock()
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
        with H.lock:
            H.count += 1
            number = H.count
        if "--crash-at" in args and number == int(args["--crash-at"]):
            print("crashed on purpose", flush=True)
            os._exit(4)
        assert q["model"] == "fake" and q["stream"]
        if "--echo" in args:
            os.write(1, b"prompt %s\\n" % json.dumps(q["prompt"]).encode())  # at once: threads
        if "--stall-at" in args and number >= int(args["--stall-at"]):
            import time
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'data: {"choices": [{"index": 0, "text": " x"}]}\\n\\n')
            self.wfile.flush()
            time.sleep(30)
        chunk = {"choices": [{"index": 0, "text": " x", "finish_reason": None}]}
        body = "".join("data: " + json.dumps(chunk) + "\\n\\n" for _ in range(q["max_tokens"]))
        lie = int(args.get("--lie", 0))
        body += "" if "--mute" in args else "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 1,
                                       "completion_tokens": q["max_tokens"] - lie},
                                       **({"timings": {"prompt_n": 1, "prompt_ms": 3.5}} if "--timings" in args else {})}) + "\\n\\n"
        self.reply((body + "data: [DONE]\\n\\n").encode(), "text/event-stream")
http.server.ThreadingHTTPServer.request_queue_size = 64  # of 5, a burst would overflow it: retries after seconds
http.server.ThreadingHTTPServer((args["--host"], int(args["--port"])), H).serve_forever()
"""


class Nesting(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.bad = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.bad.append((tag, self.getpos()))


SCHEMA = {
    "meta": ["model", "device", "seed", "temperature", "top_p", "top_k", "ignore_eos", "n", "scales", "max_output_len",
             "max_input_len", "prompt_overhead_tokens", "backends", "server_cpus", "client_cpus", "trace_path",
             "run_start_time", "run_end_time", "wall_s", "versions", "gpu", "dtype", "start_offset_s", "timeout_ready_s",
             "max_inflight_requests"],
    "summary": ["backend", "scale", "num_requests", "num_success", "num_error", "success_rate", "total_output_events",
                "duration_s", "req_per_s", "tok_per_s", "ttft_ms", "e2e_ms", "tpot_ms", "itl_ms"],
    "backend": ["backend", "base_url", "cmd", "log_path", "runs", "timing"],
    "request": ["input_len", "output_len", "start_s", "end_s", "ttft_s", "e2e_s", "tpot_s", "num_stream_events", "error"],
    "timing": ["backend_start_time", "backend_end_time", "server_ready_s", "warmup_s", "scale_wall_s", "backend_wall_s"],
}


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
        lacks = [k for k in SCHEMA["meta"] if k not in j["meta"]]
        lacks += [k for k in SCHEMA["summary"] for r in rows if k not in r]
        lacks += [k for k in ("mean", "p50", "p90", "p99", "max") for r in rows
                  for m in ("ttft_ms", "e2e_ms", "tpot_ms", "itl_ms") if k not in r[m]]
        lacks += [k for k in SCHEMA["backend"] for b in j["by_backend"].values() if k not in b]
        lacks += [k for k in SCHEMA["request"] for r in runs for q in r["request_metrics"] if k not in q]
        lacks += [k for k in SCHEMA["timing"] if k not in j["by_backend"]["roseinfer"]["timing"]]
        check("the schema of the Python system's suite", lacks == [], lacks)
        m, timing = j["meta"], j["by_backend"]["roseinfer"]["timing"]
        gpu = shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=
                                                            subprocess.PIPE).stdout.decode().splitlines()[:1]
        check("meta: where and how", m["gpu"] in (None, *(gpu or [])) and m["timeout_ready_s"] == 600 and
              m["dtype"] == j["by_backend"]["roseinfer"]["dtype"] and m["dtype"] in ("float32", "bfloat16", "float16") and
              0 < m["start_offset_s"] < 1 and m["max_inflight_requests"] is None, m)
        check("a wall time for each scale, not less than its run", list(timing["scale_wall_s"]) == ["0", "1"] and
              all(r["duration_s"] + m["start_offset_s"] < timing["scale_wall_s"][f"{r['scale']:g}"] + 1e-3 and
                  timing["scale_wall_s"][f"{r['scale']:g}"] < timing["backend_wall_s"] for r in rows[:2]), (timing, rows[:2]))
        check("prompts have the tokens that were asked for", all(r["num_prompt_len_differs"] == 0 for r in rows), rows)
        values = sorted(q["ttft_s"] * 1e3 for q in runs[1]["request_metrics"])
        check("p50 is the median", abs(rows[1]["ttft_ms"]["p50"] - (values[2] + values[3]) / 2) < 1e-6, values)
        check("ready and memory of its process", all(0 < r["server_ready_s"] < 60 and r["server_resident_peak_bytes"] > 1 << 20
                                                     for r in rows), rows)
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
        other, mixed = os.path.join(d, "x", "other"), os.path.join(d, "x", "mixed")
        os.makedirs(other)
        changed = json.loads(json.dumps(j))
        changed["by_backend"]["other"] = dict(changed["by_backend"].pop("roseinfer"), dtype="fp7")
        for scale, backend in (("9", "roseinfer"), ("3", "other")):
            changed["by_backend"].setdefault(backend, dict(j["by_backend"]["roseinfer"]))["timing"] = {"scale_wall_s": {scale: 1}}
        with open(os.path.join(other, "online_results.json"), "w") as f:
            json.dump(changed, f)
        rc, out, err = run("bench", "merge", mixed, where, other)
        mix = json.load(open(os.path.join(mixed, "online_results.json")))
        check("merge: wall times of both, no dtype where they differ", rc == 0 and mix["meta"]["dtype"] is None and
              again["meta"]["dtype"] == m["dtype"] and
              sorted(mix["by_backend"]["roseinfer"]["timing"]["scale_wall_s"]) == ["0", "1", "9"], (err, mix["meta"]))
        shutil.rmtree(os.path.join(d, "x"))
        parents = os.path.join(d, "parents")
        rc, out, err = run("bench", "merge", parents, d)
        both = json.load(open(os.path.join(parents, "online_results.json"))) if rc == 0 else {}
        check("merge takes the parent of the runs", rc == 0 and both["summaries"] == again["summaries"], (err, os.listdir(d)))
        shutil.rmtree(parents)
        if shutil.which("gnuplot"):
            rc, out, err = run("bench", "plot", d)
            check("plot takes the parent of the runs", rc == 0 and os.path.join(merged, "figures") in out.split() and
                  os.path.join(where, "figures") in out.split(), (out, err))
            rc, out, err = run("bench", "plot", os.path.join(merged, "online_results.json"))  # as online prints it
            figures = os.path.join(merged, "figures")
            made = os.listdir(figures) if os.path.isdir(figures) else []
            check("bench plot", rc == 0 and "online_latency_compare.png" in made and "online_ttft_ms.svg" in made and
                  "online_cdf_scale_1.png" in made, (err, made))
            rc, out, err = run("bench", "report", d, "--out", os.path.join(d, "r.html"))
            page = open(os.path.join(d, "r.html"), encoding="utf-8").read()
            links = re.findall(r'(?:src|href)="([^"]{0,30})', page)
            raw = re.search(r'href="data:application/json;base64,([^"]+)"', page)
            check("bench report: one page, nothing outside it", rc == 0 and len(links) > 10 and
                  all(x.startswith(("data:", "#file-")) for x in links) and "<script" not in page and "url(" not in page, (err, links))
            check("bench report: the raw results are inside", raw is not None and
                  json.loads(base64.b64decode(raw.group(1))) in (j, again), err)
            well = Nesting()
            well.feed(page)
            check("bench report: every element is closed", well.open == [] and not well.bad, (well.open, well.bad))
            one = os.path.join(d, "one")
            rc, out, err = run(*ONLINE, "--scales", "1", "--max-output-len", "1", "--output-dir", one)
            rc, out, err = run("bench", "plot", online_results(one)[0])
            made = os.listdir(os.path.join(online_results(one)[0], "figures"))
            check("bench plot: replies of one token have no TPOT, the rest is drawn", rc == 0 and
                  {"online_latency_p99_only.svg", "online_e2e_ms.png", "online_cdf_scale_1.svg"} <= set(made) and
                  "online_tpot_ms.png" not in made, (err, made))
            png = open(os.path.join(figures, "online_latency_compare.png"), "rb").read()
            check("the overview is a picture", png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 10000, len(png))


def test_bench_online_ramp():
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*ONLINE, "-n", "40", "--scales", "1", "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "50",
                           "--ramp-up-end-rps", "400", "--vllm-results", "--output-dir", d)
        where, j = online_results(d)
        slices = j["summaries"][0]["slices"]
        check("a ramp: the rate grows", rc == 0 and len(slices) == 10 and
              sum(s["offered_rps"] for s in slices[:3]) < sum(s["offered_rps"] for s in slices[-3:]), (err, slices))
        check("a ramp: the summary shows it", "by tenths" in open(os.path.join(where, "online_summary.md")).read())
        v = json.load(open(os.path.join(where, "vllm", "roseinfer-scale1.json")))
        check("--vllm-results", v["completed"] == 40 and len(v["itls"]) == 40 and v["tokenizer_id"] == MODEL and
              v["backend"] == "roseinfer", v.keys())
        run_ = j["by_backend"]["roseinfer"]["runs"][0]["request_metrics"]
        check("--vllm-results agree with ours", all(abs(a - b["ttft_s"]) < 1e-9 for a, b in zip(v["ttfts"], run_)) and
              abs(v["p99_ttft_ms"] - j["summaries"][0]["ttft_ms"]["p99"]) < 1e-6, v["p99_ttft_ms"])


def test_bench_online_guesses():
    """What the server counted of its guesses, also behind an API key; and a server that counts none."""
    long = [*ONLINE, "--scales", "0", "--output-median", "60", "--temperature", "0", "--model-name", "rose-tiny", "--vllm-results"]
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*long, "--output-dir", d, "--api-key", "k", "--roseinfer-args", "--api-key k", "--speculative-config",
                           '{"adaptive":false}')
        where, j = online_results(d)
        g = j["summaries"][0]["speculation"] or {}
        check("bench online: guesses of the run", rc == 0 and 0 < g["accepted_tokens"] < g["draft_tokens"] and
              abs(g["acceptance_rate"] - g["accepted_tokens"] / g["draft_tokens"]) < 1e-9 and
              abs(g["acceptance_length"] - 1 - g["accepted_tokens"] / g["num_drafts"]) < 1e-9 and
              abs(sum(g["per_position_acceptance_rates"]) - g["accepted_tokens"] / g["num_drafts"]) < 1e-9 and
              f"speculation: {g['accepted_tokens']} of {g['draft_tokens']} guessed tokens accepted" in err, (g, err))
        summary = open(os.path.join(where, "online_summary.md")).read()
        check("bench online: the summary has them", f"| {g['num_drafts']} | {g['draft_tokens']} | {g['accepted_tokens']} |" in summary, summary)
        v = json.load(open(os.path.join(where, "vllm", "roseinfer-scale0.json")))
        check("--vllm-results: guesses by vLLM's names, the rate in percent", v["spec_decode_num_drafts"] == g["num_drafts"] and
              v["spec_decode_draft_tokens"] == g["draft_tokens"] and v["spec_decode_accepted_tokens"] == g["accepted_tokens"] and
              abs(v["spec_decode_acceptance_rate"] - 100 * g["acceptance_rate"]) < 1e-9 and
              v["spec_decode_acceptance_length"] == g["acceptance_length"] and
              v["spec_decode_per_position_acceptance_rates"] == g["per_position_acceptance_rates"], v)
        page = run("bench", "report", d, "--out", os.path.join(d, "r.html"))
        check("bench report has them", page[0] == 0 and "tokens a step with a guess" in open(os.path.join(d, "r.html")).read(), page)
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*long, "--output-dir", d, "--no-speculation")
        where, j = online_results(d)
        v = json.load(open(os.path.join(where, "vllm", "roseinfer-scale0.json")))
        check("bench online: a server without guesses has no such figures", rc == 0 and j["summaries"][0]["speculation"] is None and
              "peculation" not in open(os.path.join(where, "online_summary.md")).read().split("```")[2] and
              not any(k.startswith("spec_decode") for k in v) and "guess" not in err, err)


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
        check("dtype is null where a server does not say it", j["meta"]["dtype"] is None and by["vllm"]["dtype"] is None, j["meta"])
        check("exit code and last log line of one that dies", "exit code 3" in by["sglang"]["error"] and
              "no such device" in by["sglang"]["error"], by["sglang"])
        check("a program that is not there", "trtllm" in by["trtllm"]["error"], by["trtllm"])
        refuse = os.path.join(d, "refuse")
        rc2, out2, said = run(*ONLINE, "--scales", "1", "--concurrency", "2", "--max-output-len", "3", "--warmup-requests", "0",
                              "--backends", "roseinfer", "--extra-body", '{"guided_json": 1}', "--output-dir", refuse)
        where, none = online_results(refuse)
        summary = open(os.path.join(where, "online_summary.md")).read()
        check("a run without a success: dashes, no nan", rc2 == 1 and [r["num_success"] for r in none["summaries"]] == [0, 0] and
              "nan" not in (said + summary).lower() and "TTFT -, TPOT -, ITL -, E2E -" in said and
              all("| 0/6 | - | - | - | - |" in row for row in summary.split("\nSpeculation")[0].splitlines() if row.startswith("| roseinfer")),
              (rc2, said, summary))
        check("nobody at a URL", "error" in by["gone"], by["gone"])
        crashed = by["llama"]
        check("a crash keeps what was measured", len(crashed["runs"]) == 2 and "exit code 4" in crashed["error"] and
              crashed["runs"][0]["summary"]["num_success"] == 6 and
              crashed["runs"][1]["summary"]["num_error"] > 0, crashed.get("error"))
        rc, out, err = run(*ONLINE, "--scales", "1", "--output-dir", os.path.join(d, "lie"), "--backends", "vllm",
                           "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--lie 2")
        _, j = online_results(os.path.join(d, "lie"))
        check("a server that lies about usage is caught, by number", rc == 0 and "contradict what arrived" in err and
              "the first is request 0" in err and j["summaries"][0]["num_usage_contradicted"] == 6 and
              j["summaries"][0]["first_usage_contradicted_request"] == 0, err)
        rc, out, err = run(*ONLINE, "--scales", "1", "--output-dir", os.path.join(d, "brag"), "--backends", "vllm",
                           "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--lie -1000000")
        row = online_results(os.path.join(d, "brag"))[1]["summaries"][0]
        check("a server that claims more tokens than were asked for is not believed", row["num_usage_contradicted"] == 6 and
              row["total_output_tokens"] == row["total_output_events"] and not row["itl_counts_tokens"], (row, err))
        rc, out, err = run(*ONLINE, "--scales", "1", "--output-dir", os.path.join(d, "mute"), "--backends", "vllm",
                           "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--mute 1")
        row = online_results(os.path.join(d, "mute"))[1]["summaries"][0]
        check("a server that says no usage: events count, and a line says so", rc == 0 and row["num_uncounted"] == 6 and
              row["first_uncounted_request"] == 0 and not row["itl_counts_tokens"] and "give no possible number of tokens" in err, (row, err))
        rc, out, err = run(*ONLINE, "--scales", "0.5,1", "--output-dir", os.path.join(d, "stall"), "--backends", "vllm",
                           "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--stall-at 10", "--stall-timeout-s", "3")
        _, j = online_results(os.path.join(d, "stall"))
        first, second = j["summaries"][:2]
        lost = [i for i, q in enumerate(j["by_backend"]["vllm"]["runs"][1]["request_metrics"]) if q["error"]]
        check("a server that stalls: its requests fail by number, the rest is kept", first["num_success"] == 6 and
              second["num_error"] == len(lost) == 4 and second["first_error_request"] == lost[0] and
              "3.0 s" in second["first_error"], (second, lost))
        bad = os.path.join(d, "bad.csv")
        with open(bad, "w") as f:
            f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,9,4\nnonsense\n"
                    "2023-11-16 18:15:46.70,9,4\n")
        rc, out, err = run(*ONLINE, "--scales", "1", "--trace", bad, "--output-dir", os.path.join(d, "t"))
        check("a bad trace line is named and left out", rc == 0 and "bad.csv:3:" in err, err)
    with tempfile.TemporaryDirectory() as d:
        out_dir = os.path.join(d, "out")
        p = subprocess.Popen([BIN, *ONLINE, "--output-dir", out_dir, "--backends", "vllm,roseinfer", "--vllm-cmd",
                              "python3 -c 'import time; time.sleep(60)'"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        began = time.monotonic()
        while time.monotonic() - began < 30 and not any("vllm.server.log" in fs for _, _, fs in os.walk(out_dir)):
            time.sleep(0.05)
        p.send_signal(signal.SIGTERM)
        began = time.monotonic()
        try:
            said = p.communicate(timeout=40)[0].decode()
        finally:
            p.kill()
        _, j = online_results(out_dir)
        check("a server that never gets ready: SIGTERM ends the wait", p.returncode == 1 and time.monotonic() - began < 20 and
              "interrupted" in j["by_backend"]["vllm"]["error"] and "roseinfer" not in j["by_backend"], said)
    one_line_error("half a request under way", run(*ONLINE, "--concurrency", "1.5"), 1, "whole numbers")
    one_line_error("nothing to measure", run(*ONLINE, "--scales", "none"), 1, "nothing to measure")
    one_line_error("no such trace", run(*ONLINE, "--trace", "/nonexistent/t.csv"), 1, "/nonexistent/t.csv")
    one_line_error("an unknown backend", run(*ONLINE, "--backends", "gpt"), 1, "'gpt'")
    one_line_error("bad scales", run(*ONLINE, "--scales", "1,x"), 1, "--scales")
    with tempfile.TemporaryDirectory() as d:
        one_line_error("plot: a folder without results", run("bench", "plot", d), 1, d, "online_results.json")
        one_line_error("merge: a folder without results", run("bench", "merge", os.path.join(d, "out"), d), 1, d, "online_results.json")
    check("online needs a model", run("bench", "online")[0] == 2)


def test_bench_report_tree():
    """Folders within folders, in order, by their paths; no link is followed, and there is an end to it."""
    with tempfile.TemporaryDirectory() as d:
        top = os.path.join(d, "r")

        def put(folder, name="start_results.json"):
            os.makedirs(os.path.join(top, folder), exist_ok=True)
            with open(os.path.join(top, folder, name), "w") as f:
                json.dump({"meta": {"device": "d"}, "ready_ms": {"p50": 1}}, f)
        for folder in ("ttft/burst-16", "ttft/burst", "batch/8/deep<er", ".hidden", "a/b/c/d/e/f/g/h", "a/b/c/d/e/f/g/h/i"):
            put(folder)
        put("", "top_results.json")
        put("batch", "abuse_results.json")
        os.makedirs(os.path.join(d, "outside"))
        os.replace(os.path.join(top, "batch", "abuse_results.json"), os.path.join(d, "outside", "abuse_results.json"))
        os.symlink(os.path.join(d, "outside"), os.path.join(top, "link"))
        os.symlink(top, os.path.join(top, "ttft", "loop"))
        rc, out, err = run("bench", "report", top)
        page = open(os.path.join(top, "report.html"), encoding="utf-8").read()
        titles = re.findall("<h2 id.*?>(.*?)</h2>", page)
        check("bench report: every folder below, in order, by its path", rc == 0 and titles == [
            "top_results.json", "a/b/c/d/e/f/g/h/start_results.json", "batch/8/deep&lt;er/start_results.json",
            "ttft/burst/start_results.json", "ttft/burst-16/start_results.json"], (titles, err))
        check("bench report: too deep is said", "more than 8 deep" in err and "more than 8 deep" in page, err)
        well = Nesting()
        well.feed(page)
        check("bench report of a tree: every element is closed", well.open == [] and not well.bad, well.bad)
        contents = re.findall('<li><a href="#(.*?)">(.*?)</a></li>', page)
        check("bench report: its contents lead to each file", contents == re.findall('<h2 id="(.*?)">(.*?)</h2>', page) and
              len(contents) == 5, contents)
        with open(os.path.join(top, "ttft", "burst", "bad_results.json"), "w") as f:
            f.write('{"meta": {')
        rc, out, err = run("bench", "report", top)
        page = open(os.path.join(top, "report.html"), encoding="utf-8").read()
        check("bench report: a file that is none does not cost the others", rc == 1 and len(re.findall("<h2 id", page)) == 5 and
              "bad_results.json" in err and "Left out: " in page and "1 of 6 results files" in err, (rc, err))
        os.makedirs(os.path.join(d, "none", "figures"))
        one_line_error("a tree without results", run("bench", "report", os.path.join(d, "none")), 1, "no *_results.json")


def test_bench_not_utf8():
    """A model, an output folder and a trace whose names are not UTF-8: all of it is in the results, as \\xNN."""
    with tempfile.TemporaryDirectory() as d:
        model, out_dir = (os.path.join(os.fsencode(d), name) for name in (b"m\xffod", b"o\xfeut"))
        os.symlink(os.path.abspath(MODEL), model)
        args = [x.encode() for x in ONLINE]
        args[args.index(MODEL.encode())] = model
        rc, out, err = run(*args, "--scales", "1", "--output-dir", out_dir)
        where, j = online_results(os.fsdecode(out_dir))
        b, row = j["by_backend"].get("roseinfer", {}), j["summaries"][0]
        check("online, a path that is not UTF-8: nothing is lost", rc == 0 and row["num_success"] == 6 and
              j["meta"]["model"] == d + "/m\\xffod" and j["meta"]["n"] == 6 and j["meta"]["scales"] == [1] and
              d + "/m\\xffod" in b["cmd"] and d + "/o\\xfeut" in b["log_path"] and b["model"] == "m\\xffod" and
              len(b["runs"]) == 1, (err, j["meta"], row, b.get("cmd")))
        rc, out, err = run("bench", "offline", model, "--num-prompts", "2", "--input-len", "4", "--output-len", "2", "--repeats",
                           "1", "--warmup", "0", "--backends", "inproc,roseinfer,transformers", "--transformers-python", sys.executable)
        j = json.loads(out)
        check("offline, a path that is not UTF-8: every backend is a row", rc == 1 and j["meta"].get("num_prompts") == 2 and
              [r["model"] for r in j["results"]] == [d + "/m\\xffod"] * 3 and
              all(r["total_output_tokens"] == 4 for r in j["results"][:2]) and
              "not UTF-8" in j["results"][2]["extra"]["error"], (err, out[:1500]))
        one_line_error("a served name that is not UTF-8", run("serve", MODEL, "--served-model-name", b"m\xff"), 1,
                       "--served-model-name", "UTF-8")
        one_line_error("a second served name that is not UTF-8", run("serve", MODEL, "--served-model-name", b"m,n\xff"), 1,
                       "--served-model-name", "UTF-8")
    one_line_error("a model name that is not UTF-8", run(*ONLINE, "--model-name", b"m\xff"), 1, "--model-name", "UTF-8")


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
    rc, out, err = run("bench", "ablate", MODEL, "--switches", "speculation", "--pairs", "1", "-n", "3", "--rate", "100",
                       "--input-len", "60", "--output-len", "24", "--temperature", "0")
    j = json.loads(out)["switches"]["speculation"] if rc == 0 else {}
    check("bench ablate: the row of speculation has real text", rc == 0 and
          j["setting"]["workload"] == "real text, half of it to copy" and j["online_tpot_p50_s"]["off_over_on"] > 0 and
          "offline_s_per_token" not in j, (out, err))
    if shutil.which("gnuplot"):
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "ablate_results.json"), "w") as f:
                f.write(out)
            stream = run("bench", "stream", MODEL, "-n", "2", "--repeats", "1", "--warmup", "0", *small)[1]
            with open(os.path.join(d, "stream_results.json"), "w") as f:
                f.write(stream)
            rc, out, err = run("bench", "plot", d)
            pictures = [os.path.join(d, "figures", f"{n}.{t}") for n in ("ablate", "stream_ttft_parts") for t in ("png", "svg")]
            check("bench plot draws switches and streams", rc == 0 and err == "" and
                  all(os.path.exists(x) and os.path.getsize(x) > 3000 for x in pictures), (out, err))
            for bad in ("{}", '{"switches": 7}', '{"switches": {"x": 3, "y": {"error": "no"}}}'):
                os.remove(os.path.join(d, "stream_results.json")) if os.path.exists(os.path.join(d, "stream_results.json")) else None
                with open(os.path.join(d, "ablate_results.json"), "w") as f:
                    f.write(bad)
                one_line_error(f"plot: nothing in {bad}", run("bench", "plot", d), 1, "no run")
    r = run("bench", "ablate", MODEL, "--switches", "fast-sse,magic")
    one_line_error("ablate: an unknown switch", r, 2, "'magic'")
    known = r[2].split("known are:")[1].split()
    options = run("serve", "--help-all")[1]
    check("every switch is an option of the server", len(known) >= 10 and
          all(f"--{k}" in options or f"--[no-]{k}" in options for k in known), known)
    rc, out, err = run("bench", "stream", MODEL, "-n", "4", "--repeats", "1", "--warmup", "0", *small, "--prompt-repeats", "1,3")
    check("bench stream --prompt-repeats", rc == 0 and json.loads(out)["times"]["ttft_ms"]["n"] == 4, (out, err))
    one_line_error("stream: bad repeats", run("bench", "stream", MODEL, "--prompt-repeats", "1,0"), 1, "--prompt-repeats")


def test_bench_stream_foreign_timings():
    """Timings of other names, as llama.cpp's, are no split; and the gap within an event is 0, as in `bench online`."""
    with tempfile.TemporaryDirectory() as d:
        fake = os.path.join(d, "fake.py")
        with open(fake, "w") as f:
            f.write(FAKE_SERVER)
        rc, out, err = run("bench", "stream", MODEL, "-n", "3", "--repeats", "1", "--warmup", "0", "--input-len", "8", "--output-len", "4",
                           "--backend", "vllm", "--vllm-cmd", f"python3 {fake}", "--vllm-args", "--timings 1")
        t = json.loads(out)["times"] if rc == 0 else {}
        check("stream: timings that are not ours are no split", rc == 0 and t["queue_wait_ms"]["n"] == 0 and
              t["server_ttft_ms"]["n"] == 0 and t["ttft_outside_server_ms"]["n"] == 0 and t["ttft_ms"]["n"] == 3 and
              "3 replies have no timings" in err, (out, err))
    rc, out, err = run("bench", "stream", MODEL, "-n", "2", "--repeats", "1", "--warmup", "0", "--input-len", "8", "--output-len", "9",
                       "--roseinfer-args", "--stream-interval 4", "--extra-body", '{"return_token_ids": true}')
    t = json.loads(out)["times"] if rc == 0 else {}
    check("stream: ITL counts tokens, not events", rc == 0 and t["itl_ms"]["n"] == 2 * 8 and t["itl_ms"]["min"] == 0, (out, err))


def test_bench_ablate_kept():
    small = ["--pairs", "1", "-n", "2", "--rate", "200", "--input-len", "8", "--output-len", "2", "--num-prompts", "2"]
    rc, out, err = run("bench", "ablate", MODEL, *small, "--switches", "isa", "--no-online", "--num-kv-pages", "1")
    error = json.loads(out)["switches"]["isa"]["error"]
    check("ablate: engine options reach the offline run, whose words are kept", rc == 1 and "kv pages" in error, error)
    rc, out, err = run("bench", "ablate", MODEL, *small, "--switches", "isa", "--no-offline", "--num-kv-pages", "1")
    error = json.loads(out)["switches"]["isa"]["error"]
    check("ablate: and the server, whose words are kept", rc == 1 and "kv pages" in error, error)
    rc, out, err = run("bench", "ablate", MODEL, *small, "--switches", "isa", "--isa", "neon" if os.uname().machine == "x86_64" else "amx")
    ran = "off_over_on" in json.dumps(json.loads(out)["switches"]["isa"]) or "avx2" in err
    check("ablate: an option for all rows does not override the switch that is measured", ran and "neon" not in err and "amx" not in err, err)
    rc, out, err = run("bench", "ablate", MODEL, *small, "--switches", "isa", "--no-offline", "--model-name", "nobody")
    check("ablate: --model-name is what is asked for", rc == 1 and "'nobody' does not exist" in err, err)
    with tempfile.TemporaryDirectory() as d:
        p = subprocess.Popen([BIN, "bench", "ablate", MODEL, "--no-offline", "--output-dir", d] + small, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
        file, began = None, time.monotonic()
        while file is None and time.monotonic() - began < 60:
            time.sleep(0.01)
            file = next((os.path.join(w, f) for w, _, fs in os.walk(d) for f in fs if f == "ablate_results.json"), None)
        p.send_signal(signal.SIGINT)
        try:
            err = p.communicate(timeout=60)[1].decode()
        finally:
            p.kill()
        done = json.load(open(file))["switches"]
        check("ablate: Ctrl-C keeps the switches that were measured", p.returncode == 1 and "chunked-prefill" in done and
              "stall-warn-ms" not in done and done["chunked-prefill"]["online_ttft_p50_s"]["off_over_on"] > 0 and
              "wrote " in err, (p.returncode, done.keys(), err))


def test_bench_online_prompts():
    """What the server is sent: the same text twice only where it was asked for."""
    with tempfile.TemporaryDirectory() as d:
        fake, trace = os.path.join(d, "fake.py"), os.path.join(d, "trace.jsonl")
        with open(fake, "w") as f:
            f.write(FAKE_SERVER)
        with open(trace, "w") as f:
            f.write("a line of nothing\n")
            for i in range(3):
                f.write(json.dumps({"chat_id": i, "timestamp": i * 0.01, "input_length": 24, "output_length": 2, "hash_ids": [7, i]}) + "\n")

        def sent(name, *more):
            out = os.path.join(d, name)
            rc, _, err = run(*ONLINE, "-n", "4", "--warmup-requests", "0", "--prompt-form", "ids", "--backends", "vllm", "--vllm-cmd",
                             f"python3 {fake}", "--vllm-args", "--echo 1", "--output-dir", out, *more)
            where, j = online_results(out)
            check(f"online {name} runs", rc == 0, err)
            with open(os.path.join(where, "vllm.server.log")) as log:
                return sorted((json.loads(l[7:]) for l in log if l.startswith("prompt ")), key=len), j["meta"]

        runs = ["--scales", "0,1", "--concurrency", "2", "--goodput", "ttft:60000", "--goodput-steps", "2"]
        cold, m = sent("cold", *runs)
        check("other text in each run", len(cold) == 20 == len({tuple(p) for p in cold}) and m["cold_prefix"], cold)
        warm, m = sent("warm", "--no-cold-prefix", *runs)
        check("--no-cold-prefix: the same in each, those of a goodput search too", len(warm) == 20 and not m["cold_prefix"] and
              sorted(warm.count(list(p)) for p in {tuple(p) for p in warm}) == [5] * 4, warm)
        shared, m = sent("shared", "--shared-prefix", "--scales", "0")
        check("--shared-prefix: each the start of the next", len(shared) == 4 and m["prompts"] == "shared-prefix" and
              all(a == b[:len(a)] for a, b in zip(shared, shared[1:])), shared)
        alone, m = sent("alone", "--scales", "0")
        check("without: unique", m["prompts"] == "unique" and len({p[0] for p in alone}) > 1, alone)
        want = {"rate": 100, "burstiness": 1, "input_median": 20, "input_sigma": 0.8, "output_median": 6, "output_sigma": 0.6}
        check("meta: what the trace was drawn from, defaults too", all(abs(m[k] - v) < 1e-6 for k, v in want.items()), m)
        follow, m = sent("follow", "--trace", trace, "--scales", "0")
        check("a trace with hash ids is followed", m["prompts"] == "trace-prefixes" and len(follow) == 3 and
              len({tuple(p[:16]) for p in follow}) == 1 and len({tuple(p) for p in follow}) == 3, follow)
        check("meta: nothing was drawn for a file; its bad line", all(m[k] is None for k in want) and m["trace_bad_lines"] == 1, m)
        apart, m = sent("apart", "--trace", trace, "--no-trace-prefixes", "--scales", "0")
        check("--no-trace-prefixes: unique", m["prompts"] == "unique" and len({tuple(p[:16]) for p in apart}) == 3, apart)
        sent("extra", "--scales", "0", "--no-ignore-eos", "--top-k", "0", "--extra-body", '{"ignore_eos": false, "top_k": 3, "x": {"seed": 1}}')
    for key in ("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stream", "stream_options", "top_k", "ignore_eos"):
        one_line_error(f"--extra-body with {key}", run(*ONLINE, "--extra-body", json.dumps({"x": 1, key: None})), 1, "--extra-body", f"'{key}'")
    one_line_error("--extra-body with messages", run(*ONLINE, "--endpoint", "chat", "--extra-body", '{"messages": []}'), 1, "'messages'")


def test_bench_own_servers():
    text = run("bench", "ablate", "--help")[1]
    check("bench ablate offers options of our server only", "--roseinfer-args" in text and "--server-cpus" in text and
          not re.search("--(vllm|sglang|trtllm|llama|transformers)-", text), text)
    rc, _, err = run("bench", "ablate", MODEL, "--vllm-args", "x")
    check("bench ablate --vllm-args is refused by name", rc == 2 and "--vllm-args" in err, err)
    text = re.sub(r"\s+", " ", run("bench", "start", "--help")[1])
    check("bench start names every server", "llama-python or transformers" in text, text)


def test_bench_engine_options():
    """Options of the engine are spelled alike wherever a benchmark opens one or starts a server."""
    small = ["--num-kv-pages", "1"]
    with tempfile.TemporaryDirectory() as d:
        for name, more in (("offline", []), ("offline", ["--backends", "roseinfer"]), ("latency", []), ("stream", ["-n", "2"]),
                           ("start", []), ("online", ["-n", "2", "--scales", "0", "--output-dir", d])):
            rc, out, err = run("bench", name, MODEL, *more, *small)
            check(f"bench {name} {' '.join(more[:2])}: --num-kv-pages reaches the engine", rc == 1 and "kv pages: 1 hold" in err, (rc, err))
        rc, out, err = run(*ONLINE, "--scales", "0", "--output-dir", d, "--threads", "1", "--no-prefix-cache", "--device", "cpu")
        last = sorted(n for n in os.listdir(d) if os.path.isdir(os.path.join(d, n)))[-1]
        cmd = json.load(open(os.path.join(d, last, "online_results.json")))["by_backend"]["roseinfer"]["cmd"]
        check("bench online passes engine options on, and only those given", rc == 0 and " --threads 1" in cmd and
              " --no-prefix-cache" in cmd and " --device cpu" in cmd and "--dtype" not in cmd, cmd)
    for name in ("offline", "latency", "online", "stream", "ablate", "start"):
        text = run("bench", name, "--help-all")[1]
        names = re.findall(r"^ {2,6}(?:-\w, )?--(?:\[no-\])?([\w-]+)", text, re.M)
        check(f"bench {name}: no option is there twice, all of the engine are there", len(names) == len(set(names)) and
              {"device", "dtype", "isa", "threads", "num-kv-pages", "quantization"} <= set(names),
              [n for n in names if names.count(n) > 1])


def test_bench_goodput():
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*ONLINE, "--scales", "1", "--goodput", "ttft:60000", "--goodput-steps", "2", "--output-dir", d)
        where, j = online_results(d)
        b = j["by_backend"]["roseinfer"]
        marks = [r.get("goodput_search", False) for r in j["summaries"]]
        check("goodput: limits that nothing breaks are no highest rate", rc == 0 and "no run broke the limits" in err and
              b["goodput_broken_rps"] is None and b["goodput_rps"] > 0 and b["goodput_done_rps"] > 0 and
              marks == [False, True, True], (err, marks))
        merged = os.path.join(d, "merged")
        rc, out, err = run("bench", "merge", merged, where)
        check("goodput: its runs do not push out those of --scales", rc == 0 and
              len(json.load(open(os.path.join(merged, "online_results.json")))["summaries"]) == 3, err)
    with tempfile.TemporaryDirectory() as d:
        rc, out, err = run(*ONLINE, "--scales", "none", "--goodput", "ttft:0.001", "--goodput-steps", "2", "--output-dir", d)
        b = online_results(d)[1]["by_backend"]["roseinfer"]
        check("goodput: limits that nothing keeps", rc == 0 and b["goodput_rps"] == 0 and b["goodput_broken_rps"] > 0 and
              "no run broke" not in err, err)


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
    check("inspect --json: speculation", j["speculation"] == {"method": "suffix", "num_speculative_tokens": 15}, j["speculation"])
    ngram = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    for options, line, value in (((), "suffix, up to 15 tokens a guess (--no-speculation turns it off)", None),
                                 (ngram, "ngram, up to 4 tokens a guess (--no-speculation turns it off)",
                                  {"method": "ngram", "num_speculative_tokens": 4}),
                                 (("--no-speculation",), "off (--no-speculation)", "null")):
        rc, out, err = run("inspect", MODEL, "--no-tensors", *options)
        check(f"inspect: speculation is {line}", rc == 0 and f"\nSpeculation: {line}\n" in out, (out, err))
        if value is not None:
            got = json.loads(run("inspect", MODEL, "--no-tensors", "--json", *options)[1])["speculation"]
            check(f"inspect --json: speculation with {options}", got == (None if value == "null" else value), got)
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
    # Our own standard input may be a socket, which would be taken for the server's.
    p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0"], stdin=subprocess.DEVNULL, preexec_fn=closed)
    try:
        fds = {}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                fds = {n: os.readlink(f"/proc/{p.pid}/fd/{n}") for n in os.listdir(f"/proc/{p.pid}/fd")}
            except FileNotFoundError:  # one was closed between the listing and the look at it
                continue
            if any("socket" in v for v in fds.values()):
                break
            time.sleep(0.02)
        check("closed stdout and stderr are not taken by sockets", fds.get("1") == fds.get("2") == "/dev/null" and
              any("socket" in v for v in fds.values()), fds)
    finally:
        p.kill()
        p.wait()


def thread_slices(pid):
    """{name of a thread: (policy, us of its time slice as the kernel tells it)}."""
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    out = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        attr = ctypes.create_string_buffer(48)
        if ctypes.CDLL(None).syscall(number, int(tid), attr, 48, 0) == 0:
            _, policy, _, _, _, runtime, _, _ = struct.unpack("IIQiIQQQ", attr.raw)
            try:
                name = open(f"/proc/{pid}/task/{tid}/comm").read().strip()
            except OSError:  # it ended meanwhile
                continue
            if name != "roseinfer" or int(tid) == pid:  # a sanitizer's own thread is called as the first one
                out[name] = policy, runtime // 1000
    return out


def start_on_terminal(*options):
    """What `serve MODEL` shows from its start to its end."""
    t = Terminal("serve", MODEL, "--port", "0", *options)
    t.wait(b"listening on ")
    t.wait(b"/\r\n")
    os.kill(t.pid, signal.SIGTERM)
    t.end()
    return t.out.decode().replace("\r", "")


def start_in_a_pipe(*options):
    with subprocess.Popen([BIN, "serve", MODEL, "--port", "0", *options], stderr=subprocess.PIPE, text=True) as p:
        lines = []
        for line in p.stderr:
            lines.append(line)
            if "listening on" in line:
                p.terminate()
    return "".join(lines)


def test_start_lines():
    text = start_on_terminal()
    url = re.search(r"INFO serve: listening on (http://127\.0\.0\.1:\d+)\n", text)
    check("on a terminal the address to open is a line of its own", url and f"{url[0]}{url[1]}/\n" in text, text)
    check("its details are DEBUG lines", not re.search("start: files|plan: weights|page faults", text), text)
    check("without a key on loopback: no warning", "WARN" not in text, text)
    text = start_on_terminal("--host", "0.0.0.0", "--log-level", "debug")
    url = re.search(r"listening on http://0\.0\.0\.0:(\d+)\n", text)
    check("0.0.0.0 is no address to open", url and f"\nhttp://127.0.0.1:{url[1]}/\n" in text, text)
    check("an open server warns and says what to do", re.search(r"WARN serve: everybody who reaches 0\.0\.0\.0.*--api-key KEY.*--host 127\.0\.0\.1", text), text)
    check("--log-level debug has the details", all(x in text for x in ("start: files of the model", "plan: weights", "page faults until ready")), text)
    check("the start says what speculation does", "INFO serve: speculation: suffix, up to 15 tokens a guess (--no-speculation turns it off)\n" in text, text)
    text = start_in_a_pipe("--no-speculation")
    check("and nothing of it with --no-speculation", "listening on" in text and "speculation:" not in text, text)
    text = start_in_a_pipe("--host", "0.0.0.0", "--api-key", "k")
    check("with a key there is no warning", "listening on" in text and "WARN" not in text, text)
    check("without a terminal every line is one of the log", all(re.match(r"\d{4}-\d\d-\d\dT", x) for x in text.splitlines()), text)


THREADS = ("rose-io-0", "rose-tokenize", "rose-engine", "rose-cpu-1")


def test_io_slice():
    p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", "--io-slice-us", "300", "--threads", "2", "--log-level", "debug"], stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        while not lines or ("listening on" not in lines[-1] and lines[-1]):
            lines.append(p.stderr.readline())
        start = re.search(r"start: files of the model ([\d.]+) \+ port ([\d.]+) \+ tokenizer ([\d.]+) \+ engine ([\d.]+) ms", "".join(lines))
        ready = re.search(r"ready in ([\d.]+) ms", "".join(lines))
        check("the parts of the start are its whole", start and ready and
              float(ready[1]) - sum(float(x) for x in start.groups()) > -0.3, lines)  # each rounded to 0.1 ms
        deadline = time.monotonic() + 60  # a thread gives itself its name when it first runs
        slices = thread_slices(p.pid)
        while not set(THREADS) <= set(slices) and time.monotonic() < deadline:
            time.sleep(0.02)
            slices = thread_slices(p.pid)
        check("all threads are there", set(THREADS) <= set(slices), slices)
        policy, system = slices["roseinfer"]
        if policy == 0 and system > 0:  # else older than Linux 6.12, or started by chrt
            check("--io-slice-us is of I/O threads and workers alone", slices["rose-io-0"] == slices["rose-tokenize"] == (0, 300) and
                  slices["rose-engine"] == slices["rose-cpu-1"] == (0, system) and system != 300, slices)
    finally:
        p.kill()
        p.wait()
    check("a slice of seconds", run("serve", MODEL, "--io-slice-us", "2000000")[0] == 2)


def answering(family, address, answer):
    """A socket that listens; each connection gets these bytes, or with None nothing, and is then closed."""
    s = socket.socket(family, socket.SOCK_STREAM)
    s.bind(address)
    s.listen(8)
    asked = []

    def work():
        while True:
            try:
                c = s.accept()[0]
            except OSError:
                return
            asked.append(c.recv(4096))
            if answer is not None:
                c.sendall(answer)
                c.close()
            else:
                asked.append(c)  # stays open

    threading.Thread(target=work, daemon=True).start()
    return s, asked


def stop_answering(s):
    s.shutdown(socket.SHUT_RDWR)  # ends accept() of the other thread, too
    s.close()


def test_health():
    good, bad = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
    s, asked = answering(socket.AF_INET, ("127.0.0.1", 0), good)
    url = "http://127.0.0.1:%d" % s.getsockname()[1]
    check("a server that is well", run("health", url) == (0, "/health: HTTP/1.1 200 OK\n", ""))
    check("the request", asked[0].startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"), asked)
    os.environ["ROSEINFER_PORT"] = url.rpartition(":")[2]
    check("the port of the environment", run("health")[0] == 0)
    os.environ["ROSEINFER_PORT"] = "tcp://10.0.0.1:80"
    one_line_error("a port of Kubernetes", run("health"), 1, "127.0.0.1 port 8888")
    del os.environ["ROSEINFER_PORT"]
    check("another path", run("health", url + "/ready")[0] == 0 and asked[-1].startswith(b"GET /ready HTTP/1.1\r\n"), asked)
    check("slashes at the end", run("health", url + "//")[0] == 0 and asked[-1].startswith(b"GET /health HTTP/1.1\r\n"), asked)
    stop_answering(s)
    for name, answer, says in [("a server that is not well", bad, "503 Service Unavailable"), ("no answer", b"", "nothing"),
                               ("an answer in another protocol", b"220 mail\r\n", "220 mail"),
                               ("a line without end", b"x" * 5000, "xxx")]:
        s, _ = answering(socket.AF_INET, ("127.0.0.1", 0), answer)
        one_line_error(name, run("health", "http://127.0.0.1:%d" % s.getsockname()[1]), 1, "/health", says)
        stop_answering(s)
    s, _ = answering(socket.AF_INET, ("127.0.0.1", 0), None)
    silent = "http://localhost:%d" % s.getsockname()[1]
    one_line_error("a silent server", run("health", silent, "--timeout-s", "1"), 1, "did not answer in time")
    stop_answering(s)
    one_line_error("no server", run("health", silent), 1, "Connection refused")
    with tempfile.TemporaryDirectory() as d:
        s, _ = answering(socket.AF_UNIX, d + "/s", good)
        check("a Unix socket", run("health", "--uds", d + "/s")[0] == 0)
        os.environ["ROSEINFER_UDS"] = d + "/s"
        check("the Unix socket of the environment", run("health")[0] == 0)
        del os.environ["ROSEINFER_UDS"]
        stop_answering(s)
        one_line_error("no Unix socket", run("health", "--uds", d + "/none"), 1, "unix:" + d + "/none")
    one_line_error("a path that is too long", run("health", "--uds", "/" + "x" * 200), 1, "too long")
    one_line_error("HTTPS", run("health", "https://localhost"), 1, "TLS")
    for wrong in ("localhost", "http://", "http://:80", "http://a:", "http://a:b", "http://a:123456", "http://a/ x",
                  "http://a/?x", "http://a/#x", "http://u@a/", "http://[::1", "http://a" + "a" * 300):
        one_line_error(f"the URL {wrong[:20]}", run("health", wrong), 1, "http://HOST:PORT/health")


def test_random_model():
    with tempfile.TemporaryDirectory() as d:
        args = ["--layers", "2", "--d-model", "32", "--heads", "2", "--vocab-size", "300", "--max-positions", "64"]
        outs = [os.path.join(d, n) for n in ("a", "b", "c")]
        for i, o in enumerate(outs):
            rc, out, err = run("random-model", o, *args, "--seed", "7" if i < 2 else "8")
            check(f"random-model {i} says what it wrote", rc == 0 and re.fullmatch(
                re.escape(o) + r": [\d,]+ parameters, F32, [\d.]+ KiB\n", out) is not None and err == "", (out, err))
        w = [open(os.path.join(o, "model.safetensors"), "rb").read() for o in outs]
        check("same seed, same bytes; other seed, other bytes", w[0] == w[1] != w[2])
        one_line_error("it does not overwrite", run("random-model", outs[0], *args), 1, outs[0])
        cut = ["random-model", os.path.join(d, "cut"), "--preset", "smollm2-135m", "--layers", "2", "--no-weights"]
        check("--layers cuts a preset", run(*cut)[0] == 0 and json.load(open(os.path.join(cut[1], "config.json")))["num_hidden_layers"] == 2)
        for option in (["--d-model", "64"], ["--vocab-size=300"], ["--no-tied"]):
            one_line_error(f"a preset refuses {option[0]}", run("random-model", os.path.join(d, "x"), "--preset", "qwen3-8b", *option), 1,
                           option[0] + ": the preset has a shape of its own")
        one_line_error("so does --config --layers", run("random-model", os.path.join(d, "x"), "--config", os.path.join(cut[1], "config.json"),
                                                        "--layers", "3"), 1, "--layers: the file of --config has a shape")
        rc, out, err = run("generate", outs[0], "-p", "hello", "-n", "5", "--ignore-eos")
        check("a random model generates", rc == 0, err)
        o, bare = os.path.join(d, "written"), os.path.join(d, "bare")
        run("random-model", o, *args)
        rc, out, err = run("random-model", bare, *args, "--no-weights")
        check("random-model without weights", rc == 0 and "--load-format dummy" in out, (out, err))
        one_line_error("a model without weights", run("generate", bare, "-p", "hello"), 1, bare)
        ask = ("-p", "hello", "-n", "5", "--ignore-eos", "--temperature", "0")
        check("--load-format dummy has the weights of seed 0",
              run("generate", bare, *ask, "--load-format", "dummy") == run("generate", o, *ask) and rc == 0)
        o = os.path.join(d, "t")
        rc, out, err = run("random-model", o, "--tokenizer", MODEL, *[a for a in args if a not in ("--vocab-size", "300")])
        same = rc == 0 and open(f"{o}/tokenizer.json", "rb").read() == open(f"{MODEL}/tokenizer.json", "rb").read()
        check("--tokenizer copies it", same, err)
        check("its ids are the other's", run("tokenize", o, "-p", "once upon") == run("tokenize", MODEL, "-p", "once upon"))
        rc, out, err = run("generate", o, "-p", "once upon", "-n", "5", "--ignore-eos")
        check("a random model with words generates", rc == 0, err)
        p = os.path.join(d, "u")
        one_line_error("a vocabulary below the tokenizer's", run("random-model", p, "--tokenizer", MODEL, *args), 1,
                       "--vocab-size 300", MODEL)
        one_line_error("a tokenizer that there is not", run("random-model", p, "--tokenizer", d), 1, d)
        check("nothing is left behind", not os.path.exists(p))


for name, fn in sorted((n, f) for n, f in globals().items() if n.startswith("test_")):
    try:
        fn()
    except Exception as e:  # a crash of one test is its failure; the others go on
        check(name, False, repr(e))
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
