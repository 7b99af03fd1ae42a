"""The servers of bench/rivals/run: packs, models, equal settings, starts and stops, and what /proc says of them."""
import concurrent.futures
import glob
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

from results import OURS, START, fail, now, say

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUR_PAGE = 16  # tokens of a KV page

# KV tokens: of the servers, and of their variants, which run smaller cells. rate: requests per second of the trace at scale 1.
MODELS = {
    "gpt2": dict(preset=None, dtype="float16", context=1024, kv=266240, kv_variant=49152, rate=40),
    "smollm2-135m": dict(preset="smollm2-135m", dtype="bfloat16", context=4096, kv=294912, kv_variant=49152, rate=40),
    "qwen3-0.6b": dict(preset="qwen3-0.6b", dtype="bfloat16", context=4096, kv=196608, kv_variant=49152, rate=40),
    "llama-3.2-1b": dict(preset="llama-3.2-1b", dtype="bfloat16", context=4096, kv=262144, kv_variant=49152, rate=40),
    "qwen3-8b": dict(preset="qwen3-8b", dtype="bfloat16", context=4096, kv=98304, kv_variant=49152, rate=12),
}

# The switches that the published experiments turn, and the modes that promise equal answers: where they are measured, and
# arguments and environment of each engine. None: no such switch. Ours always gives equal answers, so it has no mode for that.
VARIANTS = {
    "deterministic": {"cells": ("closed-16", "closed-1", "offline-128"), OURS: None,
                      "vllm": ([], {"VLLM_BATCH_INVARIANT": "1"}), "sglang": (["--enable-deterministic-inference"], {})},
    "overlap-off": {"cells": ("closed-16", "closed-1", "closed-64"), OURS: (["--no-overlap-schedule"], {}),
                    "vllm": (["--no-async-scheduling"], {}), "sglang": (["--disable-overlap-schedule"], {})},
    "plain-prefill": {"cells": ("closed-16", "trace-0.4", "offline-128"), OURS: (["--prefill-backend", "naive"], {}),
                      "vllm": (["--attention-backend", "TRITON_ATTN"], {}), "sglang": (["--attention-backend", "triton"], {})},
    "admission": {"cells": ("trace-0.4", "closed-256"), OURS: (["--admission", "pack"], {}), "vllm": None,
                  "sglang": (["--schedule-policy", "lpm"], {})},
}
PACKAGES = ("vllm", "sglang", "sglang-kernel", "torch", "transformers", "triton", "flashinfer-python", "numpy")
OVERHEAD_GIB = 4.5  # context, graphs, activations and workspaces of a server; only decides which servers run side by side
LOG_FACTS = re.compile(r"KV cache size|attention.backend|[Uu]sing .*(backend|sampl)|max_total_num_tokens|[Cc]apturing|cudagraph|"
                       r"torch.compile|[Mm]odel [Rr]unner|batch.invarian|determinis|[Aa]sync.*schedul|[Ff]alling back|Chunked prefill")


# ---- the machine ----

def output_of(*command, env=None, timeout=60):
    """Standard output of a program; "" if it cannot run or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, timeout=timeout, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def gpu_memory():
    """Total and used MiB of the first GPU; None without one."""
    line = output_of("nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits")
    return tuple(int(x) for x in line.splitlines()[0].split(",")) if line else None


def gpu_memory_of(pids):
    """MiB that these processes hold; None if the driver does not say."""
    lines = output_of("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").splitlines()
    used = [int(m) for p, m in (x.split(",") for x in lines if x.count(",") == 1) if int(p) in pids and m.strip().isdigit()]
    return sum(used) if used else None


def stat_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()


def family(pid):
    """The process and all of its descendants."""
    children = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            children.setdefault(int(stat_of(path.split("/")[2])[1]), []).append(int(path.split("/")[2]))
        except OSError:
            pass
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        try:
            s = stat_of(pid)
            total += int(s[11]) + int(s[12])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def proportional_bytes(pids):
    """Resident memory; what processes share is counted once."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                total += next((int(line.split()[1]) * 1024 for line in f if line.startswith("Pss:")), 0)
        except OSError:
            pass
    return total


