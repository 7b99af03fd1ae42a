#!/usr/bin/env python3
"""/v1/files and /v1/batches: `test_batches.py BINARY MODEL [TEST..]`; closes with `N passed, N failed`.

The openai package unmodified, API keys, limits, expiry, kills and restarts, cancel, hostile names and uploads, and
interactive requests beside batches.
"""
import glob
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time

from test_openai import NAME, ONLY, SLOW, Server, check, httpx, openai, raised, results

TMP = tempfile.mkdtemp(prefix="batches-")
DIR = os.path.join(TMP, "dir")
ENDED = ("completed", "failed", "expired", "cancelled")


def line(i, url="/v1/completions", **body):
    body = body or {"prompt": f"Once upon a time {i}", "max_tokens": 16, "temperature": 0}
    return json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}) + "\n"


def slow(i, tokens=60):
    return line(i, prompt=f"x {i}", max_tokens=tokens, ignore_eos=True, temperature=0)


def upload(c, text, **kw):
    return c.files.create(file=("in.jsonl", text.encode()), purpose="batch", **kw)


def create(c, text, endpoint="/v1/completions", **kw):
    return c.batches.create(input_file_id=upload(c, text).id, endpoint=endpoint, completion_window="24h", **kw)


def wait(c, b, *states, seconds=120):
    end = time.monotonic() + seconds * (5 if SLOW else 1)
    while time.monotonic() < end:
        b = c.batches.retrieve(b.id)
        if b.status in (states or ENDED):
            return b
        time.sleep(0.02)
    return b


def rows(c, file_id):
    """The results by custom_id; each once."""
    if file_id is None:
        return {}
    got = [json.loads(x) for x in c.files.content(file_id).text.splitlines()]
    by_id = {r["custom_id"]: r for r in got}
    assert len(by_id) == len(got)
    return by_id


def client(s, key):
    return openai.OpenAI(base_url=s.url + "/v1", api_key=key, max_retries=0, timeout=120)


def test_openai_package(s):
    c = s.client
    text = "".join(line(i, "/v1/chat/completions", model=NAME, messages=[{"role": "user", "content": f"Hello {i}"}],
                        max_tokens=12, seed=i) for i in range(6)) + line(6, "/v1/chat/completions", messages=[])
    f = upload(c, text, expires_after={"anchor": "created_at", "seconds": 3600})
    check("an upload", f.bytes == len(text) and f.filename == "in.jsonl" and f.purpose == "batch" and
          f.expires_at == f.created_at + 3600 and f.id.startswith("file-"), f)
    check("its content", c.files.content(f.id).read().decode() == text and c.files.retrieve(f.id) == f)
    b = c.batches.create(input_file_id=f.id, endpoint="/v1/chat/completions", completion_window="24h",
                         metadata={"who": "me"})
    check("a batch begins with validating", b.status == "validating" and b.metadata == {"who": "me"} and
          b.expires_at == b.created_at + 86400, b)
    b = wait(c, b)
    n = b.request_counts
    check("it completes", b.status == "completed" and (n.total, n.completed, n.failed) == (7, 6, 1) and
          b.created_at <= b.in_progress_at <= b.finalizing_at <= b.completed_at, b)
    got, bad = rows(c, b.output_file_id), rows(c, b.error_file_id)
    check("results and errors in two files", sorted(got) == [f"r{i}" for i in range(6)] and list(bad) == ["r6"] and
          bad["r6"]["response"]["status_code"] == 400, (got, bad))
    for i in range(6):
        body = json.loads(text.splitlines()[i])["body"]
        r = s.post("/v1/chat/completions", body).json()
        mine = got[f"r{i}"]["response"]["body"]
        check(f"r{i}: the choices as over HTTP", mine["choices"] == r["choices"] and
              mine["usage"]["completion_tokens"] == r["usage"]["completion_tokens"], (mine, r))
    check("batches are listed", [x.id for x in c.batches.list(limit=1)][:1] == [b.id])
    files = list(c.files.list(limit=2))
    check("files are listed page by page, newest first", len(files) == 3 and files[-1].id == f.id and
          {x.id for x in files[:2]} == {b.output_file_id, b.error_file_id}, files)
    check("order and purpose", c.files.list(order="asc", limit=1).data[0].id == f.id and
          {x.purpose for x in c.files.list(purpose="batch_output")} == {"batch_output"})
    check("cancel after the end", raised(openai.BadRequestError, lambda: c.batches.cancel(b.id)) is not None)
    for x in files:
        check("delete", c.files.delete(x.id).deleted)
    check("all files are gone", list(c.files.list()) == [] and
          raised(openai.NotFoundError, lambda: c.files.content(f.id)) is not None)

    async def asynchronously():
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="x", max_retries=0) as a:
            up = await a.files.create(file=b"x" * 10, purpose="batch")
            return up.bytes, (await a.files.delete(up.id)).deleted
    import asyncio  # pylint: disable=import-outside-toplevel
    check("the asynchronous client", asyncio.run(asynchronously()) == (10, True))


