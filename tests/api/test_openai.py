#!/usr/bin/env python3
"""The server as its clients see it: `test_openai.py BINARY MODEL`; closes with `N passed, N failed`.

Drives `BINARY serve MODEL` with the official openai package, and with raw sockets where a client is at fault. Starts
and stops the servers that it needs, on free ports. Under sanitizers (a binary in build/asan or build/tsan) the load is
smaller.
"""
import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import openai

try:
    import httpx2 as httpx  # what openai 3 brings
except ImportError:
    import httpx

BIN, MODEL = sys.argv[1], sys.argv[2]
ONLY = sys.argv[3:]  # names of tests, to run fewer
SLOW = any(s in os.path.abspath(BIN) for s in ("/asan/", "/tsan/"))
NAME = os.path.basename(os.path.abspath(MODEL))
PROMPT = "Once upon a time there was a"
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:2000]}"), flush=True)


# One client for all requests: httpx.post() would load the machine's certificates for each of them, which takes 20 times as long as
# the request. Each request has a connection of its own, as with httpx.post().
HTTP = httpx.Client(timeout=300, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


class Server:
    """`roseinfer serve` on a free port; `with Server("--option", "value") as s`."""

    def __init__(self, *options):
        self.log = []
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", *options], stderr=subprocess.PIPE)
        self.ready = threading.Event()
        self.port = None
        threading.Thread(target=self._read, daemon=True).start()
        if not self.ready.wait(120) or self.port is None:
            self.p.kill()
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=300)

    def _read(self):
        for line in self.p.stderr:
            line = line.decode("utf-8", "replace")
            self.log.append(line)
            m = re.search(r"listening on http://[^ ]*:(\d+)", line)
            if m:
                self.port = int(m.group(1))
                self.ready.set()
        self.ready.set()

    def get(self, path, method="GET"):
        return HTTP.request(method, self.url + path, timeout=60)

    def post(self, path, body, **kw):
        return HTTP.post(self.url + path, json=body, **kw)

    def settle(self, seconds=30):
        """Wait until nothing runs; the last health."""
        end = time.monotonic() + seconds
        while True:
            h = self.get("/health").json()
            if (h["running"], h["waiting"]) == (0, 0) and h["kv_pages_free"] == h["kv_pages"]:
                return h
            if time.monotonic() > end:
                return h
            time.sleep(0.005)

    def stop(self):
        self.client.close()
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        try:
            return self.p.wait(120)
        except subprocess.TimeoutExpired:
            self.p.kill()
            return -1

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        rc = self.stop()
        if exc[0] is None:
            check(f"server exits 0 ({' '.join(self.p.args[5:]) or 'defaults'})", rc == 0, (rc, "".join(self.log[-20:])))


def raised(exception, call):
    """The exception of this class that call() raises, else None."""
    try:
        call()
    except exception as e:
        return e
    except Exception as e:  # pylint: disable=broad-except
        print(f"    expected {exception.__name__}, got {type(e).__name__}: {e}")
    return None


def complete(s, **kw):
    kw.setdefault("prompt", PROMPT)
    kw.setdefault("max_tokens", 24)
    kw.setdefault("temperature", 0)
    return s.client.completions.create(model=NAME, **kw)


def stream_texts(s, **kw):
    """(texts of all choices, chunks, usage) of a streamed completion."""
    kw.setdefault("stream_options", {"include_usage": True})
    texts, chunks, usage = {}, [], None
    for chunk in complete(s, stream=True, **kw):
        chunks.append(chunk)
        if chunk.usage:
            usage = chunk.usage
        for c in chunk.choices:
            texts[c.index] = texts.get(c.index, "") + c.text
    return texts, chunks, usage


# ---- the tests; each takes the default server ----

def test_routes(s):
    models = s.client.models.list()
    check("models.list", [m.id for m in models] == [NAME])
    check("models.retrieve", s.client.models.retrieve(NAME).id == NAME)
    e = raised(openai.NotFoundError, lambda: s.client.models.retrieve("nope"))
    check("models.retrieve of another: NotFoundError", e is not None and e.code == "model_not_found", e)
    h = s.get("/health")
    check("/health", h.status_code == 200 and h.json()["status"] == "ok" and h.json()["kv_pages"] > 0, h.text)
    check("/ready", s.get("/ready").status_code == 200)
    check("/version", re.match(r"\d+\.\d+", s.get("/version").json()["version"]) is not None)
    for path in ("/health", "/ready", "/version", "/v1/models", f"/v1/models/{NAME}", "/tokenizer_info", "/get_model_info",
                 "/server_info", "/v1/loads"):
        g, h = s.get(path), s.get(path, "HEAD")
        check(f"HEAD {path}", h.status_code == 200 and h.content == b"" and
              h.headers["content-length"] == g.headers["content-length"], h.headers)
    r = s.get("/nope")
    check("404 in OpenAI's shape", r.status_code == 404 and
          set(r.json()["error"]) == {"message", "type", "param", "code"}, r.text)
    r = s.get("/v1/completions")
    check("405 with Allow", r.status_code == 405 and r.headers["allow"] == "POST", r.headers)
    r = s.get("/health", "DELETE")
    check("405 for DELETE", r.status_code == 405 and r.headers["allow"] == "GET, HEAD", r.headers)


