#!/usr/bin/env python3
"""Between socket and step, over HTTP: `test_depth.py BINARY MODEL`; closes with `N passed, N failed`.

The prefix cache as a client sees it (cached_tokens, cache_salt), priorities, stop_reason, rules that leave no token,
and what is refused because it would come too late.
"""
import concurrent.futures
import http.client
import json
import os
import re
import sys
import threading
import time

from test_openai import MODEL, NAME, ONLY, PROMPT, SLOW, Server, check, complete, openai, raised, results


def ids_of(s, text):
    return s.post("/tokenize", {"prompt": text}).json()["tokens"]


def cached(s, prompt, **extra):
    r = complete(s, prompt=prompt, max_tokens=2, n=extra.pop("n", 1), extra_body=extra)
    return r.usage.prompt_tokens_details.cached_tokens


def test_cached_tokens(s):
    prompt = [100 + i for i in range(50)]  # three full pages of 16 and two tokens
    check("a first prompt is not cached", cached(s, prompt) == 0)
    check("the second is, by whole pages", cached(s, prompt) == 48)
    check("another salt does not see it", cached(s, prompt, cache_salt="tenant a") == 0)
    check("but itself", cached(s, prompt, cache_salt="tenant a") == 48)
    check("a third salt neither", cached(s, prompt, cache_salt="tenant b") == 0)
    check("one token is always computed", cached(s, prompt[:48]) == 32)
    check("a common beginning counts", cached(s, prompt[:20] + [7] * 30) == 16)
    check("n choices of a new prompt share, but found nothing", cached(s, [9] * 40, n=4) == 0)
    check("n choices of a known one", cached(s, [9] * 40, n=4) == 32)
    two = complete(s, prompt=[prompt, [8] * 40], max_tokens=2).usage.prompt_tokens_details.cached_tokens
    check("of several prompts the sum", two == 48, two)
    usage = None
    for chunk in complete(s, prompt=prompt, max_tokens=2, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
    check("in the usage of a stream", usage.prompt_tokens_details.cached_tokens == 48, usage)
    chat = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a long story of a king. " * 4}],
            "max_tokens": 2}
    first = s.client.chat.completions.create(**chat).usage
    second = s.client.chat.completions.create(**chat).usage
    check("chat", first.prompt_tokens_details.cached_tokens == 0 and
          second.prompt_tokens_details.cached_tokens == (second.prompt_tokens - 1) // 16 * 16 > 0, (first, second))
    check("an empty salt is 400", s.post("/v1/completions", {"prompt": "x", "cache_salt": ""}).status_code == 400)


def test_stop_reason(s):
    text = complete(s, max_tokens=40).choices[0].text
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    ids = s.post("/v1/completions", body).json()["choices"][0]["token_ids"]

    def reason(**extra):
        whole = s.post("/v1/completions", dict(body, **extra)).json()["choices"][0]
        lines = s.post("/v1/completions", dict(body, stream=True, **extra)).text.split("\n\n")
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]["choices"][0]
        check(f"stop_reason streamed {sorted(extra)}", last["stop_reason"] == whole["stop_reason"] and
              last["finish_reason"] == whole["finish_reason"], (last, whole))
        return whole["finish_reason"], whole["stop_reason"]
    check("stop_reason of length: null", reason() == ("length", None))
    check("of a string: the string", reason(stop=["nowhere", text[10:14]]) == ("stop", text[10:14]))
    check("of an id: the id", reason(stop_token_ids=[ids[8]]) == ("stop", ids[8]))
    eos = ids_of(s, "<|endoftext|>")[0]
    check("of end of sequence: null", reason(logit_bias={str(eos): 100}) == ("stop", None))
    check("also where its id is listed", reason(logit_bias={str(eos): 100}, stop_token_ids=[eos]) == ("stop", None))
    chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3})
    check("chat: null", chat.json()["choices"][0]["stop_reason"] is None, chat.text)


