#!/usr/bin/env python3
"""A real Prometheus scrapes a real server: tests/api/test_prometheus.py PROGRAM MODEL

The program is what tools/prometheus finds or fetches (Debian's package); without one it exits 77 (skipped).
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMETHEUS = subprocess.run([os.path.join(ROOT, "tools/prometheus")], capture_output=True, text=True).stdout.strip()
REQUESTS, TOKENS = 7, 5


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, data=None):
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as r:
        return r.read()


def wait(what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            value = what()
            if value is not None:
                return value
        except OSError:  # nobody answers yet, or not in time
            pass
        time.sleep(0.1)
    sys.exit("no answer in time")


def query(base, text):
    url = f"{base}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    result = json.loads(get(url))["data"]["result"]
    return (result[0]["metric"], float(result[0]["value"][1])) if result else (None, None)


def main():
    if not PROMETHEUS:
        print("no prometheus here, and apt-get cannot fetch its package")
        return 77
    program, model = sys.argv[1:3]
    ours, theirs = free_port(), free_port()
    server, base = f"http://127.0.0.1:{ours}", f"http://127.0.0.1:{theirs}"
    procs = []
    with tempfile.TemporaryDirectory() as tmp:
        config = os.path.join(tmp, "prometheus.yml")
        with open(config, "w") as f:
            f.write("global: {scrape_interval: 5s}\nscrape_configs:\n  - job_name: rose\n"
                    f"    static_configs: [{{targets: ['127.0.0.1:{ours}']}}]\n")
        try:
            procs.append(subprocess.Popen([program, "serve", model, "--port", str(ours), "--threads", "1",
                                           "--speculative-config", '{"adaptive": false}'],
                                          stderr=subprocess.DEVNULL))
            wait(lambda: get(server + "/ready"))
            for _ in range(REQUESTS):
                get(server + "/v1/completions",
                    json.dumps({"prompt": [1, 2, 3], "max_tokens": TOKENS, "ignore_eos": True}).encode())
            procs.append(subprocess.Popen([PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp}/db",
                                           f"--web.listen-address=127.0.0.1:{theirs}"],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

            def target():
                targets = json.loads(get(base + "/api/v1/targets"))["data"]["activeTargets"]
                if not targets:
                    return None
                t = targets[0]
                if t["health"] == "down":
                    print(f"the scrape failed: {t['lastError']}")  # a busy machine: perhaps not the next one
                return t if t["health"] == "up" else None

            wait(target)
            checks = {
                "vllm:generation_tokens_total": REQUESTS * TOKENS,
                "vllm:prompt_tokens_total": REQUESTS * 3,
                'vllm:request_success_total{finished_reason="length"}': REQUESTS,
                "vllm:time_to_first_token_seconds_count": REQUESTS,
                "vllm:inter_token_latency_seconds_count": REQUESTS * (TOKENS - 1),
                "vllm:num_requests_running": 0,
                'http_requests_total{handler="/v1/completions",status="200"}': REQUESTS,
            }
            failed = 0
            for text, want in checks.items():
                metric, got = query(base, text)
                if got != want:
                    failed += 1
                    print(f"FAILED {text}: {got}, not {want} ({metric})")
            for text in ("histogram_quantile(0.99, vllm:time_to_first_token_seconds_bucket)",
                         "histogram_quantile(0.5, roseinfer:step_compute_seconds_bucket)",
                         "process_resident_memory_bytes"):
                metric, got = query(base, text)
                if not got or not got > 0:
                    failed += 1
                    print(f"FAILED {text}: {got} ({metric})")
            # Guesses, and then each panel of the dashboard over the counters themselves, since a rate needs minutes.
            get(server + "/v1/completions", json.dumps({"prompt": [1, 2, 3] * 20, "max_tokens": 60, "temperature": 0,
                                                        "ignore_eos": True}).encode())
            drafts = wait(lambda: query(base, "vllm:spec_decode_num_drafts_total > 0")[1])
            tokens, right = (query(base, f"vllm:spec_decode_num_{k}_tokens_total")[1] for k in ("draft", "accepted"))
            first = query(base, 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}')[1]
            want = {"of guessed tokens": right / tokens, "accepted": right / drafts, "guessed": tokens / drafts,
                    "{{position}}": first / drafts}
            with open(os.path.join(ROOT, "tools/grafana/roseinfer.json")) as f:
                targets = [t for p in json.load(f)["panels"] for t in p["targets"]]
            for t in targets:
                text = re.sub(r"rate\(([^()]*)\[\$__rate_interval\]\)", r"\1", t["expr"])
                try:
                    got = query(base, text)[1]
                except urllib.error.HTTPError as e:
                    got = e.read().decode()
                legend = t["legendFormat"]
                if isinstance(got, str) or "$" in text or (legend in want and got != want[legend]):
                    failed += 1
                    print(f"FAILED panel {text}: {got}, not {want.get(legend, 'a number')}")
            print(f"{len(checks) + 3 + len(targets) - failed} passed, {failed} failed")
            return 1 if failed else 0
        finally:
            for p in reversed(procs):
                p.terminate()
                p.wait()


if __name__ == "__main__":
    sys.exit(main())