def test_completion(s):
    r = complete(s)
    check("completion", r.object == "text_completion" and r.model == NAME and r.choices[0].text != "", r)
    check("finish_reason length", r.choices[0].finish_reason == "length", r)
    ids = s.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    check("usage", (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) ==
          (len(ids), 24, len(ids) + 24), r.usage)
    check("greedy repeats", complete(s).choices[0].text == r.choices[0].text)
    check("max_tokens defaults to 16", complete(s, max_tokens=openai.omit).usage.completion_tokens <= 16)
    ids_reply = complete(s, prompt=ids)
    check("prompt as ids", ids_reply.choices[0].text == r.choices[0].text)
    many = complete(s, prompt=[PROMPT, "The king", PROMPT])
    alone = complete(s, prompt="The king").choices[0].text
    check("prompt as list of strings", [c.text for c in many.choices] ==
          [r.choices[0].text, alone, r.choices[0].text] and [c.index for c in many.choices] == [0, 1, 2], many)
    other = s.post("/tokenize", {"prompt": "The king"}).json()["tokens"]
    many = complete(s, prompt=[ids, other])
    check("prompt as list of ids", [c.text for c in many.choices] == [r.choices[0].text, alone], many)
    check("usage of a list", many.usage.prompt_tokens == len(ids) + len(other) and
          many.usage.completion_tokens == 48, many.usage)
    raw = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    t = raw.json()["timings"]
    parts = sum(t[k] for k in ("receive_ms", "worker_wait_ms", "parse_ms", "tokenize_ms", "queue_wait_ms",
                               "prefill_to_first_ms"))
    check("timings add up", 0 < t["ttft_ms"] <= t["e2e_ms"] and abs(parts - t["ttft_ms"]) < 0.01 and
          t["prompt_n"] == len(ids) and t["predicted_n"] == 4, t)
    st = dict(re.findall(r"([a-z0-9_]+);dur=([0-9.]+)", raw.headers["server-timing"]))
    check("Server-Timing", float(st["ttft"]) == t["ttft_ms"] and float(st["e2e"]) == t["e2e_ms"], raw.headers)


def test_sampling(s):
    def text(**kw):
        return [c.text for c in complete(s, temperature=1.0, max_tokens=20, **kw).choices]
    check("a seed repeats", text(seed=7) == text(seed=7))
    check("another seed differs", text(seed=7) != text(seed=8))
    check("a negative seed", text(seed=-5) == text(seed=-5))
    check("no seed: random", len({text()[0] for _ in range(4)}) > 1)
    n3 = text(seed=7, n=3)
    check("n: three choices, the first has the seed itself", len(n3) == 3 and n3[0] == text(seed=7)[0] and
          len(set(n3)) == 3, n3)
    check("top_k 1 is greedy", text(seed=1, extra_body={"top_k": 1})[0] == complete(s, max_tokens=20).choices[0].text)
    check("top_k -1, 0 and min_p 0 are off", text(seed=7, extra_body={"top_k": -1}) == text(seed=7) ==
          text(seed=7, extra_body={"top_k": 0, "min_p": 0}))
    check("min_p 1 is greedy", text(seed=3, extra_body={"min_p": 1})[0] == complete(s, max_tokens=20).choices[0].text)
    check("tiny top_p is greedy", text(seed=3, top_p=1e-9)[0] == complete(s, max_tokens=20).choices[0].text)


def test_stream(s):
    want = complete(s)
    texts, chunks, usage = stream_texts(s)
    check("stream = not streamed", texts[0] == want.choices[0].text)
    check("stream usage", usage is not None and usage.completion_tokens == 24 and chunks[-1].choices == [], usage)
    check("one finish_reason", [c.choices[0].finish_reason for c in chunks if c.choices and
                                c.choices[0].finish_reason] == ["length"])
    check("first chunk carries text", chunks[0].choices[0].text != "")
    check("one chunk a token", 20 <= len([c for c in chunks if c.choices]) <= 25, len(chunks))
    check("one id, one creation time", len({(c.id, c.created) for c in chunks}) == 1)
    texts, chunks, usage = stream_texts(s, n=3, seed=5, temperature=1.0)
    want = complete(s, n=3, seed=5, temperature=1.0)
    check("stream of three choices", [texts[i] for i in range(3)] == [c.text for c in want.choices], texts)
    texts, chunks, usage = stream_texts(s, stream_options=openai.omit)
    check("no usage unasked", usage is None and all(c.choices for c in chunks))
    with httpx.stream("POST", s.url + "/v1/completions", json={"prompt": PROMPT, "stream": True, "max_tokens": 3,
                                                               "temperature": 0}, timeout=60) as r:
        body = r.read().decode()
        kind = r.headers["content-type"]
    events = body.split("\n\n")
    check("SSE bytes", kind.startswith("text/event-stream") and events[-2:] == ["data: [DONE]", ""] and
          all(e.startswith("data: {") for e in events[:-2]), body)
    last = json.loads(events[-3][6:])
    check("timings in the last chunk", last["timings"]["predicted_n"] == 3 and "usage" not in last, last)