def test_other_endpoints(s):
    for url, body in (("/v1/embeddings", {"input": "x"}), ("/v1/responses", {"input": "x", "max_output_tokens": 4})):
        b = wait(s.client, create(s.client, line(0, url, **body), endpoint=url))
        check(f"a batch of {url}", b.status == "completed" and len(rows(s.client, b.output_file_id)) == 1, b)


def test_wrong_batches(s):
    c = s.client
    for name, text, code, n in (
            ("no JSON", line(0) + "{nope\n", "invalid_json_line", 2),
            ("a custom_id twice", line(0) + line(1) + line(0), "duplicate_custom_id", 3),
            ("no custom_id", '{"a": 1}\n', "missing_required_parameter", 1),
            ("only empty lines", "\n\n", "empty_file", 1)):
        b = wait(c, create(c, text))
        e = b.errors.data[0] if b.errors else None
        check(f"{name}: failed, with the line", b.status == "failed" and e.code == code and e.line == n and
              b.failed_at is not None and b.output_file_id is None, b)
    f = upload(c, line(0))
    for name, change in (("endpoint", {"endpoint": "/v1/images"}), ("window", {"completion_window": "soon"}),
                         ("window", {"completion_window": "31d"}), ("window", {"completion_window": "99999999h"}),
                         ("no such file", {"input_file_id": "file-" + "0" * 32}),
                         ("path", {"input_file_id": "../../secret"}), ("metadata", {"metadata": {"a": 3}}),
                         ("metadata", {"metadata": {str(i): "x" for i in range(17)}}),
                         ("expiry", {"extra_body": {"output_expires_after": {"anchor": "now", "seconds": 3600}}})):
        args = {"input_file_id": f.id, "endpoint": "/v1/completions", "completion_window": "24h"} | change
        check(f"refused: {name} {change}", raised(openai.BadRequestError, lambda: c.batches.create(**args)) is not None)
    r = s.post("/v1/batches", {"input_file_id": f.id, "endpoint": "/v1/completions", "completion_window": "24h", "zz": 1})
    check("an unknown field is ignored and named", r.status_code == 200 and r.headers.get("X-Ignored-Fields") == "zz", r.text)
    wait(c, c.batches.retrieve(r.json()["id"]))


