#!/usr/bin/env python3
"""The doors of the server: `test_doors.py BINARY MODEL [TEST..]`; closes with `N passed, N failed`.

API keys, web pages of other origins, Unix sockets, the access log and TLS, with the official clients and with requests of
attackers on raw sockets.
"""
import fcntl
import json
import os
import pty
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time
import warnings

import anthropic
import test_openai
from test_openai import BIN, MODEL, NAME, Server, check, httpx, openai, results

KEYS = ("sk-first-0123456789", "sk-second+/=~", "sk-file-abcdef", "sk-environment")
OPEN = ("/", "/health", "/ready")
CLOSED = ("/v1/models", f"/v1/models/{NAME}", "/metrics", "/version", "/server_info", "/get_model_info", "/v1/loads",
          "/tokenizer_info", "/nothing", "/v1/files", "//health", "/%68ealth", "/healthz", "/health/x", "/v1/../health")


def raw(port, data, close_side=True):
    """Status, head and body of the reply to these bytes; the connection is read to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
        s.sendall(data)
        if close_side:
            s.shutdown(socket.SHUT_WR)
        got = b""
        while part := s.recv(65536):
            got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head[9:12]) if head else 0), head.decode("latin-1"), body


def get(s, path, *headers, method="GET"):
    lines = "".join(h + "\r\n" for h in headers)
    return raw(s.port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n".encode("latin-1"))


def refused(r, anthropic_form=False):
    """Whether a reply is a 401 as it should be."""
    if r[0] != 401 or "\r\nWWW-Authenticate: Bearer\r\n" not in r[1] + "\r\n":
        return False
    e = json.loads(r[2])
    if anthropic_form:
        return e["type"] == "error" and e["error"]["type"] == "authentication_error"
    return e["error"]["type"] == "authentication_error" and e["error"]["code"] == "invalid_api_key"


def failed_start(*options, env=None):
    """Standard error of a server that must not start."""
    p = subprocess.run([BIN, "serve", MODEL, "--port", "0", *options], stderr=subprocess.PIPE, timeout=120,
                       env={**os.environ, **(env or {})})
    return p.returncode, p.stderr.decode("utf-8", "replace")


def test_key_paths(s):
    for path in OPEN:
        for method in ("GET", "HEAD"):
            r = get(s, path, method=method)
            check(f"{method} {path} needs no key", r[0] in (200, 404), r)
        r = get(s, path, method="POST")
        check(f"POST {path} needs one", refused(r), r)
        r = get(s, path, "Content-Length: 1000000")
        check(f"GET {path} with a body needs one", refused(r), r)
    for path in CLOSED:
        r = get(s, path)
        check(f"GET {path} needs a key", refused(r), r)
        r = get(s, path, f"Authorization: Bearer {KEYS[0]}")
        check(f"GET {path} with a key", r[0] in (200, 404), r)
    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/"):
        r = get(s, path, method="POST")
        check(f"POST {path}: refused in Anthropic's form", refused(r, True), r)
    r = get(s, "*", method="OPTIONS")
    check("OPTIONS * needs a key", refused(r), r)


def test_key_attacks(s):
    key = KEYS[0]
    for what, headers in (("empty bearer", ["Authorization: Bearer"]), ("blank bearer", ["Authorization: Bearer  "]),
                          ("empty header", ["Authorization:"]), ("no scheme", [f"Authorization: {key}"]),
                          ("Basic", ["Authorization: Basic c2s6c2s="]), ("Basic with a key", [f"Authorization: Basic {key}"]),
                          ("Digest", [f"Authorization: Digest {key}"]), ("Bearer:", [f"Authorization: Bearer:{key}"]),
                          ("tab", [f"Authorization: Bearer\t{key}"]), ("quoted", [f'Authorization: Bearer "{key}"']),
                          ("trailing byte", [f"Authorization: Bearer {key}x"]),
                          ("trailing word", [f"Authorization: Bearer {key} x"]),
                          ("trailing comma", [f"Authorization: Bearer {key},"]),
                          ("two in one", [f"Authorization: Bearer {key}, Bearer {key}"]),
                          ("prefix", [f"Authorization: Bearer {key[:-1]}"]), ("case", [f"Authorization: Bearer {key.upper()}"]),
                          ("doubled", [f"Authorization: Bearer {key}"] * 2),
                          ("doubled, one wrong", [f"Authorization: Bearer {key}", "Authorization: Bearer x"]),
                          ("doubled, one empty", ["Authorization:", f"authorization: Bearer {key}"]),
                          ("8-bit", [f"Authorization: Bearer {key}\xff"]),
                          ("two keys", [f"Authorization: Bearer {KEYS[0]},{KEYS[1]}"]),
                          ("another header", [f"Proxy-Authorization: Bearer {key}"]),
                          ("x-api-key", [f"x-api-key: {key}"]), ("cookie", [f"Cookie: Authorization=Bearer {key}"]),
                          ("long", ["Authorization: Bearer " + "k" * 60000]),
                          ("key and long tail", [f"Authorization: Bearer {key}" + "k" * 60000])):
        r = get(s, "/v1/models", *headers)
        check(f"{what}: 401", refused(r), r)
        check(f"{what}: the reply does not show the key", key not in r[1] and key.encode() not in r[2], r)
    r = get(s, f"/v1/models?api_key={key}&Authorization=Bearer+{key}")
    check("a key in the query: 401", refused(r), r)
    r = get(s, "/v1/models", "Authorization: Bearer " + "k" * 70000)
    check("over the header limit: 431", r[0] == 431, r[:2])
    for byte in ("\0", "\x7f", "\x01"):
        r = get(s, "/v1/models", f"Authorization: Bearer {key}{byte}")
        check(f"control byte {byte!a}: 400", r[0] == 400, r)
    r = get(s, "/v1/models", "Authorization: Bearer", f" {key}")
    check("folded header: 400", r[0] == 400, r)
    for ok in (f"authorization: bearer {key}", f"AUTHORIZATION:Bearer {key}", f"Authorization: Bearer   {key}  "):
        r = get(s, "/v1/models", ok)
        check(f"{ok!r}: 200", r[0] == 200, r)


def test_key_before_body(s):
    """The refusal comes while nothing of the body was sent, and no 100 Continue comes."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for what, more in (("length", b"Content-Length: 30000000\r\n"), ("chunks", b"Transfer-Encoding: chunked\r\n"),
                       ("expect", b"Content-Length: 30000000\r\nExpect: 100-continue\r\n"), ("no body", b"")):
        r = raw(s.port, head + more + b"\r\n", close_side=False)
        check(f"401 before the body: {what}", refused(r), r)
    r = raw(s.port, head + b"Content-Length: 5\r\n\r\nxxxxxGET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
            + f"Authorization: Bearer {KEYS[0]}\r\n\r\n".encode())
    check("a refused body is not read as a request", refused(r) and b'"object"' not in r[2], r)
    one = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
    r = raw(s.port, f"{one}Authorization: Bearer {KEYS[0]}\r\n\r\n{one}\r\n".encode())
    check("a key holds for one request of a connection", r[0] == 200 and b"HTTP/1.1 401" in r[2], r)


