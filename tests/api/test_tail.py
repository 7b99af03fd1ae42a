#!/usr/bin/env python3
"""What one client may do to the others: `test_tail.py BINARY MODEL`; closes with `N passed, N failed`.

Bodies of 27 MB, a client that reads nothing, load while the server is told to stop. Nothing is compared with a clock: what
counts is what came before what.
"""
import http.client
import json
import random
import re
import signal
import socket
import sys
import threading
import time

from test_openai import MODEL, ONLY, PROMPT, SLOW, Server, check, complete, results

BODY_MB = 3 if SLOW else 27


class Streams:
    """Streams one after the other in n threads, and /health in one more, until closed; counts what comes."""

    def __init__(self, s, n):
        self.s, self.stop, self.errors = s, False, []
        self.tokens, self.health = [0] * n, 0
        self.threads = [threading.Thread(target=self._run, args=(self._stream, i)) for i in range(n)]
        self.threads.append(threading.Thread(target=self._run, args=(self._health, 0)))
        for t in self.threads:
            t.start()
        self.advance(self.counts(), 3)

    def _run(self, fn, i):
        c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=120)
        try:
            while not self.stop:
                fn(c, i)
        except (OSError, http.client.HTTPException, AssertionError) as e:
            self.errors.append(repr(e))
        c.close()

    def _stream(self, c, i):
        c.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True,
                                                         "stream": True}), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, r.read()
        while line := r.readline():
            self.tokens[i] += line.startswith(b"data: {")

    def _health(self, c, _):
        c.request("GET", "/health")
        r = c.getresponse()
        r.read()
        assert r.status == 200, r.status
        self.health += 1

    def counts(self):
        return [*self.tokens, self.health]

    def advance(self, since, by, seconds=120):
        """Wait until every count has grown so much."""
        end = time.monotonic() + seconds
        while min(b - a for a, b in zip(since, self.counts())) < by and not self.errors and time.monotonic() < end:
            time.sleep(0.001)

    def close(self):
        self.stop = True
        for t in self.threads:
            t.join()
        return self.errors


def big_bodies():
    rng = random.Random(4)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9))) for _ in range(5000)]
    text = " ".join(rng.choice(words) for _ in range(BODY_MB * 1000000 // 6))[:BODY_MB * 1000000]
    yield "27 MB of words to tokenise", "/tokenize", text, 200
    yield "one word of megabytes to tokenise", "/tokenize", "ab" * (BODY_MB * 50000), 200
    yield "a prompt of 27 MB", "/v1/completions", text, 400


def test_big_bodies():
    with Server("--max-body-size", "64M", "--tokenize-workers", "2") as s:
        others = Streams(s, 4)
        for name, path, text, want in big_bodies():
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
            c.request("POST", path, json.dumps({"prompt": text}), {"Content-Type": "application/json"})
            sent = others.counts()  # the server may still have to read some of it: that must not stop it either
            r = c.getresponse()
            came = others.counts()
            body = r.read()
            check(f"{name}: {want}", r.status == want, (r.status, body[:200]))
            if path == "/tokenize":
                check(f"{name}: each stream and /health went on before the reply came",
                      min(b - a for a, b in zip(sent, came)) >= 3, (sent, came))
                print(f"    meanwhile: tokens {[b - a for a, b in zip(sent, came)][:-1]}, /health {came[-1] - sent[-1]}")
            else:
                error = json.loads(body)["error"]
                check(f"{name}: refused by its size", error["code"] == "context_length_exceeded" and
                      re.search(r"has \d+ bytes, which are more than", error["message"]), error)
            before = others.counts()
            others.advance(before, 3)
            c.close()
        # Its client leaves: the worker gives up, and the pages, jobs and buffers of it are gone.
        for _ in range(4):  # more than there are workers
            with socket.create_connection(("127.0.0.1", s.port), 60) as k:
                body = json.dumps({"prompt": "ab" * (BODY_MB * 500000)}).encode()
                k.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        check("after clients that left: answered", complete(s, max_tokens=2).usage.completion_tokens == 2)
        check("no stream was disturbed", not others.close(), others.errors)
        h = s.settle()
        check("nothing is left", h["running"] == h["waiting"] == 0 and h["kv_pages_free"] == h["kv_pages"], h)


def test_more_long_bodies_than_workers():
    """Long bodies never have all workers: a later request, too long for the I/O thread, is answered before them."""
    with Server("--max-body-size", "64M", "--tokenize-workers", "2") as s:
        lock, done, sent = threading.Lock(), [], threading.Semaphore(0)
        text = json.dumps({"prompt": "the quick brown fox " * (BODY_MB * 50000)})

        def tokenize():
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
            c.request("POST", "/tokenize", text, {"Content-Type": "application/json"})
            sent.release()
            status = c.getresponse().status
            with lock:
                done.append(status)
            c.close()

        threads = [threading.Thread(target=tokenize) for _ in range(4)]
        for t in threads:
            t.start()
        for _ in threads:
            sent.acquire()
        r = s.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "user": "u" * 8000})
        with lock:
            before = len(done)
        check("a request after more long bodies than workers: answered before them", r.status_code == 200 and before <= 1,
              (r.status_code, before))
        for t in threads:
            t.join()
        check("the long bodies: all answered", done == [200] * 4, done)


