#!/usr/bin/env python3
"""KV events: `test_kv_events.py BINARY MODEL [TEST..]`; closes with `N passed, N failed`.

A consumer applies what the server publishes over ZeroMQ. It must know exactly the pages that the prefix cache holds:
after evictions, preemptions, lost messages and a full queue. Needs pyzmq, msgspec and libzmq, else it is skipped (77).
"""
import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

try:
    import msgspec
    import zmq

    ctypes.CDLL("libzmq.so.5")
except (ImportError, OSError) as e:
    print(f"skipped: KV events need pyzmq, msgspec and libzmq5: {e}")
    sys.exit(77)

import test_openai
from kv_consumer import END, AllBlocksCleared, BlockRemoved, BlockStored, Subscriber
from test_openai import BIN, MODEL, Server, check, results

CONTEXT = zmq.Context()
SEED = int(os.environ.get("ROSE_TEST_SEED", "20261127"))
FEW = ("--num-kv-pages", "48", "--max-num-seqs", "8", "--threads", "1")


class EventServer(Server):
    """A server that publishes to Unix sockets in folder d."""

    def __init__(self, d, *options, **config):
        self.pub, self.rep = f"ipc://{d}/pub", f"ipc://{d}/replay"
        self.topic = "kv@pod@model"
        config = {"enable_kv_cache_events": True, "endpoint": self.pub, "replay_endpoint": self.rep, "topic": self.topic,
                  **config}
        super().__init__(*options, "--kv-events-config", json.dumps(config))

    def metric(self, name):
        lines = [x for x in self.get("/metrics").text.splitlines() if x.startswith(name + "{")]
        return float(lines[0].rsplit(" ", 1)[1])

    def ask(self, prompt, n=1, **more):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0, **more})

    def know_all(self, c):
        """Whether consumer c, when it has read all, knows as many pages as the server's cache holds."""
        self.settle()
        end = time.monotonic() + 60
        while True:  # the last messages are on their way
            c.catch_up()
            want = self.metric("roseinfer:kv_pages_cached")
            if len(c.set.pages) == want or time.monotonic() > end:
                return len(c.set.pages) == want, (len(c.set.pages), want)
            time.sleep(0.02)


