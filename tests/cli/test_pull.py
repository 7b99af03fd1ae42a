#!/usr/bin/env python3
"""Models by name: `test_pull.py BINARY MODEL`; closes with `N passed, N failed`.

A hub of our own on loopback serves MODEL in the shape of the Hugging Face hub. It also stalls, cuts off, redirects and
lies. Every test begins with an empty cache. Standard library only.
"""
import contextlib
import hashlib
import http.server
import json
import os
import pty
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request

BIN, MODEL = os.path.abspath(sys.argv[1]), sys.argv[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "rose/tiny"
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:3000]}", flush=True)


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer, tls=None):
        self.seen, self.tries = [], 0  # (path, headers) of each request; connections
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.tls = answer, tls
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request, client_address):
        self.tries += 1
        super().finish_request(self.tls.wrap_socket(request, server_side=True) if self.tls else request, client_address)

    def handle_error(self, request, client_address):
        pass  # clients leave in the middle of replies


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        self.server.answer(self)

    def log_message(self, *args):
        pass

    def reply(self, code, body=b"", **headers):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_bytes(self, body, length=None):
        """The body, or the part that Range asks for; length: what is promised."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        total = len(body) if length is None else length
        headers = {"Content_Range": f"bytes {start}-{total - 1}/{total}"} if asked else {}
        if length is not None:
            headers["Content_Length"] = str(length - start)
        self.reply(206 if asked else 200, body[start:], **headers)


class Hub:
    """files: name -> content. on: name of a file, or "list" -> what replaces its normal reply, called with the request
    and the number of times that it was asked for before."""

    def __init__(self, files):
        self.files, self.on, self.counts, self.edit = files, {}, {}, lambda listing: listing
        self.lock = threading.Lock()
        self.server = Server(self.answer)

    def listing(self):
        siblings = []
        for name, body in self.files.items():
            entry = {"rfilename": name, "size": len(body), "blobId": hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()}
            if name.endswith((".safetensors", ".gguf", ".bin")):
                entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
            siblings.append(entry)
        return self.edit({"id": NAME, "sha": COMMIT, "siblings": siblings})

    def answer(self, r):
        path = urllib.parse.unquote(r.path.split("?")[0])
        prefix = f"/{NAME}/resolve/{COMMIT}/"
        what = "list" if path.startswith(f"/api/models/{NAME}/revision/") else path[len(prefix):]
        with self.lock:
            n = self.counts[what] = self.counts.get(what, 0) + 1
        if what in self.on:
            return self.on[what](r, n - 1)
        if what == "list":
            return r.reply(200, json.dumps(self.listing()).encode()) if "blobs=true" in r.path else r.reply(400)
        if path.startswith(prefix) and what in self.files:
            return r.send_bytes(self.files[what])
        r.reply(404, b"no such thing")

    def asked(self, what):
        return self.counts.get(what, 0)


def model_files():
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    files = {n: read(os.path.join(MODEL, n)) for n in names}
    return {**files, "README.md": b"readme", "pytorch_model.bin": b"bin" * 100, "model.pt": b"pt", "onnx/model.onnx": b"x"}


@contextlib.contextmanager
def room(files=None):
    """A hub, and a function that runs the program with an empty cache; run.env, run.cache."""
    hub = Hub(files or model_files())
    with tempfile.TemporaryDirectory() as d:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE", "XDG_", "SSL_CERT")) and "proxy" not in k.lower()
                and not k.endswith("CA_BUNDLE")}
        env = {**keep, "HF_HOME": d, "HF_ENDPOINT": hub.server.url}

        def run(*args, more=None, **kw):
            p = subprocess.run([BIN, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, env={**env, **(more or {})}, **kw)
            return p.returncode, p.stdout.decode(), p.stderr.decode()
        run.env, run.home, run.repo = env, d, os.path.join(d, "hub", "models--rose--tiny")
        run.blobs = os.path.join(run.repo, "blobs")
        run.snapshot = os.path.join(run.repo, "snapshots", COMMIT)
        try:
            yield hub, run
        finally:
            hub.server.shutdown()
            hub.server.server_close()


def pull(run, *args, **kw):
    return run("pull", NAME, "--stall-timeout", "1", *args, **kw)


def is_whole(run, hub, names):
    found = sorted(os.path.relpath(os.path.join(f, x), run.snapshot) for f, _, fs in os.walk(run.snapshot) for x in fs)
    return found == sorted(names) and all(read(os.path.join(run.snapshot, n)) == hub.files[n] for n in names) \
        and not [b for b in os.listdir(run.blobs) if "incomplete" in b]


NEEDED = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
WEIGHTS = "model.safetensors"


def weights_blob(run, hub):
    return os.path.join(run.blobs, hashlib.sha256(hub.files[WEIGHTS]).hexdigest())


def test_plain():
    with room() as (hub, run):
        r = pull(run)
        check("a model arrives", r[0] == 0 and r[1] == run.snapshot + "\n" and is_whole(run, hub, NEEDED), r)
        check("no file that is not needed", all(hub.asked(n) == 0 for n in ("README.md", "pytorch_model.bin", "model.pt")), hub.counts)
        check("plain lines in a pipe", "model.safetensors, " in r[2] and "\r" not in r[2] and "\033" not in r[2], r)
        link = os.readlink(os.path.join(run.snapshot, WEIGHTS))
        check("the layout of the cache", link.startswith("../../blobs/") and read(os.path.join(run.repo, "refs", "main")) == COMMIT.encode(), link)
        before = hub.asked(WEIGHTS)
        r = pull(run)
        check("a second pull fetches the list alone", r[0] == 0 and hub.asked(WEIGHTS) == before == 1, (r, hub.counts))
        asked = sum(hub.counts.values())
        r = run("pull", NAME, "--no-refresh")
        check("pull --no-refresh asks the hub nothing for what is there", r[0] == 0 and r[1] == run.snapshot + "\n" and sum(hub.counts.values()) == asked, r)
        hub.server.shutdown()
        p = run("generate", NAME, "-p", "The", "-n", "4", more={"HF_HUB_OFFLINE": "1"})
        direct = run("generate", MODEL, "-p", "The", "-n", "4")
        check("offline, generate finds the cache", p[0] == 0 and p[1] == direct[1], (p, direct))
        for args in (["inspect", NAME], ["tokenize", NAME, "-p", "x"], ["chat", NAME]):
            r = run(*args, more={"HF_HUB_OFFLINE": "1"})
            check(f"offline, {args[0]} finds the cache", r[0] == 0 or "has no chat template" in r[2], r)


def test_refused():
    with room() as (hub, run):
        for args, word in ((["generate", NAME, "--no-pull", "-p", "x"], "fetches nothing"), (["serve", NAME, "--no-pull", "--port", "0"], "fetches nothing"),
                           (["inspect", NAME, "--no-pull"], "fetches nothing"), (["tokenize", NAME, "-p", "x"], "fetches nothing")):
            r = run(*args)
            check(f"{args[0]} --no-pull refuses by name", r[0] == 1 and word in r[2] and f"roseinfer pull {NAME}" in r[2], r)
        r = run("generate", NAME, "-p", "x", more={"HF_HUB_OFFLINE": "1"})
        check("HF_HUB_OFFLINE refuses by name", r[0] == 1 and "HF_HUB_OFFLINE is set" in r[2], r)
        r = pull(run, more={"HF_HUB_OFFLINE": "1"})
        check("pull with HF_HUB_OFFLINE", r[0] == 1 and "HF_HUB_OFFLINE is set" in r[2], r)
        r = pull(run, "--no-refresh", more={"HF_HUB_OFFLINE": "1"})
        check("pull --no-refresh, offline and not there", r[0] == 1 and "is not in the cache" in r[2] and "HF_HUB_OFFLINE is set" in r[2], r)
        for bad in ("nothing", "a/b/c", "../x", "a/b:", "a/..", "/a/b", "a/b:c/d"):
            r = run("pull", bad)
            check(f"no name of the hub: {bad}", r[0] == 1 and "not a name of the hub" in r[2] and r[2].count("\n") == 1, r)
        for bad in ("../x", "/x", ""):
            r = pull(run, "--revision", bad)
            check(f"no revision: {bad!r}", r[0] == 1 and "--revision" in r[2], r)
        check("the hub was never asked", hub.counts == {}, hub.counts)
        for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
            with open(os.path.join(run.home, name), "w") as f:
                f.write("no library")
        r = pull(run, more={"LD_LIBRARY_PATH": run.home})
        check("without libcurl the package is named", r[0] == 1 and "apt install libcurl4" in r[2], r)


def test_codes():
    for code, headers, words in ((401, {}, ["401", "HF_TOKEN"]), (403, {"X_Error_Code": "GatedRepo"}, ["gated", NAME]), (404, {}, ["404", "revision"]),
                                 (429, {}, ["429"]), (500, {}, ["500"])):
        with room() as (hub, run):
            hub.on["list"] = lambda r, n: r.reply(code, b"page", **headers)
            r = pull(run, "--retries", "1")
            check(f"the list gives {code}", r[0] == 1 and all(w in r[2] for w in words) and hub.asked("list") == (2 if code in (429, 500) else 1), (r, hub.counts))
            del hub.on["list"]
            hub.on[WEIGHTS] = lambda r, n: r.reply(code, b"page", **headers)
            r = pull(run, "--retries", "1")
            check(f"the weights give {code}", r[0] == 1 and not os.path.exists(os.path.join(run.snapshot, WEIGHTS)), r)
    with room() as (hub, run):
        hub.on["list"] = lambda r, n: r.reply(503) if n == 0 else r.reply(429, Retry_After="1") if n == 1 else r.reply(200, json.dumps(hub.listing()).encode())
        hub.on[WEIGHTS] = lambda r, n: r.reply(500) if n < 2 else r.send_bytes(hub.files[WEIGHTS])
        r = pull(run)
        check("503, 429 and 500 are tried again", r[0] == 0 and is_whole(run, hub, NEEDED), r)


def test_resume():
    with room() as (hub, run):
        body = hub.files[WEIGHTS]

        def cut(r, n):
            if n < 2:  # promises all, sends a part
                return r.send_bytes(body[:len(body) * (n + 1) // 3], len(body))
            r.send_bytes(body)
        hub.on[WEIGHTS] = cut
        r = pull(run)
        ranges = [h.get("Range") for p, h in hub.server.seen if p.endswith(WEIGHTS)]
        check("a cut file is continued", r[0] == 0 and is_whole(run, hub, NEEDED) and ranges == [None, f"bytes={len(body) // 3}-", f"bytes={len(body) * 2 // 3}-"], (r, ranges))
    with room() as (hub, run):
        stop = threading.Event()

        def stall(r, n):
            if n == 0:
                r.send_bytes(hub.files[WEIGHTS][:1000], len(hub.files[WEIGHTS]))
                r.wfile.flush()
                stop.wait(120)
            else:
                r.send_bytes(hub.files[WEIGHTS])
        hub.on[WEIGHTS] = stall
        r = pull(run)
        stop.set()
        check("a stall is left and continued", r[0] == 0 and is_whole(run, hub, NEEDED) and hub.asked(WEIGHTS) == 2, r)
    for what in ("right", "wrong", "too long"):
        with room() as (hub, run):
            body = hub.files[WEIGHTS]
            os.makedirs(run.blobs)
            with open(weights_blob(run, hub) + ".incomplete", "wb") as f:
                f.write({"right": body[:5000], "wrong": b"x" * 5000, "too long": body + b"x"}[what])
            r = pull(run)
            check(f"a part that is {what}", r[0] == 0 and is_whole(run, hub, NEEDED) and hub.asked(WEIGHTS) == (2 if what == "wrong" else 1), (r, hub.counts))
    with room() as (hub, run):
        body = hub.files[WEIGHTS]
        os.makedirs(run.blobs)
        with open(weights_blob(run, hub) + ".incomplete", "wb") as f:
            f.write(body[:5000])
        hub.on[WEIGHTS] = lambda r, n: r.reply(200, body)  # no ranges
        r = pull(run)
        check("a server without ranges", r[0] == 0 and is_whole(run, hub, NEEDED), r)
    with room() as (hub, run):
        os.makedirs(run.blobs)
        with open(weights_blob(run, hub) + ".incomplete", "wb") as f:
            f.write(hub.files[WEIGHTS][:5000])
        hub.on[WEIGHTS] = lambda r, n: r.reply(206, b"y" * 10, Content_Range="bytes 5000-5009/5010")
        r = pull(run)
        check("the file changed between two tries", r[0] == 1 and "did the file change" in r[2], r)


def test_lies():
    def edited(change, words, name, code=1):
        with room() as (hub, run):
            def edit(listing):
                change(listing, {s["rfilename"]: s for s in listing["siblings"]})
                return listing
            hub.edit = edit
            r = pull(run, "--retries", "1")
            whole = os.path.exists(os.path.join(run.snapshot, WEIGHTS))
            check(name, r[0] == code and all(w in r[2] for w in words) and not whole, r)

    edited(lambda l, s: s[WEIGHTS]["lfs"].update(size=1000), ["more than the 1000 bytes"], "larger than promised")
    edited(lambda l, s: s[WEIGHTS]["lfs"].update(size=len(read(os.path.join(MODEL, WEIGHTS))) + 9), ["promised"], "smaller than promised")
    edited(lambda l, s: s[WEIGHTS]["lfs"].update(sha256="0" * 64), ["SHA-256"], "another SHA-256")
    edited(lambda l, s: s["config.json"].update(size=3), ["config.json", "more than the 3 bytes"], "a larger config.json")
    edited(lambda l, s: s["config.json"].update(size=30000), ["config.json", "promised"], "a smaller config.json")
    edited(lambda l, s: s[WEIGHTS]["lfs"].update(sha256="../../x"), ["hash"], "a hash that is a path")
    edited(lambda l, s: s["config.json"].update(blobId="../x"), ["hash"], "a blob that is a path")
    edited(lambda l, s: l.update(sha="../x"), ["commit"], "a commit that is a path")
    edited(lambda l, s: s[WEIGHTS]["lfs"].update(size=-1), ["size"], "a negative size")
    with room() as (hub, run):
        r = pull(run, "--revision", "f" * 40)
        check("another commit than the one asked for", r[0] == 1 and COMMIT in r[2] and "f" * 40 in r[2] and not os.path.exists(run.snapshot), r)
    for bad in ("../config.json", "/etc/x.safetensors", "a/../b", "a//b", "a/", "", ".", "a\\b", "a\nb", "x" * 300):
        edited(lambda l, s, bad=bad: s["README.md"].update(rfilename=bad), ["unsafe name"], f"the name {bad[:20]!r}")
    for body, name in ((b"{", "half a list"), (b"[]", "a list of another form"), (b"\0" * (17 << 20), "an endless list")):
        with room() as (hub, run):
            hub.on["list"] = lambda r, n: r.reply(200, body)
            r = pull(run, "--retries", "0")
            check(name, r[0] == 1 and r[2].count("\n") == 1, r)
    with room({"config.json": b"{}", "pytorch_model.bin": b"x"}) as (hub, run):
        r = pull(run)
        check("a model of *.bin alone", r[0] == 1 and "*.bin" in r[2] and hub.asked("pytorch_model.bin") == 0, r)


def test_token():
    with room() as (hub, run):
        far = Server(lambda r: r.send_bytes(hub.files[WEIGHTS]))
        hub.on[WEIGHTS] = lambda r, n: r.reply(302, Location=f"{far.url}/blob?sig=1")
        hub.on["config.json"] = lambda r, n: r.reply(307, Location=f"/{NAME}/resolve/{COMMIT}/moved") if n == 0 else r.reply(500)
        hub.files["moved"] = hub.files["config.json"]
        r = pull(run, more={"HF_TOKEN": "hf_secret"})
        near = [h.get("Authorization") for _, h in hub.server.seen]
        check("the endpoint gets the token", r[0] == 0 and set(near) == {"Bearer hf_secret"}, (r, near))
        check("another port does not", len(far.seen) == 1 and not any("secret" in str(h) for _, h in far.seen), far.seen)
        far.shutdown()
    for source in ("file", "home"):
        with room() as (hub, run):
            path = os.path.join(run.home, "token" if source == "home" else "own")
            with open(path, "w") as f:
                f.write("hf_other\n")
            r = pull(run, *(["--token-file", path] if source == "file" else []), more={"HF_TOKEN": "hf_env"} if source == "file" else None)
            seen = {h.get("Authorization") for _, h in hub.server.seen}
            check(f"the token of a {source}", r[0] == 0 and seen == {"Bearer hf_other"}, (r, seen))
    with room() as (hub, run):
        hub.on["list"] = lambda r, n: r.reply(302, Location=r.path)
        r = pull(run)
        check("a circle of redirects ends", r[0] == 1 and "redirects" in r[2], r)
        hub.on["list"] = lambda r, n: r.reply(302, Location="file:///etc/passwd")
        r = pull(run, "--retries", "0")
        check("a redirect to a file", r[0] == 1 and "root:" not in r[1] + r[2], r)
        def endless(r, n):
            r.send_response(404)
            r.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    r.wfile.write(b"x" * 65536)
        hub.on["list"] = endless
        r = pull(run, "--retries", "0")
        check("an error page without end", r[0] == 1 and r[2].count("\n") == 1, r)
        r = pull(run, "--token-file", os.path.join(run.home, "none"))
        check("a token file that is not there", r[0] == 1 and "none" in r[2], r)


def make_ca(d, name):
    """A CA of its own and a certificate of 127.0.0.1 that it signs: the paths of the CA, the certificate and the key."""
    at = [os.path.join(d, f"{name}{end}") for end in (".ca", ".ca.key", ".crt", ".key", ".csr", ".ext")]
    ca, ca_key, cert, key, csr, ext = at
    with open(ext, "w") as f:
        f.write("subjectAltName=IP:127.0.0.1\n")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (["req", "-x509", *new, "-days", "2", "-subj", f"/CN={name}", "-keyout", ca_key, "-out", ca],
                    ["req", *new, "-subj", "/CN=hub", "-keyout", key, "-out", csr],
                    ["x509", "-req", "-in", csr, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", ext, "-out", cert]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return ca, cert, key


def test_certificates():
    with room() as (hub, run):
        ca, cert, key = make_ca(run.home, "ours")
        other = make_ca(run.home, "other")[0]
        folder = os.path.join(run.home, "certs")
        os.makedirs(folder)
        shutil.copy(ca, os.path.join(folder, "a.pem"))
        subprocess.run(["openssl", "rehash", folder], check=True, capture_output=True)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        server = Server(hub.answer, tls)

        def fetch(**variables):
            shutil.rmtree(os.path.join(run.home, "hub"), ignore_errors=True)
            server.tries = 0
            return pull(run, "--hub-url", server.url, "--retries", "2", more=variables)

        r = fetch()
        check("an unknown CA: what to set, and one try", r[0] == 1 and "certificate" in r[2] and "SSL_CERT_FILE" in r[2] and server.tries == 1
              and "next try" not in r[2], (r, server.tries))
        for variables in ({"SSL_CERT_FILE": ca}, {"SSL_CERT_DIR": folder}, {"CURL_CA_BUNDLE": ca}, {"REQUESTS_CA_BUNDLE": ca}, {"REQUESTS_CA_BUNDLE": folder},
                          {"SSL_CERT_FILE": other, "CURL_CA_BUNDLE": ca}, {"CURL_CA_BUNDLE": other, "REQUESTS_CA_BUNDLE": ca},
                          {"SSL_CERT_FILE": other, "SSL_CERT_DIR": folder}, {"SSL_CERT_FILE": "", "CURL_CA_BUNDLE": ca}):
            r = fetch(**variables)
            check(f"{' and '.join(variables)}: the model comes", r[0] == 0 and is_whole(run, hub, NEEDED), (variables, r))
        for variables in ({"SSL_CERT_FILE": other}, {"SSL_CERT_FILE": ca, "CURL_CA_BUNDLE": other}, {"CURL_CA_BUNDLE": ca, "REQUESTS_CA_BUNDLE": other}):
            last = list(variables)[-1]
            r = fetch(**variables)
            check(f"{' and '.join(variables)}: refused, and {last} is named", r[0] == 1 and f"come from {last}" in r[2] and server.tries == 1, (r, server.tries))
        r = fetch(CURL_CA_BUNDLE="/nonexistent/ca.pem")
        check("a file of certificates that is not there", r[0] == 1 and "CURL_CA_BUNDLE names '/nonexistent/ca.pem'" in r[2] and server.tries == 0, r)


def test_gguf():
    files = {f"m-{q}.gguf": b"GGUF" + q.encode() * 100 for q in ("Q4_K_M", "Q8_0")}
    files.update({f"Q6_K/m-Q6_K-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}, **{"mmproj-m-Q8_0.gguf": b"GGUF", "config.json": b"{}"})
    with room(files) as (hub, run):
        r = run("pull", NAME)
        check("several GGUF files", r[0] == 1 and f"{NAME}:Q4_K_M" in r[2], r)
        r = run("pull", f"{NAME}:q4_k_m")
        check("one by its type", r[0] == 0 and r[1] == f"{run.snapshot}/m-Q4_K_M.gguf\n", r)
        check("its bytes", read(r[1].strip()) == files["m-Q4_K_M.gguf"] and hub.asked("m-Q8_0.gguf") == 0, hub.counts)
        r = run("pull", f"{NAME}:Q6_K")
        parts = [os.path.exists(os.path.join(run.snapshot, n)) for n in files if n.startswith("Q6_K/")]
        check("all parts of a split one", r[0] == 0 and r[1].endswith("-00001-of-00002.gguf\n") and parts == [True, True], r)
        r = run("pull", f"{NAME}:Q2_K")
        check("a type that is not there", r[0] == 1 and "Q2_K" in r[2], r)
        r = run("inspect", f"{NAME}:Q4_K_M", more={"HF_HUB_OFFLINE": "1"})
        check("inspect opens the file of the type", r[0] == 1 and "m-Q4_K_M.gguf" in r[2], r)


def test_sha256():
    """The lengths around the blocks of SHA-256, which hashlib checks."""
    sizes = [0, 1, *range(54, 67), *range(118, 131), 1000003]
    files = {f"p-{n}.safetensors": bytes(i * 7 % 251 for i in range(n)) for n in sizes}
    with room({"config.json": b"{}", WEIGHTS: b"x", **files}) as (hub, run):
        r = pull(run)
        check("SHA-256 of all lengths", r[0] == 0 and is_whole(run, hub, list(hub.files)), r)


def test_terminal():
    with room() as (hub, run):
        body, go = hub.files[WEIGHTS], threading.Event()

        def slowly(r, n):  # until the bar was seen
            r.send_response(200)
            r.send_header("Content-Length", str(len(body)))
            r.end_headers()
            for i in range(100):
                r.wfile.write(body[i * len(body) // 100:(i + 1) * len(body) // 100])
                r.wfile.flush()
                go.wait(0.01)
        hub.on[WEIGHTS] = slowly
        main, side = pty.openpty()
        p = subprocess.Popen([BIN, "pull", NAME], stdin=side, stdout=subprocess.DEVNULL, stderr=side, env=run.env)
        os.close(side)
        seen = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(main, 65536):
                seen += piece
                if b"[#" in seen:
                    go.set()
        p.wait(120)
        os.close(main)
        check("a progress bar on a terminal", p.returncode == 0 and b"\r" + WEIGHTS.encode() + b" [" in seen and b"MB/s" in seen, seen[-500:])


def test_two():
    with room() as (hub, run):
        both = threading.Barrier(2)
        hub.on["list"] = lambda r, n: (both.wait(120), r.reply(200, json.dumps(hub.listing()).encode()))
        out = []
        threads = [threading.Thread(target=lambda: out.append(pull(run, "--stall-timeout", "120"))) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check("two at once", [r[0] for r in out] == [0, 0] and is_whole(run, hub, NEEDED), out)
        check("each file came once", all(hub.asked(n) == 1 for n in NEEDED), hub.counts)


def preload(run, name, text):
    """The environment in which functions of C replace those of libc."""
    path = os.path.join(run.home, name)
    subprocess.run([*os.environ.get("CC", "cc").split(), "-shared", "-fPIC", "-xc", "-o", path, "-"], input=text.encode(), check=True)
    return {"LD_PRELOAD": path, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def test_two_containers():
    with room() as (hub, run):
        first = pull(run)
        for d in ("snapshots", "refs"):  # so that both have only links to make
            shutil.rmtree(os.path.join(run.repo, d))
        both, out = threading.Barrier(2), []
        hub.on["list"] = lambda r, n: (both.wait(120), r.reply(200, json.dumps(hub.listing()).encode()))
        more = preload(run, "same.so", "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\nint getpid(void) { return 1; }\n"
                       "int rename(const char *a, const char *b) { usleep(300000); return renameat(AT_FDCWD, a, AT_FDCWD, b); }\n")
        threads = [threading.Thread(target=lambda: out.append(pull(run, "--stall-timeout", "120", more=more))) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check("two containers with a common cache and equal process ids", first[0] == 0 and [r[0] for r in out] == [0, 0] and
              is_whole(run, hub, NEEDED) and os.listdir(os.path.join(run.repo, "refs")) == ["main"], out)


def test_system():
    with room() as (hub, run):
        r = pull(run, more=preload(run, "flock.so", "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n"))
        check("a cache without locks", r[0] == 1 and "cannot lock" in r[2] and "HF_HUB_CACHE" in r[2] and hub.asked(WEIGHTS) == 0, r)
        names = ("easy_init", "easy_setopt", "easy_perform", "easy_getinfo", "easy_cleanup", "slist_append", "slist_free_all")
        preload(run, "libcurl.so.4", "".join(f"void curl_{n}(void) {{}}\n" for n in names) + "int curl_global_init(long f) { return 2; }\n"
                "const char *curl_easy_strerror(int n) { return \"no luck\"; }\n")
        r = pull(run, more={"LD_LIBRARY_PATH": run.home})
        check("a libcurl that does not start", r[0] == 1 and "libcurl does not start: no luck" in r[2], r)
    with room() as (hub, run):
        victim = os.path.join(run.home, "victim")
        with open(victim, "w") as f:
            f.write("precious")
        os.makedirs(run.blobs)
        os.symlink(victim, weights_blob(run, hub) + ".incomplete")
        r = pull(run)
        check("a part that is a link is not followed", r[0] == 1 and ".incomplete" in r[2] and read(victim) == b"precious", r)


def limit_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_disk():
    with room() as (hub, run):
        r = pull(run, preexec_fn=limit_size)
        check("a write that fails names the file", r[0] == 1 and ".incomplete: File too large" in r[2], r)
        r = pull(run)
        check("and the next pull goes on", r[0] == 0 and is_whole(run, hub, NEEDED) and "continued" in r[2], r)
    with room() as (hub, run):
        with open(os.path.join(run.home, "hub"), "w"):
            pass
        r = pull(run)
        check("a cache that cannot be made", r[0] == 1 and "Not a directory" in r[2] and run.home in r[2], r)


def test_serve():
    with room() as (hub, run):
        p = subprocess.Popen([BIN, "serve", NAME, "--port", "0"], stderr=subprocess.PIPE, text=True, env=run.env)
        log = []
        for line in p.stderr:
            log.append(line)
            if "listening on" in line:
                break
        text = "".join(log)
        url = re.search(r"listening on (http://\S+)", text)
        check("serve fetches the model and is ready", url is not None and "pull: model.safetensors" in text, text)
        if url is not None:
            body = json.dumps({"model": NAME, "prompt": "The", "max_tokens": 3}).encode()
            q = urllib.request.Request(url[1] + "/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(q, timeout=120) as r:
                reply = json.load(r)
            check("it answers under the model's name", reply["model"] == NAME and reply["usage"]["completion_tokens"] == 3, reply)
        p.terminate()
        p.communicate(timeout=120)
        check("and stops", p.returncode == 0, p.returncode)


if __name__ == "__main__":
    for test in (test_plain, test_refused, test_codes, test_resume, test_lies, test_token, test_certificates, test_gguf, test_sha256, test_terminal, test_two, test_two_containers, test_system,
                 test_disk, test_serve):
        test()
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)
