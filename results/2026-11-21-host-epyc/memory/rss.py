"""Resident memory of a server over its weights and KV pool: rss.py ROSEINFER MODEL [ARGS]; 64 streams of 200 + 16 tokens at a time, 3 rounds, and one prompt of 1,000 tokens."""
import http.client, json, os, re, subprocess, sys, threading, time
p = subprocess.Popen([sys.argv[1], "serve", sys.argv[2], "--device", "cpu", "--port", "0", "--num-kv-pages", "1200", "--prefault", *sys.argv[3:]], stderr=open("rss.log", "wb"))
port = None
while port is None:
    time.sleep(0.05)
    m = re.search(r"listening on http://127\.0\.0\.1:(\d+)", open("rss.log", errors="replace").read())
    if m: port = int(m.group(1))
def rss():
    return {k: int(re.search(rf"{k}:\s+(\d+)", open(f"/proc/{p.pid}/status").read()).group(1)) / 1024 for k in ("VmRSS", "VmHWM", "RssAnon", "RssFile")}
weights, kv = 239.1, 1200 * 580 / 1024
def show(what):
    r = rss(); print(f"{what:34} resident {r['VmRSS']:7.1f} MiB (file {r['RssFile']:.1f}, at most so far {r['VmHWM']:.1f}); over weights {weights} and KV {kv:.1f}: {r['VmRSS'] - weights - kv:.1f}")
def one(i, words, tokens):
    c = http.client.HTTPConnection("127.0.0.1", port)
    c.request("POST", "/v1/completions", json.dumps({"model": "g124", "prompt": " ".join(f"word{(i * 7 + j) % 997}" for j in range(words)), "max_tokens": tokens, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
    c.getresponse().read()
show("ready")
for r in range(3):
    ts = [threading.Thread(target=one, args=(r * 64 + i, 80, 16)) for i in range(64)]
    for t in ts: t.start()
    time.sleep(2); show(f"round {r}, 64 at a time, in the middle")
    for t in ts: t.join()
one(5, 400, 4); show("after a prompt of some 1,000 tokens")
p.terminate(); p.wait()
