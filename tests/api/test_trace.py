#!/usr/bin/env python3
"""Profiles of a live server: `test_trace.py BINARY MODEL`; closes with `N passed, N failed`.

Who may record, what is refused, and that the file of a server under load is whole: valid JSON, spans that nest, each
request's way from its first to its last byte, phases that make up the engine's steps.
"""
import concurrent.futures
import importlib.machinery
import importlib.util
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time

from test_openai import BIN, MODEL, NAME, ONLY, PROMPT, Server, check, httpx, open_stream, results

loader = importlib.machinery.SourceFileLoader(
    "trace_summary", os.path.join(os.path.dirname(__file__), "..", "..", "tools", "trace_summary"))
summary = importlib.util.module_from_spec(importlib.util.spec_from_loader("trace_summary", loader))
loader.exec_module(summary)


def start(s, **kw):
    return httpx.post(s.url + "/start_profile", timeout=60, **kw)


def stop(s, **kw):
    return httpx.post(s.url + "/stop_profile", timeout=300, **kw)


def code(r):
    return r.status_code, r.json()["error"]["code"]


def stream(s, n_tokens, **extra):
    body = {"prompt": PROMPT, "max_tokens": n_tokens, "temperature": 0, "stream": True, "ignore_eos": True, **extra}
    return s.post("/v1/completions", body).text


def test_refused():
    with Server() as s:
        check("no folder: start is 403 by name", code(start(s)) == (403, "profiler_disabled"))
        check("no folder: stop likewise", code(stop(s)) == (403, "profiler_disabled"))
        check("no folder: with an output_dir too",
              code(start(s, json={"output_dir": "/tmp"})) == (403, "profiler_disabled"))
        check("GET is 405", s.get("/start_profile").status_code == 405)
    with tempfile.TemporaryDirectory() as d:
        for folder in (os.path.join(d, "nowhere"), os.path.abspath(__file__)):
            p = subprocess.run([BIN, "serve", MODEL, "--port", "0", "--profiler-dir", folder], capture_output=True,
                               timeout=60)
            check(f"{os.path.basename(folder)} as folder: it does not start, and names it",
                  p.returncode == 1 and folder.encode() in p.stderr, p.stderr)
        with Server("--profiler-dir", d) as s:
            check("stop without start is 409", code(stop(s)) == (409, "profile_not_running"))
            check("a web page is refused", code(start(s, headers={"Origin": "http://evil.example"})) ==
                  (403, "profiler_from_page"))
            for body in ({"output_dir": "/tmp/x"}, {"num_steps": 3}):
                r = start(s, json=body)
                check(f"a body with {list(body)} is 400 that names it",
                      r.status_code == 400 and r.json()["error"]["param"] in body, r.text)
            check("a body that is no JSON is 400", start(s, content=b"{").status_code == 400)
            check("none of this wrote a file", os.listdir(d) == [], os.listdir(d))
            r = start(s, json={})
            check("an empty object starts", r.status_code == 200 and r.json()["status"] == "recording", r.text)
            check("start twice is 409", code(start(s)) == (409, "profile_running"))
            check("stop", stop(s).status_code == 200)
            check("stop twice is 409", code(stop(s)) == (409, "profile_not_running"))
        with Server("--profiler-dir", d, "--strict-fields") as s:
            r = start(s, json={"model": NAME})
            check("--strict-fields refuses a body's fields", code(r) == (400, "unknown_field"), r.text)
        with Server("--profiler-dir", d) as s:
            r = start(s, json={"model": NAME, "name": "../../x"})  # vLLM's benchmark sends a completion's body
            check("other fields are ignored", r.status_code == 200 and
                  r.headers["x-ignored-fields"] == "model, name", r.headers)
            # not stopped: the server writes it when it ends
        left = [f for f in os.listdir(d) if f.endswith(".trace.json")]
        check("a recording that runs when the server stops is written", len(left) == 2, left)
        check("no half-written file stays", len(os.listdir(d)) == 2, os.listdir(d))
        for f in left:
            summary.load(os.path.join(d, f))


