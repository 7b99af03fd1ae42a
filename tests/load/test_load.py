#!/usr/bin/env python3
"""The load tests as programs: `test_load.py PROGRAM MODEL`; closes with `N passed, N failed`.

PROGRAM is build/tests/load/load. Short runs of each, their --help and their errors; the long runs are in tools/test.
Standard library only.
"""
import json
import os
import subprocess
import sys
import tempfile

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
results = {"passed": 0, "failed": 0}


def load(*args):
    p = subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}", flush=True)
    if not ok:
        print(f"    {repr(detail)[:2000]}", flush=True)


def one_line_error(name, result, code, *fragments):
    rc, out, err = result
    check(name, rc == code and err.count("\n") == 1 and all(f in err for f in fragments), (rc, out, err, fragments))


def test_help():
    names = ["abuse", "soak", "http", "engine", "scheduler", "client"]
    rc, out, err = load("--help")
    check("--help lists every load test", rc == 0 and all(f"  {n} " in out for n in names), out)
    for n in names:
        rc, out, err = load(n, "--help")
        check(f"{n} --help", rc == 0 and err == "" and out.startswith(f"Usage: load {n} ") and "(default" in out and
              max(map(len, out.splitlines())) <= 100, out)
    check("no name is a usage error", load()[0] == 2)
    rc, out, err = load("surf")
    check("an unknown load test", rc == 2 and "unknown load test 'surf'" in err, err)


def test_errors():
    check("abuse offers options of our server only", "--roseinfer-args" in load("abuse", "--help")[1] and
          "--vllm-args" not in load("abuse", "--help")[1])
    one_line_error("abuse: --vllm-args is refused by name", load("abuse", MODEL, "--vllm-args", "x"), 2, "--vllm-args")
    one_line_error("soak: no duration", load("soak", MODEL, "--duration", "5x"), 2, "--duration '5x'")
    rc, _, err = load("abuse", MODEL, "--backend", "vllm")
    check("abuse: another server than ours", rc == 1 and "--backend: one server" in err, (rc, err))


def test_engine():
    rc, out, err = load("engine", "--running", "8", "--steps", "300", "--record")
    (row,) = json.loads(out)["results"]
    check("engine --record", rc == 0 and row["recorded_events"] > 1000 and row["recorded_dropped"] == 0 and
          row["host_recorded_ns_p50"] > 0 and row["host_ns_p50"] > 0, (row, err))
    rc, out, err = load("engine", "--running", "8", "--steps", "100")
    check("engine", rc == 0 and "host_recorded_ns_p50" not in json.loads(out)["results"][0], err)


def test_scheduler():
    with tempfile.TemporaryDirectory() as d:
        trace = os.path.join(d, "trace.jsonl")
        with open(trace, "w") as f:
            for i in range(20):
                f.write(json.dumps({"timestamp": i * 10, "input_length": 50, "output_length": 5}) + "\n")
        rc, out, err = load("scheduler", trace, "--ttft-slo-ms", "1000")
        rows = json.loads(out)["results"] if rc == 0 else []
        check("scheduler: each policy answers every request", len(rows) >= 6 and all(r["num_success"] == 20 for r in rows), (out, err))
        check("scheduler: a goal adds the policy that steers by it", rows != [] and rows[-1]["policy"].startswith("--ttft-slo"), rows)
    one_line_error("scheduler: no such trace", load("scheduler", "/nonexistent/t"), 1, "/nonexistent/t")


def test_http():
    rc, out, err = load("http", MODEL, "--streams", "3,20", "--output-len", "40", "--rate", "300")
    rows = json.loads(out)["results"] if rc == 0 else []
    check("http", [r["tokens"] for r in rows] == [120, 800] and all(r["num_error"] == 0 for r in rows), (out, err))
    check("all streams open at once", all(r["all_open_at_once"] and r["tok_per_s"] > 0 for r in rows), rows)
    cpu = str(min(os.sched_getaffinity(0)))
    rc, out, err = load("http", MODEL, "--streams", "50", "--output-len", "400", "--rate", "20000", "--record",
                       "--client-cpus", cpu, "--io-cpus", cpu)
    row = json.loads(out)["results"][0] if rc == 0 else {}
    turns = [p[arm] for p in row["recorder"]["pairs"] for arm in ("off", "on")] if row else []
    check("http --record", rc == 0 and row["recorder"]["events"] > 0 and row["client_cpu_s"] > 0 and
          all(t["tokens"] > 0 and t["rose-io-0"] >= 0 for t in turns) and  # it may have stood still for one turn
          (not turns or any(t["rose-io-0"] > 0 for t in turns)), (row, err))
    one_line_error("bad CPU list", load("http", MODEL, "--io-cpus", "x"), 1, "CPU list")
    one_line_error("bad streams", load("http", MODEL, "--streams", "0"), 1, "--streams")
    one_line_error("longer than the context", load("http", MODEL, "--output-len", "100000"), 1, "context")


def test_client():
    """What it says agrees with itself; how exact this machine is just now is no test."""
    rc, out, err = load("client", "--rate", "1000")
    j = json.loads(out)
    good = j["streams_failed"] == 0 and j["error_us"]["p99"] <= j["limit_p99_us"]
    check("client: every event came", j["streams_failed"] == 0 and
          j["error_us"]["n"] == j["streams"] * j["events_per_stream"], j)
    check("client: p99 is what is judged", rc == (0 if good else 1) and j["pass"] == good and
          j["error_us"]["max"] >= j["error_us"]["p99"] and "p99" in err, (rc, j, err))


for name, fn in sorted((n, f) for n, f in globals().items() if n.startswith("test_")):
    try:
        fn()
    except Exception as e:  # a crash of one test is its failure; the others go on
        check(name, False, repr(e))
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