def test_hostile(s):
    b = "XbX"
    head = {"Content-Type": f"multipart/form-data; boundary={b}"}

    def post(body, headers=None, path="/v1/files"):
        return httpx.post(s.url + path, content=body, headers=headers or head, timeout=60)

    def part(name, value, extra=""):
        return f'--{b}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n{value}\r\n'
    good = part("purpose", "batch") + part("file", "{}", '; filename="a.jsonl"') + f"--{b}--\r\n"
    check("a plain upload", post(good).status_code == 200)
    for name, body, code in (
            ("empty", "", 400), ("cut in the head", good[:40], 400), ("cut in the content", good[:-20], 400),
            ("no end", good.replace(f"--{b}--", ""), 400), ("another boundary", good.replace(b, "YbY"), 400),
            ("no file", part("purpose", "batch") + f"--{b}--", 400), ("no purpose", part("file", "x") + f"--{b}--", 400),
            ("an empty file", part("purpose", "batch") + part("file", "") + f"--{b}--", 400),
            ("another purpose", part("purpose", "assistants") + part("file", "x") + f"--{b}--", 400),
            ("two files", part("purpose", "batch") + part("file", "x") * 2 + f"--{b}--", 400),
            ("100 parts", part("purpose", "batch") * 100 + f"--{b}--", 400),
            ("no name", f"--{b}\r\nX: y\r\n\r\nz\r\n--{b}--", 400),
            ("a short expiry", part("expires_after[seconds]", "5") + good, 400)):
        check(f"refused: {name}", post(body).status_code == code, post(body).text)
    for h in ({"Content-Type": "application/json"}, {"Content-Type": "multipart/form-data"},
              {"Content-Type": "multipart/form-data; boundary=" + "a" * 200}, {"Content-Type": 'multipart/form-data; boundary="a'}):
        check(f"refused: {h}", post(good, h).status_code == 415, post(good, h).text)
    check("refused: a web page", post(good, head | {"Origin": "http://evil.example"}).status_code == 403)
    before = sorted(os.listdir(TMP))
    for name in ("../../../../tmp/evil", "/etc/passwd", "a\x00b", "..", "a" * 5000, "\u00e9\u4e2d.jsonl", "\\..\\x", 'q".jsonl'):
        f = s.client.files.create(file=(name, b"{}"), purpose="batch")
        check(f"a file named {name[:30]!r} gets a name of ours", s.client.files.content(f.id).read() == b"{}" and
              len(f.filename.encode()) <= 255 and os.path.exists(os.path.join(DIR, "files", f.id)), f)
        s.client.files.delete(f.id)
    check("nothing was written elsewhere", sorted(os.listdir(TMP)) == before)
    for path in ("../secret", "..%2fsecret", "%2e%2e/secret", "secret", "file-", "x" * 500, "file-1/../secret", "a/b/c",
                 ".tmp-file-1", "file-%00"):
        for tail in ("", "/content"):
            r = s.get(f"/v1/files/{path}{tail}")
            check(f"GET /v1/files/{path[:30]}{tail}: 404", r.status_code == 404, r.text)
    for method, path, code in (("PUT", "/v1/files", 405), ("DELETE", "/v1/files", 405), ("PATCH", "/v1/batches", 405),
                               ("DELETE", "/v1/batches/batch_1", 405), ("POST", "/v1/files/file-1", 405),
                               ("POST", "/v1/batches/batch_1", 404), ("GET", "/v1/batches/batch_1/cancel", 404)):
        r = s.get(path, method)
        check(f"{method} {path}: {code}", r.status_code == code, (r.status_code, r.text))
    for query in ("limit=0", "limit=x", "limit=100000", "order=up", "after=file-0"):
        check(f"?{query} is refused", s.get("/v1/files?" + query).status_code in (400, 404))
    big = good.replace("{}", "x" * (5 << 20))
    check("a body over --max-body-size: 413", post(big).status_code == 413)
    modes = {stat.S_IMODE(os.stat(p).st_mode) & 0o077 for p in glob.glob(DIR + "/**", recursive=True) if p != DIR + "/"}
    check("others may not read the directory", modes == {0}, modes)


def test_two_and_interactive(s):
    """Two batches run at once, and other requests do not wait for them."""
    c = s.client
    a, b = (create(c, "".join(slow(i, 200) for i in range(12))) for _ in range(2))
    a, b = wait(c, a, "in_progress", *ENDED), wait(c, b, "in_progress", *ENDED)
    for i in range(5):
        r = s.post("/v1/completions", {"prompt": f"y {i}", "max_tokens": 4})
        check("a request beside two batches", r.status_code == 200, r.text)
    check("both still run", {c.batches.retrieve(x.id).status for x in (a, b)} == {"in_progress"})
    f = raised(openai.BadRequestError, lambda: c.files.delete(a.input_file_id))
    check("the input of a running batch cannot be deleted", f is not None and "cancel" in str(f), f)
    x = c.batches.cancel(a.id)
    check("cancel", x.status in ("cancelling", "cancelled") and x.cancelling_at is not None, x)
    a = wait(c, a)
    n = a.request_counts
    check("cancelled, with the results so far", a.status == "cancelled" and a.cancelled_at is not None and n.total == 12 and
          n.completed < 12 and len(rows(c, a.output_file_id)) == n.completed, a)
    b = wait(c, b)
    check("the other one completes", b.status == "completed" and b.request_counts.completed == 12, b)
    check("now the input can be deleted", c.files.delete(a.input_file_id).deleted)