def cached(reply):
    return (reply.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def load(s, rng, n_threads=6, n=12, length=200):
    """Requests of random lengths from a few families of prompts, at the same time; how many were answered."""
    families = [[rng.randrange(5, 900) for _ in range(length)] for _ in range(4)]
    jobs = [(rng.choice(families)[:rng.randrange(1, length)] + [rng.randrange(5, 900) for _ in range(rng.randrange(40))],
             rng.randrange(1, 60)) for _ in range(n_threads * n)]
    answered = []

    def work(mine):
        for prompt, n_tokens in mine:
            answered.append(s.ask(prompt, n_tokens).status_code == 200)

    threads = [threading.Thread(target=work, args=(jobs[i::n_threads],)) for i in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(answered) == len(jobs), families


def check_prefixes(s, c, families, rng, what):
    """The server finds in its cache what the consumer says that it finds."""
    for prompt in families:
        prompt = prompt[:rng.randrange(20, len(prompt))]
        want = c.set.match(prompt[:-1])  # the last token is always computed
        got = cached(s.ask(prompt))
        check(f"{what}: a prompt of {len(prompt)} tokens finds {want} in the cache", got == want, (got, want))
        s.know_all(c)


def test_exact():
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW) as s:
        c = Subscriber(CONTEXT, s.pub, s.rep, s.topic.encode())
        c.catch_up()
        check("the first message clears all", c.next == 1 and c.set.n[AllBlocksCleared] == 1, (c.next, c.set.n))
        for k in range(4):
            ok, families = load(s, rng)
            check(f"round {k}: all requests are answered", ok)
            check(f"round {k}: the consumer knows all pages", *s.know_all(c))
            check_prefixes(s, c, families, rng, f"round {k}")
        check("pages were evicted", s.metric("roseinfer:prefix_evictions_total") > 50 and c.set.n[BlockRemoved] > 10, c.set.n)
        check("requests were preempted", s.metric("vllm:num_preemptions_total") > 0)
        check("nothing was dropped", s.metric("roseinfer:kv_events_dropped_total") == 0 and c.gaps == [], c.gaps)
        n = s.metric("roseinfer:kv_events_total")
        check("the metric counts changes", n >= s.metric("roseinfer:prefix_evictions_total") + len(c.set.pages), n)
        c.close()


def test_messages():
    """What single messages look like, over TCP with a subscriber that listens."""
    with tempfile.TemporaryDirectory() as d:
        c = Subscriber(CONTEXT, "tcp://127.0.0.1:*", f"ipc://{d}/replay", b"kv@", bind=True)
        at = c.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        with EventServer(d, "--threads", "1", endpoint=at) as s:
            k = 0
            while not c.read(50):  # until the subscription stands
                k += 1
                s.ask([100 + k] * 20)
            s.know_all(c)
            early = set(c.set.pages)
            prompt = list(range(5, 5 + 70))
            s.ask(prompt)
            while len(c.set.pages) < len(early) + 4 and c.read(60000):
                pass
            chain = [(h, p) for h, p in c.set.pages.items() if h not in early]
            check("four full pages of 70 tokens", len(chain) == 4 and [h for h, _ in chain[:-1]] == [p for _, (p, _, _) in chain[1:]]
                  and chain[0][1][0] is None and sum((t for _, (_, t, _) in chain), ()) == tuple(prompt[:64]), chain)
            raw = [p for _, p in c.replay(0)]
            first = msgspec.msgpack.decode(raw[0])
            check("raw: the start", first[1:] == [[["AllBlocksCleared"]], 0], first)
            event = msgspec.msgpack.decode(raw[1])[1][0]
            check("raw: a page", event[0] == "BlockStored" and len(event) == 7 and event[4:] == [16, None, "GPU"], event)
            before = set(c.set.pages)
            s.ask(prompt, cache_salt="secret")
            while len(c.set.pages) < len(before) + 4 and c.read(60000):
                pass
            salted = {h: p for h, p in c.set.pages.items() if h not in before}
            extras = [p[2] for p in salted.values()]
            check("a salt: other hashes for the same tokens, and extra keys of the first page", len(salted) == 4 and
                  len(extras[0]) == 1 and extras[1:] == [()] * 3 and "secret" not in extras[0][0], salted)
            check("a salt: the common prefix stays its own", c.set.match(prompt) == 64)
        c.close()
        # The same text has the same hashes in another process.
        with EventServer(d, "--threads", "1") as s:
            again = Subscriber(CONTEXT, s.pub, s.rep)
            s.ask(prompt)
            s.know_all(again)
            check("a restart: the same hashes", set(again.set.pages) == before - early, (again.set.pages, before))
            again.close()


def test_maps():
    """Events as maps say the same, with all fields by name, and old messages come with their topic."""
    fields = {"BlockStored": {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                              "lora_name", "extra_keys"},
              "BlockRemoved": {"type", "block_hashes", "medium"}, "AllBlocksCleared": {"type"}}
    rng = random.Random(SEED + 5)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW, encoding="map") as s:
        c = Subscriber(CONTEXT, s.pub, s.rep, s.topic.encode(), maps=True)
        ok, families = load(s, rng)
        check("maps: all requests are answered", ok)
        check("maps: the consumer knows all pages", *s.know_all(c))
        check_prefixes(s, c, families, rng, "maps")
        s.ask(families[0][:40], cache_salt="secret")
        check("maps: it knows pages with a salt", *s.know_all(c))
        check("maps: nothing is missing", c.gaps == [], c.gaps)
        events = [e for _, p in c.replay(0) for e in msgspec.msgpack.decode(p)[1]]
        for kind, names in fields.items():
            some = [e for e in events if e["type"] == kind]
            check(f"maps: each of {len(some)} {kind} has its fields", some and all(set(e) == names for e in some), some[:3])
        keys = [e["extra_keys"] for e in events if e.get("extra_keys")]
        check("maps: extra keys of the first page with a salt", len(keys) == 1 and len(keys[0]) == 2 and len(keys[0][0]) == 1
              and keys[0][1] is None and "secret" not in keys[0][0][0], keys)
        c.close()
    with tempfile.TemporaryDirectory() as d, EventServer(d, "--threads", "1", encoding="array") as s:
        c = Subscriber(CONTEXT, s.pub, s.rep, s.topic.encode())
        s.ask(families[0][:40])
        check("maps: the encoding array by its name", *s.know_all(c))
        c.close()