def test_chat(s):
    ask = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": [
        {"type": "text", "text": "Tell me of "}, {"type": "text", "text": "a king."}]}]
    kw = {"model": NAME, "messages": ask, "temperature": 0, "max_tokens": 20}
    r = s.client.chat.completions.create(**kw)
    m = r.choices[0].message
    check("chat", r.object == "chat.completion" and m.role == "assistant" and m.content and
          not m.content.startswith(" "), r)
    plain = "System: Tell stories.\nUser: Tell me of a king.\nAssistant:"
    as_text = complete(s, prompt=plain, max_tokens=20, stop="\nUser:").choices[0].text
    check("chat = the documented template", m.content == as_text.removeprefix(" "), (m.content, as_text))
    t = s.post("/tokenize", {"messages": ask}).json()
    check("tokenize messages", t["count"] == r.usage.prompt_tokens and
          s.post("/detokenize", {"tokens": t["tokens"]}).json()["prompt"] == plain, t)
    chunks = list(s.client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **kw))
    check("chat stream: role first", chunks[0].choices[0].delta.role == "assistant" and
          all(c.choices[0].delta.role is None for c in chunks[1:] if c.choices))
    check("chat stream = not streamed", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) ==
          m.content)
    check("chat stream usage", chunks[-1].usage.completion_tokens == r.usage.completion_tokens)
    again = ask + [m.model_dump(), {"role": "user", "content": "Go on."}]
    check("a reply sent back as history", s.client.chat.completions.create(
        **{**kw, "messages": again}).choices[0].message.content is not None)
    long = s.client.chat.completions.create(model=NAME, messages=ask, max_completion_tokens=5, temperature=0)
    check("max_completion_tokens", long.usage.completion_tokens == 5)


def test_stop(s):
    texts, chunks, _ = stream_texts(s, max_tokens=40)
    pieces = [c.choices[0].text for c in chunks if c.choices]
    whole = "".join(pieces)
    tried = 0
    for k in range(2, len(pieces) - 2, 3):
        stop = pieces[k][-2:] + pieces[k + 1][:2]  # begins in one token, ends in the next
        if whole.find(stop) != len("".join(pieces[:k + 1])) - len(pieces[k][-2:]):
            continue  # it occurs earlier as well
        tried += 1
        want = whole[:whole.find(stop)]
        r = complete(s, max_tokens=40, stop=["never there", stop])
        ok = (r.choices[0].text, r.choices[0].finish_reason, r.usage.completion_tokens) == (want, "stop", k + 2)
        got, _, usage = stream_texts(s, max_tokens=40, stop=stop)
        ok = ok and got[0] == want and usage.completion_tokens == k + 2
        if not ok:
            check(f"stop {stop!r} across tokens", False, (r, got, want, k + 2))
    check("stop strings across token borders", tried >= 3, tried)
    check("pages are free once the reply is there", s.settle(0)["running"] == 0)
    kw = {"prompt": "The end.\n\nTHE END\n", "temperature": 1.0}
    for seed in range(40):  # one that ends by itself
        r = complete(s, max_tokens=450, seed=seed, **kw)
        if r.choices[0].finish_reason == "stop":
            break
    k, text = r.usage.completion_tokens, r.choices[0].text
    exact, less = complete(s, max_tokens=k, seed=seed, **kw), complete(s, max_tokens=k - 1, seed=seed, **kw)
    check("end of sequence: finish_reason stop, its token counted", 1 < k < 450 and
          (exact.choices[0].finish_reason, exact.choices[0].text) == ("stop", text) and
          (less.choices[0].finish_reason, less.choices[0].text) == ("length", text), (k, r, exact, less))
    got, chunks, usage = stream_texts(s, max_tokens=450, seed=seed, **kw)
    check("the same in a stream", got[0] == text and usage.completion_tokens == k and
          chunks[-2].choices[0].finish_reason == "stop", usage)
    r = complete(s, max_tokens=400, extra_body={"ignore_eos": True})
    check("ignore_eos runs to max_tokens", r.usage.completion_tokens == 400 and
          r.choices[0].finish_reason == "length", r.usage)
    many = [f"never {i}" for i in range(63)]
    want, cut = complete(s, max_tokens=40).choices[0].text, whole[10:14]
    r = complete(s, max_tokens=40, stop=many + [cut])
    check("64 stop strings", r.choices[0].text == want[:want.index(cut)], r)
    e = raised(openai.BadRequestError, lambda: complete(s, stop=many + ["a", "b"]))
    check("65 stop strings: BadRequestError", e is not None and e.param == "stop" and "limit is 64" in e.message, e)


def test_errors(s):
    cases = [
        ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [10 ** 9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 10 ** 9}, "max_tokens"),
        ({"temperature": -1}, "temperature"), ({"temperature": "hot"}, "temperature"), ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"), ({"n": 10 ** 6}, "n"), ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of"), ({"suffix": "x"}, "suffix"), ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"), ({"extra_body": {"guided_json": 1}}, "guided_json"),
        ({"extra_body": {"min_tokens": -3}}, "min_tokens"), ({"stream_options": {"include_usage": True}},
                                                           "stream_options"),
        ({"prompt": ["x"] * 129}, "prompt"), ({"prompt": ["x"] * 50, "n": 3}, "prompt"),
    ]
    for kw, param in cases:
        e = raised(openai.BadRequestError, lambda kw=kw: complete(s, **kw))
        check(f"BadRequestError {str(kw)[:40]}", e is not None and e.param == param and
              e.type == "invalid_request_error", e)
    e = raised(openai.NotFoundError, lambda: s.client.completions.create(model="gpt-4", prompt="x"))
    check("unknown model: NotFoundError", e is not None and e.code == "model_not_found", e)
    e = raised(openai.BadRequestError, lambda: complete(s, prompt="word " * 5000))
    check("prompt too long", e is not None and "maximum context length is" in e.message, e)
    n = s.get("/v1/models").json()["data"][0]["max_model_len"]
    e = raised(openai.BadRequestError, lambda: complete(s, prompt=[5] * n, max_tokens=7))
    check("the message has the numbers", e is not None and
          f"context length is {n} tokens. However, you requested {n + 7} tokens ({n} in the prompt, 7 in the "
          "completion)" in e.message, e)
    check("the longest prompt that fits", complete(s, prompt=[5] * (n - 1), max_tokens=1).usage.completion_tokens == 1)
    r = httpx.post(s.url + "/v1/completions", content=b'{"prompt":"x"', headers={"Content-Type": "application/json"})
    check("broken JSON: 400 with the place", r.status_code == 400 and "line 1, column" in r.text, r.text)
    r = httpx.post(s.url + "/v1/completions", content=b'{"prompt":"\xff"}',
                   headers={"Content-Type": "application/json"})
    check("not UTF-8: 400", r.status_code == 400, r.text)
    r = httpx.post(s.url + "/v1/completions", content=b"[" * 100000, headers={"Content-Type": "application/json"})
    check("depth bomb: 400", r.status_code == 400 and "deeper" in r.text, r.text)
    r = httpx.post(s.url + "/v1/completions", content=b'{"prompt":"x"}')
    check("no content type: 415", r.status_code == 415, r.text)
    check("all is well after it", complete(s).choices[0].text != "" and s.settle()["running"] == 0)


