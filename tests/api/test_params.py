#!/usr/bin/env python3
"""The parameters of sampling, over HTTP: `test_params.py BINARY MODEL`; closes with `N passed, N failed`.

logprobs, echo, prompt_logprobs against transformers' golden figures; bias, penalties, stop ids, bad words; what lm-eval's
local-completions sends. The same bytes alone and in a crowd: same_bits.py.
"""
import json
import math
import os
import sys
import time

from test_openai import MODEL, NAME, ONLY, PROMPT, SLOW, Server, check, complete, openai, raised, results

ROOT = os.environ.get("ROSE_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))


def ids_of(s, text):
    return s.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_completion_logprobs(s):
    r = complete(s, logprobs=5, max_tokens=12)
    lp = r.choices[0].logprobs
    n = r.usage.completion_tokens
    check("four lists of the same length", n == 12 and
          n == len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset), lp)
    check("the tokens are the text", "".join(lp.tokens) == r.choices[0].text, lp.tokens)
    check("offsets are the tokens' places", all(r.choices[0].text[o:].startswith(t)
                                                for o, t in zip(lp.text_offset, lp.tokens)), lp)
    check("greedy takes the best", all(v == max(t.values()) for v, t in zip(lp.token_logprobs, lp.top_logprobs)), lp)
    check("five alternatives", all(len(t) == 5 for t in lp.top_logprobs), lp.top_logprobs)
    check("probabilities", all(v <= 0 and sum(math.exp(x) for x in t.values()) <= 1 + 1e-5
                               for v, t in zip(lp.token_logprobs, lp.top_logprobs)), lp)
    bare = complete(s, max_tokens=12)
    check("logprobs change nothing", bare.choices[0].text == r.choices[0].text and bare.choices[0].logprobs is None)
    zero = complete(s, logprobs=0, max_tokens=3).choices[0].logprobs
    check("logprobs 0: the token alone", all(list(t.values()) == [v] for v, t in
                                             zip(zero.token_logprobs, zero.top_logprobs)), zero)
    hot = complete(s, logprobs=20, max_tokens=30, temperature=1.5, seed=5).choices[0].logprobs
    check("sampled tokens beside the best 20", all(len(t) in (20, 21) and k in t for k, t in
                                                   zip(hot.tokens, hot.top_logprobs)), hot)
    streamed = {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
    for chunk in complete(s, logprobs=5, max_tokens=12, stream=True):
        for key, v in streamed.items():
            v.extend(getattr(chunk.choices[0].logprobs, key))
    check("streamed logprobs are the same", streamed == {k: getattr(lp, k) for k in streamed}, streamed)


def test_chat_logprobs(s):
    kw = {"model": NAME, "messages": [{"role": "user", "content": "Tell me of a king."}], "max_tokens": 10,
          "temperature": 0, "logprobs": True}
    r = s.client.chat.completions.create(top_logprobs=3, **kw)
    content = r.choices[0].logprobs.content
    check("chat: an entry for each token", len(content) == r.usage.completion_tokens, content)
    check("chat: three alternatives, the best first", all(
        len(e.top_logprobs) == 3 and e.top_logprobs[0].logprob == e.logprob and
        e.logprob >= e.top_logprobs[1].logprob >= e.top_logprobs[2].logprob for e in content), content)
    check("chat: bytes are the token", all(bytes(e.bytes).decode("utf-8", "replace") == e.token for e in content))
    got = []
    for chunk in s.client.chat.completions.create(top_logprobs=3, stream=True, **kw):
        if chunk.choices[0].logprobs:
            got += chunk.choices[0].logprobs.content
    check("chat: streamed the same", got == content, got)
    check("chat: without top_logprobs", all(
        e.top_logprobs == [] for e in s.client.chat.completions.create(**kw).choices[0].logprobs.content))


def test_echo(s):
    r = complete(s, echo=True, max_tokens=6, logprobs=2)
    lp, n = r.choices[0].logprobs, r.usage.prompt_tokens
    check("echo: the prompt precedes", r.choices[0].text.startswith(PROMPT) and "".join(lp.tokens) == r.choices[0].text)
    check("echo: logprobs of both", len(lp.tokens) == n + 6 and lp.token_logprobs[0] is None and
          lp.top_logprobs[0] is None and None not in lp.token_logprobs[1:], lp)
    full = ids_of(s, PROMPT) + [int(t[9:]) for t in complete(
        s, max_tokens=6, logprobs=0, extra_body={"return_tokens_as_token_ids": True}).choices[0].logprobs.tokens]
    scored = complete(s, prompt=full, echo=True, max_tokens=0, logprobs=2)
    check("max_tokens 0 scores what was generated, bit for bit",
          scored.choices[0].logprobs.token_logprobs == lp.token_logprobs and scored.choices[0].text == r.choices[0].text
          and scored.usage.completion_tokens == 0 and scored.choices[0].finish_reason == "length", scored)
    text = "".join(c.choices[0].text for c in complete(s, echo=True, max_tokens=6, stream=True))
    check("echo streamed", text == r.choices[0].text, text)
    check("echo of one token, nothing to score", complete(s, prompt=[5], echo=True, max_tokens=0, logprobs=1)
          .choices[0].logprobs.token_logprobs == [None])
    many = complete(s, prompt=["One day", "The king"], n=2, echo=True, max_tokens=2, logprobs=1)
    check("echo of several prompts", [c.text[:7] for c in many.choices] == ["One day"] * 2 + ["The kin"] * 2, many)
    full = complete(s, prompt=[7] * 512, echo=True, max_tokens=0, logprobs=0)
    check("a prompt that fills the context", len(full.choices[0].logprobs.tokens) == 512)


def test_prompt_logprobs(s):
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 2, "temperature": 0}
    r = s.post("/v1/completions", body).json()
    p, ids = r["choices"][0]["prompt_logprobs"], ids_of(s, PROMPT)
    check("prompt_logprobs: null, then objects with the token itself", p[0] is None and len(p) == len(ids) and
          all(str(i) in e for i, e in zip(ids[1:], p[1:])), p)
    check("prompt_logprobs: ranks and texts", all(
        {"logprob", "rank", "decoded_token"} == set(v) for e in p[1:] for v in e.values()) and
          all({1, 2} <= {v["rank"] for v in e.values()} for e in p[1:]), p)
    echo = complete(s, echo=True, max_tokens=1, logprobs=0).choices[0].logprobs.token_logprobs
    check("prompt_logprobs equal echo's", [e[str(i)]["logprob"] for i, e in zip(ids[1:], p[1:])] ==
          echo[1:len(ids)], echo)