def split_cpus():
    """CPUs of the servers and of the client. With fewer than 4, nothing is pinned."""
    cpus = sorted(os.sched_getaffinity(0))
    return (None, None) if len(cpus) < 4 else (cpus[:-1], cpus[-1:])


def machine(o):
    code = ("import json, sys\nfrom importlib.metadata import version\nv = {}\nfor p in sys.argv[1:]:\n"
            "    try: v[p] = version(p)\n    except Exception: pass\nprint(json.dumps(v))")
    versions = {e: json.loads(output_of(o.python, "-c", code, *PACKAGES, env=rival_env(o, e)) or "{}") for e in o.rivals}
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), None)
    servers, client = split_cpus()
    return {"gpu": output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit",
                             "--format=csv,noheader") or None, "cpu": cpu, "server_cpus": servers, "client_cpus": client,
            "kernel": os.uname().release, "roseinfer": output_of(o.program, "--version"), "packages": versions}


# ---- packs and models ----

FOLDERS = {"own": "own", "vllm": "site", "sglang": "sgsite"}  # the folder of each pack


def read_text(path):
    with open(path) as f:
        return f.read()


def unpack(o):
    """Unpacks the parts of each pack in --packs, unless the same parts were unpacked by an earlier call."""
    for name in ("own", "vllm", "sglang"):
        parts = sorted(glob.glob(os.path.join(o.packs, name + ".txz.*"))) if o.packs else []
        mark = os.path.join(o.work, name + ".unpacked")
        said = "\n".join(f"{os.path.basename(p)} {os.path.getsize(p)} {os.path.getmtime(p):.0f}" for p in parts)
        if not parts or (os.path.exists(mark) and read_text(mark) == said):
            continue
        begin = time.monotonic()
        shutil.rmtree(os.path.join(o.work, FOLDERS[name]), ignore_errors=True)
        done = subprocess.run(["bash", "-c", 'set -o pipefail; cat "${@:2}" | xz -T0 -dc | tar -C "$1" -xf -', "-", o.work, *parts])
        if done.returncode != 0:
            fail(f"{name}: unpacking {len(parts)} parts failed; is the last part there, and is the disk full?")
        with open(mark, "w") as f:
            f.write(said)
        say(f"unpacked {name} in {time.monotonic() - begin:.1f} s")


def tokenizer_json(folder, size):
    """The byte-level BPE of vocab.json and merges.txt as a tokenizer.json that has an entry for each of the model's ids."""
    with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as f:
        vocab = json.load(f)
    with open(os.path.join(folder, "merges.txt"), encoding="utf-8") as f:
        merges = [line.rstrip("\n").split(" ") for line in f if line.strip() and not line.startswith("#version")]
    end = vocab["<|endoftext|>"]
    taken = set(vocab.values())
    vocab.update({f"<unused{i}>": i for i in range(size) if i not in taken})
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": end, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges}}


def make_model(o):
    """The folder that all engines read: random weights, config.json and a tokenizer."""
    if o.model not in MODELS:
        return os.path.abspath(o.model)
    folder = os.path.join(o.work, "models", o.model)
    spec = MODELS[o.model]
    if not os.path.exists(os.path.join(folder, "ready")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        kind = {"float16": "F16", "bfloat16": "BF16"}[spec["dtype"]]
        begin = time.monotonic()
        if subprocess.run([o.program, "random-model", folder, "--dtype", kind, "--tokenizer", o.tokenizer,
                           *(["--preset", spec["preset"]] if spec["preset"] else [])]).returncode != 0:
            fail(f"random-model {folder} failed")
        size = config(folder)["vocab_size"]
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tokenizer_json(folder, size), f, ensure_ascii=False)
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                       "pad_token": "<|endoftext|>", "model_max_length": spec["context"], "clean_up_tokenization_spaces": False}, f)
        for name in ("vocab.json", "merges.txt"):  # tokenizer.json alone counts
            os.unlink(os.path.join(folder, name))
        open(os.path.join(folder, "ready"), "w").close()
        say(f"made {folder} in {time.monotonic() - begin:.1f} s")
    return folder


