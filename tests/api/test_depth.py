#!/usr/bin/env python3
"""Between socket and step, over HTTP: `test_depth.py BINARY MODEL`; closes with `N passed, N failed`.

The prefix cache as a client sees it (cached_tokens, cache_salt), priorities, stop_reason, rules that leave no token,
and what is refused because it would come too late.
"""
import concurrent.futures
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
    check("found only behind the first token: 400 no_token_left", r.status_code == 400 and
          r.json()["error"]["code"] == "no_token_left", r.text)
    r = s.post("/v1/completions", dict(pair, stream=True))
    events = r.status_code == 200 and '" king"' in r.text and r.text.endswith("[DONE]\n\n")
    check("in a stream: 400, or an error event behind its token", '"no_token_left"' in r.text and
          (events or r.status_code == 400), r.text)
    check("the server is well", complete(s, max_tokens=1).usage.completion_tokens == 1 and
          s.settle()["status"] == "ok")


def main():
    start = time.monotonic()
    with Server() as s:
        for t in (test_cached_tokens, test_stop_reason, test_no_token_left):
            if not ONLY or t.__name__ in ONLY:
                t(s)
    for t in ():
        if not ONLY or t.__name__ in ONLY:
            t()
    print(f"{time.monotonic() - start:.1f} s, {os.path.basename(MODEL)}")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