HOSTILE = ["a\r\nSet-Cookie: x=1", "\n\n<html>", "q\"u'o\\te", "comma, space", "\u00e9\u4e16\U0001f600", "\u0001\u007f",
           "%0d%0aX: y", "x" * 5000, ":", ""]


def ignored_of(r):
    """The names in X-Ignored-Fields of a raw reply; fails if that is not plain."""
    value = r.headers.get("x-ignored-fields")
    if value is None:
        return []
    names = value.split(", ")
    check("X-Ignored-Fields is plain, short and bounded", re.fullmatch(r"[ -~]+", value) is not None and
          len(names) <= 16 and all(len(n) <= 64 for n in names) and "set-cookie" not in r.headers, value)
    return names


def test_ignored_fields(s):
    ask = {"model": NAME, "messages": [{"role": "user", "content": "Hi", "name": "Ann"},
                                       {"role": "assistant", "content": None, "reasoning_content": "hm"},
                                       {"role": "user", "content": "Go on."}], "max_tokens": 3, "temperature": 0}
    extra = {"foo": 1, "bar": {"a": [1]}, "nothing": None, "top_k": 40.0, "ignore_eos": True}
    kw = {"model": NAME, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "extra_body": extra}
    r = s.client.completions.with_raw_response.create(**kw)
    check("completion: ignored fields in a header", ignored_of(r) == ["foo", "bar"] and
          r.parse().choices[0].text == complete(s, max_tokens=3).choices[0].text, r.headers)
    r = s.client.completions.with_raw_response.create(stream=True, **kw)
    check("streamed completion", ignored_of(r) == ["foo", "bar"] and len(list(r.parse())) == 3, r.headers)
    names = ["foo", "messages[0].name", "messages[1].reasoning_content"]
    r = s.client.chat.completions.with_raw_response.create(extra_body={"foo": 1}, **ask)
    check("chat", ignored_of(r) == names, r.headers)
    r = s.client.chat.completions.with_raw_response.create(stream=True, extra_body={"foo": 1}, **ask)
    check("streamed chat", ignored_of(r) == names and list(r.parse())[-1].choices[0].finish_reason == "length", r.headers)
    plain = "User: Hi\nAssistant: \nUser: Go on.\nAssistant:"
    r = s.post("/tokenize", {"messages": ask["messages"], "foo": 1})
    check("tokenize", ignored_of(r) == names and
          s.post("/detokenize", {"tokens": r.json()["tokens"]}).json()["prompt"] == plain, r.headers)
    r = s.post("/detokenize", {"tokens": [5], "foo": 1})
    check("detokenize", ignored_of(r) == ["foo"], r.headers)
    r = s.client.chat.completions.with_raw_response.create(reasoning_effort="high", store=True, verbosity="low", **{
        **ask, "messages": ask["messages"][2:]})
    check("hints without effect", sorted(ignored_of(r)) == ["reasoning_effort", "store", "verbosity"], r.headers)
    r = s.client.chat.completions.with_raw_response.create(
        user="me", metadata={"a": "b"}, service_tier="auto", parallel_tool_calls=True, tool_choice="none", tools=[],
        response_format={"type": "text"}, store=False, reasoning_effort="none", extra_body={
            "chat_template_kwargs": {}, "no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True,
            "stream_reasoning": True, "include_reasoning": True}, **{**ask, "messages": ask["messages"][2:]})
    check("what asks for nothing is not named", "x-ignored-fields" not in r.headers, r.headers)
    for name in HOSTILE:
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, name: 1})
        check(f"a field named {name[:20]!r}", r.status_code == 200 and len(ignored_of(r)) == 1, (r.text, r.headers))
    r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True, **{f"\r\n{i}": i for i in range(9999)}})
    check("9,999 fields", r.status_code == 200 and len(ignored_of(r)) == 16 and r.text.endswith("[DONE]\n\n"), r.headers)
    log = "".join(s.log)
    check("each name once in the log, in plain bytes", log.count("field foo was ignored") == 1 and
          log.count("field messages[].name was ignored") == 1 and "Set-Cookie: x" not in log and "<html>" not in log and
          log.count("was ignored") < 200, log[-2000:])
    n = float(re.search(r"^roseinfer:ignored_fields_total\{[^}]*\} (\S+)", s.get("/metrics").text, re.M).group(1))
    check("the metric counts them", 9999 < n < 10100, n)
    for kw in ({"audio": {"voice": "alloy", "format": "wav"}}, {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]}):
        e = raised(openai.BadRequestError, lambda kw=kw: s.client.chat.completions.create(**{**ask, **kw}))
        check(f"what would change the answer is refused: {list(kw)[0]}", e is not None and e.param == list(kw)[0], e)


