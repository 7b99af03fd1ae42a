#!/usr/bin/env python3
"""Routers in front of three servers: `test_routers.py BINARY MODEL FOLDER-OF-ROUTERS`; closes with `N passed, N failed`.

Each router, unmodified, balances by turns, by cached prefixes and by session. Under a load of long streams one server is
killed and started again, and then all three are restarted by SIGTERM, one after another. Only streams of the killed server
may be cut. vllm-router's kv_aware reads KV events of three more servers. Exit code 77: no routers there.
"""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import openai

try:
    import httpx2 as httpx  # what openai 3 brings
except ImportError:
    import httpx

try:
    import zmq

    from kv_consumer import BlockRemoved, Subscriber
except ImportError:
    zmq = None

BIN, MODEL, FOLDER = sys.argv[1:4]
NAME = os.path.basename(os.path.abspath(MODEL))
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
ROUTERS = {"vllm-router": ["vllm-router"], "smg": ["smg", "launch"]}
STICKY = {"vllm-router": ["--policy", "consistent_hash"],
          "smg": ["--policy", "round_robin", "--sticky-sessions", "--routing-key-headers", "x-session-id"]}
# smg takes a conversation to another server when its own has more than 1.5 times the mean of the requests in flight. Twelve at
# once can come to that, and so it is switched off where the test asks for every hit.
NO_SPILL = {"smg": ["--spill-rel-threshold", "1000", "--disable-worker-overload-protection"]}
# docs/SCALING.md names these options: the routers' own intervals are 60 s.
FAST = ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-success-threshold", "1",
        "--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1", "--retry-max-retries", "20",
        "--retry-max-backoff-ms", "500", "--worker-startup-check-interval", "1"]
KEY = "sk-routers-0123456789"
SERVERS, TOTAL, AT_ONCE, DEADLINE_S = 3, 200, 8, 120
N_LONG, LONG_TOKENS = 8, 480  # of the model's 512
MAX_KILLS = 20
results = {"passed": 0, "failed": 0}


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {str(detail)[:4000]}"), flush=True)


class Process:
    """A program of ours or a router; nothing of it is left after the with block."""

    def __init__(self, args, log):
        self.log = log
        self.p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                  start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()

    def kill(self):
        try:
            os.killpg(self.p.pid, signal.SIGKILL)  # a router would wait for seconds after SIGTERM
        except ProcessLookupError:
            pass
        self.p.wait()

    def text(self):
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for(self, what, there):
        """Until there() is true, which may raise what httpx raises."""
        end = time.monotonic() + DEADLINE_S
        while self.p.poll() is None and time.monotonic() < end:
            try:
                if got := there():
                    return got
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{what}: not within {DEADLINE_S} s, or the program has ended:\n{self.text()[-3000:]}")