def test_rules(s):
    words = ids_of(s, " king queen forest")
    r = complete(s, logit_bias={str(words[0]): 100}, max_tokens=5)
    check("logit_bias 100 forces", r.choices[0].text == " king" * 5, r.choices[0].text)
    first = complete(s, max_tokens=1, logprobs=0, extra_body={"return_tokens_as_token_ids": True})
    best = first.choices[0].logprobs.tokens[0][9:]
    r = complete(s, logit_bias={best: -100}, max_tokens=1)
    check("logit_bias -100 bans", r.choices[0].text != complete(s, max_tokens=1).choices[0].text, r)
    lp = complete(s, logit_bias={best: -100}, max_tokens=1, logprobs=1).choices[0].logprobs
    check("logprobs are of the model's own logits", lp.token_logprobs[0] < max(lp.top_logprobs[0].values()), lp)
    r = complete(s, max_tokens=40, temperature=1.3, seed=1, extra_body={
        "allowed_token_ids": words, "return_token_ids": True})
    check("allowed_token_ids", set(r.choices[0].token_ids) <= set(words) and len(r.choices[0].token_ids) > 30, r)
    check("return_token_ids: the prompt's too", r.choices[0].prompt_token_ids == ids_of(s, PROMPT), r)
    plain = complete(s, max_tokens=120)
    for name, kw in (("frequency", {"frequency_penalty": 2}), ("presence", {"presence_penalty": 2}),
                     ("repetition", {"extra_body": {"repetition_penalty": 1.5}})):
        kw["extra_body"] = dict(kw.get("extra_body", {}), return_token_ids=True, ignore_eos=True)
        a, b = (len(set(complete(s, max_tokens=200, **k).choices[0].token_ids)) for k in ({"extra_body": {
            "return_token_ids": True, "ignore_eos": True}}, kw))
        check(f"{name} penalty: more different tokens", b > a, (a, b))
    once = complete(s, max_tokens=200, frequency_penalty=2, presence_penalty=2, extra_body={
        "repetition_penalty": 100, "return_token_ids": True, "ignore_eos": True})
    ids = once.choices[0].token_ids
    check("a repetition penalty of 100: no id twice", len(set(ids)) == len(ids) == 200, ids)
    word = plain.choices[0].text.split()[2]
    r = complete(s, max_tokens=120, extra_body={"bad_words": [word, "the king"]})
    check("bad_words", word not in r.choices[0].text.split() and "the king" not in r.choices[0].text and
          word in plain.choices[0].text.split(), (word, r.choices[0].text))
    ids = complete(s, max_tokens=20, extra_body={"return_token_ids": True}).choices[0].token_ids
    stop = {"stop_token_ids": [ids[8]], "return_token_ids": True}
    at = ids.index(ids[8])
    r = complete(s, max_tokens=20, extra_body=stop)
    check("stop_token_ids", r.choices[0].token_ids == ids[:at + 1] and r.choices[0].finish_reason == "stop", r)
    inc = complete(s, max_tokens=20, extra_body=dict(stop, include_stop_str_in_output=True))
    check("include_stop_str_in_output with an id", inc.choices[0].text.startswith(r.choices[0].text) and
          len(inc.choices[0].text) > len(r.choices[0].text), (inc.choices[0].text, r.choices[0].text))
    r = complete(s, max_tokens=20, extra_body=dict(stop, min_tokens=at + 4))
    check("min_tokens holds back stop ids", len(r.choices[0].token_ids) >= at + 4, r)
    for kw in ({"max_tokens": 5, "min_tokens": 6}, {"max_tokens": 0, "min_tokens": 1}, {"min_tokens": 17},
               {"prompt": [5] * 508, "min_tokens": 5}):
        r = s.post("/v1/completions", {"prompt": PROMPT, **kw})
        check(f"min_tokens {kw['min_tokens']} beyond what {sorted(kw)} leave: 400", r.status_code == 400 and
              r.json()["error"]["param"] == "min_tokens", r.text)
    check("min_tokens up to them", complete(s, max_tokens=5, extra_body={"min_tokens": 5}).usage.completion_tokens == 5)
    pieces = [s.post("/detokenize", {"tokens": [i]}).json()["prompt"] for i in ids]
    whole = "".join(pieces)
    for k in range(1, len(pieces)):  # begins in token k, ends in the next
        cut, at = pieces[k - 1][-1:] + pieces[k][:1], len("".join(pieces[:k])) - 1
        if whole.find(cut) == at:
            break
    for least, want in ((k, whole[:at]), (k + 1, None)):
        r = complete(s, max_tokens=20, stop=cut, extra_body={"min_tokens": least}).choices[0]
        check("a stop string ends after min_tokens or not at all", r.text == want if want is not None else
              r.text.startswith(whole[:at + 2]), (least, cut, r))
    text = plain.choices[0].text
    cut = text[10:14]
    a = complete(s, max_tokens=120, stop=cut).choices[0].text
    b = complete(s, max_tokens=120, stop=cut, extra_body={"include_stop_str_in_output": True}).choices[0].text
    check("include_stop_str_in_output with a string", a == text[:text.index(cut)] and b == a + cut, (a, b))
    eos = s.post("/tokenize", {"prompt": "<|endoftext|>"}).json()["tokens"]
    r = complete(s, max_tokens=20, logit_bias={str(eos[0]): 100}, extra_body={"return_token_ids": True})
    check("a biased end of sequence ends at once", r.choices[0].token_ids == eos and r.choices[0].text == "", r)
    r = complete(s, max_tokens=20, logit_bias={str(eos[0]): 100}, extra_body={"min_tokens": 6, "return_token_ids": True})
    check("min_tokens holds it back", len(r.choices[0].token_ids) == 7 and r.choices[0].token_ids[-1] == eos[0], r)