def check_load(options):
    with tempfile.TemporaryDirectory() as d, Server("--profiler-dir", d, *options) as s:
        before = stream(s, 12)
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            early = open_stream(s, 480)  # under way when the recording begins
            early_reply = early.getresponse()
            early_reply.readline()
            first = start(s).json()["path"]
            streams = [pool.submit(stream, s, 12) for _ in range(8)]
            texts = [f.result() for f in streams]
            early_reply.read()
            early.close()
            chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
            n2 = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "n": 2})
        said = stop(s).json()
        check("the same text while it records", all(choices(t) == choices(before) for t in texts))
        check("chat and n", chat.status_code == n2.status_code == 200)
        check("its path is the one of start", said["path"] == first and said["status"] == "ok", said)
        trace = summary.load(first)
        events = [e for e in trace["traceEvents"] if e["ph"] != "M"]
        check("nothing dropped", said["dropped"] == 0, said)
        check("it counts what is in the file", said["bytes"] == os.path.getsize(first) and
              said["events"] == sum(e["ph"] != "e" for e in events) == trace["otherData"]["events"], said)
        check("a plain file", stat.S_IMODE(os.stat(first).st_mode) == 0o644)
        rows, explained, problems = summary.summarise(trace)
        check("spans nest, flows are whole", problems == [], problems[:5])
        check("phases make up the steps", explained > 0.9, explained)
        seen = {name for _, name, *_ in rows}
        want = {"http.recv", "http.parse", "http.request", "http.turn", "http.send", "api.job", "api.parse",
                "api.tokenize", "api.submit", "engine.step", "engine.drain", "engine.plan", "engine.batch",
                "backend.step", "backend.collect", "engine.deliver", "api.stream", "cpu.layer", "cpu.outputs"}
        check("every place is there", want <= seen, want - seen)
        ways = list(summary.flows(trace).values())
        whole = [w for w in ways if w[0] == "s" and w[-1] == "f"]
        check("each request's way, from first to last byte", len(whole) == 10, ways)  # all but start and stop
        check("through worker, queue, plan, first token and reply", all(len(w) >= 7 for w in whole), ways)
        tracks = {}
        for e in events:
            if e["ph"] in "be":
                tracks.setdefault(e["id"], {}).setdefault(e["name"], {})[e["ph"]] = e["ts"]
        served = [t for t in tracks.values() if "decode" in t and "request" in t]
        check("each request's parts", len(served) == 10, tracks)
        for t in served:
            parts = [t["wait for a worker"], t["parse and tokenize"], t["queue"], t["prefill"], t["decode"]]
            ok = all(a["e"] <= b["b"] + 0.0015 for a, b in zip(parts, parts[1:]))
            ok = ok and t["request"]["b"] <= parts[0]["b"] and parts[-1]["e"] <= t["request"]["e"]
            check("its parts follow one another within it", ok, t)
        start(s)
        second = stop(s).json()["path"]
        check("the next recording has a file of its own", second != first and len(os.listdir(d)) == 2)


def choices(text):
    return [json.loads(line[6:])["choices"][0]["text"] for line in text.split("\n\n") if line.startswith("data: {")]


def test_load():
    check_load([])


def test_load_inline():
    check_load(["--no-async-admit", "--no-overlap-schedule", "--io-threads", "2"])


def pipelined(s):
    """The trace, and the ways of those that did not end, of three requests in a packet and of a client that leaves."""
    start(s)
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(one * 3)
        got = b""
        while got.count(b"HTTP/1.1 200") < 3 or not got.endswith(b"}"):
            got += c.recv(65536)
    body = json.dumps({"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 8}).encode()
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        c.recv(100)
    s.settle()
    trace = summary.load(stop(s).json()["path"])
    return trace, [w for w in summary.flows(trace).values() if len(w) > 2 and "f" not in w]


def test_pipelined():
    """Three requests in one packet: each has its own way; so has one whose client does not wait for the answer."""
    with tempfile.TemporaryDirectory() as d, Server("--profiler-dir", d) as s:
        for _ in range(10):  # who is slow to leave has his whole reply: then once more
            trace, gone = pipelined(s)
            if gone:
                break
        ways = summary.flows(trace)
        check("a client that left: its way stops in the middle", len(gone) == 1 and gone[0][0] == "s", ways)
        check("pipelined: three ways of their own", sum(w == "sf" for w in ways.values()) >= 3, ways)
        check("whole all the same", summary.summarise(trace)[2] == [], summary.summarise(trace)[2])


def test_overflow():
    with tempfile.TemporaryDirectory() as d, Server("--profiler-dir", d, "--profiler-events", "16") as s:
        start(s)
        for _ in range(4):
            stream(s, 20)
        said = stop(s).json()
        trace = summary.load(said["path"])
        check("dropped events are counted", said["dropped"] > 0 and trace["otherData"]["dropped"] == said["dropped"])
        check("by thread", "engine" in [t["thread"] for t in trace["otherData"]["dropped_by_thread"]])
        check("the file is bounded", said["events"] <= 16 * 16, said)


def test_many_hands():
    """Starts and stops from several clients: each answer is one of the three, and every file is whole."""
    with tempfile.TemporaryDirectory() as d, Server("--profiler-dir", d) as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            def work(i):
                out = []
                for k in range(10):
                    out.append((start if (i + k) % 2 else stop)(s).status_code)
                    if k % 3 == 0:
                        stream(s, 3)
                return out
            codes = [c for f in [pool.submit(work, i) for i in range(6)] for c in f.result()]
        check("200 or 409", set(codes) <= {200, 409}, codes)
        stop(s)
        files = sorted(os.listdir(d))
        check("as many files as recordings", files and all(f.endswith(".trace.json") for f in files), files)
        bad = [p for f in files for p in summary.summarise(summary.load(os.path.join(d, f)))[2]]
        check("all whole", bad == [], bad[:5])


def main():
    begin = time.monotonic()
    for t in (test_refused, test_load, test_load_inline, test_pipelined, test_overflow, test_many_hands):
        if not ONLY or t.__name__ in ONLY:
            t()
    print(f"{time.monotonic() - begin:.1f} s, {os.path.basename(MODEL)}")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
