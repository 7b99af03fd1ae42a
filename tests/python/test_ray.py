#!/usr/bin/env python3
"""The examples of Ray, under Ray itself: `test_ray.py MODEL`; closes with `N passed, N failed`. Exit code 77: no Ray here.

One Ray runs on the loopback device, with pretended GPUs. Ray Data maps files over actors of LLM, and an actor is killed. Ray Serve
runs replicas: one is killed, the server of one is killed, all are replaced under load, and load brings a second replica, which
goes again. Every result must be that of LLM in this process for the same prompt and seed."""
import concurrent.futures
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
EXAMPLES = os.path.join(ROOT, "examples", "ray")
MODEL = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(ROOT, "tests", "packages"), EXAMPLES]
# Ray's actors find the examples by this path. Ray sends no statistics, nobody else joins it, and no process waits for work.
os.environ.update(PYTHONPATH=EXAMPLES, RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32),
                  RAY_raylet_start_wait_time_s="120", RAY_prestart_worker_first_driver="0")
from checks import check, results  # noqa: E402

try:
    import openai
    import pyarrow as pa
    import pyarrow.parquet as pq
    import ray
    import server
    from ray import serve

    from roseinfer import LLM, SamplingParams
except ImportError as e:
    print(f"Ray is not here: {e}")
    sys.exit(77)

ROWS, CHATS, TOKENS, TEMPERATURE = 240, 40, 40, 0.8
PROMPTS = [f"Once upon a time, number {i}" for i in range(ROWS)]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
WAIT_S = 120


def expected(rows=ROWS, chat=False, **options):
    """The texts that LLM gives here, one for each prompt; the seed is its number."""
    params = [SamplingParams(seed=i, max_tokens=TOKENS, temperature=TEMPERATURE) for i in range(rows)]
    with LLM(MODEL, device="cpu", **options) as llm:
        prompts = [[{"role": "user", "content": p}] if chat else p for p in PROMPTS[:rows]]
        return [r.outputs[0].text for r in (llm.chat if chat else llm.generate)(prompts, params)]