def test_number_forms(s):
    """Clients that have only floats, and best_of where it asks for no more than n."""
    ints = {"max_tokens": 6, "top_k": 40, "seed": 7, "n": 2, "logprobs": 2, "min_tokens": 3, "priority": 0}
    body = {"prompt": PROMPT, "temperature": 1.0, "return_token_ids": True}
    want = [c["token_ids"] for c in s.post("/v1/completions", {**body, **ints}).json()["choices"]]
    r = s.post("/v1/completions", {**body, **{k: float(v) for k, v in ints.items()}, "best_of": 2.0})
    check("integral floats are integers", r.status_code == 200 and [c["token_ids"] for c in r.json()["choices"]] == want and
          len(want) == 2 and "x-ignored-fields" not in r.headers, r.text)
    for name in ints:
        r = s.post("/v1/completions", {**body, name: 5.5})
        check(f"{name} 5.5: 400", r.status_code == 400 and r.json()["error"]["param"] == name, r.text)
    for n, best_of in ((1, 2), (3, 2)):
        r = s.post("/v1/completions", {**body, "n": n, "best_of": best_of})
        check(f"n {n}, best_of {best_of}: 400", r.status_code == 400 and r.json()["error"]["param"] == "best_of", r.text)


def test_labels_and_timeout(s):
    r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "a-b.c:9"})
    check("X-Request-Id comes back", r.headers.get("x-request-id") == "a-b.c:9", r.headers)
    r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True}, headers={"X-Request-Id": "s1"})
    check("X-Request-Id of a stream", r.headers.get("x-request-id") == "s1", r.headers)
    for bad in ("a b", "x" * 129, "a<b>"):
        r = s.post("/v1/completions", {"prompt": "x"}, headers={"X-Request-Id": bad})
        check(f"X-Request-Id {bad[:5]!r} is refused", r.status_code == 400 and "x-request-id" not in r.headers, r.text)
    big = {"prompt": [5] * 200, "n": 100, "max_tokens": 300, "ignore_eos": True, "timeout": 0.2}
    r = s.post("/v1/completions", big)
    check("timeout: 504", r.status_code == 504 and r.json()["error"]["code"] == "timeout", r.text[:200])
    for seconds in (0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32):  # long enough to begin, and not to end
        text = s.post("/v1/completions", dict(big, stream=True, prompt="x", timeout=seconds)).text
        if text.startswith("data: "):
            break
    check("timeout within a stream: an error event", '"code":"timeout"' in text and text.endswith("[DONE]\n\n"), text[-300:])
    check("timeout frees all", s.settle()["running"] == 0)
    n, length = (8, 50) if SLOW else (128, 511)
    r = s.post("/v1/completions", {"prompt": "x", "logprobs": 20, "n": n, "max_tokens": length})
    check(f"{n} x {length} x 20 logprobs are within the cap, and come", r.status_code == 200, r.text[:200])