def free_ports(n):
    """Ports below those that the system gives to outgoing connections, so that a server can come back to its port."""
    sockets = []
    while len(sockets) < n:
        with contextlib.suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", random.randrange(15000, 30000))))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    """A server that may be killed, drained and started again on its port."""

    def __init__(self, folder, *options):
        self.port, self.options, self.folder = free_ports(1)[0], options, folder
        self.url = f"http://127.0.0.1:{self.port}"
        self.logs = []
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.kill()

    def start(self):
        log = open(os.path.join(self.folder, f"{self.port}-{len(self.logs)}"), "wb")
        self.process = Process([BIN, "serve", MODEL, "--port", str(self.port), "--threads", "1", *self.options], log)
        self.logs.append(self.process)
        self.process.wait_for("the server's start", lambda: "listening on " + self.url in self.process.text())

    def counts(self):
        """{status: completions} since the start. vllm-router also has prompts tokenised, which does not count."""
        out = {}
        for status, n in re.findall(r'^http_requests_total\{handler="/v1/(?:chat/)?completions",method="POST",'
                                    r'status="(\d+)"\} (\d+)', httpx.get(self.url + "/metrics", timeout=60).text, re.M):
            out[status] = out.get(status, 0) + int(n)
        return out

    def n_done(self):
        return self.counts().get("200", 0)

    def wait_running(self):
        self.process.wait_for("running streams",
                              lambda: httpx.get(self.url + "/health", timeout=60).json()["running"] >= 2)

    def wait_work(self):
        self.process.wait_for("work for the new server", lambda: self.n_done() >= 3)


def router(name, folder, servers, options, key=""):
    headers = {"Authorization": "Bearer " + key} if key else {}

    def there():
        if httpx.get(p.url + "/health", timeout=60).status_code != 200:
            return False
        r = httpx.get(p.url + "/workers", headers=headers, timeout=60)
        return r.status_code == 200 and len(r.json().get("workers", [])) == len(servers)

    port, metrics = free_ports(2)
    command = [os.path.join(FOLDER, ROUTERS[name][0])] + ROUTERS[name][1:]
    p = Process(command + ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1",
                           "--prometheus-port", str(metrics), *FAST, *options, "--worker-urls"] + [s.url for s in servers],
                open(os.path.join(folder, f"{name}-{port}"), "wb"))
    p.url, p.metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
    try:
        p.wait_for(name + "'s start", there)
    except BaseException:
        p.kill()
        raise
    return p


def n_retries(r):
    """Requests that the router sent once more, of its own count."""
    return sum(int(n) for n in re.findall(r"^(?:vllm_router|smg_worker)_retries_total\{.*\} (\d+)$",
                                          httpx.get(r.metrics, timeout=60).text, re.M))


def openai_client(url, key="none"):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=300)


def ask(client, i):
    """Request i of the 200: (text, finish_reason, completion tokens)."""
    chat, stream = i % 2 == 1, i % 4 >= 2
    kw = {"model": NAME, "max_tokens": 4 + i % 5, "temperature": 0, "extra_body": {"ignore_eos": True}}
    if stream:  # what guidellm asks for; every other one as openai's own clients do
        kw["stream_options"] = {"include_usage": True}
        if i % 8 >= 4:
            kw["stream_options"]["continuous_usage_stats"] = True
    if chat:
        r = client.chat.completions.create(messages=[{"role": "user", "content": f"Tell me of {i} kings."}],
                                           stream=stream, **kw)
    else:
        r = client.completions.create(prompt=f"{i} kings", stream=stream, **kw)
    text, finish, usage = "", None, None
    for chunk in r if stream else [r]:
        usage = chunk.usage or usage
        for c in chunk.choices:
            finish = c.finish_reason or finish
            text += (c.delta.content if stream else c.message.content) or "" if chat else c.text
    return text, finish, usage and usage.completion_tokens


def send_all(url):
    """What each of the requests got, an exception where it failed."""
    def one(i):
        try:
            return ask(client, i)
        except Exception as e:  # pylint: disable=broad-except
            return e
    with openai_client(url) as client, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(TOTAL)))


def complete(client, prompt, n=4, **kw):
    return client.completions.create(model=NAME, prompt=prompt, max_tokens=n, temperature=0,
                                     extra_body={"ignore_eos": True}, **kw)


def new_counts(servers, before):
    return [{k: n - b.get(k, 0) for k, n in s.counts().items() if n > b.get(k, 0)} for s, b in zip(servers, before)]


def test_round_robin(name, folder, servers, want):
    before = [s.counts() for s in servers]
    with router(name, folder, servers, ["--policy", "round_robin"]) as r:
        got = send_all(r.url)
        log = r.text()
        new = new_counts(servers, before)
        faults = [g for g in got if isinstance(g, Exception)]
        check(f"{name}: {TOTAL - len(faults)} of {TOTAL} requests succeed", not faults, (faults[:3], log[-2000:]))
        other = [(i, g, w) for i, (g, w) in enumerate(zip(got, want)) if g != w and not isinstance(g, Exception)]
        check(f"{name}: the answers are the servers' own", not other, other[:3])
        check(f"{name}: round robin gives work to all servers ({new}), and they refuse none",
              all(set(n) == {"200"} for n in new) and sum(n["200"] for n in new) >= TOTAL, new)
        test_refused(name, r, servers)


def test_refused(name, r, servers):
    """A client's mistakes take no server out: more answers of 400 than either router's circuit breaker allows failures."""
    codes = []
    with openai_client(r.url) as client:
        for _ in range(15 * SERVERS):
            try:
                complete(client, "a", 600)
                codes.append(200)
            except openai.APIStatusError as e:
                codes.append(e.status_code)
        before = [s.counts() for s in servers]
        for _ in range(2 * SERVERS):
            complete(client, "a")
    new = new_counts(servers, before)
    check(f"{name}: {len(codes)} answers of 400, and no server is out", set(codes) == {400} and
          all(n.get("200") for n in new), (codes, new))


def test_cache_aware(name, folder, servers):
    """Later turns of a conversation go to the server that has its beginning in its prefix cache."""
    n_talks, n_turns = 4 * SERVERS, 3
    before = [s.counts() for s in servers]
    options = ["--policy", "cache_aware", *NO_SPILL.get(name, [])]
    with router(name, folder, servers, options) as r, openai_client(r.url) as client:
        prompts = [f"{name} {i}: " + " ".join(str(i * 7919 + j * 104729) for j in range(8)) for i in range(n_talks)]
        cached = []
        for _ in range(n_turns):
            with concurrent.futures.ThreadPoolExecutor(n_talks) as pool:
                replies = list(pool.map(lambda p: complete(client, p, 24), prompts))
            cached.append([g.usage.prompt_tokens_details.cached_tokens for g in replies])
            prompts = [p + g.choices[0].text for p, g in zip(prompts, replies)]
    new = new_counts(servers, before)
    n_hits = sum(n >= 16 for turn in cached[1:] for n in turn)
    check(f"{name}: cache-aware: {n_hits} of {n_talks * (n_turns - 1)} later turns find their beginning cached ({new})",
          n_hits == n_talks * (n_turns - 1) and not any(cached[0]), cached)
    check(f"{name}: cache-aware: several servers have conversations", sum(1 for n in new if n) > 1, new)


def test_sticky(name, folder, servers):
    n_sessions, n_requests = 12, 4
    used = []
    with router(name, folder, servers, STICKY[name]) as r, openai_client(r.url) as client:
        for i in range(n_sessions):
            before = [s.counts() for s in servers]
            for j in range(n_requests):
                complete(client, f"{j} sheep", extra_headers={"X-Session-ID": f"session-{i}"})
            used.append([n.get("200", 0) for n in new_counts(servers, before)])
    check(f"{name}: sticky: each of {n_sessions} sessions stays on one server",
          all(sorted(n) == [0] * (SERVERS - 1) + [n_requests] for n in used), used)
    check(f"{name}: sticky: the sessions are on several servers", len({n.index(max(n)) for n in used}) > 1, used)


def long_prompt(k):
    return f"Once upon a time there were {k + 2} bears"


class Load:
    """AT_ONCE clients, each with one request after another: three long streams, then a short reply without a stream."""

    def __init__(self, url, want):
        self.url, self.want = url, want
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.n = {"streams": 0, "replies": 0}
        self.cut, self.faults = [], []

    def __enter__(self):
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(AT_ONCE)]
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join()

    def run(self, k):
        with openai_client(self.url) as client:
            i = 0
            while not self.stop.is_set():
                stream = i % 4 != 3
                try:
                    fault = self.one_stream(client, k, (k + i) % N_LONG) if stream else self.one_reply(client, k)
                except Exception as e:  # pylint: disable=broad-except
                    fault = e
                with self.lock:
                    self.n["streams" if stream else "replies"] += 1
                    if fault:
                        self.faults.append((k, i, stream, fault))
                i += 1

    def one_stream(self, client, k, which):
        text, finish, why = "", None, None
        stream = complete(client, long_prompt(which), LONG_TOKENS, stream=True)
        try:  # the reply has begun: what fails now is a cut stream
            for chunk in stream:
                for c in chunk.choices:
                    text += c.text
                    finish = c.finish_reason or finish
        except Exception as e:  # pylint: disable=broad-except
            why = e
        if finish is None and self.want[which].startswith(text):
            with self.lock:
                self.cut.append((k, len(text), why))
            return None
        return None if text == self.want[which] and finish == "length" else ("another text", text, finish, why)

    @staticmethod
    def one_reply(client, k):
        r = complete(client, f"{k} goats")
        return None if r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 4 else r

    def text(self):
        how = ", ".join(sorted({type(c[2]).__name__ if c[2] else "a clean end" for c in self.cut}))
        return (f"{self.n['streams']} streams, {self.n['replies']} replies, {len(self.cut)} cut{how and f' ({how})'}, "
                f"{len(self.faults)} lost")


def n_aborted(s):
    """Requests of a server that ended neither with stop nor with length."""
    return sum(int(float(n)) for n in re.findall(
        r'^vllm:request_success_total\{[^}]*finished_reason="(?:abort|error)"[^}]*\} (\S+)$',
        httpx.get(s.url + "/metrics", timeout=60).text, re.M))


def served(s):
    """Whether a new server had work. While it loads it answers 503, and the router tries again elsewhere."""
    return "200" in s.counts() and set(s.counts()) <= {"200", "503"}


def test_killed(name, r, servers, want):
    victim, others = servers[1], [servers[0]] + servers[2:]
    before, retries = [(s.counts(), n_aborted(s)) for s in others], n_retries(r)
    with Load(r.url, want) as load:
        for s in others:
            s.wait_running()
        n_kills = 0
        while not load.cut and n_kills < MAX_KILLS:  # a kill may come between two streams
            n_kills += 1
            victim.wait_running()
            victim.process.kill()
            victim.start()
            victim.wait_work()
    print(f"note: {name}, {n_kills} x SIGKILL: {load.text()}, {n_retries(r) - retries} retries", flush=True)
    check(f"{name}: SIGKILL: no request is lost", not load.faults, (load.faults[:3], r.text()[-2000:]))
    check(f"{name}: SIGKILL cuts streams, of each client at most one", 0 < len(load.cut) <= n_kills * AT_ONCE, load.cut)
    new = [{k: n - b[0].get(k, 0) for k, n in s.counts().items() if n > b[0].get(k, 0)} for s, b in zip(others, before)]
    check(f"{name}: SIGKILL: the other servers end all their requests well",
          all(set(n) == {"200"} for n in new) and [n_aborted(s) for s in others] == [b[1] for b in before], new)
    check(f"{name}: SIGKILL: the server that came back has work ({victim.counts()})", served(victim))


def test_rolling(name, r, servers, want):
    codes, drained, retries = [], [], n_retries(r)
    with Load(r.url, want) as load:
        for s in servers:
            s.wait_running()
            s.process.p.terminate()
            codes.append(s.process.p.wait(DEADLINE_S))
            drained += re.findall(r"draining: (\d+) requests", s.process.text())
            s.start()
            s.wait_work()
    print(f"note: {name}, rolling update: {load.text()}, {n_retries(r) - retries} retries, "
          f"{' + '.join(drained)} requests in flight at SIGTERM", flush=True)
    check(f"{name}: rolling update: no request is lost and no stream is cut", not load.faults and not load.cut,
          (load.faults[:3], load.cut, r.text()[-2000:]))
    check(f"{name}: rolling update: each server drains and ends well", codes == [0] * SERVERS and
          len(drained) == SERVERS and sum(map(int, drained)) > 0, (codes, drained))
    check(f"{name}: rolling update: all servers have work again", all(map(served, servers)), [s.counts() for s in servers])


def test_key(name, folder):
    def status(key):
        with openai_client(r.url, key) as client:
            try:
                complete(client, "a key")
                return 200
            except openai.APIStatusError as e:
                return e.status_code

    options = ["--policy", "round_robin"] + (["--api-key", KEY] if name == "smg" else [])
    with Server(folder, "--api-key", KEY) as s, router(name, folder, [s], options, KEY) as r:
        got = [status(KEY), status(KEY + "x"), status("none")]
    check(f"{name}: a server with a key answers those clients that have it", got == [200, 401, 401], got)


class EventServer(Server):
    """A server that publishes KV events as vllm-router reads them, with a pool of few pages."""

    def __init__(self, folder):
        ports = free_ports(2)
        self.pub, self.rep = (f"tcp://127.0.0.1:{p}" for p in ports)
        super().__init__(folder, "--num-kv-pages", "96", "--kv-events-config", json.dumps({
            "enable_kv_cache_events": True, "encoding": "map", "endpoint": f"tcp://[::ffff:127.0.0.1]:{ports[0]}",
            "replay_endpoint": self.rep}))
        self.reader = Subscriber(zmq.Context.instance(), self.pub, self.rep, maps=True)

    def last_number(self):
        """The number of the last message, when the messages tell of as many pages as the server has."""
        def there():
            self.reader.catch_up()
            cached = re.search(r"^roseinfer:kv_pages_cached\{.*\} (\d+)", httpx.get(self.url + "/metrics", timeout=60).text, re.M)
            return len(self.reader.set.pages) == int(cached[1])
        self.process.wait_for("the messages of all pages", there)
        return self.reader.next - 1

    def ask(self, prompt, n=2, **extra):
        with openai_client(self.url) as client:
            client.completions.create(model=NAME, prompt=prompt, max_tokens=n, temperature=0,
                                      extra_body={"ignore_eos": True, **extra})


def plain(r):
    """What a router has written, without colours."""
    return re.sub("\x1b\\[[0-9;]*m", "", r.text())


def wait_known(r, s, animal):
    """Until the router has applied all messages of server s. Its subscription may stand late, so new messages are sent, few
    of them, because each takes pages."""
    def there():
        nonlocal wait_s
        wait_s *= 2
        s.ask(f"For {wait_s} years the {animal} ran over the hills and the fields and along the rivers", 1)
        mark = re.compile(rf"sequence advanced source={re.escape(s.url)} rank=0 seq={s.last_number()}$", re.M)
        end = time.monotonic() + wait_s
        while not (known := bool(mark.search(plain(r)))) and time.monotonic() < end:
            time.sleep(0.05)
        return known
    wait_s = 0.5
    r.wait_for("the router's reading of KV events", there)


def without_events():
    """Why kv_aware cannot be tested here, or nothing. A TCP endpoint that is bound to this machine only needs IPv6."""
    if zmq is None:
        return "pyzmq and msgspec"
    try:
        with socket.socket(socket.AF_INET6) as mapped:
            mapped.bind(("::ffff:127.0.0.1", 0))
        ctypes.CDLL("libzmq.so.5")
    except OSError as e:
        return f"IPv6 and libzmq5: {e}"
    return ""


def test_kv_aware(folder):
    """Prompts that servers got without the router: it sends what begins so to the server that has it, by KV events."""
    if lacks := without_events():
        print(f"note: skipped: kv_aware needs {lacks}", flush=True)
        return
    name, where = "vllm-router", {}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(EventServer(folder)) for _ in range(SERVERS)]

        def tell(words):
            for k in range(3 * SERVERS):
                prompt = f"{words} {k}: " + " ".join(str(k * 7919 + j * 104729) for j in range(8))
                where[prompt] = k % SERVERS
                servers[k % SERVERS].ask(prompt)

        for i, s in enumerate(servers):  # more than the pool holds, so that pages are removed
            for k in range(16):
                s.ask(f"Filler {i} {k}: " + " ".join(str(k * 31 + j * 17) for j in range(40)))
            s.ask("A prompt with a salt, which nobody else shall have", cache_salt="salt")
        tell("Before the router's start")
        options = ["--policy", "kv_aware", "--kv-event-model", NAME, "--log-level", "debug"]
        for s in servers:
            options += ["--kv-event-source", f"{s.url}={s.pub}", "--kv-event-replay-source", f"{s.url}={s.rep}"]
        with router(name, folder, servers, options) as r, openai_client(r.url) as client:
            for s in servers:
                wait_known(r, s, "foxes")
            tell("After the router's start")
            for s in servers:
                wait_known(r, s, "wolves")
            wrong = []
            for prompt, i in where.items():
                before = [s.n_done() for s in servers]
                cached = complete(client, prompt + " and then", 2).usage.prompt_tokens_details.cached_tokens
                went = [s.n_done() - b for s, b in zip(servers, before)]
                if cached < 16 or went != [int(k == i) for k in range(SERVERS)]:
                    wrong.append((prompt[:40], i, went, cached))
            log = plain(r)
        n_removed = [s.reader.set.n[BlockRemoved] for s in servers]
        check(f"{name}: KV events: {len(where) - len(wrong)} of {len(where)} requests go to the server that has their beginning",
              not wrong, (wrong, log[-2000:]))
        faults = [line for line in log.splitlines() if "kv_index" in line and re.search(" (?:WARN|ERROR) ", line)]
        check(f"{name}: KV events: it takes all of them, removals too ({n_removed})", not faults and all(n_removed), faults[:5])


def test_named_metrics(server):
    metrics = httpx.get(server.url + "/metrics", timeout=60).text
    with open(os.path.join(ROOT, "docs", "SCALING.md"), encoding="utf-8") as f:
        named = set(re.findall(r"`((?:vllm|roseinfer):[a-z_]+)", f.read()))
    check("the metrics that docs/SCALING.md names are there", named and all(f"\n{m}{{" in metrics for m in named),
          [m for m in named if f"\n{m}{{" not in metrics])


def main():
    missing = [n for n, c in ROUTERS.items() if not os.access(os.path.join(FOLDER, c[0]), os.X_OK)]
    if missing:
        print(f"no {' and no '.join(missing)} in {FOLDER}: it could not be installed")
        return 77
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(folder)) for _ in range(SERVERS)]
        want = send_all(servers[0].url)
        faults = [w for w in want if isinstance(w, Exception)]
        check("without a router", not faults and all(w[1] == "length" and w[2] == 4 + i % 5
                                                     for i, w in enumerate(want)), faults[:3])
        with openai_client(servers[0].url) as client:
            long_want = [complete(client, long_prompt(k), LONG_TOKENS).choices[0].text for k in range(N_LONG)]
        test_named_metrics(servers[0])
        for name in ROUTERS:
            test_round_robin(name, folder, servers, want)
            test_cache_aware(name, folder, servers)
            test_sticky(name, folder, servers)
            with router(name, folder, servers, ["--policy", "round_robin"]) as r:
                test_killed(name, r, servers, long_want)
                test_rolling(name, r, servers, long_want)
            test_key(name, folder)
        test_kv_aware(folder)
        ignored = [line for s in servers for p in s.logs for line in p.text().splitlines() if "was ignored" in line]
        check("the routers add no field that we ignore", not ignored, ignored)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