def processes(word):
    """{process: its parent} of the descendants of this process with this word in their command lines."""
    parents, found = {}, {}
    for pid in (int(x) for x in os.listdir("/proc") if x.isdigit()):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                parents[pid] = int(f.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                if word in f.read().replace("\0", " "):
                    found[pid] = parents[pid]

    def ours(pid):
        return pid == os.getpid() or (pid in parents and ours(parents[pid]))

    return {pid: parent for pid, parent in found.items() if ours(pid)}


def gone(pid):
    """Whether a process has ended; its parent may not have noticed yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(what, there):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if got := there():
            return got
        time.sleep(0.02)
    check(what, False, f"not within {WAIT_S} s")
    return None


def rows_of(folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        if folder.endswith(".parquet"):
            rows += pq.read_table(os.path.join(folder, name)).to_pylist()
        else:
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                rows += [json.loads(line) for line in f]
    return sorted(rows, key=lambda r: r["id"])


def batch(address, source, target, *options):
    return subprocess.Popen([sys.executable, os.path.join(EXAMPLES, "batch.py"), MODEL, source, target, "--address", address,
                             "--device", "cpu", "--max-tokens", str(TOKENS), "--temperature", str(TEMPERATURE), *options],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def killed_actor(address, work, texts):
    """Parquet to JSON Lines with two actors, of which one is killed when the first results are written."""
    source, target = os.path.join(work, "in.parquet"), os.path.join(work, "out.jsonl")
    pq.write_table(pa.table({"id": list(range(ROWS)), "prompt": PROMPTS, "seed": list(range(ROWS))}), source)
    p = batch(address, source, target, "--actors", "2", "--batch-size", "10")
    wait_for("a first file of results", lambda: p.poll() is not None or (os.path.isdir(target) and os.listdir(target)))
    actors = processes("ray::MapWorker")
    alive = p.poll() is None and len(actors) == 2
    if check("the batch runs in two actors", alive, (p.poll(), actors)):
        os.kill(min(actors), signal.SIGKILL)
    said = p.communicate()[0]
    check("the batch ends well", p.returncode == 0, said[-3000:])
    rows = rows_of(target)
    check("no row is lost, and none is there twice", [r["id"] for r in rows] == list(range(ROWS)), len(rows))
    check("each text is that of LLM", [r["text"] for r in rows] == texts, rows[:2])
    check("the other columns", all(r["prompt"] == PROMPTS[r["id"]] and r["seed"] == r["id"] and not r["error"] and
                                   0 < r["tokens"] <= TOKENS and r["prompt_tokens"] > 0 and
                                   r["finish_reason"] in ("stop", "length") for r in rows), rows[:2])
    check("Ray says how far it is", "MapBatches(Generator)" in said and "Total Progress" in said, said[-3000:])


def chats(address, work):
    """JSON Lines to Parquet, as chats, with a GPU for each actor and one prompt that fails."""
    source, target = os.path.join(work, "in.jsonl"), os.path.join(work, "out.parquet")
    with open(source, "w", encoding="utf-8") as f:
        for i in range(CHATS):
            f.write(json.dumps({"id": i, "prompt": PROMPTS[i] if i != 7 else "too long " * 600, "seed": i}) + "\n")
    p = batch(address, source, target, "--actors", "2", "--gpus", "1", "--chat", "--options", json.dumps({"chat_template": TEMPLATE}))
    again = batch(address, source, os.path.join(work, "out.jsonl"))  # of killed_actor
    check("results that are there are not written over", again.communicate()[0].strip().endswith("name a new folder, or remove it") and
          again.returncode == 1)
    texts = expected(CHATS, chat=True, chat_template=TEMPLATE)
    said = p.communicate()[0]
    check("a batch of chats", p.returncode == 0, said[-3000:])
    rows = rows_of(target)
    check("the texts of the chats", [r["text"] for r in rows if r["id"] != 7] == texts[:7] + texts[8:], rows[:2])
    bad = rows[7]
    check("a prompt that is too long has an error in its row", bad["finish_reason"] == "error" and bad["text"] == "" and
          bad["error"] != "" and sum(r["error"] != "" for r in rows) == 1, bad)


def servers():
    """{server: its replica}."""
    return processes(" serve " + MODEL)


def settings(**more):
    return server.app(server.Settings(model=MODEL, options="--device cpu --max-num-seqs 4", **more))


class Load:
    """Clients that ask until `stop`, each prompt once or more; every answer must be right."""

    def __init__(self, client, texts, at_once=6):
        self.client, self.texts, self.ended, self.wrong, self.asked = client, texts, False, [], 0
        self.pool = concurrent.futures.ThreadPoolExecutor(at_once)
        self.jobs = [self.pool.submit(self.ask_on, i, at_once) for i in range(at_once)]

    def ask_on(self, i, step):
        while not self.ended:
            text = ask(self.client, i)
            self.asked += 1
            if text != self.texts[i]:
                self.wrong.append((i, text))
            i = (i + step) % ROWS
            time.sleep(0.05)  # most of the machine is for processes that start

    def stop(self, name):
        self.ended = True
        errors = [e for e in (job.exception() for job in self.jobs) if e]
        check(name, not errors and not self.wrong and self.asked > 0, (errors[:3], self.wrong[:3], self.asked))
        self.pool.shutdown()


def ask(client, i, **more):
    return client.completions.create(model=os.path.basename(MODEL), prompt=PROMPTS[i], seed=i, max_tokens=TOKENS,
                                     temperature=TEMPERATURE, **more).choices[0].text


def answers(client, texts):
    """What one address for two replicas answers."""
    check("the model by name", [m.id for m in client.models.list()] == [os.path.basename(MODEL)])
    check("a completion", ask(client, 0) == texts[0])
    with client.completions.create(model=os.path.basename(MODEL), prompt=PROMPTS[1], seed=1, max_tokens=TOKENS,
                                   temperature=TEMPERATURE, stream=True) as stream:
        pieces = [c.choices[0].text for c in stream]
    check("a stream", "".join(pieces) == texts[1] and len(pieces) > TOKENS // 2, pieces)
    try:
        client.completions.create(model="other", prompt="x")
        check("another model is refused", False)
    except openai.NotFoundError as e:
        check("another model is refused in the server's words", "the model 'other' does not exist" in str(e), e)
    raw = client.models.with_raw_response.list(extra_query={"a": " b"})
    names = [k.lower() for k, _ in raw.headers.multi_items()]
    check("a path with a query, each header once", raw.status_code == 200 and "x-request-id" in names and
          len(names) == len(set(names)), names)


def killed(client, texts):
    """A killed replica takes its server with it, and a killed server its replica. Clients that retry lose nothing."""
    for what, kill in (("replica", lambda s, r: r), ("server", lambda s, r: s)):
        before = servers()
        load = Load(client, texts)
        wait_for("answers", lambda: load.asked > 10)
        victim = min(before)
        os.kill(kill(victim, before[victim]), signal.SIGKILL)
        # By their numbers: a server without its replica would no longer be a descendant.
        wait_for(f"the end of both after the {what} was killed", lambda: gone(victim) and gone(before[victim]))
        wait_for(f"another server after the {what} was killed", lambda: len(servers()) == 2)
        load.stop(f"each answer is right while a {what} is killed")


def replaced(client, texts):
    """A new version replaces the replicas one after another: no request fails, without a retry."""
    before = servers()
    once = client.with_options(max_retries=0)
    load = Load(once, texts)
    wait_for("answers", lambda: load.asked > 10)
    serve.run(settings(min_replicas=1, max_replicas=2, target_ongoing_requests=0.5, autoscaling={
        "upscale_delay_s": 0, "downscale_delay_s": 1, "metrics_interval_s": 0.5, "look_back_period_s": 1}))
    wait_for("the end of the old servers", lambda: not set(before) & set(servers()))
    wait_for("a second replica under load", lambda: len(servers()) == 2)
    load.stop("no request fails while the replicas are replaced and one is added")
    load = Load(once, texts, 1)
    wait_for("the end of a replica without load", lambda: len(servers()) == 1)
    load.stop("no request fails while a replica ends")


def left(client):
    """A client that leaves ends its request in the server."""
    def aborted():
        with urllib.request.urlopen(str(client.base_url).replace("/v1/", "/metrics"), timeout=WAIT_S) as r:
            return re.search(r'^vllm:request_success_total\{.*"abort".*\} [1-9]', r.read().decode(), re.M)

    check("no request was aborted before", not aborted())
    with client.completions.create(model=os.path.basename(MODEL), prompt=PROMPTS[0], max_tokens=400, n=64, stream=True,
                                   extra_body={"ignore_eos": True}) as stream:
        next(stream)
    check("the server ends a request whose client left", wait_for("an abort", aborted))


def with_gpus():
    """A GPU for each replica: its server sees this one alone."""
    def seen():
        found = []
        for pid in servers():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", encoding="utf-8") as f:
                found += [x.partition("=")[2] for x in f.read().split("\0") if x.startswith("CUDA_VISIBLE_DEVICES=")]
        return sorted(found) == ["0", "1"]

    serve.run(settings(min_replicas=2, gpus=1))
    check("each server sees the GPU of its replica alone", wait_for("two GPUs", seen))


def serving(texts):
    """The steps of Ray Serve, in order."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=20)

    def begin():
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(settings(min_replicas=2))

    def end():
        serve.shutdown()
        check("no server is left", not servers(), servers())

    return (begin, lambda: answers(client, texts), lambda: killed(client, texts), lambda: replaced(client, texts),
            lambda: left(client), with_gpus, end)


def main():
    with tempfile.TemporaryDirectory(prefix="rose-ray-") as work:
        os.environ["TMPDIR"] = work  # a killed replica leaves its folder
        try:
            ray.init(num_cpus=3, num_gpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=work + "/ray",
                     object_store_memory=200 << 20)
        except Exception as e:  # pylint: disable=broad-except
            print(f"Ray does not start here: {type(e).__name__}: {str(e).strip().splitlines()[-1:]}")
            return 77
        address = ray.get_runtime_context().gcs_address
        texts = expected()
        for step in (lambda: killed_actor(address, work, texts), lambda: chats(address, work), *serving(texts)):
            start = time.monotonic()
            step()
            print(f"{time.monotonic() - start:.1f} s", flush=True)
        ray.shutdown()
    return results()


if __name__ == "__main__":
    sys.exit(main())
