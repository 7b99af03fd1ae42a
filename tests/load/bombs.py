#!/usr/bin/env python3
"""What a request with an ordinary schema waits beside others whose grammars are costly.

tests/load/bombs.py PROGRAM MODEL [--bombs 8] [--rounds 5] [--kind NAME]

Starts `PROGRAM serve MODEL` and sends requests of one token. In each round a kind of costly grammar (tests/grammar/costs.py)
goes out on each of --bombs connections at once, each with a text of its own, then an ordinary schema on another connection.
Prints the seconds that the ordinary schema took alone and beside the others, and what became of those.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "grammar"))
import costs  # noqa: E402

KINDS = ["dependentRequired 100", "dependentSchemas 60", "oneOf 50 objects", "oneOf 200 objects", "oneOf 50 strings",
         "allOf 30 anyOf", "pattern a.{15}b", "300 multiples", "categories 200", "tags 2000, 2000 triggers", "excludes 2000",
         "regex (a|b)*a(a|b){14}", "ebnf 20000 rules"]
FIELDS = {costs.SCHEMA: "json", costs.REGEX: "regex", costs.EBNF: "grammar", costs.TAG: "structural_tag"}


def fresh(kind, what, mark):
    """The same grammar with another text."""
    if kind == costs.SCHEMA:
        return dict(what, title=mark)
    if kind == costs.TAG:
        return json.loads(json.dumps(what).replace("function", f"f{mark}").replace("word ", f"word {mark} "))
    return what + " " * mark if kind == costs.EBNF else f"{mark}{what}"


def ask(port, field, value):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"prompt": "a", "max_tokens": 1, "structured_outputs": {field: value}}
    start = time.monotonic()
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read().decode()
    return time.monotonic() - start, r.status, text


def ordinary(mark):
    names = ["title", "author", "year", "tags", "summary", "rating", "url", "kind"]
    props = {n: {"type": "string", "maxLength": 50} for n in names}
    props.update(year={"type": "integer", "minimum": 1900, "maximum": 2100}, tags={"type": "array", "items": {"type": "string"}},
                 kind={"enum": ["a", "b", "c"]})
    return {"type": "object", "title": str(mark), "properties": props, "required": names[:4]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--bombs", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--kind", default="")
    args = p.parse_args()
    server = subprocess.Popen([args.program, "serve", args.model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    port = next(int(line.rsplit(":", 1)[1]) for line in server.stderr if "listening on http://" in line)
    pool = concurrent.futures.ThreadPoolExecutor(args.bombs)
    mark, worst = 0, 0.0
    grammars = {name: (kind, what) for name, kind, what in costs.cases()}
    try:
        ask(port, "json", ordinary(-1))  # the tables of the vocabulary
        alone = max(ask(port, "json", ordinary(f"alone {i}"))[0] for i in range(5))
        print(f"ordinary schema alone: {alone:.3f} s")
        print(f"{'beside ' + str(args.bombs) + ' of':<30} {'ordinary s':>10} {'bombs s':>9}  answers to the bombs")
        for name in KINDS:
            if args.kind not in name:
                continue
            took, bombs, answers = 0.0, 0.0, {}
            for _ in range(args.rounds):
                kind, what = grammars[name]
                jobs = []
                for _ in range(args.bombs):
                    mark += 1
                    jobs.append(pool.submit(ask, port, FIELDS[kind], fresh(kind, what, mark)))
                time.sleep(0.05)
                took = max(took, ask(port, "json", ordinary(f"{name} {mark}"))[0])
                for j in jobs:
                    seconds, status, text = j.result()
                    bombs = max(bombs, seconds)
                    key = f"{status}" if status == 200 else f"{status} {json.loads(text)['error']['message'][:110]}"
                    answers[key] = answers.get(key, 0) + 1
            worst = max(worst, took)
            print(f"{name:<30} {took:10.3f} {bombs:9.3f}  " + "; ".join(f"{n} x {a}" for a, n in answers.items()), flush=True)
        print(f"worst: {worst:.3f} s")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