def test_restart():
    """Killed twice in the middle and once stopped: the batch goes on, nothing twice, nothing lost."""
    shutil.rmtree(DIR, ignore_errors=True)
    options = ("--batch-dir", DIR, "--max-num-seqs", "4")
    text = "".join(slow(i, 40) for i in range(60)) + line(60, prompt="x", stream=True)
    s = Server(*options)
    b = create(s.client, text)
    for i, how in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        end = time.monotonic() + 60
        while s.client.batches.retrieve(b.id).request_counts.completed < 10 * (i + 1) and time.monotonic() < end:
            time.sleep(0.01)
        got = s.client.batches.retrieve(b.id)
        s.p.send_signal(how)
        s.p.wait()
        s.client.close()
        check(f"{how.name} in the middle", got.status == "in_progress" and got.request_counts.completed < 60, got)
        if how == signal.SIGKILL:
            with open(glob.glob(DIR + "/batches/*.out")[0], "ab") as f:
                f.write(b'{"id":"batch_req_0","custom_id":"r5')
            with open(os.path.join(DIR, "files", ".tmp-file-" + "1" * 32), "wb") as f:
                f.write(b"x")
            with open(os.path.join(DIR, "files", "file-" + "2" * 32), "wb") as f:
                f.write(b"x")
        s = Server(*options)
    b = wait(s.client, b)
    good, bad = rows(s.client, b.output_file_id), rows(s.client, b.error_file_id)
    check("it completes: every line once", b.status == "completed" and sorted(good) == sorted(f"r{i}" for i in range(60)) and
          list(bad) == ["r60"], (b, len(good), list(bad)))
    check("what kills have left is gone", os.listdir(DIR + "/batches") == [b.id + ".json"] and
          not glob.glob(DIR + "/files/.tmp*") and not os.path.exists(DIR + "/files/file-" + "2" * 32), os.listdir(DIR + "/files"))
    other = Server_fails("--batch-dir", DIR)
    check("a second server on the directory does not start", "another server uses this directory" in other, other)
    s.stop()
    record = os.path.join(DIR, "batches", b.id + ".json")
    with open(record, encoding="utf-8") as f:
        text = f.read()
    with open(record, "w", encoding="utf-8") as f:
        f.write(text[:50])
    with Server(*options) as s2:
        check("a broken record is passed over", s2.client.batches.list().data == [] and
              s2.client.files.retrieve(b.output_file_id).id == b.output_file_id)


def Server_fails(*options):  # pylint: disable=invalid-name
    try:
        Server(*options).stop()
    except RuntimeError as e:
        return str(e)
    return "it started"


def test_expiry():
    """The completion window ends while the server is down: what is not done gets an error."""
    shutil.rmtree(DIR, ignore_errors=True)
    with Server("--batch-dir", DIR, "--max-num-seqs", "1") as s:
        b = create(s.client, "".join(slow(i, 100) for i in range(12)))
        while s.client.batches.retrieve(b.id).request_counts.completed < 1:
            time.sleep(0.01)
    record = os.path.join(DIR, "batches", b.id + ".json")
    with open(record, encoding="utf-8") as f:
        v = json.load(f)
    v["shown"]["expires_at"] = int(time.time()) - 1
    with open(record, "w", encoding="utf-8") as f:
        json.dump(v, f)
    with Server("--batch-dir", DIR) as s:
        b = wait(s.client, b)
        bad = rows(s.client, b.error_file_id)
        good = rows(s.client, b.output_file_id)
        check("expired, with results and errors of the rest", b.status == "expired" and b.expired_at is not None and
              len(bad) + len(good) == 12 and len(good) >= 1 and
              {r["error"]["code"] for r in bad.values()} == {"batch_expired"}, (b, bad))


