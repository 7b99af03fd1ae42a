#!/usr/bin/env python3
"""`bench online --profile` on a real server, `bench offline --profile`: `test_profile.py BINARY MODEL`; closes with `N passed, N failed`.

What it leaves behind, that it stays away from the measured results, and that a tool or server that fails is a row. nsys
is played by a script that starts what it is given.
"""
import json
import os
import stat
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "api"))
from test_openai import BIN, MODEL, Server, check, results  # noqa: E402
import test_trace as server_side  # noqa: E402

FAKE = """#!/bin/sh
[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 0.0.fake"; exit 0; }
[ "$1" = profile ] || exit 9
shift
while case "$1" in --*) true;; *) false;; esac; do
    case "$1" in --output=*) out="${1#--output=}";; esac
    shift
done
for a; do shift; [ "$a" = STRIP ] || set -- "$@" "$a"; done
"$@" & child=$!
trap 'kill -TERM $child; wait $child; [ "NOFILE" = yes ] || echo report > "$out.nsys-rep"; exit 0' TERM INT
wait $child
"""


def bench(tmp, *options, path=None):
    env = dict(os.environ)
    if path is not None:
        env["PATH"] = path + ":" + env["PATH"]
    p = subprocess.run([BIN, "bench", "online", MODEL, "--n", "8", "--rate", "40", "--max-output-len", "16", "--input-median", "24",
                        "--output-dir", tmp, *options], capture_output=True, text=True, timeout=300, env=env)
    folders = sorted(os.listdir(tmp)) if os.path.isdir(tmp) else []
    return p, os.path.join(tmp, folders[-1]) if folders else None


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as f:
        return json.load(f)


def fake_nsys(folder, strip="--nvtx", no_file="no"):
    os.makedirs(folder)
    path = os.path.join(folder, "nsys")
    with open(path, "w", encoding="utf-8") as f:
        f.write(FAKE.replace("STRIP", strip).replace("NOFILE", no_file))
    os.chmod(path, stat.S_IRWXU)
    return folder


def test_trace(tmp):
    p, d = bench(os.path.join(tmp, "trace"), "--scales", "1", "--profile", "trace", "--profile-n", "5", "--profile-scale", "0")
    check("exit code 0", p.returncode == 0, p.stderr)
    measured, manifest = read(d, "online_results.json"), read(d, "profile_manifest.json")
    runs = measured["by_backend"]["roseinfer"]["runs"]
    check("the measured run is alone and whole", len(runs) == 1 and len(runs[0]["request_metrics"]) == 8)
    check("it ran without the profiler", "profiler" not in measured["by_backend"]["roseinfer"]["cmd"])
    check("it was over before the profile began", measured["meta"]["run_end_time"] <= manifest["meta"]["profile_start_time"])
    (row,) = manifest["runs"]
    check("a row without error", "profile_error" not in row and row["num_success"] == row["num_requests"] == 5, row)
    check("what the server said", row["stop"]["dropped"] == 0 and row["stop"]["path"] == row["start"]["path"], row)
    check("in its own folder", row["stop"]["path"].startswith(os.path.join(os.path.realpath(d), "profiles/trace/roseinfer/")))
    check("the server's log is there", os.path.getsize(row["log_path"]) > 0)
    trace = server_side.summary.load(row["stop"]["path"])
    _, explained, problems = server_side.summary.summarise(trace)
    ways = [w for w in server_side.summary.flows(trace).values() if w[0] == "s" and w[-1] == "f"]
    check("the trace is whole and has the five requests", problems == [] and len(ways) == 5, (problems, ways))
    check("phases make up the steps", explained > 0.9, explained)
    check("the manifest has options and versions", manifest["meta"]["profile_n"] == 5 and manifest["meta"]["versions"])


def test_both(tmp):
    p, d = bench(os.path.join(tmp, "both"), "--profile", "both", "--profile-only", "--profile-n", "3",
                 path=fake_nsys(os.path.join(tmp, "bin")))
    check("exit code 0", p.returncode == 0, p.stderr)
    manifest = read(d, "profile_manifest.json")
    check("only the profiles", read(d, "online_results.json")["summaries"] == [])
    check("two rows", [r["tool"] for r in manifest["runs"]] == ["trace", "nsys"], manifest["runs"])
    nsys = manifest["runs"][1]
    check("nsys: the report is there", "profile_error" not in nsys and os.path.isfile(nsys["path"]), nsys)
    check("nsys: its version and its command", "fake" in manifest["meta"]["tool_versions"]["nsys"] and
          nsys["cmd"].startswith("nsys profile --trace=cuda,nvtx,osrt") and "--nvtx" in nsys["cmd"], nsys)