def test_replay():
    rng = random.Random(SEED + 1)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW, buffer_steps=12) as s:
        for _ in range(20):
            s.ask([rng.randrange(5, 900) for _ in range(40)])
        c = Subscriber(CONTEXT, s.pub, s.rep)
        s.settle()
        old = c.replay(0)
        numbers = [n for n, _ in old]
        check("a buffer of 12 keeps the last 12", len(numbers) == 12 and numbers == list(range(numbers[0], numbers[0] + 12))
              and numbers[0] > 0, numbers)
        check("from the middle", [n for n, _ in c.replay(numbers[5])] == numbers[5:])
        check("from the future", c.replay(numbers[-1] + 5) == [] and c.replay(END - 1) == [] and c.replay(END) == [])
        c.close()
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW) as s:
        c = Subscriber(CONTEXT, s.pub, s.rep)
        c.catch_up()
        while not c.socket.poll(50):  # until the subscription stands
            s.ask([rng.randrange(5, 900) for _ in range(20)])
        while c.read(100):
            pass
        c.next -= 2  # it never had these
        c.set.__init__()
        c.next = 0
        s.ask([rng.randrange(5, 900) for _ in range(50)])
        check("a gap: the message comes", c.read(60000))
        check("a gap: a replay fills it", *s.know_all(c))
        check("a gap: no number is missing", c.gaps == [], c.gaps)
        c.close()


def test_overflow():
    """A queue of two changes: pages are lost at once, a number is left out, and the consumer is right in the end."""
    rng = random.Random(SEED + 2)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW, max_queue_size=2) as s:
        c = Subscriber(CONTEXT, s.pub, s.rep)
        rounds = 0
        while rounds < 40 and (rounds < 3 or not c.gaps):
            ok, families = load(s, rng, n=4)
            check(f"overflow, round {rounds}: all requests are answered", ok)
            check(f"overflow, round {rounds}: the consumer knows all pages", *s.know_all(c))
            rounds += 1
        check_prefixes(s, c, families, rng, "overflow")
        check("overflow: it is counted", s.metric("roseinfer:kv_events_dropped_total") > 0)
        check("overflow: numbers are left out, and each time all is cleared",
              len(c.gaps) > 0 and c.set.n[AllBlocksCleared] == 1 + len(c.gaps), (c.gaps, c.set.n))
        check("overflow: it is logged", any("is left out" in line for line in s.log))
        c.close()


def test_slow():
    """Subscribers that never read, and one that does."""
    rng = random.Random(SEED + 3)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW, hwm=4) as s:
        slow = []
        for _ in range(8):
            t = CONTEXT.socket(zmq.SUB)
            t.setsockopt(zmq.RCVHWM, 1)
            t.connect(s.pub)
            t.subscribe(b"")
            slow.append(t)
        c = Subscriber(CONTEXT, s.pub, s.rep)
        for k in range(3):
            ok, _ = load(s, rng)
            check(f"slow subscribers: all requests are answered ({k})", ok)
        check("slow subscribers: another one knows all pages", *s.know_all(c))
        check("slow subscribers: the queue to the publisher was never full", s.metric("roseinfer:kv_events_dropped_total") == 0)
        c.close()
        for t in slow:
            t.close(0)


def test_hostile():
    rng = random.Random(SEED + 4)
    with tempfile.TemporaryDirectory() as d, EventServer(d, *FEW) as s:
        c = Subscriber(CONTEXT, s.pub, s.rep)
        s.ask(list(range(5, 80)))
        for path in ("pub", "replay"):  # no ZeroMQ at all
            for data in (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, rng.randbytes(100000),
                         b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48) + rng.randbytes(4000)):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.connect(f"{d}/{path}")
                    try:
                        raw.sendall(data)
                    except OSError:  # it has closed
                        pass
        for frames in ([b""], [b"", b""], [b"", b"1234567"], [b"", b"123456789"], [b"x", bytes(8)], [b"", bytes(8), b""],
                       [bytes(8)], [b""] * 100, [b"", b"x" * 1024], [b"", b"x" * 5000], [rng.randbytes(900)] * 50):
            t = CONTEXT.socket(zmq.DEALER)
            t.connect(s.rep)
            t.send_multipart(frames)
            check(f"{len(frames)} frames, the last of {len(frames[-1])} bytes: no answer", t.poll(30) == 0)
            t.close(0)
        greedy = []
        for _ in range(4):  # ask for everything, again and again, and never read
            t = CONTEXT.socket(zmq.DEALER)
            t.setsockopt(zmq.RCVHWM, 1)
            t.connect(s.rep)
            for _ in range(500):
                try:
                    t.send_multipart([b"", bytes(8)], zmq.DONTWAIT)
                except zmq.Again:
                    break
            greedy.append(t)
        ok, families = load(s, rng)
        check("hostile: all requests are answered", ok)
        check("hostile: the consumer knows all pages", *s.know_all(c))
        check_prefixes(s, c, families, rng, "hostile")
        check("hostile: one line in the log", sum("is ignored" in line for line in s.log) == 1, s.log)
        for t in greedy:
            t.close(0)
        c.close()