def test_continuous_usage(s):
    """What guidellm and vLLM's benchmark ask for in every request."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    ids = len(s.post("/tokenize", {"prompt": PROMPT}).json()["tokens"])
    _, chunks, usage = stream_texts(s, stream_options=options, extra_body={"ignore_eos": True})
    got = [(c.usage.prompt_tokens, c.usage.completion_tokens, c.usage.total_tokens) for c in chunks]
    check("continuous usage", got[:-1] == [(ids, i, ids + i) for i in range(1, 25)] and got[-1] == (ids, 24, ids + 24) and
          usage.completion_tokens == 24, got)
    chunks = list(s.client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": [{"type": "text", "text": "Tell me of a king."}]}], temperature=0,
        max_completion_tokens=8, stream=True, stream_options=options, extra_body={"ignore_eos": True}))
    n = [c.usage.completion_tokens for c in chunks]  # text that could begin "\nUser:" waits for the next token
    check("continuous usage of a chat", all(a < b for a, b in zip(n[:-2], n[1:])) and n[-2:] == [8, 8] and n[0] > 0, n)


def test_tokenize(s):
    for text in ("Hello world", "", "\u00e9\u4e16\U0001f600 a\u0301", "  two\n\nlines\t", "a\u0000b", "<|endoftext|>"):
        t = s.post("/tokenize", {"prompt": text}).json()
        back = s.post("/detokenize", {"tokens": t["tokens"]}).json()["prompt"]
        check(f"tokenize, detokenize {text!r}", t["count"] == len(t["tokens"]) and back == text, (t, back))
    big = "The quick brown fox. " * 50000
    t = s.post("/tokenize", {"prompt": big})
    check("tokenize 1 MB", t.status_code == 200 and
          s.post("/detokenize", {"tokens": t.json()["tokens"]}).json()["prompt"] == big)
    r = s.post("/detokenize", {"tokens": [10 ** 7]})
    check("detokenize an id out of range: 400", r.status_code == 400 and r.json()["error"]["param"] == "tokens", r.text)


def test_render(s):
    """What vllm-router asks before a request: the ids of its prompt."""
    def render(**kw):
        return s.post("/v1/completions/render", kw)

    def params(body):
        return body["sampling_params"]
    before = s.settle()["finished"]
    ids = s.post("/tokenize", {"prompt": PROMPT}).json()["tokens"]
    r = render(prompt=PROMPT, model=NAME, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=7, max_tokens=9, min_tokens=2,
               n=3, stop="x", stop_token_ids=[5], logit_bias={"6": 1.5}, logprobs=2, ignore_eos=True, presence_penalty=0.3,
               frequency_penalty=0.2, repetition_penalty=1.1, bad_words=["y"], cache_salt="s", priority=-2, stream=True,
               allowed_token_ids=[5, 6, 7], include_stop_str_in_output=True, stream_options={"include_usage": True}, foo=1)
    check("render: the ignored field is named", ignored_of(r) == ["foo"], r.headers)
    body = r.json()[0]
    name = body.pop("request_id")
    check("render of a completion", len(r.json()) == 1 and name.startswith("cmpl-") and body == {
        "token_ids": ids, "model": NAME, "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s",
        "priority": -2, "sampling_params": {
            "n": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "max_tokens": 9, "min_tokens": 2,
            "stop": ["x"], "stop_token_ids": [5], "logit_bias": {"6": 1.5}, "logprobs": 2, "prompt_logprobs": None,
            "ignore_eos": True, "presence_penalty": 0.3, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
            "bad_words": ["y"], "allowed_token_ids": [5, 6, 7], "include_stop_str_in_output": True,
            "structured_outputs": None}}, body)
    plain = params(render(prompt=PROMPT).json()[0])
    check("render: what nobody asked for", plain["max_tokens"] == 16 and plain["temperature"] == 1 and plain["stop"] == [] and
          plain["seed"] is plain["logprobs"] is plain["logit_bias"] is None, plain)
    got = [x["token_ids"] for x in render(prompt=[PROMPT, "Hello"]).json()]
    check("render of several prompts", got == [ids, s.post("/tokenize", {"prompt": "Hello"}).json()["tokens"]], got)
    got = [(x["token_ids"], params(x)["max_tokens"]) for x in render(prompt=[[5] * 509, [6, 7]]).json()]
    check("render of ids; no more tokens than fit", got == [([5] * 509, 3), ([6, 7], 16)], got)
    ask = {"model": NAME, "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]}
    r = s.post("/v1/chat/completions/render", {**ask, "stop": ["a", "b"]}).json()
    ids = s.post("/tokenize", {"messages": ask["messages"]}).json()["tokens"]
    check("render of a chat", r["token_ids"] == ids and r["request_id"].startswith("chatcmpl-") and
          params(r)["stop"] == ["a", "b", "\nUser:"] and params(r)["max_tokens"] == 512 - len(ids), r)
    check("nothing was generated", s.settle()["finished"] == before, s.settle())
    usage = s.client.chat.completions.create(max_tokens=1, **ask).usage
    check("the chat has as many tokens", usage.prompt_tokens == len(ids), usage)
    for path, bad in (("/v1/completions", {"prompt": ""}), ("/v1/completions", {}), ("/v1/completions", {"prompt": [5] * 512}),
                      ("/v1/completions", {"prompt": "x", "temperature": -1}), ("/v1/completions", {"prompt": "x", "model": "no"}),
                      ("/v1/completions", {"prompt": "x", "guided_json": {"type": "nothing"}}),
                      ("/v1/completions", {"prompt": "x", "logit_bias": {"4096": 1}}),
                      ("/v1/chat/completions", {"messages": []}), ("/v1/chat/completions", {"messages": [{"role": "king"}]})):
        a, b = s.post(path, bad), s.post(path + "/render", bad)
        check(f"render refuses {json.dumps(bad)[:60]} as {path} does", a.status_code in (400, 404) and
              (b.status_code, b.json()) == (a.status_code, a.json()), (a.text, b.text))
    r = s.get("/v1/completions/render")
    check("render takes POST", r.status_code == 405 and r.headers["allow"] == "POST", r.text)


def load_of(s, query=""):
    r = s.get("/v1/loads" + query).json()
    check("/v1/loads has one rank", r["dp_rank_count"] == len(r["loads"]) == 1 and r["loads"][0]["dp_rank"] == 0, r)
    return r["loads"][0]


def test_info(s):
    """What routers and lm-eval ask a server for."""
    model = s.client.models.list().data[0]
    names = {"served_model_name": NAME, "model_path": MODEL, "tokenizer_path": MODEL}
    got = s.get("/get_model_info").json()
    check("/get_model_info", got == {**names, "model_type": "gpt2", "is_generation": True, "has_image_understanding": False,
                                     "has_audio_understanding": False}, got)
    pages = s.settle()["kv_pages"]
    got = s.get("/server_info/").json()
    check("/server_info", got == {**names, "version": s.get("/version").json()["version"], "dtype": model.dtype,
                                  "context_length": model.max_model_len, "page_size": 16, "max_total_num_tokens": 16 * pages,
                                  "max_num_seqs": 256, "max_num_batched_tokens": 2048, "tp_size": 1, "dp_size": 1,
                                  "default_sampling_params": {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0,
                                                              "repetition_penalty": 1}}, got)
    end = "<|endoftext|>"
    got = s.get("/tokenizer_info").json()
    check("/tokenizer_info", got == {"tokenizer_class": "GPT2Tokenizer", "bos_token": end, "eos_token": end, "unk_token": end},
          got)
    text = s.get("/metrics").text
    queries, hits = (float(re.search(rf"^vllm:prefix_cache_{x}_total\{{[^}}]*\}} (\S+)", text, re.M).group(1))
                     for x in ("queries", "hits"))
    load = load_of(s)
    check("the load of an idle server", load.pop("queues") == {"waiting": 0} and
          load.pop("memory")["token_capacity"] == 16 * pages and abs(load.pop("cache_hit_rate") - hits / queries) < 1e-6 and
          load == {"dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0, "num_total_reqs": 0, "num_used_tokens": 0,
                   "num_total_tokens": 0, "max_total_num_tokens": 16 * pages, "token_usage": 0}, load)
    for _ in range(20):  # who is slow to ask finds the streams ended: then once more
        conns = [open_stream(s, 480) for _ in range(8)]
        for c in conns:
            c.getresponse().readline()
        load = load_of(s)
        for c in conns:
            c.close()
        s.settle()
        if load["num_running_reqs"] > 0:
            break
    used = load["num_used_tokens"]
    check("the load of a busy server", 1 <= load["num_running_reqs"] <= 8 and used >= 16 and used % 16 == 0 and
          abs(load["token_usage"] - used / (16 * pages)) < 1e-6 and
          load["num_total_reqs"] == load["num_running_reqs"] + load["num_waiting_reqs"], load)
    for query, keys in (("?include=core", {"num_running_reqs"}), ("?include=memory%2Cqueues", {"memory", "queues"}),
                        ("?include=disagg,spec", set()), ("?include=", {"num_running_reqs", "memory", "queues"}),
                        ("?a=b&dp_rank=0&include=core,disagg,queues,memory&format=json", {"num_running_reqs", "memory", "queues"})):
        got = set(load_of(s, query)) & {"num_running_reqs", "memory", "queues"}
        check(f"/v1/loads{query}", got == keys, got)
    for query, param in (("?include=core,nope", "include"), ("?include=cor", "include"), ("?dp_rank=1", "dp_rank"),
                         ("?dp_rank=00", "dp_rank"), ("?format=prometheus", "format")):
        r = s.get("/v1/loads" + query)
        check(f"/v1/loads{query}: 400", r.status_code == 400 and r.json()["error"]["param"] == param, r.text)


def open_stream(s, max_tokens, stream=True):
    """A raw connection with a long completion under way."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True,
                                                     "stream": stream}), {"Content-Type": "application/json"})
    return c


