#!/usr/bin/env python3
"""A request gets the same bits in any company: `same_bits.py BINARY MODEL [options]`; closes with `N passed, N failed`.

Seeded random requests with mixed parameters run alone on a server without prefix cache: the reference. Then the same
requests run in crowds, on servers that cut prompts into chunks of several sizes, find prefixes cached, run out of pages
and preempt, and serve clients that leave; text, ids, logprobs, finish reasons and usage must be byte-equal. Standard
library only, so it runs wherever the binary does: `--args "--device cuda"` for a GPU. `--url` compares requests alone and
in a crowd on one server that is there already. MODEL may be a GGUF file, or a config.json: of that shape a random model
is made.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

results = {"passed": 0, "failed": 0}
PAGE = 16


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:3000]}"), flush=True)


class Server:
    """One that was there (url), or `BINARY serve MODEL options` on a free port."""

    def __init__(self, args, *options, url=None):
        self.p, self.log, self.options = None, [], options
        if url:
            parts = urllib.parse.urlsplit(url)
            self.host, self.port = parts.hostname, parts.port or 80
            return
        self.host, self.port, self.ready = "127.0.0.1", None, threading.Event()
        command = [args.binary, "serve", args.model, "--port", "0", *args.args.split(), *options]
        self.p = subprocess.Popen(command, stderr=subprocess.PIPE)
        threading.Thread(target=self._read, daemon=True).start()
        if not self.ready.wait(300) or self.port is None:
            self.p.kill()
            raise RuntimeError("the server did not start: " + "".join(self.log))

    def _read(self):
        for line in self.p.stderr:
            line = line.decode("utf-8", "replace")
            self.log.append(line)
            m = re.search(r"listening on http://[^ ]*:(\d+)", line)
            if m:
                self.port = int(m.group(1))
                self.ready.set()
        self.ready.set()

    def request(self, path, body=None):
        c = http.client.HTTPConnection(self.host, self.port, timeout=600)
        try:
            if body is None:
                c.request("GET", path)
            else:
                c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode("utf-8")
        finally:
            c.close()

    def metric(self, name):
        text = self.request("/metrics")[1]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    def settle(self, seconds=30):
        end = time.monotonic() + seconds
        while True:
            h = json.loads(self.request("/health")[1])
            if (h["running"], h["waiting"]) == (0, 0) or time.monotonic() > end:
                return h
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.p is None:
            return
        self.p.terminate()
        try:
            rc = self.p.wait(120)
        except subprocess.TimeoutExpired:
            self.p.kill()
            rc = -1
        if exc[0] is None:
            check(f"server exits 0 ({' '.join(self.options) or 'defaults'})", rc == 0, (rc, "".join(self.log[-20:])))


def random_request(rng, ids, longest):
    body = {"prompt": [rng.choice(ids) for _ in range(rng.randint(1, longest))], "max_tokens": rng.randint(1, 64),
            "seed": rng.getrandbits(63), "temperature": rng.choice([0, 0.3, 1, 1.7]), "return_token_ids": True,
            "ignore_eos": rng.random() < 0.5}
    options = {"top_p": rng.uniform(0.1, 1), "top_k": rng.randint(1, 80), "min_p": rng.uniform(0, 0.3),
               "logprobs": rng.randint(0, 20), "echo": True, "prompt_logprobs": rng.randint(0, 5),
               "presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-2, 2),
               "repetition_penalty": rng.uniform(0.5, 2), "min_tokens": rng.randint(0, 20),
               "logit_bias": {str(rng.choice(ids)): rng.uniform(-100, 20) for _ in range(rng.randint(1, 30))},
               "stop_token_ids": rng.sample(ids, 20), "allowed_token_ids": rng.sample(ids, 300),
               "bad_words": ["the", "king", " and the"], "stop": ["e", "\n\n"], "n": rng.randint(1, 3),
               "include_stop_str_in_output": True, "return_tokens_as_token_ids": True}
    for key in rng.sample(sorted(options), rng.randint(0, 8)):
        body[key] = options[key]
    if "min_tokens" in body:
        body["min_tokens"] = min(body["min_tokens"], body["max_tokens"])
    body["stream"] = "prompt_logprobs" not in body and rng.random() < 0.3
    return body


def outcome(s, body):
    """What must not depend on the company: all of the reply but names and times."""
    _, text = s.request("/v1/completions", body)
    if not body["stream"]:
        reply = json.loads(text)
        usage = reply.get("usage") or {}
        usage.pop("prompt_tokens_details", None)  # what was found cached depends on who came before
        return json.dumps({"choices": reply.get("choices"), "usage": usage, "error": reply.get("error")})
    choices, error = {}, None
    for line in text.split("\n\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            error = error or event.get("error")
            for c in event.get("choices", []):
                choices.setdefault(c["index"], []).append(c)
    return json.dumps({"choices": sorted(choices.items()), "error": error or (None if choices else text[:500])})


class Leavers:
    """Clients around the requests that hang up at once, in the midst, or after some tokens."""

    def __init__(self, s, seed, ids, n=4):
        self.s, self.ids, self.stop, self.n_left = s, ids, threading.Event(), 0
        self.threads = [threading.Thread(target=self._run, args=(random.Random(seed + i),), daemon=True)
                        for i in range(n)]

    def _run(self, rng):
        while not self.stop.is_set():
            body = {"prompt": [rng.choice(self.ids) for _ in range(rng.randint(1, 120))], "max_tokens": 60,
                    "ignore_eos": True, "n": rng.randint(1, 4), "stream": rng.random() < 0.7}
            c = http.client.HTTPConnection(self.s.host, self.s.port, timeout=60)
            try:
                c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                if body["stream"] and rng.random() < 0.7:
                    c.getresponse().read(rng.randint(1, 4000))
                else:
                    time.sleep(rng.random() * 0.05)
                self.n_left += 1
            except (OSError, http.client.HTTPException):
                pass
            finally:
                c.close()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join()


def crowd(s, bodies, rng, args):
    """Each request args.repeats times, in a random order: (number of the request, outcome) of each."""
    order = list(range(len(bodies))) * args.repeats
    rng.shuffle(order)
    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        return list(zip(order, pool.map(lambda i: outcome(s, bodies[i]), order)))


def compare(what, bodies, alone, got):
    bad = [(i, text) for i, text in got if text != alone[i]]
    check(f"{len(got)} answers to seeded requests: the same bytes alone and {what}", not bad,
          f"{len(bad)} differ" + "".join(f"\n    {bodies[i]}\n    {alone[i][:900]}\n    {text[:900]}" for i, text in bad[:1]))


def run_crowds(args, bodies, alone, rng, ids):
    length = str(args.context)
    pool = str(args.context // PAGE + 2)  # hardly more than the longest request may take
    crowds = [
        ("in a crowd", [], False),
        ("in chunks of 7, 16 sequences", ["--prefill-chunk-size", "7", "--max-num-batched-tokens", "64", "--no-fast-sse",
                                          "--max-num-seqs", "16"], False),
        ("in chunks of 33", ["--prefill-chunk-size", "33", "--max-num-batched-tokens", "256"], False),
        ("with clients that leave", [], True),
        ("preempted", ["--num-kv-pages", pool, "--max-num-seqs", "64"], False),
        ("preempted, with clients that leave", ["--num-kv-pages", pool, "--max-num-seqs", "64"], True),
    ]
    also = [("in a crowd", options.split(), False) for options in args.also]
    for what, options, leave in (crowds[:2] + crowds[4:5] if args.few else crowds) + also:
        with Server(args, "--max-model-len", length, *options) as s:
            if leave:
                with Leavers(s, args.seed, ids) as leavers:
                    got = crowd(s, bodies, rng, args)
                check("some have left", leavers.n_left > 0)
            else:
                got = crowd(s, bodies, rng, args)
            compare(what + (" " + " ".join(options) if options else ""), bodies, alone, got)
            hits, preemptions = s.metric("vllm:prefix_cache_hits_total"), s.metric("vllm:num_preemptions_total")
            print(f"    {hits:.0f} prompt tokens from the cache, {preemptions:.0f} preemptions"
                  + (f", {leavers.n_left} clients left" if leave else ""))
            check("some of it from the prefix cache", hits > 0)
            if "preempted" in what:
                check("with preemptions", preemptions > 0, preemptions)
            h = s.settle()
            check("and all pages are free", h["kv_pages"] == h["kv_pages_free"] and not h["running"], h)


def read_shape(args):
    """Its max_positions and vocab_size. `inspect` opens no folder without weights (--load-format dummy)."""
    config = os.path.join(args.model, "config.json")
    if "dummy" in args.args.split() and os.path.exists(config):
        with open(config, encoding="utf-8") as f:
            c = json.load(f)
        return {"max_positions": c.get("max_position_embeddings") or c["n_positions"], "vocab_size": c["vocab_size"]}
    inspect = [args.binary, "inspect", args.model, "--json", "--no-tensors", "--device", "cpu"]
    return json.loads(subprocess.run(inspect, check=True, stdout=subprocess.PIPE).stdout)["architecture"]


def run_model(args):
    """All comparisons on args.model."""
    shape = read_shape(args)
    args.context = min(args.max_model_len, shape["max_positions"])
    longest = max(60, args.context * 60 // 192)  # prompt of its own, after a common one of five sixths of that
    start, rng = time.monotonic(), random.Random(args.seed)
    ids = list(range(min(4096, shape["vocab_size"])))
    prefix = [rng.choice(ids) for _ in range(longest * 5 // 6)]
    bodies = [random_request(rng, ids, longest) for _ in range(args.requests)]
    for b in bodies[::2]:
        b["prompt"] = prefix + b["prompt"]
    print(f"seed {args.seed}, {args.name}")
    with Server(args, "--max-model-len", str(args.context), "--no-prefix-cache", url=args.url) as s:
        alone = [outcome(s, b) for b in bodies]
        bad = [a for a in alone if not a.endswith('"error": null}')]
        check("none of them fails", not bad, bad[:1])
        compare("alone once more", bodies, alone, list(enumerate(outcome(s, b) for b in bodies[:40])))
        if args.url:
            compare("in a crowd", bodies, alone, crowd(s, bodies, rng, args))
    if not args.url:
        run_crowds(args, bodies, alone, rng, ids)
    print(f"{time.monotonic() - start:.1f} s, {args.name} {args.args}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--args", default="", help="further options of every server, in one word")
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--clients", type=int, default=32, help="requests at a time in a crowd")
    p.add_argument("--max-model-len", type=int, default=192, help="context of the servers; prompts grow with it")
    p.add_argument("--repeats", type=int, default=1, help="times that a crowd sends each request")
    p.add_argument("--also", action="append", default=[], metavar="OPTIONS",
                   help="one more server, with these options, serves a crowd; in one word, and again for more")
    p.add_argument("--seed", type=int, default=int(os.environ.get("ROSE_TEST_SEED", "20261121")))
    p.add_argument("--few", action="store_true", help="fewer kinds of crowds")
    p.add_argument("--url", help="of a server that is there: alone, then in a crowd; no other servers")
    args = p.parse_args()
    if any(v in os.path.abspath(args.binary) for v in ("/asan/", "/tsan/")):
        args.requests, args.few = min(args.requests, 40), True
    for model in args.models:
        args.name = os.path.basename(os.path.abspath(model))
        if not model.endswith(".json"):
            args.model = model
            run_model(args)
            continue
        with tempfile.TemporaryDirectory() as folder:
            args.model = os.path.join(folder, "random")
            command = [args.binary, "random-model", args.model, "--config", model, "--init-std", "0.1"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            run_model(args)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
