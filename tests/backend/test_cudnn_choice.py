#!/usr/bin/env python3
"""Which way prompts attend: `test_cudnn_choice.py BINARY MODEL LIBCUDNN`; closes with `N passed, N failed`.

BINARY is tests/backend/roseinfer_fake_cuda and LIBCUDNN tests/backend/fake_cudnn.c: neither computes, and neither needs a GPU. The
whole host side runs: what is refused and how, what auto2 falls back on, plans, groups of prompts. Standard library only.
"""
import os
import subprocess
import sys
import tempfile

BIN, MODEL, LIBCUDNN = sys.argv[1], sys.argv[2], os.path.abspath(sys.argv[3])
NOWHERE = "/nonexistent/libcudnn.so.9"
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:3000]}", flush=True)


def run(*args, fails="", **env):
    """70 prompts at once, which are several groups of a step."""
    r = subprocess.run([BIN, "bench", "offline", MODEL, "--num-prompts", "70", "--input-len", "90", "--output-len", "2", "--repeats", "1", "--warmup", "0",
                        "--device", "cuda", "--num-kv-pages", "1000", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env=dict(os.environ, ROSE_FAKE_CUDNN=fails, **env), timeout=120)
    return r.returncode, r.stderr.decode("utf-8", "replace")


def refused(name, text, *args, fails=""):
    code, said = run("--prefill-backend", "cudnn", *args, fails=fails)
    check(f"cudnn: {name}: refused", code != 0 and "prefill backend cudnn: " in said and text in said, (code, said))
    code, said = run("--prefill-backend", "auto2", *args, fails=fails)
    check(f"auto2: {name}: flash, and says so", code == 0 and "prefill backend auto2: flash, for " in said and text in said, (code, said))


with_library = ("--cudnn-library", LIBCUDNN)
refused("no such file", NOWHERE, "--cudnn-library", NOWHERE)
refused("another library", "cuDNN lacks cudnnGetVersion", "--cudnn-library", "libm.so.6")
refused("too old", "cuDNN is version 9.1.0: 9.15 or later is needed", *with_library, fails="old")
refused("no engine", "cuDNN has no engine for it", *with_library, fails="none")
refused("fp32", "choose dtype float16 or bfloat16", "--dtype", "float32", *with_library)

code, said = run("--prefill-backend", "flash", *with_library)
check("a library for flash: refused", code != 0 and "cudnn-library is for prefill backends cudnn and auto2" in said, (code, said))
code, said = run("--prefill-backend", "cudnn", *with_library, fails="plan")
check("a plan that cannot be made: where and why", code != 0 and "this plan cannot be made second line" in said and "4 heads of 64" in said, (code, said))
code, said = run("--prefill-backend", "auto2", *with_library, fails="plan")
check("auto2: a plan that cannot be made: flash after all", code == 0 and "prefill backend auto2: flash, for " in said and "this plan cannot be made" in said, (code, said))
code, said = run("--prefill-backend", "cudnn", *with_library, fails="run")
check("a plan that does not run: found at the start", code != 0 and "running attention (7): CUDNN_STATUS_FAKE (5000): this plan does not run" in said, (code, said))
code, said = run("--prefill-backend", "cudnn", *with_library, fails="step")
check("a plan that runs no more: the step fails by its text", code != 0 and "step: layer 0, " in said and "this plan runs no more" in said, (code, said))
with tempfile.TemporaryDirectory() as folder:
    for backend in "cudnn", "auto2":
        when = os.path.join(folder, backend)
        code, said = run("--prefill-backend", backend, "--device-timeout-ms", "500", *with_library, fails="silent", ROSE_FAULT="silent", ROSE_FAULT_WHEN=when)
        check(f"{backend}: a device that is silent while plans are tried: ends", code != 0 and "the GPU has not answered in time" in said, (code, said))
for dtype in ("float16", "bfloat16"):
    code, said = run("--prefill-backend", "cudnn", "--dtype", dtype, *with_library)
    check(f"cudnn, {dtype}: serves, with four plans", code == 0 and "prompts attend by cuDNN 9.19.0: 4 plans in" in said, (code, said))
code, said = run("--prefill-backend", "cudnn", "--max-num-seqs", "1", *with_library)
check("one sequence at a time: one plan", code == 0 and "prompts attend by cuDNN 9.19.0: 1 plans in" in said, (code, said))
much = (*with_library, "--num-kv-pages", "8192")  # as much as the fake device has for flash alone
code, said = run("--prefill-backend", "cudnn", *much)
check("no memory for cudnn: refused", code != 0 and "the plan needs" in said and "or choose prefill backend flash" in said, (code, said))
code, said = run("--prefill-backend", "auto2", *much)
check("auto2: no memory for cudnn: flash, and says so", code == 0 and "prefill backend auto2: flash, for the plan needs" in said, (code, said))
code, said = run("--prefill-backend", "auto2", *with_library)
check("auto2: cudnn where it is, and says so", code == 0 and "prefill backend auto2: cudnn" in said, (code, said))
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