def test_client_leaves(s):
    for _ in range(10):  # who is slow to leave has his whole reply: then once more
        before = s.settle()["cancelled"]
        conns = [open_stream(s, 480) for _ in range(16)]
        firsts = [c.getresponse().readline() for c in conns]
        for c in conns:
            c.close()
        h = s.settle()
        if h["cancelled"] >= before + 8:
            break
    check("16 streams began", all(f.startswith(b"data: {") for f in firsts), firsts[:2])
    check("clients left mid-stream: cancelled, pages are free", h["kv_pages_free"] == h["kv_pages"] and
          h["running"] == 0 and h["cancelled"] >= before + 8, (before, h))
    conns = [open_stream(s, 480, stream=False) for _ in range(8)]
    time.sleep(0.05)
    for c in conns:
        c.sock.close()
    h = s.settle()
    check("clients left before the reply: pages are free", h["kv_pages_free"] == h["kv_pages"] and
          h["running"] == h["waiting"] == 0, h)
    check("the server goes on", complete(s).choices[0].text != "")


def test_many_streams(s):
    total = 60 if SLOW else 500
    seeds = 10

    async def one(client, i):
        text, finish, usage = "", None, None
        stream = await client.completions.create(
            model=NAME, prompt=f"Story {i % seeds}:", max_tokens=8 + i % seeds, temperature=1.0, seed=i % seeds,
            stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        async for chunk in stream:
            if chunk.usage:
                usage = chunk.usage
            for c in chunk.choices:
                text += c.text
                finish = c.finish_reason or finish
        return text, finish, usage.completion_tokens

    async def all_of_them():
        limits = httpx.Limits(max_connections=total)
        async with openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=600,
                                      http_client=httpx.AsyncClient(limits=limits, timeout=600)) as client:
            return await asyncio.gather(*(one(client, i) for i in range(total)))

    got = asyncio.run(all_of_them())
    check(f"{total} concurrent streams end", len(got) == total and all(g[1] == "length" for g in got))
    check("every token accounted for", all(g[2] == 8 + i % seeds for i, g in enumerate(got)))
    texts = {i: {got[k][0] for k in range(i, total, seeds)} for i in range(seeds)}
    check("same seed, same text, whatever runs beside it", all(len(t) == 1 for t in texts.values()), texts)
    h = s.settle()
    check("nothing is left", h["kv_pages_free"] == h["kv_pages"] and h["running"] == h["waiting"] == 0, h)