def test_options():
    def start(config, *options):
        p = subprocess.run([BIN, "serve", MODEL, "--port", "0", "--kv-events-config", config, *options],
                           stderr=subprocess.PIPE, timeout=120)
        return p.returncode, p.stderr.decode()

    on = '"enable_kv_cache_events": true'
    with tempfile.TemporaryDirectory() as d:
        for config, want in (("{", "column"), ("[]", "must be an object"), ('{"x": 1}', "there is no 'x'"),
                             ('{"enable_kv_cache_events": 1}', "true or false"), (f'{{{on}, "publisher": "nats"}}', '"zmq" or "null"'),
                             (f'{{{on}, "endpoint": 5557}}', "'endpoint' must be a string"),
                             (f'{{{on}, "buffer_steps": 0}}', "'buffer_steps' must be a whole number from 1"),
                             (f'{{{on}, "encoding": "json"}}', "'encoding' must be"), (f'{{{on}, "encoding": 1}}', '"array" or "map"'),
                             (f'{{{on}, "hwm": -1}}', "'hwm'"), (f'{{{on}, "max_queue_size": 2.5}}', "'max_queue_size'"),
                             (f'{{{on}, "max_queue_size": 99999999}}', "'max_queue_size'"),
                             (f'{{{on}, "topic": "{"t" * 600}"}}', "'topic'"), (f'{{{on}, "topic": "a\\u0000b"}}', "column"),
                             (f'{{{on}, "endpoint": "nonsense://*"}}', "endpoint 'nonsense://*'"),
                             (f'{{{on}, "endpoint": "ipc:///nowhere/at/all"}}', "endpoint 'ipc:///nowhere/at/all'")):
            rc, err = start(config)
            check(f"{config[:60]}: refused", rc == 1 and want in err, (rc, err))
        rc, err = start(f'{{{on}, "endpoint": "ipc://{d}/x"}}', "--no-prefix-cache")
        check("without the prefix cache: refused", rc == 1 and "needs the prefix cache" in err, (rc, err))
    for config in ("{}", '{"enable_kv_cache_events": false}', f'{{{on}, "publisher": "null"}}', f'{{"publisher": "zmq"}}'):
        with Server("--threads", "1", "--kv-events-config", config) as s:
            maps = open(f"/proc/{s.p.pid}/maps").read()
            check(f"{config}: no libzmq", "libzmq" not in maps and not any("KV events" in line for line in s.log))


def test_metrics():
    """The figures of the KV pool that routers and autoscalers read."""
    with Server("--num-kv-pages", "48", "--threads", "1") as s:
        def line(name):
            return next(x for x in s.get("/metrics").text.splitlines() if x.startswith(name + "{"))

        info = line("vllm:cache_config_info")
        for label in ('block_size="16"', 'num_gpu_blocks="48"', 'num_cpu_blocks="0"', 'enable_prefix_caching="True"',
                      'cache_dtype="bfloat16"'):
            check(f"cache_config_info has {label}", label in info and info.endswith("} 1"), info)
        s.post("/v1/completions", {"prompt": list(range(5, 100)), "max_tokens": 3})
        s.settle()
        check("idle: no page is in use, though pages are cached", line("vllm:kv_cache_usage_perc").endswith("} 0") and
              not line("roseinfer:kv_pages_cached").endswith("} 0"))
    with Server("--num-kv-pages", "48", "--threads", "1", "--no-prefix-cache", "--dtype", "float32") as s:
        info = next(x for x in s.get("/metrics").text.splitlines() if x.startswith("vllm:cache_config_info{"))
        check("without the prefix cache, in float32", 'enable_prefix_caching="False"' in info and
              'cache_dtype="float32"' in info, info)


TESTS = [test_options, test_metrics, test_messages, test_exact, test_maps, test_replay, test_overflow, test_slow, test_hostile]


def main():
    print(f"ROSE_TEST_SEED={SEED}")
    for t in TESTS:
        if test_openai.ONLY and t.__name__ not in test_openai.ONLY:
            continue
        t()
    CONTEXT.destroy(0)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
