#!/usr/bin/env python3
"""Routers in front of two servers: `test_routers.py BINARY MODEL FOLDER-OF-ROUTERS`; closes with `N passed, N failed`.

Starts two servers with default settings, then each router in front of them, and sends 200 requests, 8 at once: chat and
completions, streamed and not. Every one must succeed, whatever the router adds to it. Exit code 77: no routers there.
"""
import concurrent.futures
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import openai

try:
    import httpx2 as httpx  # what openai 3 brings
except ImportError:
    import httpx

BIN, MODEL, FOLDER = sys.argv[1:4]
NAME = os.path.basename(os.path.abspath(MODEL))
ROUTERS = {"vllm-router": ["vllm-router"], "smg": ["smg", "launch"]}
TOTAL, AT_ONCE, START_S = 200, 8, 120
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:4000]}"), flush=True)


class Process:
    """A program of ours or a router; nothing of it is left after the with block."""

    def __init__(self, args, log):
        self.log = log
        self.p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                  start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        try:
            os.killpg(self.p.pid, signal.SIGKILL)  # a router would wait for seconds after SIGTERM
        except ProcessLookupError:
            pass
        self.p.wait()

    def text(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for(self, what, there):
        """Until there() is true, which may raise what httpx raises."""
        end = time.monotonic() + START_S
        while self.p.poll() is None and time.monotonic() < end:
            try:
                if got := there():
                    return got
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{what} did not start:\n{self.text()[-3000:]}")


def server(folder, i):
    p = Process([BIN, "serve", MODEL, "--port", "0"], open(os.path.join(folder, f"server{i}"), "wb"))
    m = p.wait_for("the server", lambda: re.search(r"listening on (http://\S+)", p.text()))
    p.url = m.group(1)
    return p


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def n_workers(url):
    r = httpx.get(url + "/workers", timeout=10)
    return len(r.json().get("workers", [])) if r.status_code == 200 else 0


def router(name, folder, urls):
    port, metrics = free_ports(2)
    command = [os.path.join(FOLDER, ROUTERS[name][0])] + ROUTERS[name][1:]
    p = Process(command + ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
                           "--prometheus-port", str(metrics), "--policy", "round_robin", "--worker-urls"] + urls,
                open(os.path.join(folder, name), "wb"))
    p.url = f"http://127.0.0.1:{port}"
    p.wait_for(name, lambda: httpx.get(p.url + "/health", timeout=10).status_code == 200 and
               n_workers(p.url) == len(urls))
    return p


def counts(url):
    """{status: POST requests} of a server."""
    text = httpx.get(url + "/metrics", timeout=30).text
    out = {}
    for status, n in re.findall(r'^http_requests_total\{handler="/v1/[a-z/]+",method="POST",status="(\d+)"\} (\d+)', text,
                                re.M):
        out[status] = out.get(status, 0) + int(n)
    return out


def ask(client, i):
    """Request i of the 200: (text, finish_reason, completion tokens)."""
    chat, stream = i % 2 == 1, i % 4 >= 2
    kw = {"model": NAME, "max_tokens": 4 + i % 5, "temperature": 0, "extra_body": {"ignore_eos": True}}
    if stream:  # what guidellm asks for; every other one as openai's own clients do
        kw["stream_options"] = {"include_usage": True}
        if i % 8 >= 4:
            kw["stream_options"]["continuous_usage_stats"] = True
    if chat:
        r = client.chat.completions.create(messages=[{"role": "user", "content": f"Tell me of {i} kings."}],
                                           stream=stream, **kw)
    else:
        r = client.completions.create(prompt=f"{i} kings", stream=stream, **kw)
    text, finish, usage = "", None, None
    for chunk in r if stream else [r]:
        usage = chunk.usage or usage
        for c in chunk.choices:
            finish = c.finish_reason or finish
            text += (c.delta.content if stream else c.message.content) or "" if chat else c.text
    return text, finish, usage and usage.completion_tokens


def send_all(url):
    """What each of the requests got, an exception where it failed."""
    def one(i):
        try:
            return ask(client, i)
        except Exception as e:  # pylint: disable=broad-except
            return e
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300) as client, \
            concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(TOTAL)))


def test_router(name, folder, servers, want):
    before = [counts(s.url) for s in servers]
    with router(name, folder, [s.url for s in servers]) as r:
        got = send_all(r.url)
        log = r.text()
    faults = [g for g in got if isinstance(g, Exception)]
    check(f"{name}: {TOTAL - len(faults)} of {TOTAL} requests succeed", not faults, (faults[:3], log[-2000:]))
    other = [(i, g, w) for i, (g, w) in enumerate(zip(got, want)) if g != w and not isinstance(g, Exception)]
    check(f"{name}: the answers are the server's own", not other, other[:3])
    after = [counts(s.url) for s in servers]
    new = [{k: n - b.get(k, 0) for k, n in a.items() if n > b.get(k, 0)} for a, b in zip(after, before)]
    check(f"{name}: both servers had requests, and refused none", all(set(n) == {"200"} for n in new) and
          sum(n.get("200", 0) for n in new) >= TOTAL, new)


def main():
    missing = [n for n, c in ROUTERS.items() if not os.access(os.path.join(FOLDER, c[0]), os.X_OK)]
    if missing:
        print(f"no {' and no '.join(missing)} in {FOLDER}: it could not be installed")
        return 77
    with tempfile.TemporaryDirectory() as folder, server(folder, 0) as a, server(folder, 1) as b:
        want = send_all(a.url)
        faults = [w for w in want if isinstance(w, Exception)]
        check("without a router", not faults and all(w[1] == "length" and w[2] == 4 + i % 5
                                                     for i, w in enumerate(want)), faults[:3])
        for name in ROUTERS:
            test_router(name, folder, [a, b], want)
        ignored = [line for s in (a, b) for line in s.text().splitlines() if "was ignored" in line]
        check("the routers add no field that we ignore", not ignored, ignored)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
