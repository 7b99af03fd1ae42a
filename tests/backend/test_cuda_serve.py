#!/usr/bin/env python3
"""A server whose GPU begins to fail: `test_cuda_serve.py BINARY MODEL [LIBCUDA]`; closes with `N passed, N failed`.

BINARY is tests/backend/roseinfer_fake_cuda, which needs no GPU; or the real program, and LIBCUDA the libcuda.so.1 of
tests/backend/cuda_faults.c, which then stands between the program and the driver. Either fails as cuda_faults.h says, from when a file is
made: while streams run and others wait, or before the start. No request may stay without an answer and no process without an
end; how long either takes at most is LIMIT_S, which only a hang reaches. Standard library only.
"""
import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

BIN, MODEL = sys.argv[1], sys.argv[2]
LIBCUDA = sys.argv[3] if len(sys.argv) > 3 else None
LIMIT_S = 60
TIMEOUT_MS = 1000
PACE_US = 2000
N_SEQS, N_STREAMS, N_WHOLE = 4, 8, 4  # some run, some wait
MESSAGE = {"sticky": "unspecified launch failure (cudaErrorLaunchFailure)", "silent": "the GPU has not answered in time (--device-timeout-ms)",
           "memory": "out of memory"}
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:3000]}", flush=True)


def real_driver():
    """The path of the driver that the system has; None where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return next(line.split()[-1] for line in open("/proc/self/maps") if "/libcuda.so" in line)


def environment(fault, when):
    env = dict(os.environ, ROSE_FAULT=fault, ROSE_FAULT_WHEN=when, ROSE_FAULT_PACE_US=str(PACE_US))
    if LIBCUDA:
        before = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = os.path.dirname(os.path.abspath(LIBCUDA)) + (":" + before if before else "")
        env["ROSE_REAL_CUDA"] = DRIVER
    return env


class Server:
    def __init__(self, fault, when, log, *more):
        self.log_path = log
        self.log_file = open(log, "wb")
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--device", "cuda", "--port", "0", "--no-speculation", "--num-kv-pages", "512", "--max-num-seqs", str(N_SEQS),
                                   "--device-timeout-ms", str(TIMEOUT_MS), "--io-threads", "2", *more], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=self.log_file, env=environment(fault, when))
        self.port = None

    def log(self):
        return open(self.log_path, encoding="utf-8", errors="replace").read()

    def wait_ready(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.p.poll() is None:
            m = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log())
            if m:
                self.port = int(m.group(1))
                return True
            time.sleep(0.02)
        return False

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode("utf-8", "replace")
        finally:
            c.close()

    def end(self):
        """The exit code; None after a hang."""
        try:
            return self.p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
            return None
        finally:
            self.log_file.close()


class Client(threading.Thread):
    """One completion; `events` of a stream, as they came, or `body`."""

    def __init__(self, port, stream, i):
        super().__init__(daemon=True)
        self.port, self.stream, self.i = port, stream, i
        self.status, self.events, self.body, self.failure = None, [], None, None
        self.begun = threading.Event()

    def run(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
            c.request("POST", "/v1/completions", json.dumps({"model": os.path.basename(MODEL.rstrip("/")), "prompt": f"number {self.i}: the",
                      "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": self.stream}), {"Content-Type": "application/json"})
            r = c.getresponse()
            self.status = r.status
            if not self.stream or r.status != 200:
                self.body = r.read().decode("utf-8", "replace")
                return
            for line in r:  # to the end of the body: one that is cut off raises
                if line.startswith(b"data: "):
                    self.events.append(line[6:].decode("utf-8", "replace").strip())
                    self.begun.set()
        except (OSError, http.client.HTTPException) as e:
            self.failure = repr(e)
        finally:
            self.begun.set()


def is_engine_error(text, message):
    try:
        e = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return False
    return set(e) == {"message", "type", "param", "code"} and e["type"] == "server_error" and e["code"] == "engine_error" and message in e["message"]


def answered(c, message):
    """As docs/API.md has it: text so far, the error as an event, [DONE]; or, before the first token, an error reply."""
    if c.failure is not None or c.is_alive():
        return False
    if c.status != 200:
        return c.status == 500 and is_engine_error(c.body, message)
    return c.stream and len(c.events) > 2 and c.events[-1] == "[DONE]" and is_engine_error(c.events[-2], message) and \
        all("error" not in json.loads(e) for e in c.events[:-2])


def faults_of(s, fault, message, when):
    ready = s.wait_ready()
    check(f"{fault}: the server is ready", ready, s.log())
    if not ready:
        s.p.kill()
        s.end()
        return
    status, body = s.get("/health")
    check(f"{fault}: /health is 200 before", status == 200 and "error" not in json.loads(body), (status, body))
    clients = [Client(s.port, i < N_STREAMS, i) for i in range(N_STREAMS + N_WHOLE)]
    for c in clients[:N_SEQS]:  # these run
        c.start()
    for c in clients[:N_SEQS]:
        c.begun.wait(LIMIT_S)
    for c in clients[N_SEQS:]:
        c.start()
    end = time.monotonic() + LIMIT_S
    while json.loads(s.get("/health")[1])["waiting"] < len(clients) - N_SEQS and time.monotonic() < end:  # and these wait
        time.sleep(0.005)
    n_open = sum(c.is_alive() for c in clients)
    open(when, "w").close()
    for c in clients:
        c.join(LIMIT_S)
    bad = [(c.i, c.stream, c.status, c.failure, c.is_alive(), c.events[-2:], c.body) for c in clients if not answered(c, message)]
    check(f"{fault}: {n_open} requests are open then, and each is answered with the error", n_open == len(clients) and not bad, (n_open, bad))
    n_begun = sum(c.status == 200 for c in clients)
    check(f"{fault}: some in their stream, some before", 0 < n_begun < len(clients), n_begun)
    status, body = s.get("/health")
    check(f"{fault}: /health is 503 and says why", status == 503 and message in json.loads(body)["error"], (status, body))
    status, body = s.get("/ready")
    check(f"{fault}: /ready is 503, failed", status == 503 and "failed" in body, (status, body))
    status, body = s.get("/metrics")
    check(f"{fault}: /metrics is still served, and nothing runs", status == 200 and re.search(r"^vllm:num_requests_running\S* 0", body, re.M) is not None, status)
    late = Client(s.port, True, 99)
    late.start()
    late.join(LIMIT_S)
    check(f"{fault}: who comes now is told at once", late.status == 500 and answered(late, message), (late.status, late.body, late.failure))
    status, body = s.get("/health")
    check(f"{fault}: /health stays 503 until the server is stopped", status == 503 and s.p.poll() is None, (status, body))
    s.p.send_signal(signal.SIGTERM)
    code = s.end()
    check(f"{fault}: the exit code is 1", code == 1, (code, s.log()))
    errors = [line for line in s.log().splitlines() if "backend cuda failed" in line]
    check(f"{fault}: one line of the log says it", len(errors) == 1 and f"{n_open} open requests end: CUDA: step: {message}" in errors[0] and
          s.log().count(message) == 1, s.log())


def fault_in_streams(fault, d):
    message, when = MESSAGE[fault], os.path.join(d, "now")
    s = Server(fault, when, os.path.join(d, "log"))
    try:
        faults_of(s, fault, message, when)
    finally:
        if s.p.poll() is None:
            s.p.kill()


def fault_at_start(fault, d):
    when = os.path.join(d, "now")
    open(when, "w").close()
    s = Server(fault, when, os.path.join(d, "log"))
    code = s.end()
    lines = s.log().splitlines()
    said = [line for line in lines if MESSAGE[fault] in line]
    check(f"{fault} at the start: one line, exit code 1", code == 1 and len(said) == 1 and said[0].startswith("roseinfer: CUDA: "), (code, lines))


def allocation_in_step(d):
    """The program without a GPU has the allocation guard: its steps allocate nothing, or it aborts."""
    when = os.path.join(d, "now")
    s = Server("malloc", when, os.path.join(d, "log"))
    check("malloc: the server is ready", s.wait_ready(), s.log())
    c = Client(s.port, True, 0)
    c.start()
    c.begun.wait(LIMIT_S)
    check("malloc: a stream has begun", len(c.events) > 0 and s.p.poll() is None, (c.events, s.log()))
    open(when, "w").close()
    code = s.end()
    check("malloc: a step that allocates aborts", code == -signal.SIGABRT and
          "fatal: malloc called within guarded region: engine step" in s.log(), (code, s.log()))


def prefill_backends(d):
    """A server with each attention kernel of prefill starts and ends."""
    for name in "auto", "flash", "naive", "auto2":
        s = Server("none", os.path.join(d, "never"), os.path.join(d, name), "--prefill-backend", name)
        ready = s.wait_ready()
        s.p.send_signal(signal.SIGTERM)
        code = s.end()
        check(f"--prefill-backend {name}: serves", ready and code == 0, (ready, code, s.log()))


DRIVER = real_driver() if LIBCUDA else None
if LIBCUDA:
    if DRIVER is None:
        print("no driver is installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        before = subprocess.run([BIN, "generate", MODEL, "-n", "1", "--device", "cuda"], input=b"x", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=environment("none", os.path.join(folder, "never")), timeout=120)
    if b"no usable NVIDIA GPU" in before.stderr:
        print(before.stderr.decode("utf-8", "replace").strip())
        sys.exit(77)
    check("through the replaced driver the GPU serves", before.returncode == 0 and before.stdout != b"", (before.returncode, before.stderr))
for each in ("sticky", "silent"):
    with tempfile.TemporaryDirectory() as folder:
        fault_in_streams(each, folder)
for each in ("sticky", "silent", "memory"):
    with tempfile.TemporaryDirectory() as folder:
        fault_at_start(each, folder)
with tempfile.TemporaryDirectory() as folder:
    prefill_backends(folder)
if not LIBCUDA:
    with tempfile.TemporaryDirectory() as folder:
        allocation_in_step(folder)
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