def test_no_token_left(s):
    king = ids_of(s, " king")
    check("the word is one token", len(king) == 1, king)
    body = {"prompt": PROMPT, "max_tokens": 8, "allowed_token_ids": king}
    r = s.post("/v1/completions", dict(body, bad_words=[" king"]))
    check("all that is allowed is banned: 400 that names the fields", r.status_code == 400 and
          "allowed_token_ids" in r.text and "bad_words" in r.text, r.text)
    eos = ids_of(s, "<|endoftext|>")
    r = s.post("/v1/completions", dict(body, allowed_token_ids=eos, min_tokens=2))
    check("min_tokens against the only id: 400", r.status_code == 400 and "min_tokens" in r.text, r.text)
    r = s.post("/v1/completions", dict(body, allowed_token_ids=king, stop_token_ids=king, min_tokens=1, stream=True))
    check("in a stream too, before it begins", r.status_code == 400 and "min_tokens" in r.text, r.text)
    pair = dict(body, bad_words=[" king king"])
    r = s.post("/v1/completions", pair)
    check("found only after the first token: 400 no_token_left", r.status_code == 400 and
          r.json()["error"]["code"] == "no_token_left", r.text)
    r = s.post("/v1/completions", dict(pair, stream=True))
    events = r.status_code == 200 and '" king"' in r.text and r.text.endswith("[DONE]\n\n")
    check("in a stream: 400, or an error event after its token", '"no_token_left"' in r.text and
          (events or r.status_code == 400), r.text)
    check("the server is well", complete(s, max_tokens=1).usage.completion_tokens == 1 and
          s.settle()["status"] == "ok")


# ---- tests with servers of their own ----

def metric(s, name, label=""):
    return sum(float(line.rsplit(" ", 1)[1]) for line in s.get("/metrics").text.splitlines()
               if line.startswith(name + "{") and label in line)


def hold(s, n):
    """A stream that has begun and keeps the only place for n tokens."""
    gen = complete(s, max_tokens=n, stream=True, extra_body={"ignore_eos": True})
    next(iter(gen))
    return gen


def waiting(s, n, seconds=5):
    end = time.monotonic() + seconds
    while s.get("/health").json()["waiting"] < n and time.monotonic() < end:
        time.sleep(0.002)


def queue_by_priority(s, n_before):
    """The order in which four requests of different priority end after n_before long ones, or None if they were
    not all waiting at one time: then it says nothing."""
    order, lock, threads, together = [], threading.Lock(), [], False

    def one(priority, n):
        complete(s, max_tokens=n, extra_body={"priority": priority, "ignore_eos": True})
        with lock:
            order.append(priority)
    for priority, n in [(-1000, 480)] * n_before + [(10, 60), (3, 60), (0, 60), (-2, 60)]:
        threads.append(threading.Thread(target=one, args=(priority, n)))
        threads[-1].start()
    while any(t.is_alive() for t in threads):
        with lock:
            ended = len(order)
        h = s.get("/health").json()  # the four and one more before them, so that none of the four has begun
        together = together or (ended < n_before and h["waiting"] >= 5 and h["running"] + h["waiting"] + ended >= n_before + 4)
        time.sleep(0.002)
    return [p for p in order if p != -1000] if together else None


def test_priority():
    """One place: what waits begins by priority and not by arrival."""
    with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--priority-age-ms", "60000") as s:
        order = None
        for n_before in (6, 12, 24, 48):
            order = order or queue_by_priority(s, n_before)
        check("the lower priority first, whoever came first", order == [-2, 0, 3, 10], order)


def ask(s, stream, go=None):
    """(status, code, Retry-After, seconds to the first token); go: a barrier after the connection."""
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": stream}
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
    c.connect()
    if go is not None:
        go.wait()
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read().decode()
    c.close()
    if r.status != 200:
        return r.status, json.loads(text)["error"]["code"], int(r.headers["retry-after"]), 0
    t = json.loads(text)["timings"] if not stream else json.loads(re.findall(r'"timings":(\{[^}]*\})', text)[-1])
    return 200, None, 0, t["ttft_ms"] * 1e-3