# ---- tests with servers of their own ----

def crowd(s, n):
    """What n requests at once get, an error or a finish_reason, while one keeps the only place."""
    held = open_stream(s, 480)
    first = held.getresponse()
    first.readline()
    out, lock = [], threading.Lock()

    def one():
        try:
            r = complete(s, max_tokens=2).choices[0].finish_reason
        except openai.RateLimitError as e:
            r = e
        with lock:
            out.append(r)
    threads = [threading.Thread(target=one) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    held.close()
    first.close()
    return out


def test_queue_full():
    with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--max-num-queued-reqs", "2") as s:
        for _ in range(20):  # clients that are slow to send find the place free again: then once more
            out = crowd(s, 12)
            errors = [e for e in out if isinstance(e, openai.RateLimitError)]
            if errors:
                break
        check("queue full: RateLimitError with Retry-After", len(errors) > 0 and
              all(int(e.response.headers["retry-after"]) >= 1 and e.code == "rate_limit_exceeded" for e in errors), out)
        check("the others are served", len(errors) < 12 and all(e == "length" for e in out if isinstance(e, str)), out)
        check("as many choices as can run and wait are served", len(complete(s, n=3, max_tokens=4).choices) == 3)
        e = raised(openai.BadRequestError, lambda: complete(s, n=4, max_tokens=400))
        check("more choices than can ever run and wait: 400", e is not None and e.param == "n" and
              "--max-num-queued-reqs" in e.message, e)
        h = s.settle()
        check("nothing is left of a refused request", h["running"] == h["waiting"] == 0, h)


def test_limits():
    with Server("--header-timeout-ms", "1500", "--max-body-size", "4096", "--body-timeout-ms", "1500") as s:
        def raw(data, wait=True):
            with socket.create_connection(("127.0.0.1", s.port), timeout=20) as k:
                try:
                    k.sendall(data)
                except OSError:
                    pass
                out = b""
                while wait:
                    try:
                        b = k.recv(65536)
                    except OSError:
                        break
                    if not b:
                        break
                    out += b
                return out
        r = httpx.post(s.url + "/v1/completions", json={"prompt": "x" * 10000}, timeout=20)
        check("oversized body: 413 in OpenAI's shape", r.status_code == 413 and
              r.json()["error"]["type"] == "invalid_request_error", r.text)
        r = raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
        check("announced oversized body: 413 unread", b" 413 " in r.split(b"\r\n")[0], r)
        r = raw(b"GET /health HTTP/1.1\r\nHo")
        check("slow headers: 408", b" 408 " in r.split(b"\r\n")[0] and b'{"error":' in r, r)
        r = raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        check("slow body: 408", b" 408 " in r.split(b"\r\n")[0], r)
        r = raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n")
        check("garbage: 400", b" 400 " in r.split(b"\r\n")[0], r)
        r = raw(b"GET /health HTTP/1.1\r\nX: " + b"a" * 100000 + b"\r\n\r\n")
        check("huge header: 431", b" 431 " in r.split(b"\r\n")[0], r[:200])
        check("all is well after it", complete(s).choices[0].text != "")


def test_drain():
    s = Server()
    c = open_stream(s, 300)
    r = c.getresponse()
    r.readline()
    s.p.send_signal(signal.SIGTERM)
    rest = r.read().decode()
    events = [json.loads(e[6:]) for e in rest.split("\n\n") if e.startswith("data: {")]
    check("SIGTERM: the stream runs to its end", rest.endswith("data: [DONE]\n\n") and
          events[-1]["choices"][0]["finish_reason"] == "length" and events[-1]["timings"]["predicted_n"] == 300,
          rest[-300:])
    check("then the server exits 0", s.p.wait(60) == 0)
    check("no new connections", raised(OSError, lambda: socket.create_connection(("127.0.0.1", s.port), 5)) is not None)
    s.client.close()
    s = Server()
    conns = [open_stream(s, 480) for _ in range(64)]
    for c in conns:
        c.getresponse().readline()
    t = time.monotonic()
    s.p.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    s.p.send_signal(signal.SIGTERM)
    rc = s.p.wait(60)
    check("a second SIGTERM ends at once", rc == 0 and time.monotonic() - t < 30, (rc, "".join(s.log[-5:])))
    s.client.close()


def test_drain_slow_reader():
    """SIGTERM while a reply of 4 MB is on its way to a client that reads slowly: it arrives whole."""
    s = Server()
    body = json.dumps({"tokens": [i % 4000 for i in range(900000)]}).encode()
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.settimeout(60)
        c.connect(("127.0.0.1", s.port))
        c.sendall(b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        got = c.recv(1000)
        s.p.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        while chunk := c.recv(65536):
            got += chunk
    head, _, text = got.partition(b"\r\n\r\n")
    want = int(re.search(rb"Content-Length: (\d+)", head).group(1))
    check("SIGTERM: a reply that is being sent arrives whole", len(text) == want, (len(text), want))
    check("then the server also exits 0", s.p.wait(60) == 0)
    s.client.close()


def test_switches(want):
    """The same bytes with every switch of the API off."""
    for options in (("--no-async-admit",), ("--no-fast-sse",), ("--no-async-admit", "--no-fast-sse", "--io-threads",
                                                               "3", "--tokenize-workers", "1")):
        with Server(*options) as s:
            check(f"same stream with {' '.join(options)}", stream_signature(s) == want)
            test_client_leaves(s)
    with Server("--served-model-name", "org/m \"1\"", "gpt-4o,b", "--max-n", "2") as s:
        r = s.post("/v1/completions", {"prompt": "x", "foo": 1, "logprobs": 3, "max_tokens": 2})
        check("--served-model-name", r.json()["model"] == 'org/m "1"' and
              s.client.models.retrieve('org/m "1"').id == 'org/m "1"')
        check("several names are listed", [m.id for m in s.client.models.list()] == ['org/m "1"', "gpt-4o", "b"])
        for name in ('org/m "1"', "gpt-4o", "b"):
            r = s.client.completions.create(model=name, prompt="x", max_tokens=1)
            check(f"{name} is served, the reply has the first name", r.model == 'org/m "1"', r)
        check("another name: 404", s.post("/v1/completions", {"prompt": "x", "model": NAME}).status_code == 404)
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "tools": 1, "guided_json": 1})
        check("a field that would change the answer is refused", r.status_code == 400, r.text)
        check("--max-n", s.post("/v1/completions", {"prompt": "x", "n": 3}).status_code == 400)


    with Server("--strict-fields") as s:
        for kw, param in (({"foo": 1}, "foo"), ({"a\r\nb": 1}, "a\r\nb"), ({"stream": True, "stream_options": {
                "x": 1}}, "stream_options.x"), ({"stream_interval": 4}, "stream_interval")):
            r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, **kw})
            check(f"--strict-fields refuses {param!r}", r.status_code == 400 and r.json()["error"]["param"] == param and
                  "x-ignored-fields" not in r.headers, r.text)
        e = raised(openai.BadRequestError, lambda: s.client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "x", "name": "Ann"}]))
        check("--strict-fields refuses a member of a message", e is not None and e.param == "messages[0].name", e)
        check("--strict-fields takes what is known", complete(s, extra_body={"top_k": 1.0}).choices[0].text != "")
        check("nothing was ignored", not any("was ignored" in line for line in s.log), s.log)


