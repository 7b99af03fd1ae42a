#!/usr/bin/env python3
"""GPU memory in `load soak`: `test_soak_gpu.py BINARY MODEL`; closes with `N passed, N failed`.

The server computes on the CPU; a libnvidia-ml.so.1 of a few lines says what a GPU would hold: 100 MiB before there is a server,
1,124 with one, and under FAKE_GROWS one more with each question. Standard library and cc only.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

BIN, MODEL = sys.argv[1], sys.argv[2]
if shutil.which("cc") is None:
    print("there is no cc")
    sys.exit(77)
results = {"passed": 0, "failed": 0}
NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned a, b; } process;
static unsigned child(void) /* the oldest of the caller */
{
    char path[64]; unsigned pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", getpid(), getpid());
    FILE *f = fopen(path, "r");
    if (f != NULL && fscanf(f, "%u", &pid) != 1) pid = 0;
    if (f != NULL) fclose(f);
    return pid;
}
static unsigned long long used(void)
{
    static unsigned n;
    return child() == 0 ? 100ull << 20 : (1124ull << 20) + (getenv("FAKE_GROWS") != NULL ? ++n * (1ull << 20) : 0);
}
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { *out = out; return (int)i; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { *m = (memory){80ull << 30, 0, used()}; return d == NULL; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *p)
{
    *n = getenv("FAKE_PIDS") != NULL;
    if (*n == 1) p[0] = (process){child(), 1000ull << 20, 0, 0};
    return d == NULL;
}
"""


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:3000]}", flush=True)


def soak(folder, **env):
    with tempfile.TemporaryDirectory() as out:
        e = dict(os.environ, **env)
        if folder:
            e["LD_LIBRARY_PATH"] = folder + (":" + e["LD_LIBRARY_PATH"] if e.get("LD_LIBRARY_PATH") else "")
        p = subprocess.run([BIN, "soak", MODEL, "--duration", "2.5s", "--capacity", "10", "--load", "1", "--slow-percent", "0", "--leave-percent", "0", "--output-dir", out, "--roseinfer-args",
                            "--threads 1 --num-kv-pages 256 --device cpu"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=e, timeout=120)
        found = glob.glob(out + "/*/soak_results.json")
        return json.load(open(found[0])) if found else {}, p.stdout.decode("utf-8", "replace")


def verdict(result):
    return [c["pass"] for c in result.get("criteria", []) if c["criterion"] == "GPU memory does not grow"]


with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", folder + "/libnvidia-ml.so.1"], input=NVML.encode(), check=True)
    r, text = soak(folder, FAKE_PIDS="1")
    check("the process's memory, where the driver knows it", r.get("gpu_memory_mib") == {"of": "process", "first": 1000, "last": 1000, "max": 1000} and
          verdict(r) == [True] and all(x["gpu_mib"] == 1000 for x in r["series"]), (r.get("gpu_memory_mib"), text))
    r, text = soak(folder)
    check("else what the GPU has more than before", r.get("gpu_memory_mib") == {"of": "device", "first": 1024, "last": 1024, "max": 1024} and
          verdict(r) == [True], (r.get("gpu_memory_mib"), text))
    r, text = soak(folder, FAKE_GROWS="1")
    g = r.get("gpu_memory_mib") or {}
    check("memory that grows is a failure, and is named", verdict(r) == [False] and r["pass"] is False and g.get("last", 0) >= g.get("first", 0) + 2 and
          "FAIL  GPU memory does not grow: " in text, (g, text))
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