def test_failures(tmp):
    empty = os.path.join(tmp, "empty")
    os.makedirs(empty)
    env = dict(os.environ, PATH=empty)
    p = subprocess.run([BIN, "bench", "online", MODEL, "--profile-only", "--profile", "nsys", "--output-dir",
                        os.path.join(tmp, "none")], capture_output=True, text=True, timeout=300, env=env)
    d = os.path.join(tmp, "none", os.listdir(os.path.join(tmp, "none"))[0])
    (row,) = read(d, "profile_manifest.json")["runs"]
    check("no nsys: a row with its error, exit code 1", p.returncode == 1 and row["profile_error"].startswith("nsys:"), row)
    p, d = bench(os.path.join(tmp, "nofile"), "--profile", "nsys", "--profile-only",
                 path=fake_nsys(os.path.join(tmp, "bin2"), no_file="yes"))
    (row,) = read(d, "profile_manifest.json")["runs"]
    check("an nsys that leaves nothing is an error", p.returncode == 1 and "nsys wrote no" in row["profile_error"], row)
    with Server() as s:
        p, d = bench(os.path.join(tmp, "url"), "--profile", "both", "--profile-only", "--backends",
                     f"url=plain={s.url},roseinfer")
        rows = read(d, "profile_manifest.json")["runs"]
        check("a server without --profiler-dir says so", "403" in rows[0]["profile_error"] and
              "--profiler-dir" in rows[0]["profile_error"], rows[0])
        check("the next backend goes on", rows[1]["backend"] == "roseinfer" and "profile_error" not in rows[1], rows[1])
        check("nsys cannot wrap a URL", "started here" in rows[2]["profile_error"], rows[2])
    p, _ = bench(os.path.join(tmp, "usage"), "--profile-only")
    check("--profile-only alone is a usage error", p.returncode == 2 and "--profile" in p.stderr, p.stderr)


def offline(tmp, *options):
    p = subprocess.run([BIN, "bench", "offline", MODEL, "--num-prompts", "4", "--input-len", "16", "--output-len", "8", "--repeats", "1",
                        "--output-dir", tmp, *options], capture_output=True, text=True, timeout=300)
    folders = sorted(os.listdir(tmp)) if os.path.isdir(tmp) else []
    return p, os.path.join(tmp, folders[-1]) if folders else None


def test_offline(tmp):
    p, d = offline(os.path.join(tmp, "offline"), "--backends", "inproc,roseinfer", "--profile", "trace", "--profile-n", "3")
    check("offline: exit code 0", p.returncode == 0, p.stderr)
    measured, manifest = read(d, "offline_results.json"), read(d, "profile_manifest.json")
    check("offline: what was measured is whole and has no profiler", len(measured["results"]) == 2 and
          "profiler" not in measured["results"][1]["extra"]["cmd"], measured["results"])
    rows = manifest["runs"]
    check("offline: two rows without error", [r["backend"] for r in rows] == ["roseinfer+inproc", "roseinfer"] and
          all("profile_error" not in r and r["num_requests"] == r["num_success"] == 3 for r in rows), rows)
    for r in rows:
        check(f"offline: {r['backend']} in its own folder", r["stop"]["path"].startswith(r["output_dir"] + "/") and
              r["stop"]["dropped"] == 0 and r["stop"]["bytes"] == os.path.getsize(r["stop"]["path"]), r)
        trace = server_side.summary.load(r["stop"]["path"])
        _, explained, problems = server_side.summary.summarise(trace)
        check(f"offline: {r['backend']}: the trace is whole", problems == [] and explained > 0.9, (problems, explained))
    p, d = offline(os.path.join(tmp, "offline2"), "--backends", "llama,inproc", "--profile", "trace", "--profile-only")
    rows = read(d, "profile_manifest.json")["runs"]
    check("offline: a script has no recorder, the next goes on", p.returncode == 1 and "no recorder" in rows[0]["profile_error"] and
          "profile_error" not in rows[1] and not os.path.exists(os.path.join(d, "offline_results.json")), rows)
    p, _ = offline(os.path.join(tmp, "offline3"), "--profile-only")
    check("offline: --profile-only alone is a usage error", p.returncode == 2 and "--profile" in p.stderr, p.stderr)
    p, d = offline(os.path.join(tmp, "offline4"), "--record", "--repeats", "3")
    (row,) = read(d, "offline_results.json")["results"]
    pairs = row["extra"]["recorder_pairs"]
    check("--record: a pair for each repeat", p.returncode == 0 and len(pairs) == len(row["repeats"]) == 3, row)
    check("--record: the repeats are those without", sorted(p["off"]["total_s"] for p in pairs) ==
          sorted(r["total_s"] for r in row["repeats"]), row)
    check("--record: on has events, off none", all(p["on"]["events"] > 0 and p["on"]["dropped"] == p["off"]["events"] == 0 and
          p["on"]["cpu_s"] > 0 and p["off"]["cpu_s"] > 0 for p in pairs), pairs)
    p, _ = offline(os.path.join(tmp, "offline5"), "--record", "--backends", "inproc,roseinfer")
    check("--record of a server is refused by name", p.returncode == 1 and "roseinfer" in p.stderr and "inproc" in p.stderr, p.stderr)
    p = subprocess.run([BIN, "bench", "offline", MODEL, "--profile", "trace"], capture_output=True, text=True, timeout=60)
    check("offline: a profile needs a folder", p.returncode == 2 and "--output-dir" in p.stderr, p.stderr)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        for t in (test_trace, test_both, test_failures, test_offline):
            t(tmp)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
