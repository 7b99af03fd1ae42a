"""Allocations of the server's threads while all of N streams are open and none begins or ends: allocations.py ROSEINFER MODEL N OUT [ARGS]"""
import http.client, json, os, re, signal, subprocess, sys, threading, time
binary, model, n, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
tokens = int(os.environ.get("TOKENS", "400"))
env = dict(os.environ, LD_PRELOAD=os.path.abspath("count.so"), COUNT_OUT=os.path.abspath(out))
if os.path.exists(out): os.unlink(out)
log = open("serve.log", "wb")
p = subprocess.Popen([binary, "serve", model, "--device", "cpu", "--port", "0", "--max-num-seqs", str(n), *sys.argv[5:]], env=env, stderr=log)
port = None
while port is None:
    time.sleep(0.05)
    m = re.search(r"listening on http://127\.0\.0\.1:(\d+)", open("serve.log", errors="replace").read())
    if m: port = int(m.group(1))
seen = [0] * n
def one(i):
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", "/v1/completions", json.dumps({"model": os.path.basename(model.rstrip("/")), "prompt": f"number {i}: the", "max_tokens": tokens, "ignore_eos": True, "temperature": 0.7, "seed": i, "stream": True, **json.loads(os.environ.get("MORE", "{}"))}), {"Content-Type": "application/json"})
    r = c.getresponse()
    for line in r:
        if line.startswith(b"data: {"): seen[i] += 1
ts = [threading.Thread(target=one, args=(i,)) for i in range(n)]
for t in ts: t.start()
def metric():
    c = http.client.HTTPConnection("127.0.0.1", port); c.request("GET", "/metrics"); b = c.getresponse().read().decode()
    return float(re.search(r"^vllm:generation_tokens_total\S* (\S+)", b, re.M).group(1))
while min(seen) < 40: time.sleep(0.002)
a = metric(); p.send_signal(signal.SIGUSR1); time.sleep(0.05)
while max(seen) < tokens * 3 // 4: time.sleep(0.002)
p.send_signal(signal.SIGUSR1); time.sleep(0.05); b = metric()
still = sum(t.is_alive() for t in ts)
for t in ts: t.join()
p.terminate(); p.wait()
parts = [dict((l.split()[1], (l.split()[0], *map(int, l.split()[2:]))) for l in x.strip().split("\n") if l) for x in open(out).read().split("--\n")[:2]]
print(f"{b - a:.0f} tokens in the window, {still} of {n} streams still open at its end")
for tid, (name, m, f, by) in parts[1].items():
    if name == "ended" or tid not in parts[0]: continue
    d = [x - y for x, y in zip((m, f, by), parts[0][tid][1:])]
    print(f"{name:16} {m:8} since the start, in the window: allocations {d[0]:6} frees {d[1]:6} bytes {d[2]:8}  per token {d[0] / (b - a):.4f}")