def test_ttft_slo():
    """Requests for many times the goal at once: those who would come too late hear so at once."""
    body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
    with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "512") as s:
        s.post("/v1/completions", body)
        start = time.monotonic()
        s.post("/v1/completions", body)
        one = time.monotonic() - start
    slo = one * 3
    with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--ttft-slo-ms", str(int(slo * 1e3) + 1)) as s:
        for _ in range(3):
            s.post("/v1/completions", body)  # it learns what a step costs, and how long an answer is
        start, go = time.monotonic(), threading.Barrier(32)
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            got = list(pool.map(lambda i: ask(s, i % 2 == 0, go), range(32)))
        took = time.monotonic() - start
        served, refused = [g for g in got if g[0] == 200], [g for g in got if g[0] != 200]
        print(f"    an answer takes {one:.3f} s, the goal is {slo:.3f} s; {len(served)} served in {took:.3f} s")
        check("some are served, some refused", len(served) >= 1 and len(refused) >= 1, got)
        check("429, slo_ttft, Retry-After", all(g[:2] == (429, "slo_ttft") and 1 <= g[2] <= 600 for g in refused), got)
        check("the counter has the reason", metric(s, "vllm:admission_rejections_total", 'reason="slo_ttft"') ==
              len(refused) and metric(s, "vllm:admission_rejections_total", 'reason="queue_full"') == 0)
        print(f"    {sum(g[3] <= slo for g in served)} of them in time")
        h = s.settle()
        check("nothing is left", h["running"] == h["waiting"] == 0 and h["kv_pages"] == h["kv_pages_free"], h)
        check("alone it is always served", ask(s, False)[0] == 200)


def test_itl_slo():
    """A goal between tokens may cut a long prompt into smaller pieces: the bytes are the same.

    How many pieces depends on how fast the machine is. tests/sched/test_sched.c counts them with exact costs."""
    prompt = [100 + i for i in range(400)]
    texts = []
    for options in ([], ["--itl-slo-ms", "1"]):
        with Server("--no-prefix-cache", *options) as s:
            for _ in range(3):  # what prompts and decodes cost
                complete(s, max_tokens=16)
            for _ in range(20):  # until the one that decodes is there to the end
                held = hold(s, 480)
                text = complete(s, prompt=prompt, max_tokens=1).choices[0].text
                beside = s.get("/health").json()["running"] == 1
                held.close()
                s.settle()
                if beside:
                    break
            texts.append(text)
    check("a goal between tokens: the same bytes", texts[0] == texts[1] and texts[0] != "", texts)


def test_retry_after():
    """A queue that takes long to drain says so; one that does not, does not."""
    with Server("--max-num-seqs", "1", "--max-num-batched-tokens", "512", "--max-num-queued-reqs", "400", "--max-n",
                "512") as s:
        body = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True}
        for _ in range(2):
            s.post("/v1/completions", body)  # it learns
        r = s.post("/v1/completions", dict(body, n=512))
        check("more answers than this server ever holds: 400, not 429", r.status_code == 400 and
              "--max-num-queued-reqs" in r.text and "retry-after" not in r.headers, (r.text, r.headers))
        s.settle()
        crowd = http.client.HTTPConnection("127.0.0.1", s.port, timeout=300)
        crowd.request("POST", "/v1/completions", json.dumps(dict(body, n=400)), {"Content-Type": "application/json"})
        waiting(s, 350, 60)
        r = s.post("/v1/completions", dict(body, n=200))
        after = int(r.headers.get("retry-after", 0))
        check("hundreds of answers wait: more than a second", r.status_code == 429 and 1 < after <= 600, (r.text, after))
        print(f"    Retry-After: {after}")
        crowd.sock.close()
        h = s.settle()
        check("nothing is left of them", h["running"] == h["waiting"] == 0, h)


def main():
    start = time.monotonic()
    with Server() as s:
        for t in (test_cached_tokens, test_stop_reason, test_no_token_left):
            if not ONLY or t.__name__ in ONLY:
                t(s)
    for t in (test_priority, test_ttft_slo, test_itl_slo, test_retry_after):
        if not ONLY or t.__name__ in ONLY:
            t()
    print(f"{time.monotonic() - start:.1f} s, {os.path.basename(MODEL)}")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