def test_golden():
    """The log-likelihood of the held-out text, transformers' and ours."""
    held = json.load(open(os.path.join(ROOT, "tests/golden/rose-tiny.json"), encoding="utf-8"))["held_out"]
    with Server("--dtype", "float32") as s:
        for w in held["windows"]:
            ids = held["ids"][w["first"]:w["first"] + w["n"] + 1]
            lp = complete(s, prompt=ids[:512], echo=True, logprobs=1, max_tokens=0).choices[0].logprobs.token_logprobs
            nll = -sum(lp[1:])
            if len(ids) <= 512:
                check("the text's NLL equals transformers'", abs(nll - w["nll_sum"]) < 1e-4 * w["nll_sum"],
                      (nll, w["nll_sum"]))
            else:  # the context ends one token before the window does
                last = w["nll_sum"] - nll
                check("the text's NLL but for the last token", 0 < last < 20, (nll, w["nll_sum"]))


def lm_eval_scores(s, contexts_and_ends):
    """What lm-eval's local-completions sends and reads for loglikelihood requests (tokenized_requests)."""
    prompts = [a + b for a, b in contexts_and_ends]
    r = s.post("/v1/completions", {"model": NAME, "prompt": prompts, "max_tokens": 1, "logprobs": 1, "seed": 1234,
                                   "temperature": 0, "echo": True}).json()
    out = []
    for choice, (context, _) in zip(sorted(r["choices"], key=lambda c: c["index"]), contexts_and_ends):
        n = len(context)
        values = choice["logprobs"]["token_logprobs"][n:-1]
        tops = choice["logprobs"]["top_logprobs"][n:-1]
        out.append((sum(values), all(v == max(t.values()) for v, t in zip(values, tops))))
    return out


def test_lm_eval(s):
    context = ids_of(s, PROMPT)
    greedy = complete(s, max_tokens=4, extra_body={"return_token_ids": True}).choices[0].token_ids
    other = ids_of(s, " stone stone")
    scores = lm_eval_scores(s, [(context, greedy), (context, other), (context, other)])
    check("lm-eval: the greedy continuation is greedy and likelier", scores[0][1] and not scores[1][1] and
          scores[0][0] / 4 > scores[1][0] / 2, scores)
    check("lm-eval: equal requests, equal scores", scores[1] == scores[2], scores)
    # loglikelihood_rolling: one token of context (the end of text), the rest is scored
    text = ids_of(s, "The king rode out of the forest.")
    rolling = lm_eval_scores(s, [([0], text)])[0][0]
    echo = complete(s, prompt=[0] + text, echo=True, max_tokens=0, logprobs=0).choices[0].logprobs.token_logprobs
    check("lm-eval: rolling equals echo", rolling == sum(echo[1:]), (rolling, sum(echo[1:])))
    # generate_until
    r = s.post("/v1/completions", {"model": NAME, "prompt": [context], "max_tokens": 16, "temperature": 0,
                                   "stop": ["\n\n"], "seed": 1234}).json()
    check("lm-eval: generate_until", isinstance(r["choices"][0]["text"], str), r)


def main():
    start = time.monotonic()
    with Server() as s:
        for t in (test_completion_logprobs, test_chat_logprobs, test_echo, test_prompt_logprobs, test_rules,
                  test_number_forms,
                  test_labels_and_timeout, test_lm_eval):
            if not ONLY or t.__name__ in ONLY:
                t(s)
        e = raised(openai.APIStatusError, lambda: complete(s, max_tokens=300, n=100, extra_body={
            "timeout": 0.01, "ignore_eos": True}))
        check("timeout in openai", e is not None and e.status_code == 504, e)
    if not ONLY or "test_golden" in ONLY:
        test_golden()
    print(f"{time.monotonic() - start:.1f} s, {os.path.basename(MODEL)}")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