def test_key_clients(s):
    for key in KEYS:
        c = openai.OpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0, timeout=300)
        check("openai: completion", c.completions.create(model=NAME, prompt="Once", max_tokens=2).usage.completion_tokens == 2)
        n = sum(1 for _ in c.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=2,
                                                     stream=True))
        check("openai: stream", n > 0, n)
        a = anthropic.Anthropic(base_url=s.url, api_key=key, max_retries=0, timeout=300)
        m = {"model": NAME, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
        check("anthropic: x-api-key", a.messages.create(**m).usage.output_tokens == 2)
        a = anthropic.Anthropic(base_url=s.url, auth_token=key, max_retries=0, timeout=300)
        check("anthropic: auth_token", a.messages.create(**m).usage.output_tokens == 2)
    wrong = openai.OpenAI(base_url=s.url + "/v1", api_key="wrong-key", max_retries=0, timeout=300)
    try:
        wrong.models.list()
        check("openai: a wrong key raises", False)
    except openai.AuthenticationError as e:
        check("openai: a wrong key raises", e.code == "invalid_api_key" and "wrong-key" not in str(e), e)
    try:
        anthropic.Anthropic(base_url=s.url, api_key="wrong-key", max_retries=0, timeout=300).messages.create(**m)
        check("anthropic: a wrong key raises", False)
    except anthropic.AuthenticationError as e:
        check("anthropic: a wrong key raises", "wrong-key" not in str(e), e)
    for what, headers, want in (("doubled x-api-key", [f"x-api-key: {KEYS[0]}"] * 2, 401), ("empty x-api-key", ["x-api-key:"], 401),
                                ("x-api-key with a scheme", [f"x-api-key: Bearer {KEYS[0]}"], 401),
                                ("a good x-api-key, another bearer", [f"x-api-key: {KEYS[0]}", "Authorization: Bearer x"], 415),
                                ("trailing byte", [f"x-api-key: {KEYS[0]}."], 401)):
        r = get(s, "/v1/messages", *headers, method="POST")
        check(f"/v1/messages, {what}: {want}", r[0] == want and (want != 401 or refused(r, True)), r)


def test_key_hidden(s, log):
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    for path in ("/server_info", "/get_model_info", "/metrics", "/v1/loads", "/version"):
        text = httpx.get(s.url + path, headers=key, timeout=60).text
        check(f"{path} shows no key", not any(k in text for k in KEYS), text)
    check("the log shows no key", log and not any(k in line for k in KEYS for line in log), log)
    check("the log tells how many keys", any("API keys: 4" in line for line in log), log)
    with open(f"/proc/{s.p.pid}/cmdline", "rb") as f:
        line = f.read().decode()
    check("ps shows only keys of the command line", KEYS[2] not in line and KEYS[3] not in line, line)


def test_keys():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "keys")
        with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(KEYS[2] + "\n")
        os.environ["ROSEINFER_API_KEY"] = KEYS[3]
        try:
            s = Server("--api-key", KEYS[0], "--api-key", KEYS[1], "--api-key-file", path)
        finally:
            del os.environ["ROSEINFER_API_KEY"]
        test_key_paths(s)
        test_key_attacks(s)
        test_key_before_body(s)
        test_key_clients(s)
        test_key_hidden(s, s.log)
        check("keys: the server exits 0", s.stop() == 0)
        check("the whole log shows no key", not any(k in line for k in KEYS for line in s.log), s.log)


