#!/usr/bin/env python3
"""`roseinfer batch`: `test_batch.py BINARY MODEL [TEST..]`; closes with `N passed, N failed`.

The same choices and usage as over HTTP, errors of lines, kills and --resume, signals, full disks, pipes.
"""
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "api"))
from test_openai import BIN, MODEL, NAME, ONLY, Server, check, results  # pylint: disable=wrong-import-position

TMP = tempfile.TemporaryDirectory(prefix="batch-")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"],
          "additionalProperties": False}


def path(name):
    return os.path.join(TMP.name, name)


def line(i, url="/v1/completions", **body):
    body = body or {"prompt": f"Once upon a time {i}", "max_tokens": 30, "temperature": 0}
    return {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}


def write(name, lines):
    with open(path(name), "w", encoding="utf-8") as f:
        f.writelines((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    return path(name)


def read(name):
    """The results by custom_id; every line must be whole, and no id may come twice."""
    with open(path(name), encoding="utf-8") as f:
        text = f.read()
    assert text == "" or text.endswith("\n")
    rows = [json.loads(x) for x in text.splitlines()]
    by_id = {r["custom_id"]: r for r in rows}
    assert len(by_id) == len(rows), "a custom_id twice"
    return by_id


def command(source, out, *options):
    return [BIN, "batch", MODEL, source, out, *options]


def batch(source, out, *options, stdin=b"", **kw):
    p = subprocess.run(command(source, out, *options), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       timeout=300, **kw)
    return p.returncode, p.stdout.decode(), p.stderr.decode("utf-8", "replace")


def refused(name, result, *fragments, code=1):
    check(name, result[0] == code and all(f in result[2] for f in fragments) and "in flight" not in result[2],
          (result, fragments))


def sound(row):
    """Whether a result has OpenAI's form."""
    r = row["response"]
    return set(row) == {"id", "custom_id", "response", "error"} and (r is None) != (row["error"] is None) and (
        r is None or (set(r) == {"status_code", "request_id", "body"}))


def same_reply(url, a, b):
    """Whether two bodies agree in all that the request decides."""
    def cut(v):
        if isinstance(v, dict):
            return {k: cut(x) for k, x in v.items() if k not in (
                "id", "created", "created_at", "completed_at", "timings", "prompt_tokens_details", "input_tokens_details",
                "cache_read_input_tokens", "input_tokens")} | (
                    {"sum": v.get("input_tokens", 0) + v.get("cache_read_input_tokens", 0)} if "input_tokens" in v else {})
        return [cut(x) for x in v] if isinstance(v, list) else v
    return cut(a) == cut(b)


def every_kind():
    chat = [{"role": "user", "content": "Name a colour."}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    return [
        line(0, "/v1/chat/completions", model=NAME, messages=chat, max_tokens=24, temperature=0),
        line(1, "/v1/chat/completions", messages=chat, max_tokens=24, temperature=1.2, seed=7, n=3),
        line(2, "/v1/chat/completions", messages=chat, max_tokens=24, seed=3, logprobs=True, top_logprobs=2),
        line(3, "/v1/chat/completions", messages=chat, max_tokens=40, temperature=0, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}),
        line(4, "/v1/chat/completions", messages=chat, max_tokens=60, temperature=0, tools=tools, tool_choice="required"),
        line(5, "/v1/completions", prompt=["Once", "Twice"], max_tokens=16, seed=5, temperature=0.9, logprobs=1),
        line(6, "/v1/completions", prompt=[1, 2, 3], max_tokens=8, temperature=0, echo=True),
        line(7, "/v1/responses", input="Say hello.", max_output_tokens=16, temperature=0),
        line(8, "/v1/embeddings", input=["one", "two"]),
        line(9, "/v1/messages", model=NAME, messages=chat, max_tokens=16, temperature=0),
        line(10, "/v1/rerank", query="fish", documents=["a shark", "a table"]),
        line(11, "/v1/score", text_1="fish", text_2=["a shark", "a table"]),
        line(12, "/v1/completions", prompt="x", max_tokens=0),
        line(13, "/v1/chat/completions", messages=[], max_tokens=4),
        line(14, "/v1/completions", prompt="x", max_tokens=10**6),
        line(15, "/v1/completions", model="other", prompt="x"),
        line(16, "/v1/completions", prompt="\u00e9\u4e2d\U0001f600\\\" \n", max_tokens=8, temperature=0),
        line(17, "/v1/embeddings", input="one", encoding_format="base64"),
    ]


def test_same_as_http():
    lines = every_kind()
    rc, out, err = batch(write("same.jsonl", lines), path("same.out"))
    got = read("same.out")
    check("every kind of request: exit code 0, a summary", rc == 0 and "18 of 18 lines are in" in err, (rc, err))
    check("every line has a result of OpenAI's form", len(got) == len(lines) and all(map(sound, got.values())), got)
    with Server() as s:
        for x in lines:
            r = s.post(x["url"], x["body"])
            mine = got[x["custom_id"]]["response"]
            check(f"{x['custom_id']} {x['url']}: as over HTTP ({r.status_code})",
                  mine["status_code"] == r.status_code and same_reply(x["url"], mine["body"], r.json()), (mine, r.text))
    check("the chat with a schema fits it", "n" in json.loads(
        got["r3"]["response"]["body"]["choices"][0]["message"]["content"]), got["r3"])


def test_errors_of_lines():
    ok = line(0)
    lines = [ok, {**line(1), "method": "GET"}, {**line(2), "url": "/v1/images"}, {**line(3), "body": "text"},
             line(4, prompt="x", stream=True), line(5, prompt="x", max_tokens=-1), {**line(6), "url": 3},
             {"custom_id": "r7"}, {**line(8), "url": "http://127.0.0.1/v1/completions"}, "",
             '{"custom_id": "r9", "method": "POST", "url": "/v1/completions", "body": {"prompt": nope}}',
             '{"custom_id": "r10", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "\\u0073tream": true}}']
    rc, out, err = batch(write("bad.jsonl", lines), path("bad.out"))
    got = read("bad.out")
    codes = {k: v["error"]["code"] if v["error"] else v["response"]["status_code"] for k, v in got.items()}
    check("each bad line has its error, good ones run", rc == 0 and codes == {
        "r0": 200, "r1": "invalid_method", "r2": "invalid_url", "r3": "invalid_body", "r4": "stream_not_supported", "r5": 400,
        "r6": "invalid_url", "r7": "invalid_method", "r8": "invalid_url", "r9": 400, "r10": "stream_not_supported"}, (codes, err))
    check("all results have OpenAI's form", all(map(sound, got.values())), got)
    check("the summary counts them, and has the first error", "10 of them failed" in err and
          "the first error: r1: 'method' must be \"POST\"" in err, err)
    rc, out, err = batch(write("other.jsonl", [line(0, prompt="x", model="gpt\x1b4\x9bé")]), path("other.out"))
    check("the first error of a reply", "the first error: r0: the model 'gpt?4??é' does not exist" in err, err)


def test_refused():
    def attempt(lines, *options, out="refused.out"):
        return batch(write("refused.jsonl", lines), path(out), *options)
    refused("a custom_id twice: both lines are named", attempt([line(0), line(1), line(0)]), "line 3", "'r0'", "of line 1")
    refused("a custom_id twice, escaped", attempt([line(0), json.dumps(line(0)).replace("r0", "\\u0072\\u0030")]),
            "line 2", "of line 1")
    refused("no custom_id", attempt([line(0), {"method": "POST"}]), "line 2", "custom_id")
    refused("a custom_id that is no string", attempt([{**line(0), "custom_id": 5}]), "line 1", "custom_id")
    refused("an empty custom_id", attempt([{**line(0), "custom_id": ""}]), "line 1", "custom_id")
    refused("no JSON", attempt([line(0), "{nope}"]), "line 2", "no JSON object")
    refused("a list", attempt(["[1]"]), "line 1", "no JSON object")
    refused("two objects in a line", attempt([json.dumps(line(0)) * 2]), "line 1", "more follows")
    refused("several wrong lines are listed", attempt(["a", "b"]), "line 1", "line 2", "1 more")
    refused("an empty file", attempt([]), "no request")
    refused("a missing file", batch(path("none"), path("x.out")), "No such file")
    check("nothing was created", not os.path.exists(path("refused.out")), os.listdir(TMP.name))
    with open(path("old.out"), "w", encoding="utf-8") as f:
        f.write("mine\n")
    refused("OUT exists", attempt([line(0)], out="old.out"), "--resume", "--overwrite")
    refused("OUT is no output", attempt([line(0)], "--resume", out="old.out"), "line 1 is no result")
    refused("IN as OUT", batch(path("refused.jsonl"), path("refused.jsonl"), "--overwrite"), "is the input")
    refused("both ways", attempt([line(0)], "--resume", "--overwrite"), "give one", code=2)
    check("OUT and IN are as before", open(path("old.out"), encoding="utf-8").read() == "mine\n" and
          os.path.getsize(path("refused.jsonl")) > 0)
    rc, out, err = attempt([line(0)], "--overwrite", out="old.out")
    check("--overwrite replaces it", rc == 0 and list(read("old.out")) == ["r0"], err)
    refused("a result of another input", batch(write("other.jsonl", [line(5)]), path("old.out"), "--resume"), "'r0'",
            "another batch")
    with open(path("old.out"), "a", encoding="utf-8") as f:
        f.write(open(path("old.out"), encoding="utf-8").read())
    refused("a result twice", attempt([line(0)], "--resume", out="old.out"), "line 2", "second result")
    rc, out, err = batch(write("x.jsonl", [line(0)]), path("model.out"), "--device", "nope")
    check("an unknown device: a usage error", rc == 2, err)


def n_lines(name):
    try:
        with open(path(name), "rb") as f:
            return f.read().count(b"\n")
    except FileNotFoundError:
        return 0


def started(source, out, *options, **kw):
    return subprocess.Popen(command(source, path(out), *options), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, **kw)


def wait_lines(p, out, n):
    end = time.monotonic() + 240
    while n_lines(out) < n and p.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def test_kill_and_resume():
    """Killed twice, with torn last lines, and resumed: nothing twice, nothing lost, and the same text."""
    lines = [line(i) for i in range(60)]
    source = write("kill.jsonl", lines)
    few = ("--max-num-seqs", "2")
    for n in (5, 25):
        p = started(source, "kill.out", *few, "--resume")
        wait_lines(p, "kill.out", n)
        p.kill()
        p.wait()
        p.stderr.close()
        check(f"killed after {n} lines, before the end", n <= n_lines("kill.out") < 60, n_lines("kill.out"))
        with open(path("kill.out"), "ab") as f:
            f.write(b'{"id":"batch_req_0","custom_id":"r59","response":{"status_code":200,"requ')
    before = n_lines("kill.out")
    rc, out, err = batch(source, path("kill.out"), *few, "--resume")
    got = read("kill.out")
    check("resumed: every line once", rc == 0 and sorted(got) == sorted(x["custom_id"] for x in lines), (rc, err))
    check("it says what it kept and cut", f"{before} of 60 lines are done" in err and "cut a torn line" in err, err)
    rc, out, err = batch(source, path("whole.out"))
    whole = read("whole.out")
    text = lambda r: (r["response"]["body"]["choices"], r["response"]["body"]["usage"]["completion_tokens"])
    check("the same choices as without kills", all(text(got[k]) == text(whole[k]) for k in whole), rc)
    rc, out, err = batch(source, path("kill.out"), "--resume")
    check("nothing is left to do", rc == 0 and "60 of 60" in err and len(read("kill.out")) == 60, err)


def test_two_at_once():
    source = write("two.jsonl", [line(i) for i in range(40)])
    p = started(source, "two.out", "--max-num-seqs", "2")
    wait_lines(p, "two.out", 1)
    refused("a second process on the same OUT", batch(source, path("two.out"), "--resume"), "another batch writes")
    p.kill()
    p.wait()
    p.stderr.close()


def test_signals():
    source = write("sig.jsonl", [line(i, prompt=f"x {i}", max_tokens=60, ignore_eos=True) for i in range(60)])
    p = started(source, "sig.out", "--max-num-seqs", "2")
    wait_lines(p, "sig.out", 2)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=240)[1].decode()
    n = len(read("sig.out"))
    check("Ctrl-C: requests in flight finish, exit code 130", p.returncode == 130 and 2 < n < 60 and "in flight" in err
          and "--resume does the rest" in err, (p.returncode, n, err))
    p = started(source, "sig.out", "--max-num-seqs", "2", "--resume")
    wait_lines(p, "sig.out", n + 2)
    p.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    p.send_signal(signal.SIGTERM)
    err = p.communicate(timeout=240)[1].decode()
    again = len(read("sig.out"))
    check("a second signal ends at once", p.returncode == 143 and n < again < 60, (p.returncode, n, again, err))


def test_full_disk():
    """A file limit stands for a full disk: the torn line is cut off, and the rest can be resumed."""
    source = write("full.jsonl", [line(i) for i in range(20)])

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    rc, out, err = batch(source, path("full.out"), preexec_fn=limited)
    got = read("full.out")
    check("a full disk stops the run with a clear message", rc == 1 and "full.out: File too large" in err
          and "--resume does the rest" in err, err)
    check("whole lines are there", 0 < len(got) < 20 and os.path.getsize(path("full.out")) <= 5000, len(got))
    rc, out, err = batch(source, path("full.out"), "--resume")
    check("after it --resume does the rest", rc == 0 and len(read("full.out")) == 20, err)
    rc, out, err = batch(source, "/dev/full")
    check("no space on a device", rc == 1 and "No space left on device" in err and "--resume" not in err, err)


def test_pipes():
    text = "\ufeff" + "\r\n".join(json.dumps(line(i)) for i in range(3))
    rc, out, err = batch("-", "-", stdin=text.encode())
    rows = [json.loads(x) for x in out.splitlines()]
    check("- is standard input and output", rc == 0 and sorted(r["custom_id"] for r in rows) == ["r0", "r1", "r2"], (out, err))
    rc, out, err = batch("/dev/stdin", "/dev/stdout", "--no-progress", stdin=text.encode())
    check("/dev/stdin and /dev/stdout, too", rc == 0 and len(out.splitlines()) == 3, (out, err))
    rc, out, err = batch("-", "-", "--resume", stdin=text.encode())
    check("a pipe cannot be resumed", rc == 1 and "needs a file" in err, err)


def test_progress():
    source = write("bar.jsonl", [line(i, prompt="x", max_tokens=300, ignore_eos=True) for i in range(20)])
    master, slave = pty.openpty()
    p = subprocess.Popen(command(source, path("bar.out"), "--max-num-seqs", "1"), stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    p.wait()
    os.close(master)
    check("a terminal shows a bar with lines, tokens a second and time left", p.returncode == 0 and b"of 20 lines (" in text
          and b"tokens/s, " in text and b" left" in text and b"[#" in text, text[-3000:])


def test_no_port():
    source = write("port.jsonl", [line(i, prompt=f"x {i}", max_tokens=60, ignore_eos=True) for i in range(40)])
    p = started(source, "port.out", "--max-num-seqs", "2")
    wait_lines(p, "port.out", 1)
    sockets = {os.readlink(f"/proc/{p.pid}/fd/{f}") for f in os.listdir(f"/proc/{p.pid}/fd")}
    with open(f"/proc/{p.pid}/net/tcp", encoding="utf-8") as f:
        listening = {"socket:[" + x.split()[9] + "]" for x in f.read().splitlines()[1:] if x.split()[3] == "0A"}
    p.kill()
    p.wait()
    p.stderr.close()
    check("no port is open", not sockets & listening, sockets & listening)


def main():
    tests = [test_same_as_http, test_errors_of_lines, test_refused, test_kill_and_resume, test_two_at_once, test_signals,
             test_full_disk, test_pipes, test_progress, test_no_port]
    for t in tests:
        if not ONLY or t.__name__ in ONLY:
            began = time.monotonic()
            t()
            print(f"    {t.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    TMP.cleanup()
    print(f"{results['passed']} passed, {results['failed']} failed")
    return results["failed"] != 0


sys.exit(main())
