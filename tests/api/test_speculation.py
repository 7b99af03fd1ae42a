#!/usr/bin/env python3
"""Speculation changes no reply: `test_speculation.py BINARY MODEL`. Two servers, with and without it, get the same seeded
requests of every kind, also as lines of batches. Text, finish, log-probabilities, usage and the events of streams are equal. Guesses must have been checked, right ones and wrong ones. Closes with `N passed, N failed`."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from test_openai import Server, check, results

WORDS = "the cat sat on the mat and the dog sat on the log and the cat saw the dog and the dog saw the cat "
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]


def requests():
    """(path, body) of all kinds. Long greedy replies of a small model repeat themselves, so guesses are right at times."""
    base = {"max_tokens": 90, "temperature": 0}
    extras = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.2, "top_p": 0.9, "seed": 4, "n": 3},
              {"repetition_penalty": 1.3, "temperature": 0.5, "seed": 5}, {"presence_penalty": 0.4, "frequency_penalty": 0.3},
              {"min_tokens": 60}, {"ignore_eos": True}, {"stop": [" cat", "log a", "e s"]}, {"stop": ["t"], "include_stop_str_in_output": True},
              {"logit_bias": {"5": 2, "9": -3}}, {"bad_words": [" the"], "seed": 6, "temperature": 0.7}, {"max_tokens": 1}, {"max_tokens": 2},
              {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"regex": "(the cat sat |the dog ran ){3,9}"}},
              {"structured_outputs": {"json": SCHEMA}, "temperature": 1, "seed": 8, "n": 2}, {"cache_salt": "s"}, {"priority": -1}]
    for i, extra in enumerate(extras):
        chat = {**base, "messages": [{"role": "user", "content": WORDS * (1 + i % 3)}], **extra}
        text = {**base, "prompt": WORDS * (1 + i % 3), **extra}
        yield "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2}
        yield "/v1/completions", {**text, "logprobs": 2}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
            yield path, {**body, "stream": True, "stream_options": {"include_usage": True}}
    text = {**base, "prompt": WORDS}
    yield "/v1/completions", {**text, "echo": True, "logprobs": 1, "max_tokens": 40}
    yield "/v1/completions", {**text, "return_token_ids": True, "stream": True}
    chat = {**base, "messages": [{"role": "user", "content": WORDS}]}
    yield "/v1/chat/completions", {**chat, "prediction": {"type": "content", "content": WORDS}}
    yield "/v1/chat/completions", {**chat, "prediction": {"type": "content", "content": [{"type": "text", "text": WORDS}]}, "n": 2, "seed": 1,
                                   "temperature": 0.9}
    yield "/v1/chat/completions", {**chat, "tools": TOOLS, "tool_choice": "required"}
    yield "/v1/chat/completions", {**chat, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}, "stream": True}
    yield "/v1/responses", {"input": WORDS, "max_output_tokens": 80, "temperature": 0}
    yield "/v1/messages", {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 80, "temperature": 0, "stop_sequences": ["dog"]}


def plain(value):
    """A reply without ids and times, and without what came of a prediction."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    drop = {"id", "created", "created_at", "completed_at", "accepted_prediction_tokens", "rejected_prediction_tokens", "timings", "metrics", "cached_tokens",
            "cache_read_input_tokens"}
    return {k: plain(v) for k, v in value.items() if k not in drop}


def events(text):
    """Of a stream, choice by choice: those of several choices come in any order."""
    all_of = [plain(json.loads(line[6:])) for line in text.splitlines() if line.startswith("data: {")]
    return sorted(all_of, key=lambda e: e["choices"][0]["index"] if e.get("choices") else 99)


def counter(server, name):
    text = server.get("/metrics").text
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.M))


def post(server, path, body):
    r = server.post(path, body)
    return r.status_code, r.text


def run_batch(server, path, lines):
    """The bodies of a batch by custom_id, errors too."""
    c = server.client
    b = c.batches.create(input_file_id=c.files.create(file=("in.jsonl", lines.encode()), purpose="batch").id, endpoint=path,
                         completion_window="24h")
    while b.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.02)
        b = c.batches.retrieve(b.id)
    files = [f for f in (b.output_file_id, b.error_file_id) if f]
    rows = [json.loads(x) for f in files for x in c.files.content(f).text.splitlines()]
    return {r["custom_id"]: (r["response"]["status_code"], plain(r["response"]["body"])) for r in rows}