def test_bad_keys():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "keys")
        for text, want in ((b"", "the file is empty"), (b"SECRET\r\n", "line 1: the line ends in CRLF"),
                           (b"SECRET\n\nx\n", "line 2: the line is empty"), (b"SECRET x\n", "line 1: byte 7 of the key"),
                           (b"S" * 600000, "the file has more than"), (b"S" * 257, "line 1: the key has 257 bytes")):
            with open(path, "wb") as f:
                f.write(text)
            rc, err = failed_start("--api-key-file", path)
            check(f"key file: {want}", rc == 1 and want in err and path in err and "SECRET" not in err, (rc, err))
        rc, err = failed_start("--api-key-file", d)
        check("key file: a folder", rc == 1 and "Is a directory" in err, err)
    rc, err = failed_start("--api-key", "")
    check("--api-key '' is refused", rc == 2 and "none of them empty" in err, (rc, err))
    rc, err = failed_start("--api-key", "SECRET," + "x" * 5000)
    check("--api-key too long: not quoted", rc == 2 and "SECRET" not in err, (rc, err))
    rc, err = failed_start(env={"ROSEINFER_API_KEY": ""})
    check("an empty ROSEINFER_API_KEY is refused", rc == 1 and "ROSEINFER_API_KEY: the key is empty" in err, (rc, err))


def test_other_variables():
    """VLLM_API_KEY and LLAMA_API_KEY close a server that has no key of its own."""
    def start(env, *args):
        os.environ.update(env)
        try:
            return Server(*args)
        finally:
            for name in env:
                del os.environ[name]

    for env, args, good, bad, said in (
            ({"VLLM_API_KEY": "of-vllm"}, (), ("of-vllm",), ("x",), "from VLLM_API_KEY;"),
            ({"LLAMA_API_KEY": "l1,l2", "VLLM_API_KEY": "v"}, (), ("l1", "l2", "v"), ("l1,l2",), "VLLM_API_KEY and LLAMA_API_KEY;"),
            ({"VLLM_API_KEY": "v"}, ("--api-key", "own"), ("own",), ("v",), "VLLM_API_KEY have no effect")):
        s = start(env, *args)
        for key, want in [(k, 200) for k in good] + [(k, 401) for k in bad]:
            rc = get(s, "/v1/models", f"Authorization: Bearer {key}")[0]
            check(f"{sorted(env)}: {key}", rc == want, rc)
        check(f"{sorted(env)}: the log says where the keys are from", any(said in line for line in s.log), s.log)
        s.stop()


def lines(r):
    """The headers of a reply; a header that occurs twice has both values."""
    out = {}
    for line in r[1].split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        out[name.lower()] = value if name.lower() not in out else out[name.lower()] + " AND " + value
    return out


PAGE, OTHER = "https://chat.example.org", "http://localhost:3000"
ASK = "Access-Control-Request-Method: POST"


def allowed(r, origin=PAGE):
    h = lines(r)
    return (h.get("access-control-allow-origin") == origin and "access-control-allow-credentials" not in h
            and "X-Request-Id" in h.get("access-control-expose-headers", "")
            and h.get("vary") == (None if origin == "*" else "Origin"))


def silent(r):
    return not any(name.startswith("access-control") for name in lines(r))


def test_preflights(s):
    for path in ("/v1/completions", "/v1/messages", "/health", "/metrics", "/v1/models", "/nothing", "/"):
        r = get(s, path, f"Origin: {PAGE}", ASK, "Access-Control-Request-Headers: authorization,content-type", method="OPTIONS")
        h = lines(r)
        check(f"preflight of {path}", r[0] == 204 and allowed(r) and r[2] == b"" and "content-length" not in h
              and "POST" in h["access-control-allow-methods"] and h["access-control-max-age"] == "600"
              and h["access-control-allow-headers"] == "authorization,content-type", r)
    r = get(s, "/v1/models", f"Origin: {OTHER}", ASK, method="OPTIONS")
    check("preflight of the other page", r[0] == 204 and allowed(r, OTHER) and "access-control-allow-headers" not in lines(r), r)
    for what, headers in (("foreign", ["Origin: https://evil.example"]), ("null", ["Origin: null"]), ("empty", ["Origin:"]),
                          ("slash", [f"Origin: {PAGE}/"]), ("case", [f"Origin: {PAGE.upper()}"]),
                          ("suffix", [f"Origin: {PAGE}.evil.example"]), ("port", [f"Origin: {PAGE}:8443"]),
                          ("scheme", [f"Origin: {PAGE.replace('https', 'http')}"]), ("star", ["Origin: *"]),
                          ("doubled", [f"Origin: {PAGE}"] * 2), ("doubled, one foreign", [f"Origin: {PAGE}", "Origin: http://x"]),
                          ("two in one", [f"Origin: {PAGE}, {OTHER}"])):
        r = get(s, "/v1/models", ASK, *headers, method="OPTIONS")
        check(f"preflight, {what} origin: 403", r[0] == 403 and silent(r) and "--allowed-origins" in json.loads(r[2])["error"]
              ["message"], r)
        r = get(s, "/health", *headers)
        check(f"{what} origin: not allowed to read", r[0] == 200 and silent(r) and lines(r)["vary"] == "Origin", r)
    for bad in ("x\ty", "x:y", "\xe9", "x" * 1025, 'x"y', "x;y"):
        r = get(s, "/v1/models", f"Origin: {PAGE}", ASK, f"Access-Control-Request-Headers: {bad}", method="OPTIONS")
        check(f"preflight, headers {bad[:8]!a}: 400", r[0] == 400 and "access-control-allow-headers" not in lines(r), r)
    r = get(s, "/v1/models", f"Origin: {PAGE}", method="OPTIONS")
    check("OPTIONS that is no preflight needs a key", refused(r) and allowed(r), r)
    r = get(s, "/v1/models", f"Origin: {PAGE}", ASK, "Content-Length: 1000000", method="OPTIONS")
    check("OPTIONS with a body needs a key", refused(r), r)
    r = get(s, "/v1/models", f"Origin: {PAGE}", ASK)
    check("GET is no preflight", refused(r) and allowed(r), r)