def test_keys_and_limits():
    shutil.rmtree(DIR, ignore_errors=True)
    options = ("--api-key", "sk-a,sk-b", "--batch-dir", DIR, "--batch-max-files", "2", "--batch-max-lines", "3",
               "--batch-max-bytes", "100K")
    with Server(*options) as s:
        a, b = client(s, "sk-a"), client(s, "sk-b")
        f = upload(a, line(0))
        x = a.batches.create(input_file_id=f.id, endpoint="/v1/completions", completion_window="1h")
        for name, call in (("retrieve", lambda: b.files.retrieve(f.id)), ("content", lambda: b.files.content(f.id)),
                           ("delete", lambda: b.files.delete(f.id)), ("batch", lambda: b.batches.retrieve(x.id)),
                           ("cancel", lambda: b.batches.cancel(x.id)), ("after", lambda: b.files.list(after=f.id))):
            check(f"another key sees nothing: {name}", raised(openai.NotFoundError, call) is not None)
        check("another key cannot use the file", raised(openai.BadRequestError, lambda: b.batches.create(
            input_file_id=f.id, endpoint="/v1/completions", completion_window="1h")) is not None)
        check("another key lists nothing", b.files.list().data == [] and b.batches.list().data == [])
        check("the batch runs without a key of its own", wait(a, x).status == "completed")
        check("no key: 401", s.get("/v1/files").status_code == 401)
        e = raised(openai.BadRequestError, lambda: upload(a, line(0)))
        check("too many files of a key", e is not None and "--batch-max-files" in str(e), e)
        many = upload(b, "".join(line(i) for i in range(4)))
        y = wait(b, b.batches.create(input_file_id=many.id, endpoint="/v1/completions", completion_window="1h"))
        check("too many lines", y.status == "failed" and y.errors.data[0].code == "too_many_requests", y)
        e = raised(openai.BadRequestError, lambda: upload(b, "x" * 110_000))
        check("too many bytes", e is not None and "--batch-max-bytes" in str(e), e)
        text = "".join(line(i, prompt="x", max_tokens=400, logprobs=5, ignore_eos=True) for i in range(3))
        z = wait(b, create(b, text))
        check("results over the limit of bytes: the batch fails, the server does not", z.status == "failed" and
              z.errors.data[0].code == "storage_limit" and s.get("/health").status_code == 200, z)
        text = open(DIR + "/secret", "rb").read() + b"".join(open(p, "rb").read() for p in glob.glob(DIR + "/*/*.json"))
        check("no key is on the disk", b"sk-a" not in text and b"sk-b" not in text)
    with Server("--api-key", "sk-a,sk-b", "--batch-dir", DIR) as s:
        check("owners survive a restart", client(s, "sk-a").files.retrieve(f.id).id == f.id and
              raised(openai.NotFoundError, lambda: client(s, "sk-b").files.retrieve(f.id)) is not None)


def test_full_disk():
    """A limit of file sizes stands for a full disk: an error of the upload or the batch, not of the server."""
    shutil.rmtree(DIR, ignore_errors=True)
    with Server("--batch-dir", DIR) as s:
        import resource  # pylint: disable=import-outside-toplevel
        f = upload(s.client, "".join(line(i) for i in range(30)))
        resource.prlimit(s.p.pid, resource.RLIMIT_FSIZE, (8000, resource.RLIM_INFINITY))
        e = raised(openai.InternalServerError, lambda: upload(s.client, "x" * 20_000))
        check("an upload to a full disk: 500 with the cause", e is not None and "File too large" in str(e), e)
        b = s.client.batches.create(input_file_id=f.id, endpoint="/v1/completions", completion_window="24h")
        b = wait(s.client, b)
        got = rows(s.client, b.output_file_id)
        check("a batch on a full disk fails, with the results so far", b.status == "failed" and
              b.errors.data[0].code == "storage_error" and 0 < len(got) < 30, b)
        check("the server lives", s.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200)
        check("nothing of the upload is left", not glob.glob(DIR + "/files/.tmp*"), os.listdir(DIR + "/files"))


def test_many_clients(s):
    """Uploads, lists and deletes of many threads at once."""
    bad = []

    def work(n):
        with client(s, "x") as c:
            for i in range(5):
                f = upload(c, line(n) * 50)
                if f.id not in {x.id for x in c.files.list()} or not c.files.delete(f.id).deleted:
                    bad.append((n, i))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("uploads of many clients at once", bad == [], bad)


def test_without():
    with Server() as s:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("GET", "/v1/batches"), ("GET", "/v1/files/x")):
            r = s.get(path, method)
            check(f"{method} {path} without --batch-dir", r.status_code == 404 and "--batch-dir" in r.text, r.text)


def wanted(t):
    return not ONLY or t.__name__ in ONLY


def main():
    on_one = [test_openai_package, test_other_endpoints, test_wrong_batches, test_hostile, test_two_and_interactive,
              test_many_clients]
    try:
        if any(map(wanted, on_one)):
            with Server("--batch-dir", DIR, "--max-num-seqs", "8", "--max-body-size", "4M") as s:
                for t in filter(wanted, on_one):
                    t(s)
        for t in filter(wanted, [test_restart, test_expiry, test_keys_and_limits, test_full_disk, test_without]):
            t()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return results["failed"] != 0


sys.exit(main())