def check_batches(off, on):
    """Lines of batches are guessed too, with the same results; and not where a line asks for no guesses."""
    for path in ("/v1/completions", "/v1/chat/completions"):
        bodies = [b for p, b in requests() if p == path and not b.get("stream")]
        for more, guessed in (({}, True), ({"speculation": False}, False)):
            lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": path, "body": {**b, **more}}) + "\n"
                            for i, b in enumerate(bodies))
            before = counter(on, "vllm:spec_decode_num_draft_tokens_total")
            x, y = run_batch(off, path, lines), run_batch(on, path, lines)
            grew = counter(on, "vllm:spec_decode_num_draft_tokens_total") - before
            check(f"a batch of {path} {more}: {len(x)} lines, the same results", len(x) == len(bodies) and x == y and
                  {code for code, _ in x.values()} == {200}, (x, y))
            check(f"a batch of {path} {more}: {grew:.0f} tokens were guessed", (grew > 100) == guessed and (guessed or grew == 0), grew)


def main():
    with tempfile.TemporaryDirectory() as x, tempfile.TemporaryDirectory() as y, \
            Server("--threads", "1", "--batch-dir", x, "--no-speculation") as off, \
            Server("--threads", "1", "--batch-dir", y, "--speculative-config", '{"adaptive": false}') as on:
        for path, body in requests():
            name = f"{path} {json.dumps({k: v for k, v in body.items() if k not in ('messages', 'prompt', 'input', 'prediction')})[:150]}"
            (a, x), (b, y) = post(off, path, body), post(on, path, body)
            if a == b == 200 and body.get("stream"):
                x, y = events(x), events(y)
            elif a == b == 200:
                x, y = plain(json.loads(x)), plain(json.loads(y))
            check(name, a == b == 200 and x == y, f"{a}: {x}\n    {b}: {y}")
        tried, right = (counter(on, f"vllm:spec_decode_num_{k}_tokens_total") for k in ("draft", "accepted"))
        check(f"guesses were checked, right and wrong ones: {right:.0f} of {tried:.0f}", 100 < right < tried, (right, tried))
        check("by place and by source they are as many",
              counter(on, "vllm:spec_decode_num_accepted_tokens_per_pos_total") == right and
              counter(on, "roseinfer:spec_tokens_total") == tried)
        check("without speculation there is no such counter", "spec_" not in off.get("/metrics").text)
        dashboard = (pathlib.Path(__file__).parents[2] / "tools/grafana/roseinfer.json").read_text()
        names = set(re.findall(r"(?:vllm|roseinfer):spec\w+", dashboard))
        check("the dashboard's metrics of speculation exist", len(names) == 5 and all(f"\n{n}{{" in on.get("/metrics").text for n in names), names)
        with tempfile.TemporaryDirectory() as d:
            shutil.copy(pathlib.Path(__file__).parents[2] / "tools/grafana/make.py", d)
            subprocess.run([sys.executable, f"{d}/make.py"], check=True)
            check("the dashboard is what tools/grafana/make.py writes", pathlib.Path(d, "roseinfer.json").read_text() == dashboard)
        check_batches(off, on)
        before = counter(on, "vllm:spec_decode_num_draft_tokens_total")
        for path, field in (("/v1/completions", {"prompt": WORDS}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}]})):
            post(on, path, {**field, "max_tokens": 90, "temperature": 0, "speculation": False})
        check('"speculation": false guesses nothing', counter(on, "vllm:spec_decode_num_draft_tokens_total") == before)
        code, text = post(on, "/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 60, "temperature": 0})
        reply = json.loads(text)["choices"][0]["message"]["content"]
        code, text = post(on, "/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 60, "temperature": 0,
                                                       "prediction": {"type": "content", "content": reply}})
        usage, timings = json.loads(text)["usage"]["completion_tokens_details"], json.loads(text)["timings"]
        check("the timings tell the guesses", timings["draft_n"] >= timings["draft_n_accepted"] >= 10, timings)
        check("a prediction that is right is accepted", code == 200 and usage["accepted_prediction_tokens"] >= 10, text)
        for wrong in ("x", {"type": "content"}, {"type": "text", "content": "x"}, {"type": "content", "content": [{"type": "image"}]},
                      {"type": "content", "content": [{"type": "image_url", "text": "x"}]}, []):
            code, text = post(on, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "prediction": wrong})
            check(f"prediction {json.dumps(wrong)} is refused by name", code == 400 and json.loads(text)["error"]["param"] == "prediction", text)
        code, text = post(on, "/v1/completions", {"prompt": "x", "max_tokens": 2, "speculation": 1})
        check("speculation 1 is refused by name", code == 400 and json.loads(text)["error"]["param"] == "speculation", text)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