def test_origins():
    s = Server("--allowed-origins", PAGE, "--allowed-origins", OTHER, "--api-key", KEYS[0])
    test_preflights(s)
    key = {"Authorization": f"Bearer {KEYS[0]}", "Origin": PAGE}
    r = httpx.post(s.url + "/v1/completions", json={"prompt": "Once", "max_tokens": 2}, headers=key, timeout=300)
    check("a completion may be read", r.status_code == 200 and r.headers["access-control-allow-origin"] == PAGE, r.headers)
    r = httpx.post(s.url + "/v1/completions", json={"prompt": "Once", "max_tokens": 2, "stream": True}, headers=key, timeout=300)
    check("a stream may be read", r.text.endswith("data: [DONE]\n\n") and r.headers["access-control-allow-origin"] == PAGE
          and r.headers["vary"] == "Origin", r.headers)
    for path, want in (("/nothing", 404), ("/v1/completions", 405)):
        r = get(s, path, f"Origin: {PAGE}", f"Authorization: Bearer {KEYS[0]}")
        check(f"an error may be read: {want}", r[0] == want and allowed(r), r)
    r = get(s, "/health", f"Origin: {PAGE}", "Host: twice")
    check("a malformed request has no CORS headers", r[0] == 400 and silent(r), r)
    check("origins: the server exits 0", s.stop() == 0)
    s = Server("--allowed-origins", "*")
    for origin in ("https://any.example", "null"):
        r = get(s, "/v1/models", f"Origin: {origin}")
        check(f"*: {origin}", r[0] == 200 and allowed(r, "*"), r)
        r = get(s, "/v1/models", f"Origin: {origin}", ASK, method="OPTIONS")
        check(f"*: preflight of {origin}", r[0] == 204 and allowed(r, "*"), r)
    check("*: no Origin, no CORS headers", silent(get(s, "/v1/models")))
    check("*: the server exits 0", s.stop() == 0)
    s = Server()
    r = get(s, "/v1/models", f"Origin: {PAGE}", ASK, method="OPTIONS")
    check("off: OPTIONS is 405", r[0] == 405 and silent(r) and "vary" not in lines(r), r)
    r = get(s, "/v1/models", f"Origin: {PAGE}")
    check("off: no CORS headers", r[0] == 200 and silent(r) and "vary" not in lines(r), r)
    check("off: the server exits 0", s.stop() == 0)
    for bad, want in (("https://x/", "no path"), ("example.org", "SCHEME://HOST"), ("https://", "SCHEME://HOST"),
                      ("https://*.x.org", "no wildcards"), ("HTTPS://x", "lower case"), ("https://x,*", "stands alone"),
                      ("https://u@x", "no path"), ("http://x:80", "usual port"), ("https://\xe9", "ASCII"), ("*,*", "stands alone")):
        rc, err = failed_start("--allowed-origins", bad)
        check(f"--allowed-origins {bad!a}: {want}", rc == 1 and want in err, (rc, err))


class UnixServer:
    """`roseinfer serve --uds PATH`, once it is ready."""

    def __init__(self, path, *options):
        self.path, self.log = path, []
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--uds", path, *options], stderr=subprocess.PIPE, text=True)
        for line in self.p.stderr:
            self.log.append(line)
            if "listening on unix:" in line:
                threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True).start()
                return
        raise RuntimeError("the server did not start: " + "".join(self.log))

    def client(self):
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.path), base_url="http://any.name", timeout=300)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        return self.p.wait(120)


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def refused_uds(path, want, *options):
    rc, err = failed_start("--uds", path, *options)
    check(f"--uds: {want}", rc == 1 and want in err, (rc, err))


def test_uds_socket(d):
    path = os.path.join(d, "s")
    s = UnixServer(path)
    check("uds: mode 0600", mode_of(path) == 0o600 and stat.S_ISSOCK(os.lstat(path).st_mode), oct(mode_of(path)))
    with s.client() as c:
        check("uds: any Host", c.get("/health").status_code == 200)
        text = c.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4, "temperature": 0, "stream": True}).text
        check("uds: a stream", text.endswith("data: [DONE]\n\n"), text)
        with openai.OpenAI(base_url="http://any.name/v1", api_key="none", http_client=s.client()) as o:
            check("uds: the openai package", o.models.list().data[0].id == NAME)
    with open(f"/proc/{s.p.pid}/net/tcp") as f, open(f"/proc/{s.p.pid}/net/unix") as u:
        inodes = {os.readlink(f"/proc/{s.p.pid}/fd/{n}") for n in os.listdir(f"/proc/{s.p.pid}/fd")}
        tcp = [line.split()[9] for line in f.readlines()[1:] if f"socket:[{line.split()[9]}]" in inodes]
        check("uds: no TCP port", tcp == [] and path in u.read(), tcp)
    refused_uds(path, "another server listens on this socket")
    with s.client() as c:
        check("uds: the first server goes on", c.get("/health").status_code == 200)
    s.p.send_signal(signal.SIGKILL)
    s.p.wait(120)
    check("uds: a killed server leaves its socket", os.path.exists(path))
    s = UnixServer(path, "--uds-mode", "0666")
    check("uds: it is replaced, --uds-mode", mode_of(path) == 0o666, oct(mode_of(path)))
    os.rename(path, path + ".old")
    other = UnixServer(path)
    check("uds: the server whose socket was moved exits 0", s.stop() == 0)
    with other.client() as c:
        check("uds: it does not remove another server's socket", c.get("/health").status_code == 200)
    check("uds: exits 0 and removes its socket", other.stop() == 0 and not os.path.exists(path))