def config(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)


def kv_bytes_per_token(c):
    heads = c.get("num_attention_heads") or c["n_head"]
    width = c.get("head_dim") or (c.get("hidden_size") or c["n_embd"]) // heads
    return (c.get("num_hidden_layers") or c["n_layer"]) * 2 * (c.get("num_key_value_heads") or heads) * width * 2


def weight_bytes(folder):
    return sum(os.path.getsize(p) for p in glob.glob(os.path.join(folder, "*.safetensors")))


# ---- servers ----

def settings(o, folder, variant):
    spec = MODELS.get(o.model, dict(dtype="auto", context=config(folder).get("n_positions", 2048), kv=32768, kv_variant=16384))
    tokens = o.kv_tokens or spec["kv"]
    tokens = min(tokens, spec["kv_variant"]) if variant else tokens
    return {"model": folder, "dtype": spec["dtype"], "context": spec["context"], "max_num_seqs": o.max_num_seqs,
            "kv_tokens": tokens, "kv_bytes": tokens * kv_bytes_per_token(config(folder)), "prefix_cache": o.prefix_cache}


def server_words(engine, s, port):
    """The options that make the settings equal; no server logs single requests. All else is the default of each engine, but
    none guesses tokens: random weights repeat themselves, which would flatter ours."""
    cache = s["prefix_cache"] == "on"
    if engine == OURS:
        return ["serve", s["model"], "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
                "--dtype", s["dtype"], "--max-num-seqs", str(s["max_num_seqs"]), "--max-model-len", str(s["context"]),
                "--num-kv-pages", str(s["kv_tokens"] // OUR_PAGE), "--no-speculation",
                "--prefix-cache" if cache else "--no-prefix-cache"]
    if engine == "vllm":
        return ["--model", s["model"], "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
                "--dtype", s["dtype"], "--max-num-seqs", str(s["max_num_seqs"]), "--max-model-len", str(s["context"]),
                "--kv-cache-memory-bytes", str(s["kv_bytes"]), "--gpu-memory-utilization", "0.05", "--seed", "0",
                "--generation-config", "vllm", "--disable-uvicorn-access-log",
                "--enable-prefix-caching" if cache else "--no-enable-prefix-caching"]
    return ["--model-path", s["model"], "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port),
            "--dtype", s["dtype"], "--max-running-requests", str(s["max_num_seqs"]), "--context-length", str(s["context"]),
            "--max-total-tokens", str(s["kv_tokens"]), "--mem-fraction-static", "0.93", "--random-seed", "0",
            "--sampling-defaults", "openai", "--log-level-http", "warning", *([] if cache else ["--disable-radix-cache"])]


def cache_of(o, name):
    """Where a server keeps compiled code. With a fresh --work, the first start is one with an empty cache."""
    return os.path.join(o.work, "cache", name)


def rival_env(o, name):
    engine, env = name.split("+")[0], dict(os.environ)
    if engine == OURS:
        return env
    site, over = os.path.join(o.work, "site"), os.path.join(o.work, "sgsite")
    path = ([over, site] if engine == "sglang" else [site]) + [p for p in [os.environ.get("PYTHONPATH")] if p]
    cache = cache_of(o, name.replace("+inproc", ""))
    env.update(PYTHONPATH=":".join(path), HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", DO_NOT_TRACK="1", VLLM_NO_USAGE_STATS="1",
               TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1", XDG_CACHE_HOME=cache, VLLM_CACHE_ROOT=cache + "/vllm",
               TRITON_CACHE_DIR=cache + "/triton", TORCHINDUCTOR_CACHE_DIR=cache + "/inductor",
               FLASHINFER_WORKSPACE_BASE=cache, TVM_FFI_CACHE_DIR=cache + "/tvm-ffi", SGLANG_CACHE_DIR=cache + "/sglang")
    if os.path.isdir("/usr/local/cuda/bin"):
        env.update(CUDA_HOME="/usr/local/cuda", PATH="/usr/local/cuda/bin:" + env["PATH"])
    return env


def free_port():
    """A port below those that Linux gives to outgoing connections: a server may take it a minute later."""
    while True:
        with socket.socket() as s:
            try:
                port = random.randrange(20000, 32000)
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Server:
    """A server under a name: the engine, or engine+variant."""

    def __init__(self, o, name, folder):
        self.o, self.name, self.proc, self.pid = o, name, None, None
        self.engine, _, self.variant = name.partition("+")
        self.settings = settings(o, folder, self.variant)
        more, self.extra_env = VARIANTS[self.variant][self.engine] if self.variant else ([], {})
        self.port = free_port()
        if self.engine in o.commands:
            self.speaks, self.ready_path = "completions", "/health"
            self.argv = [w.format(model=folder, port=self.port) for w in o.commands[self.engine]]
        else:
            self.speaks, self.ready_path = ("generate" if self.engine == "sglang" else "completions"), "/health"
            program = {OURS: [o.program], "vllm": [o.python, "-m", "vllm.entrypoints.openai.api_server"],
                       "sglang": [o.python, "-m", "sglang.launch_server"]}[self.engine]
            self.argv = program + server_words(self.engine, self.settings, self.port) + more
            if self.engine == OURS:
                self.ready_path = "/ready"
                self.argv += ["--device", o.device]
        self.log = os.path.join(o.out, "logs", f"{o.label}-{name}.log")

    def gib(self):
        return (weight_bytes(self.settings["model"]) + self.settings["kv_bytes"]) / 2**30 + OVERHEAD_GIB

    def start(self):
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        servers, _ = split_cpus()
        env = {**rival_env(self.o, self.name), **self.extra_env}
        self.cold = self.engine != OURS and not os.path.isdir(cache_of(self.o, self.name))
        pin = (lambda: os.sched_setaffinity(0, servers)) if servers else None
        with open(self.log, "w") as log:
            self.begin = time.monotonic()
            self.proc = subprocess.Popen(self.argv, stdout=log, stderr=log, env=env, start_new_session=True, preexec_fn=pin)
        self.pid = self.proc.pid
        self.ready_s = None

    def running(self):
        if self.proc is not None:
            return self.proc.poll() is None
        try:
            return stat_of(self.pid)[0] != "Z"
        except OSError:
            return False

    def ask(self, method, path, body=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read()
        finally:
            c.close()

    def is_ready(self):
        try:
            return self.ask("GET", self.ready_path, timeout=5)[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def record(self, beside):
        pids = family(self.pid)
        facts = []
        with open(self.log, errors="replace") as f:
            for line in f:
                if LOG_FACTS.search(line) and len(facts) < 60:
                    facts.append(line.strip()[:400])
        return {"session": self.session, "model": self.o.label, "server": self.name, "argv": self.argv, "env": self.extra_env,
                "settings": self.settings, "ready_s": self.ready_s, "empty_cache": self.cold, "started_beside": beside, "processes": len(pids),
                "gpu_mib": gpu_memory_of(pids),
                "gpu_mib_of_all": (gpu_memory() or (None, None))[1], "host_bytes": proportional_bytes(pids), "log_facts": facts, "time": now()}


def stop_all(servers, grace_s=10):
    """Ends servers and what they started, and empties the list."""
    pids = {s: family(s.pid) for s in servers}
    for s in servers:
        try:
            os.kill(s.pid, signal.SIGTERM)
        except OSError:
            pass
    end = time.monotonic() + grace_s
    while any(s.running() for s in servers) and time.monotonic() < end:
        time.sleep(0.02)
    for s in servers:
        for pid in pids[s]:
            try:
                if pid == s.pid or os.getsid(pid) == s.pid:  # not a later process with its number
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if s.proc is not None:
            s.proc.wait()
    servers.clear()


def remaining(o):
    return o.budget_s - (time.monotonic() - START)


def wait_ready(o, s):
    """Waits for one server. Returns what went wrong, or None."""
    while not s.is_ready():
        took = time.monotonic() - s.begin
        if not s.running():
            return f"the server ended with {s.proc.returncode}"
        if took > o.ready_s or remaining(o) < 20:
            return f"not ready after {took:.0f} s"
        time.sleep(0.002 if s.engine == OURS else 0.02)
    s.ready_s = time.monotonic() - s.begin
    say(f"{s.name} is ready after {s.ready_s:.2f} s")
    return None


def start_all(o, results, session, servers):
    """Starts servers side by side and waits. Returns those that became ready. An interrupt ends all of them."""
    try:
        return start_each(o, results, session, servers)
    except BaseException:
        o.budget_s = 0
        stop_all([s for s in servers if s.pid is not None])
        raise


def start_each(o, results, session, servers):
    for s in servers:
        s.session = session
        s.start()
    say("started " + ", ".join(s.name for s in servers))
    with concurrent.futures.ThreadPoolExecutor(len(servers)) as pool:
        errors = list(pool.map(lambda s: wait_ready(o, s), servers))
    for s, error in zip(servers, errors):
        if error is None:
            results.add("servers", s.record([x.name for x in servers if x is not s]))
        else:
            stop_all([s])
            results.failed(f"{o.label}: start of {s.name}", error, s.log, argv=s.argv, env=s.extra_env)
    return [s for s, error in zip(servers, errors) if error is None]


def adopt(o, results, folder, names):
    """Servers that an earlier call left running with --keep-servers: those that this call wants go on, others are stopped."""
    found = []
    for a in results.data["alive"].values():
        s = Server(o, a["name"] if a["model"] == o.label else OURS, folder)
        wanted = a["model"] == o.label and a["name"] in names and s.argv == at_port(a["argv"], a["port"], s.port)
        s.pid, s.port, s.argv, s.session = a["pid"], a["port"], a["argv"], a["session"]
        try:
            alive = stat_of(s.pid)[19] == a["start"] and s.running()  # the same process, not a later one with its number
        except OSError:
            alive = False
        if alive and wanted and s.is_ready():
            found.append(s)
            say(f"{s.name} is still running")
        elif alive:
            stop_all([s])
    results.data["alive"] = {}
    return found


def at_port(argv, old, new):
    return [str(new) if w == str(old) else w for w in argv]


def groups(o, folder, names):
    """Which servers fit on the GPU together. Each group has our server."""
    memory = gpu_memory()
    room = memory[0] / 1024 * 0.93 if memory else float("inf")
    servers = [Server(o, n, folder) for n in names]
    found, rest = [], servers[1:]
    while rest:
        group, used = [servers[0]], servers[0].gib()
        for s in list(rest):
            if used + s.gib() <= room:
                group.append(s)
                used += s.gib()
                rest.remove(s)
        if len(group) == 1:
            fail(f"{rest[0].name} needs about {rest[0].gib():.0f} GiB beside ours with {used:.0f} GiB: more than {room:.0f} GiB")
        found.append(group)
        servers = [Server(o, names[0], folder)]
    return found or [servers[:1]]


def have(o, results, engine):
    """Whether the packages of a rival are there. The pack of SGLang holds only what differs from that of vLLM."""
    if engine == "sglang" and os.path.isdir(os.path.join(o.work, "sgsite")) and not os.path.isdir(os.path.join(o.work, "site")):
        results.failed(f"{o.label}: start of sglang", "the pack sglang is there without the pack vllm, which it adds to: bring both in --packs")
        return False
    if output_of(o.python, "-c", f"import importlib.util as u; print(u.find_spec('{engine}') is not None)",
                 env=rival_env(o, engine)).endswith("True"):
        return True
    results.failed(f"{o.label}: start of {engine}", f"the package {engine} is not there; were its packs unpacked?")
    return False


def find_program(o):
    places = [o.program] if o.program else [os.path.join(o.work, "own", "roseinfer"), os.path.join(ROOT, "build", "roseinfer")]
    o.program = next((os.path.abspath(p) for p in places if os.path.exists(p)), None)
    if o.program is None:
        fail(f"none of {', '.join(places)} is there: build the program, or unpack the pack own")