def stream_signature(s):
    body = s.post("/v1/completions", {"prompt": [PROMPT, "\u00e9\"\\\n\t"], "stream": True, "max_tokens": 12, "n": 2,
                                      "seed": 3, "stream_options": {"include_usage": True}}).text
    body = re.sub(r'"id":"[^"]*"', "", re.sub(r'"created":\d+', "", re.sub(r'"timings":{[^}]*}', "", body)))
    events = body.split("\n\n")
    by_choice = {}
    for e in events:
        index = re.search(r'"index":(\d+)', e)
        by_choice.setdefault(index.group(1) if index else "-", []).append(e)
    return by_choice  # the choices may interleave differently from run to run


def main():
    shared = [test_routes, test_completion, test_sampling, test_stream, test_chat, test_stop, test_errors,
              test_ignored_fields, test_continuous_usage, test_tokenize, test_render, test_info, test_client_leaves,
              test_many_streams]
    own = [test_queue_full, test_limits, test_drain, test_drain_slow_reader]
    start = time.monotonic()
    with Server() as s:
        for t in shared:
            if not ONLY or t.__name__ in ONLY:
                t(s)
        signature = stream_signature(s)
    for t in own:
        if not ONLY or t.__name__ in ONLY:
            t()
    if not ONLY or "test_switches" in ONLY:
        test_switches(signature)
    print(f"{time.monotonic() - start:.1f} s")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