def test_uds_refusals(d):
    path = os.path.join(d, "file")
    with open(path, "w") as f:
        f.write("precious")
    refused_uds(path, "a file that is no socket is there")
    with open(path) as f:
        check("uds: the file is unharmed", f.read() == "precious")
    dead = os.path.join(d, "dead")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(dead)
    link = os.path.join(d, "link")
    os.symlink(dead, link)
    refused_uds(link, "a file that is no socket is there")
    check("uds: the link and its target stay", os.path.islink(link) and os.path.exists(dead))
    refused_uds(d, "a file that is no socket is there")
    refused_uds(os.path.join(d, "x" * 108), "must have 1 to 107 bytes")
    refused_uds("", "must have 1 to 107 bytes")
    refused_uds(os.path.join(d, "none", "s"), "No such file or directory")
    refused_uds(os.path.join(path, "s"), "Not a directory")
    for mode in ("", "8", "0999", "01777", "0600 ", "-1", "rw"):
        refused_uds(os.path.join(d, "s"), "expected an octal mode", "--uds-mode", mode)


def test_uds():
    with tempfile.TemporaryDirectory() as d:
        test_uds_socket(d)
        test_uds_refusals(d)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def read_log(path):
    """The lines of an access log; each must be one object of JSON in ASCII or UTF-8."""
    text = bytes_of(path)
    check("the log ends with a whole line", text == b"" or text.endswith(b"\n"), text[-200:])
    return [json.loads(line) for line in text.decode("utf-8").splitlines()]


def wait_for(there):
    """Until there() is true; the log is written by a thread of its own."""
    for _ in range(6000):
        if there():
            return True
        time.sleep(0.01)
    return False