def resident_mb(s):
    with open(f"/proc/{s.p.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) / 1024


def test_slow_reader():
    """A client that reads nothing while its request streams megabytes: its buffer is bounded, then it is dropped."""
    if SLOW:
        print("    test_slow_reader: not here, a slow build takes minutes to fill the system's buffers (tests/http/test_http_stall, test_http_large)")
        return
    n = 24  # more than the system's buffers take: the server's side of a connection grows to 4 MB
    body = json.dumps({"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True, "n": n, "logprobs": 5})
    with Server("--max-pending-bytes", "64K", "--prefault", "--kv-cache-memory", "256M") as s:
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        whole = len(c.getresponse().read())  # also: warms what the server keeps
        c.close()
        before, cancelled = resident_mb(s), s.settle()["cancelled"]
        others = Streams(s, 2)
        slow = [socket.socket() for _ in range(2)]
        for k in slow:
            k.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            k.connect(("127.0.0.1", s.port))
            k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body.encode()))
        top, end = before, time.monotonic() + 120
        while s.get("/health").json()["cancelled"] < cancelled + len(slow) and time.monotonic() < end:
            top = max(top, resident_mb(s))
            time.sleep(0.01)
        got = s.get("/health").json()["cancelled"] - cancelled
        check("clients that read nothing are dropped, their requests cancelled", got >= len(slow), got)
        check("they held no more than their buffers", top - before < 24, (before, top, whole))
        print(f"    a whole reply has {whole / 1e6:.1f} MB; resident {before:.1f} MB before, at most {top:.1f} MB")
        since = others.counts()
        others.advance(since, 10)
        check("the others go on", min(b - a for a, b in zip(since, others.counts())) >= 10 and not others.close(),
              others.errors)
        for k in slow:
            k.close()
        h = s.settle()
        check("their pages are free", h["kv_pages_free"] == h["kv_pages"] and h["running"] == h["waiting"] == 0, h)


def test_stop_under_load():
    """SIGTERM amid streams and new requests: what was accepted ends whole, the rest is refused, the server exits 0."""
    s = Server()
    out, lock, go = {"whole": 0, "refused": 0, "torn": []}, threading.Lock(), threading.Event()

    def client(i):
        k = 0
        while True:
            k += 1
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
            kind, status = "refused", 0
            try:
                c.request("POST", "/v1/completions", json.dumps({"prompt": f"{i} {k}", "max_tokens": 100, "ignore_eos": True,
                                                                 "stream": i % 2 == 0}), {"Content-Type": "application/json"})
                r = c.getresponse()
                status = r.status
                text = r.read().decode()
                if status == 200:
                    ended = text.endswith("data: [DONE]\n\n") if i % 2 == 0 else json.loads(text)
                    kind = "whole" if ended and '"finish_reason":"length"' in text else "torn"
                elif status != 503:
                    kind = "torn"
            except (OSError, http.client.HTTPException) as e:
                # no connection any more, or the server closed one that had not begun a reply
                kind = "refused" if status == 0 else "torn"
                if kind == "torn":
                    out["torn"].append(repr(e))
            with lock:
                if kind == "torn":
                    out["torn"].append((status, i, k))
                else:
                    out[kind] += 1
                if out["whole"] >= 24:
                    go.set()
            if kind == "refused":
                return

    threads = [threading.Thread(target=client, args=(i,)) for i in range(24)]
    for t in threads:
        t.start()
    go.wait(120)
    s.p.send_signal(signal.SIGTERM)
    for t in threads:
        t.join()
    check("SIGTERM under load: nothing that was begun is torn", out["torn"] == [] and out["whole"] >= 24, out)
    check("each client saw its end", out["refused"] == 24, out)
    check("the server exits 0", s.p.wait(60) == 0, "".join(s.log[-3:]))
    s.client.close()


def test_health_under_load():
    with Server("--max-num-seqs", "64", "--max-num-batched-tokens", "512") as s:
        others = Streams(s, 32)
        times = []
        for _ in range(200):
            t = time.monotonic()
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
            c.request("GET", "/health")
            status = c.getresponse().status
            c.close()
            times.append(time.monotonic() - t)
            if status != 200:
                break
        check("/health under load: 200 each time", len(times) == 200 and status == 200, status)
        print(f"    /health: median {sorted(times)[len(times) // 2] * 1e3:.1f} ms, longest {max(times) * 1e3:.1f} ms")
        check("no stream was disturbed", not others.close(), others.errors)


def test_stalls():
    """--stall-warn-ms 1 on a machine that is busy: lines appear, they name what they should, and are counted."""
    with Server("--stall-warn-ms", "1", "--max-body-size", "64M") as s:
        s.post("/tokenize", {"prompt": "ab " * 1000000})
        page = s.get("/metrics").text
        count = re.search(r'roseinfer:stalls_total\{[^}]*where="tokenize"\} (\d+)', page)
        check("a long tokenizer job is counted", count and int(count.group(1)) == 1, page[-2000:])
        complete(s, max_tokens=20)
    s.p.wait(60)
    line = next((x for x in s.log if "rose-tokenize: tokenize (tokenize, body of" in x), "")
    check("and logged with its cause", re.search(r"took [\d.]+ ms: .+\. On CPU [\d.]+ ms; page faults: \d+ minor, \d+ major; "
                                                 r"context switches: \d+ voluntary, \d+ involuntary", line), s.log[-5:])


def signature(s, **extra):
    """Texts, ids and logprobs of the choices, joined over the chunks, and the number of chunks."""
    r = s.post("/v1/completions", {"prompt": [PROMPT, "\u00e9\"\\\n\t"], "stream": True, "max_tokens": 25, "n": 2, "seed": 3,
                                   "temperature": 1, "stream_options": {"include_usage": True}, **extra})
    joined, chunks, usage = {}, 0, None
    for e in r.text.split("\n\n"):
        if not e.startswith("data: {"):
            continue
        e = json.loads(e[6:])
        usage = e["usage"] or usage
        for c in e["choices"]:
            chunks += 1
            j = joined.setdefault(c["index"], {"text": "", "ids": [], "logprobs": [], "finish": None})
            j["text"] += c["text"]
            j["finish"] = c["finish_reason"] or j["finish"]
            j["ids"] += c.get("token_ids", [])
            for p in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] if c["logprobs"] else []:
                j["logprobs"] += [(p, x) for x in c["logprobs"][p]]
    for j in joined.values():
        j["logprobs"].sort(key=lambda x: x[0])  # stable: by part, in order
    return joined, usage, chunks


def test_stream_interval():
    plain, rich = {}, {"logprobs": 3, "return_token_ids": True, "stop": ["the"]}
    want = None
    for interval in (1, 2, 7, 1000):
        with Server("--stream-interval", str(interval)) as s:
            a, b = signature(s, **plain), signature(s, **rich)
        if want is None:
            want = (a, b)
            check("usage counts tokens", a[1]["completion_tokens"] == 100, a[1])
            continue
        check(f"--stream-interval {interval}: same text, finish, ids, logprobs, usage",
              (a[:2], b[:2]) == (want[0][:2], want[1][:2]), (a, want[0]))
        check("and fewer events", a[2] < want[0][2] and (interval < 1000 or a[2] <= 8), (a[2], want[0][2]))


def main():
    start = time.monotonic()
    for t in (test_big_bodies, test_more_long_bodies_than_workers, test_slow_reader, test_stop_under_load,
              test_health_under_load, test_stalls, test_stream_interval):
        if not ONLY or t.__name__ in ONLY:
            t()
            print(f"    {t.__name__}: {time.monotonic() - start:.1f} s from the start")
    print(f"{time.monotonic() - start:.1f} s, model {MODEL}")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
