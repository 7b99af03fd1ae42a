#!/usr/bin/env python3
"""What a first user, or an attacker, does to a real server: tests/api/test_guards.py PROGRAM MODEL

Slow bodies by the hundred, foreign Host headers, half-closed connections, clients that leave, too few descriptors, a
hangup of the terminal, and requests whose error must name the cause. Nothing is checked against the clock.
"""
import gzip
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

BIN, MODEL = sys.argv[1], sys.argv[2]
passed = failed = 0


def check(what, ok, detail=""):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAILED", what, detail, flush=True)


class Server:
    """`roseinfer serve` on a free port; before(): run in the child before it becomes the program."""

    def __init__(self, *options, before=None):
        self.log = []
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", *options], stderr=subprocess.PIPE, text=True,
                                  preexec_fn=before)
        self.port = None
        for line in self.p.stderr:
            self.log.append(line)
            if "listening on http://" in line:
                self.port = int(line.rsplit(":", 1)[1])
                break
        if self.port is None:
            raise RuntimeError("the server did not start: " + "".join(self.log))
        threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True).start()

    def connect(self, data=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        if data:
            s.sendall(data)
        return s

    def ask(self, data, half_close=False):
        """Status, head and body of the reply to these bytes, read to the end of the connection."""
        with self.connect(data) as s:
            if half_close:
                s.shutdown(socket.SHUT_WR)
            return reply(s)

    def get(self, path, host="localhost", headers="", method="GET"):
        return self.ask(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n".encode())

    def health(self):
        return json.loads(self.get("/health")[2])

    def metric(self, name):
        for line in self.get("/metrics")[2].splitlines():
            if line.startswith(name.encode()):
                return float(line.rsplit(b" ", 1)[1])

    def log_lines(self, text):
        return [line for line in self.log if text in line]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        try:
            rc = self.p.wait(120)
        except subprocess.TimeoutExpired:
            self.p.kill()
            rc = "none"
        if exc[0] is None:
            check("the server exits 0", rc == 0, (rc, self.log[-10:]))


def reply(s):
    got = b""
    while True:
        part = s.recv(65536)
        if not part:
            break
        got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head[9:12]) if head else 0), head.decode("latin-1"), body


def message(r):
    return json.loads(r[2])["error"]["message"]