def test_log_lines(d):
    path = os.path.join(d, "access")
    s = Server("--access-log", path, "--api-key", KEYS[0], "--allowed-origins", PAGE)
    bearer = f"Authorization: Bearer {KEYS[0]}"
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    want = []

    def note(what, **fields):
        want.append((what, fields))

    body = {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}
    r = httpx.post(s.url + "/v1/completions", json=body, headers={**key, "X-Request-Id": "label-1", "traceparent": TRACE}, timeout=300)
    note("a completion", method="POST", path="/v1/completions", status=200, id=r.json()["id"], model=NAME, client="127.0.0.1",
         prompt_tokens=r.json()["usage"]["prompt_tokens"], completion_tokens=3, x_request_id="label-1", trace_id=TRACE[3:35],
         parent_id=TRACE[36:52])
    r = httpx.post(s.url + "/v1/completions", json={**body, "stream": True}, headers=key, timeout=300)
    first = json.loads(r.text.split("\n")[0].removeprefix("data: "))
    note("a stream", path="/v1/completions", status=200, id=first["id"], completion_tokens=3, x_request_id=None, trace_id=None)
    httpx.post(s.url + "/v1/completions", json={"prompt": "x", "max_tokens": "secret"}, headers=key, timeout=300)
    note("a bad field", path="/v1/completions", status=400)
    get(s, "/v1/models?key=secret", bearer)
    note("a query is not logged", method="GET", path="/v1/models", status=200)
    get(s, "/v1/models", "Authorization: Bearer secret", "X-Request-Id: refused-1", f"traceparent: {TRACE}")
    note("without a key", path="/v1/models", status=401, x_request_id="refused-1", trace_id=TRACE[3:35])
    get(s, "/v1/models", f"Origin: {PAGE}", ASK, method="OPTIONS")
    note("a preflight", method="OPTIONS", path="/v1/models", status=204)
    get(s, "/", method="HEAD")
    note("HEAD", method="HEAD", path="/")
    for what, label in (("quotes", 'a"b'), ("a backslash", "a\\\\"), ("JSON", 'x","status":999,"y":"'), ("8-bit bytes", "\xff\xfe"),
                        ("UTF-8", "\xc3\xa9"), ("too long", "a" * 129), ("spaces", "a b"), ("nothing", "")):
        get(s, "/health", f"X-Request-Id: {label}", f"traceparent: {label}")
        note(f"a label with {what}", path="/health", x_request_id=None, trace_id=None, parent_id=None)
    for what, value in (("upper case", TRACE.upper()), ("zeros", f"00-{'0' * 32}-b7ad6b7169203331-01"), ("ff", "ff" + TRACE[2:]),
                        ("a tail", TRACE + "-x"), ("short", TRACE[:-1])):
        get(s, "/health", f"traceparent: {value}")
        note(f"traceparent: {what}", path="/health", status=200, trace_id=None, parent_id=None)
    get(s, "/health", f"traceparent: {TRACE}", f"traceparent: {TRACE}")
    note("traceparent twice", status=200, trace_id=None)
    get(s, "/health", "X-Request-Id: ok\r\nX: y\n{\"forged\":1}")
    note("a line break in a header", status=400, path=None, x_request_id=None)
    get(s, "/health", "X-Request-Id: a\0b")
    note("a zero byte", status=400, path=None)
    get(s, '/a"b\\c', bearer)
    note("quotes in the path", status=404, path='/a"b\\c')
    get(s, "/a%0a%22%ff", bearer)
    note("an encoded line break in the path stays encoded", status=404, path="/a%0a%22%ff")
    get(s, "/h\xe9\xff")
    note("bytes in the path", status=400, path=None)
    get(s, "/" + "p" * 5000, bearer)
    note("a long path is cut", status=404, path="/" + "p" * 1023)
    raw(s.port, b"\xff\xfe\x00garbage\r\n\r\n")
    note("garbage", status=400, path=None, method=None)
    raw(s.port, b"GET /health HTTP/1.1\r\nHost: x")
    note("half a head", status=None, path=None, client_left=True)
    raw(s.port, f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{bearer}\r\nContent-Length: 9\r\n\r\n1234".encode())
    note("half a body", status=None, path="/v1/completions", client_left=True, receive_ms=None)
    check("access log: the server exits 0", s.stop() == 0)
    got = read_log(path)
    check("one line for each request", len(got) == len(want), (len(got), len(want)))
    for (what, fields), line in zip(want, got):
        wrong = {k: line.get(k) for k, v in fields.items() if line.get(k) != v}
        check(f"access log: {what}", not wrong and "forged" not in line, (wrong, line))
        check(f"access log: {what}: figures", line["bytes_in"] > 0 and (line.get("status") is None or line["bytes_out"] > 0)
              and line["duration_ms"] >= line.get("first_byte_ms", 0) >= 0 and len(line["time"]) == 24, line)
    text = bytes_of(path)
    check("the access log has no key, query or body", KEYS[0].encode() not in text and b"secret" not in text)


def test_log_files(d):
    path = os.path.join(d, "rotated")
    with open(path, "w") as f:
        f.write("{}\n")
    s = Server("--access-log", path)
    size = [os.path.getsize(path)]
    s.get("/health")
    check("access log: appended", wait_for(lambda: os.path.getsize(path) > size[0]) and read_log(path)[0] == {})
    os.rename(path, path + ".1")
    s.get("/version")
    check("access log: a moved file is opened again", wait_for(lambda: os.path.exists(path) and os.path.getsize(path) > 0))
    check("access log: the line is in the new file", [x["path"] for x in read_log(path)] == ["/version"])
    check("access log: mode 0640 or stricter", mode_of(path) & 0o137 == 0, oct(mode_of(path)))
    c = s.client.completions.create(model=NAME, prompt="Once", max_tokens=1000, stream=True, extra_body={"ignore_eos": True,
                                    "max_tokens": 400})
    next(iter(c))
    c.close()
    check("access log: a client that leaves", wait_for(lambda: b"client_left" in bytes_of(path)))
    line = [x for x in read_log(path) if x.get("client_left")][0]
    check("access log: its line", line["status"] == 200 and 1 <= line["completion_tokens"] <= 400 and line["model"] == NAME, line)
    check("access log: exits 0", s.stop() == 0)


def test_log_stuck(d):
    """A pipe that nobody reads holds no request up, nor the end of the server."""
    path = os.path.join(d, "fifo")
    os.mkfifo(path)
    rc, err = failed_start("--access-log", path)
    check("access log: a FIFO without a reader", rc == 1 and path in err and "No such device" in err, (rc, err))
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    s = Server("--access-log", path)
    with httpx.Client(base_url=s.url, timeout=60) as c:
        ok = sum(c.get("/health").status_code == 200 for _ in range(800))
    check("access log: a full pipe delays no request", ok == 800, ok)
    check("access log: a full pipe does not stop the end", s.stop() == 0)
    check("access log: lost lines are reported", any("lines were lost" in line for line in s.log), s.log)
    os.close(reader)
    for bad, want in ((os.path.join(d, "none", "x"), "No such file"), (d, "Is a directory"), ("", "No such file")):
        rc, err = failed_start("--access-log", bad)
        check(f"--access-log: {want}", rc == 1 and want in err, (rc, err))
    p = subprocess.Popen([BIN, "serve", MODEL, "--uds", os.path.join(d, "s"), "--access-log", "-"], stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    check("access log on stdout: the server is up", wait_for(lambda: os.path.exists(os.path.join(d, "s"))))
    with httpx.Client(transport=httpx.HTTPTransport(uds=os.path.join(d, "s")), base_url="http://x", timeout=60) as c:
        check("access log on stdout: ready", wait_for(lambda: c.get("/ready").status_code == 200))
    p.send_signal(signal.SIGTERM)
    lines_out = [json.loads(line) for line in p.communicate(timeout=120)[0].splitlines()]
    check("access log on stdout", len(lines_out) > 0 and {x["client"] for x in lines_out} == {"unix"} and p.returncode == 0, lines_out)


def test_log_full():
    """A full disk, which /dev/full is: the server's log says so once, and how many lines were lost at the end."""
    s = Server("--access-log", "/dev/full")
    for _ in range(60):
        s.get("/health")
        time.sleep(0.005)
    check("full disk: exits 0", s.stop() == 0)
    said = [line for line in s.log if "access log" in line]
    check("full disk: said once", sum("No space left" in line for line in said) == 1 and len(said) <= 3, said)
    check("full disk: the lost lines are counted", sum(int(n) for n in re.findall(r": (\d+) lines? w", " ".join(said))) >= 60, said)


def test_access_log():
    with tempfile.TemporaryDirectory() as d:
        test_log_lines(d)
        test_log_files(d)
        test_log_stuck(d)
    test_log_full()


def make_certificate(d, name="server", password=None):
    """A certificate of its own for localhost, by the openssl program; the paths of certificate and key."""
    cert, key = os.path.join(d, name + ".crt"), os.path.join(d, name + ".key")
    lock = ["-passout", "pass:" + password] if password else ["-nodes"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *lock, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key,
                    "-out", cert], check=True, capture_output=True)
    return cert, key


class TlsServer(UnixServer):
    def __init__(self, cert, key, *options, **popen):
        self.log, self.port = [], None
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", "--ssl-certfile", cert, "--ssl-keyfile", key, *options],
                                  stderr=subprocess.PIPE, text=True, **popen)
        for line in self.p.stderr:
            self.log.append(line)
            if "listening on https://" in line:
                self.port = int(line.rsplit(":", 1)[1])
                threading.Thread(target=lambda: self.log.extend(self.p.stderr), daemon=True).start()
                break
        if self.port is None:
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.context = ssl.create_default_context(cafile=cert)

    def connect(self, context=None):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        return (context or self.context).wrap_socket(s, server_hostname="localhost")