def post(path, body, headers=""):
    """The bytes of a request."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(body)}\r\n\r\n").encode() + body


def completion(path="/v1/completions", **fields):
    return post(path, {"prompt": "Once", "max_tokens": 4, "temperature": 0, **fields})


LONG = {"n": 64, "max_tokens": 500, "ignore_eos": True}  # many seconds of work
SLOW = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n{"


def test_errors(s):
    for text, want in (("/hea lth", "holds a space; write it as %20"), ("/h\u00e9alth", "is not ASCII"),
                       ("/chat/completions", "did you mean '/v1/chat/completions'"),
                       ("/v1/uploads", "is not implemented by this server"), ("/x", "the OpenAI API is at /v1")):
        r = s.ask(f"GET {text} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        check(f"GET {text!a}: says what is wrong", r[0] in (400, 404) and want in message(r), r)
    packed = gzip.compress(b'{"prompt":"x"}')
    for coding in ("gzip", "deflate", "br"):
        r = s.ask(post("/v1/completions", packed, f"Content-Encoding: {coding}\r\n"))
        check(f"{coding}: 415 that names it", r[0] == 415 and f"Content-Encoding '{coding}'" in message(r), r)
    r = s.ask(post("/v1/completions", b'{"prompt":"x","max_tokens":1}', "Content-Encoding: identity\r\n"))
    check("identity is no coding", r[0] == 200, r)
    for what, body, want in (("gzip without saying so", packed, "compressed by gzip"),
                             ("UTF-8 with a byte order mark", '\ufeff{"prompt":"x"}'.encode(), "byte order mark"),
                             ("UTF-16", '{"prompt":"x"}'.encode("utf-16"), "UTF-16"),
                             ("UTF-16, no mark, big", '{"prompt":"x"}'.encode("utf-16-be"), "UTF-16"),
                             ("UTF-16, no mark, little", '{"prompt":"x"}'.encode("utf-16-le"), "UTF-16"),
                             ("UTF-32", '{"prompt":"x"}'.encode("utf-32"), "UTF-32")):
        r = s.ask(post("/v1/completions", body))
        check(f"{what}: named", r[0] == 400 and want in message(r), r)
    for field in ("max_tokens", "max_completion_tokens"):
        r = s.ask(post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], field: 1000000}))
        check(f"{field} over the context is blamed on itself", json.loads(r[2])["error"]["param"] == field, r)
    r = s.ask(completion(prompt=[1] * 5000))
    check("a prompt over the context is blamed on prompt", json.loads(r[2])["error"]["param"] == "prompt", r)
    r = s.get("/v1/completions")
    check("wrong method: 405 with Allow", r[0] == 405 and "\r\nAllow: POST" in r[1], r)
    r = s.get("/health", method="DELETE")
    check("wrong method of health: 405 with Allow", r[0] == 405 and "\r\nAllow: GET, HEAD" in r[1], r)
    r = s.get("*", method="OPTIONS")
    check("OPTIONS *: what there is", r[0] == 200 and "\r\nAllow: GET, HEAD, POST" in r[1], r)
    for path in ("/v1/models/", "/health/"):
        check(f"{path}: the slash is ignored", s.get(path)[0] == 200)
    check("completions/: the slash is ignored", s.ask(completion("/v1/completions/"))[0] == 200)
    name = json.loads(s.get("/v1/models")[2])["data"][0]["id"]
    check("models/NAME/: the slash is ignored", json.loads(s.get(f"/v1/models/{name}/")[2])["id"] == name)


def test_hosts(s):
    for host in ("localhost", "127.0.0.1:80", "[::1]", "LOCALHOST:1"):
        check(f"Host {host}: ours", s.get("/v1/models", host)[0] == 200)
    r = s.get("/v1/models", "evil.example:80")
    check("another Host: 403 that names it and the option", r[0] == 403 and "'evil.example:80'" in message(r) and
          "--allowed-hosts evil.example:80" in message(r), r)
    check("another Host: no completion either", s.ask(
        completion().replace(b"Host: localhost", b"Host: evil.example"))[0] == 403)
    with Server("--allowed-hosts", "a.example,b.example", "--allowed-hosts", "c.example") as t:
        for host, status in (("a.example", 200), ("b.example:8", 200), ("c.example", 200), ("localhost", 200),
                             ("d.example", 403)):
            check(f"--allowed-hosts: {host} is {status}", t.get("/v1/models", host)[0] == status)
    with Server("--allowed-hosts", "*") as t:
        check("--allowed-hosts *: any", t.get("/v1/models", "evil.example")[0] == 200)


def test_half_closed(s):
    whole = s.ask(completion())[2]
    text = json.loads(whole)["choices"][0]["text"]
    r = s.ask(completion(), half_close=True)
    check("half-closed: answered", r[0] == 200 and json.loads(r[2])["choices"][0]["text"] == text, r)
    r = s.ask(completion(stream=True), half_close=True)
    check("half-closed: the stream comes to its end", r[0] == 200 and r[2].count(b'"text":') == 4 and
          b"data: [DONE]\n\n" in r[2], r)
    long = s.ask(completion(max_tokens=200, ignore_eos=True), half_close=True)
    check("half-closed: also after a while", json.loads(long[2])["usage"]["completion_tokens"] == 200, long)


def idle_again(s):
    while True:
        h = s.health()
        if h["running"] == h["waiting"] == 0:
            return h
        time.sleep(0.01)


def test_leaving(s):
    """Whoever closes its connection is no longer worked for, though a FIN comes in both cases."""
    for what, fields in (("a whole reply", LONG), ("a stream", {**LONG, "stream": True})):
        for half_first in (False, True):
            before = idle_again(s)
            c = s.connect(completion(**fields))
            if half_first:
                c.shutdown(socket.SHUT_WR)
            while s.health()["running"] == 0:
                time.sleep(0.005)
            c.close()
            after = idle_again(s)
            check(f"left {what}{', half-closed before' * half_first}: its work is cancelled",
                  after["cancelled"] - before["cancelled"] == 64 and after["kv_pages_free"] == after["kv_pages"],
                  (before, after))


def test_slow_bodies():
    limit, n = 64, 200
    with Server("--max-connections", str(limit)) as s:
        slow = []
        for _ in range(n):
            slow.append(s.connect(SLOW))
        for i in range(3):
            for path in ("/health", "/ready", "/metrics"):
                check(f"slow bodies: {path} is answered", s.get(path)[0] == 200)
            r = s.ask(completion())
            check("slow bodies: an honest request is answered", r[0] == 200, r)
        check("slow bodies: counted", s.metric("roseinfer:connections_dropped_total") == n - limit + 1,
              s.metric("roseinfer:connections_dropped_total"))
        check("slow bodies: none refused", s.metric("roseinfer:connections_refused_total") == 0)
        lines = s.log_lines("--max-connections")
        check("slow bodies: one line says so", len(lines) == 1 and " WARN " in lines[0], lines)
        for c in slow:
            c.close()


def test_all_busy():
    limit = 4
    with Server("--max-connections", str(limit)) as s:
        busy = [s.connect(completion(**LONG, stream=True)) for _ in range(limit)]
        for c in busy:  # it has work once its stream has begun; before that it could be dropped
            check("all have work: a stream begins", c.recv(1, socket.MSG_PEEK) == b"H")
        for path in ("/health", "/ready", "/metrics"):
            check(f"all have work: {path} is answered", s.get(path)[0] == 200)
        for what, data in (("a completion", completion()), ("another path", b"GET /version HTTP/1.1\r\nHost: localhost"
                                                            b"\r\n\r\n"), ("nothing", b"")):
            r = s.ask(data)
            check(f"all have work: {what} gets 503", r[0] == 503 and "\r\nRetry-After: " in r[1] and
                  message(r) == "too many connections", r)
        check("all have work: none of it was dropped", s.health()["cancelled"] == 0)
        for c in busy:
            c.close()


def test_body_rate():
    with Server("--body-timeout-ms", "500", "--body-min-rate", "1000") as s, s.connect(SLOW) as c:
        def drip():
            try:
                while True:
                    c.sendall(b" ")
                    time.sleep(0.02)
            except OSError:
                pass
        threading.Thread(target=drip, daemon=True).start()
        got = b""
        while b"\r\n\r\n{" not in got or not got.endswith(b"}"):
            got += c.recv(65536)
        check("a slow body: 408 that names the rate", got.startswith(b"HTTP/1.1 408 ") and
              b"slower than 1000 bytes a second (--body-min-rate)" in got, got)


def test_descriptors():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with Server("--threads", "1", before=few) as s:
        check("few descriptors: the limit is lowered, and said",
              len(s.log_lines("--max-connections is 32 instead of 4096")) == 1, s.log)
        idle = [s.connect() for _ in range(150)]
        for _ in range(10):
            check("few descriptors: health is answered", s.get("/health")[0] == 200)
            check("few descriptors: a request is answered", s.ask(completion())[0] == 200)
        warnings = s.log_lines(" WARN ")
        check("few descriptors: the log is not flooded", len(warnings) <= 3, warnings)
        for c in idle:
            c.close()

    def soft():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Server("--max-connections", "300", before=soft) as s:
        check("a low soft limit is raised", s.log_lines("instead of") == [] and
              "Max open files            556 " in open(f"/proc/{s.p.pid}/limits").read(), s.log)


def test_hangup():
    # The default action also where the tests themselves run under nohup.
    with Server(before=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)) as s:
        c = s.connect(completion(max_tokens=300, ignore_eos=True, stream=True))
        got = c.recv(65536)
        s.p.send_signal(signal.SIGHUP)
        # Read first: socket buffers need not hold the whole stream, and the server waits for its client.
        while part := c.recv(65536):
            got += part
        c.close()
        check("hangup: exit code 0", s.p.wait(120) == 0)
        check("hangup: the stream comes to its end", b"data: [DONE]\n\n" in got and got.count(b'"text":') >= 300,
              got[-300:])
        check("hangup: said", len(s.log_lines("draining")) == 1, s.log)
    with Server(before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as s:  # nohup
        s.p.send_signal(signal.SIGHUP)
        check("under nohup a hangup is ignored", s.ask(completion())[0] == 200 and s.log_lines("draining") == [])


# About 220 bytes with the body around it, and hours of work for an interpreter in which reading is free.
BOMB = ("{% set s='a'*30000000 %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% if s.startswith(s) %}{% endif %}{% endfor %}{% endfor %}")
TEMPLATES = ("--trust-request-chat-template", "--chat-template", "{{ messages[0].content }}")


def chat(**fields):
    return completion("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1, **fields)


def test_template_bombs():
    """Four templates that would keep all workers busy: others pass, and the four end by a limit or with their client."""
    with Server(*TEMPLATES) as s:
        bombs = [s.connect(chat(chat_template=BOMB)) for _ in range(4)]
        check("bombs: an honest chat is answered", s.ask(chat())[0] == 200)
        for c in bombs:
            got = reply(c)
            check("bombs: refused by the limit", got[0] == 400 and b"takes more than 20000000 steps" in got[2], got)
            c.close()
    with Server(*TEMPLATES, "--template-timeout-ms", "1") as s:
        got = s.ask(chat(chat_template=BOMB))
        check("bombs: refused by the time", got[0] == 400 and b"takes more than 1 ms of CPU time" in got[2], got)
        check("bombs: others have time enough", s.ask(chat())[0] == 200)


def end_twice(what, s, *opened):
    s.p.send_signal(signal.SIGTERM)
    while not s.log_lines("draining"):
        time.sleep(0.01)
    s.p.send_signal(signal.SIGTERM)
    check(f"second SIGTERM, {what}: exit code 0", s.p.wait(120) == 0)
    for c in opened:
        c.close()


def test_second_signal():
    long = ("--shutdown-timeout", "86400")
    for name, body in (("streams", completion(max_tokens=480, ignore_eos=True, stream=True)),
                       ("templates", chat(chat_template=BOMB)),
                       ("a body that does not come", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
                        b"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{")):
        with Server(*TEMPLATES, *long) as s:
            opened = [s.connect(body) for _ in range(8)]
            if name == "streams":
                opened[0].recv(65536)
            end_twice(name, s, *opened)
    for wait_s in (0, 0.005, 0.01, 0.02, 0.05):  # the start takes about as long
        p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0"], stderr=subprocess.DEVNULL)
        time.sleep(wait_s)
        p.send_signal(signal.SIGTERM)
        p.send_signal(signal.SIGTERM)
        check("SIGTERM while the model loads", p.wait(120) in (0, -signal.SIGTERM), p.returncode)


def main():
    with Server() as s:
        for test in (test_errors, test_hosts, test_half_closed, test_leaving):
            test(s)
    for test in (test_slow_bodies, test_all_busy, test_body_rate, test_descriptors, test_hangup,
                 test_template_bombs, test_second_signal):
        test()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