def read_all(s):
    got = b""
    while part := s.recv(65536):
        got += part
    return got


def test_tls_traffic(s):
    with httpx.Client(verify=s.context, base_url=f"https://localhost:{s.port}", timeout=300) as c:
        check("tls: GET", c.get("/health").json()["status"] == "ok")
        body = {"prompt": "Once", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        whole = c.post("/v1/completions", json=body).json()["choices"][0]["text"]
        with c.stream("POST", "/v1/completions", json={**body, "stream": True}) as r:
            text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in r.iter_lines()
                           if line.startswith("data: {"))
        check("tls: a stream has the text of the whole reply", text == whole, (text, whole))
        for n in (1, 1000, 15000, 16384, 16385, 100000, 800000):
            r = c.post("/tokenize", json={"prompt": "a b " * (n // 4), "add_special_tokens": False})
            again = c.post("/detokenize", json={"tokens": r.json()["tokens"]})
            check(f"tls: {n} bytes there and back", again.status_code == 200
                  and again.json()["prompt"] == "a b " * (n // 4), (r.status_code, again.text[:100]))
    with openai.OpenAI(base_url=f"https://localhost:{s.port}/v1", api_key="none", max_retries=0,
                       http_client=httpx.Client(verify=s.context)) as o:
        check("tls: the openai package", o.models.list().data[0].id == NAME)
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for what, parts in (("bytes one by one", [bytes([b]) for b in one]), ("a hundred in one record", [one * 100]),
                        ("a body in small records", [b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000\r\n"
                         b"Content-Type: application/json\r\n\r\n"] + [b" " * 100] * 400)):
        with s.connect() as t:
            for part in parts:
                t.sendall(part)
            t.sendall(one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            got = read_all(t)
        want = {"bytes one by one": 2, "a hundred in one record": 101}.get(what, 1)
        check(f"tls: {what}", got.count(b"HTTP/1.1 200 OK") == want, (got.count(b"HTTP/1.1 200 OK"), got[:300]))


def test_tls_attacks(s):
    for what, data in (("plain HTTP", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), ("garbage", os.urandom(4096)),
                       ("a record that is too long", b"\x16\x03\x01\xff\xff" + b"x" * 70000), ("nothing", b"")):
        with socket.create_connection(("127.0.0.1", s.port), timeout=120) as raw_socket:
            try:
                raw_socket.sendall(data)
                raw_socket.shutdown(socket.SHUT_WR)
                got = read_all(raw_socket)
            except OSError:  # the server has closed the connection
                got = b""
            check(f"tls: {what} gets no HTTP", b"HTTP/" not in got, got[:100])
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    try:
        s.connect(old)
        check("tls: TLS 1.1 is refused", False)
    except (ssl.SSLError, ConnectionResetError):
        check("tls: TLS 1.1 is refused", True)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context()
        context.load_verify_locations(s.cert)
        context.minimum_version = context.maximum_version = version
        with s.connect(context) as t:
            t.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            check(f"tls: {t.version()}, closed as TLS asks", read_all(t).startswith(b"HTTP/1.1 200"))
    for cut in (1, 20, 200):  # a handshake that stops
        with socket.create_connection(("127.0.0.1", s.port), timeout=120) as raw_socket:
            raw_socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * cut)
    t = s.connect()  # a client that leaves a stream
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    t.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    t.recv(100)
    t.close()
    with httpx.Client(verify=s.context, base_url=f"https://localhost:{s.port}", timeout=300) as c:
        check("tls: the request of a client that left ends", wait_for(lambda: c.get("/health").json()["running"] == 0))


def served_certificate(s):
    with s.connect() as t:
        return t.getpeercert(binary_form=True)


def reload_tls(s, want):
    """Sends SIGHUP, and waits for one more line of the log that has this text."""
    before = sum(want in line for line in s.log)
    s.p.send_signal(signal.SIGHUP)
    check(f"reload: the log says '{want}'", wait_for(lambda: sum(want in line for line in s.log) == before + 1), s.log)


def ask_over(t, close=False):
    """Whether /health over an open connection answers 200."""
    t.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + (b"Connection: close\r\n" if close else b"") + b"\r\n")
    got = b""
    while b"}" not in got:
        got += t.recv(65536)
    return got.startswith(b"HTTP/1.1 200")


def no_verify():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_tls_reload():
    with tempfile.TemporaryDirectory() as d:
        pairs = [make_certificate(d, f"pair{i}") for i in range(3)]
        ders = [ssl.PEM_cert_to_DER_cert(open(c, encoding="ascii").read()) for c, _ in pairs]
        _, locked = make_certificate(d, "locked", "word")
        cert, key = os.path.join(d, "live.crt"), os.path.join(d, "live.key")

        def put(c, k):
            for source, target in ((c, cert), (k, key)):  # as a renewal does: a new file takes the name
                with open(target + ".new", "wb") as f:
                    f.write(source if isinstance(source, bytes) else open(source, "rb").read())
                os.rename(target + ".new", target)

        put(*pairs[0])
        s = TlsServer(cert, key, "--threads", "1", start_new_session=True)
        s.context = no_verify()
        check("reload: the first certificate", served_certificate(s) == ders[0])
        old = s.connect()
        check("reload: an open connection", ask_over(old))
        put(*pairs[1])
        check("reload: new files change nothing before SIGHUP", served_certificate(s) == ders[0])
        stream = s.connect()
        body = json.dumps({"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "temperature": 0, "stream": True}).encode()
        stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        got = stream.recv(1000)
        reload_tls(s, "new connections get the certificate")
        check("reload: a new connection gets the new certificate", served_certificate(s) == ders[1])
        check("reload: the old connection goes on", ask_over(old) and old.getpeercert(binary_form=True) == ders[0])
        got += read_all(stream)
        check("reload: a stream goes on to its end", b"data: [DONE]" in got and got.count(b'"text":') >= 300, got[-200:])
        stream.close()
        for what, c, k in (("the key of another certificate", pairs[2][0], pairs[1][1]), ("a key with a password", pairs[1][0], locked),
                           ("an empty certificate", b"", pairs[1][1]), ("garbage", os.urandom(2000), os.urandom(2000)),
                           ("half of a certificate", open(pairs[2][0], "rb").read()[:300], pairs[2][1])):
            put(c, k)
            reload_tls(s, "the certificate stays the old one")
            check(f"reload: {what} keeps the old pair", served_certificate(s) == ders[1])
        os.unlink(cert)
        reload_tls(s, "No such file")
        check("reload: a missing file keeps the old pair", served_certificate(s) == ders[1] and ask_over(old))
        put(*pairs[2])
        reload_tls(s, "new connections get the certificate")
        check("reload: the third certificate", served_certificate(s) == ders[2] and ask_over(old))
        ok, stop = [], threading.Event()

        def connect_on():
            while not stop.is_set():
                ok.append(served_certificate(s) in ders)

        threads = [threading.Thread(target=connect_on) for _ in range(4)]
        for t in threads:
            t.start()
        for i in range(30):  # while clients connect
            put(*pairs[i % 3])
            reload_tls(s, "new connections get the certificate")
        stop.set()
        for t in threads:
            t.join()
        check("reload: clients that connect meanwhile get one of the certificates", len(ok) > 0 and all(ok), ok)
        check("reload: not drained", not any("draining" in line for line in s.log), s.log)
        old.close()
        check("reload: the server exits 0", s.stop() == 0)


def test_tls_terminal():
    """With a controlling terminal SIGHUP drains, as it does without TLS."""
    with tempfile.TemporaryDirectory() as d:
        cert, key = make_certificate(d)
        ours, theirs = pty.openpty()
        s = TlsServer(cert, key, "--threads", "1", start_new_session=True,
                      preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0))
        check("reload: a server with a terminal serves", len(served_certificate(s)) > 0)
        s.p.send_signal(signal.SIGHUP)
        check("reload: with a terminal SIGHUP drains", s.p.wait(120) == 0 and wait_for(lambda: any("draining" in x for x in s.log)),
              s.log)
        os.close(ours)
        os.close(theirs)


def test_tls():
    with tempfile.TemporaryDirectory() as d:
        cert, key = make_certificate(d)
        s = TlsServer(cert, key)
        s.cert = cert
        test_tls_traffic(s)
        test_tls_attacks(s)
        check("tls: the server exits 0", s.stop() == 0)
        _, other = make_certificate(d, "other")
        _, locked = make_certificate(d, "locked", "word")
        empty = os.path.join(d, "empty")
        open(empty, "w").close()
        for options, want in ((["--ssl-certfile", os.path.join(d, "none")], "No such file"), (["--ssl-certfile", empty], "empty: "),
                              (["--ssl-certfile", cert], f"--ssl-keyfile {cert}"), (["--ssl-certfile", key], "--ssl-certfile"),
                              (["--ssl-certfile", cert, "--ssl-keyfile", other], "key values mismatch"),
                              (["--ssl-certfile", cert, "--ssl-keyfile", locked], "without a password"),
                              (["--ssl-keyfile", key], "--ssl-keyfile needs --ssl-certfile")):
            rc, err = failed_start(*options)
            check(f"tls: {' '.join(o.replace(d, '') for o in options)}", rc == 1 and want in err, (rc, err))


TESTS = [test_keys, test_bad_keys, test_other_variables, test_origins, test_uds, test_access_log, test_tls, test_tls_reload, test_tls_terminal]


def main():
    for t in TESTS:
        if test_openai.ONLY and t.__name__ not in test_openai.ONLY:
            continue
        t()
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
