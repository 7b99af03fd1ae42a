"""What bench/rivals/run writes: rivals.json, the tables and the pictures made of it."""
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

OURS = "roseinfer"
START = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


def fail(text):
    sys.exit(f"rivals: {text}")


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Results:
    """OUT/rivals.json, written after every change under a temporary name."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "rivals.json")
        self.data = {"meta": {}, "sessions": [], "servers": [], "rows": [], "answers": [], "failures": [], "alive": {}}
        if os.path.exists(self.path):
            with open(self.path) as f:
                self.data = json.load(f)

    def write(self):
        with open(self.path + ".new", "w") as f:
            json.dump(self.data, f, indent=1)
        os.replace(self.path + ".new", self.path)

    def add(self, kind, row):
        self.data[kind].append(row)
        self.write()

    def failed(self, what, error, log=None, **more):
        say(f"FAILED: {what}: {error.splitlines()[-1] if error else ''}")
        tail = []
        if log and os.path.exists(log):
            with open(log, errors="replace") as f:
                tail = f.read().splitlines()[-60:]
        self.add("failures", {"what": what, "error": error[-2000:], "log_tail": tail, "time": now(), **more})

    def done(self, model, server, cell, repeat, session=None):
        return any((r["model"], r["server"], r["cell"], r["repeat"]) == (model, server, cell, repeat) and
                   session in (None, r["session"]) for r in self.data["rows"])

    def tries(self, what):
        return sum(f["what"] == what for f in self.data["failures"])


def short(row):
    if "tok_per_s" not in row:
        return f"{row['output_throughput_tps']:,.0f} tok/s"
    p = lambda m: "/".join(f"{row[m][q]:.3g}" if row[m][q] is not None else "-" for q in ("p50", "p90", "p99"))
    return f"{row['tok_per_s']:,.0f} tok/s; TTFT {p('ttft_ms')}, TPOT {p('tpot_ms')}, ITL {p('itl_ms')}, E2E {p('e2e_ms')} ms"


# ---- tables ----

def median_row(rows, key):
    """The row with the median of a figure."""
    rows = sorted(rows, key=key)
    return rows[len(rows) // 2]


def figure(row, metric, q):
    return (row.get(metric) or {}).get(q)


def spread(values, digits=3):
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    shown = [f"{v:,.0f}" if v >= 1000 else f"{v:.{digits}g}" for v in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}-{shown[2]})" if len(values) > 1 else shown[0]


def tables(data):
    """Markdown: medians of the repeats, least and most in brackets. A cell measured in several sessions says so."""
    out, cells = [], data["meta"]["cells"]
    for model in dict.fromkeys(r["model"] for r in data["rows"]):
        rows = [r for r in data["rows"] if r["model"] == model]
        names = sorted({r["server"] for r in rows}, key=lambda n: (n.partition("+")[2], ([OURS, "vllm", "sglang"]).index(n.split("+")[0])))
        online = [c for c in cells if any(r["cell"] == c and "tok_per_s" in r for r in rows)]
        if online:
            out += [f"\n### {model}: requests over HTTP\n", "| load | server | runs | tok/s | TTFT p50 / p90 / p99 ms | TPOT p50 / p90 / p99 | "
                    "ITL p50 / p90 / p99 | E2E p50 / p90 / p99 | CPU s per 1,000 tokens |", "|---|---|---|---|---|---|---|---|---|"]
        for cell in online:
            for name in names:
                of = [r for r in rows if r["cell"] == cell and r["server"] == name and "tok_per_s" in r]
                if not of:
                    continue
                p = [" / ".join(spread([figure(r, m, q) for r in of]) for q in ("p50", "p90", "p99"))
                     for m in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")]
                cpu = spread([r["server_cpu_s"] / r["total_output_tokens"] * 1000 for r in of if r.get("total_output_tokens")])
                joined = "" if len({r["session"] for r in of}) == 1 else ", joined from several sessions"
                out.append(f"| {cell} | {name} | {len(of)}{joined} | {spread([r['tok_per_s'] for r in of])} | {' | '.join(p)} | {cpu} |")
        offline = [c for c in cells if any(r["cell"] == c and "output_throughput_tps" in r for r in rows)]
        if offline:
            out += [f"\n### {model}: offline\n", "| load | server | runs | output tok/s |", "|---|---|---|---|"]
        for cell in offline:
            for name in names:
                of = [r for r in rows if r["cell"] == cell and r["server"] == name and "output_throughput_tps" in r]
                values = [x["output_throughput_tps"] for r in of for x in (r.get("repeats") or [r])]
                if of:
                    out.append(f"| {of[0]['num_prompts']} x ({of[0]['input_len']:.0f}, {of[0]['output_len']:.0f}) | {name} | {len(values)} | "
                               f"{spread(values)} |")
        compared = versus(rows, names, cells)
        if compared:
            out += [f"\n### {model}: ours against theirs\n", "Over 1: ours is better. Medians within one session; the ratios of "
                    "p50, p90 and p99 of all four times.\n", "| load | server | tok/s | least ratio | where | lost |",
                    "|---|---|---|---|---|---|", *compared]
        costs = variants(rows, names, cells)
        if costs:
            out += [f"\n### {model}: variants against their engine without them\n", "Figures of the variant by those of the default, "
                    "medians within one session.\n", "| load | server | tok/s | TTFT p50 | TPOT p50 |", "|---|---|---|---|---|", *costs]
        servers = [s for s in data["servers"] if s["model"] == model]
        if servers:
            out += [f"\n### {model}: servers\n", "| server | ready s | compiled code | started beside | GPU MiB | host MB | processes | idle CPU s/s |",
                    "|---|---|---|---|---|---|---|---|"]
        for key in dict.fromkeys((s["server"], tuple(s["started_beside"]), s["empty_cache"]) for s in servers):
            of = [s for s in servers if (s["server"], tuple(s["started_beside"]), s["empty_cache"]) == key]
            last = of[-1]
            out.append(f"| {key[0]} | {spread([s['ready_s'] for s in of])} | {'none yet' if key[2] else 'kept'} | "
                       f"{', '.join(key[1]) or 'nothing'} | {last.get('gpu_mib_after') or last['gpu_mib'] or '-'} | "
                       f"{(last.get('host_bytes_after') or last['host_bytes']) / 1e6:,.0f} | {last['processes']} | "
                       f"{spread([s.get('idle_cpu_s_per_s') for s in of])} |")
        answers = [a for a in data["answers"] if a["model"] == model]
        if answers:
            out += [f"\n### {model}: the same request alone and in a crowd\n", "| server | request | differ | asked |", "|---|---|---|---|"]
            out += [f"| {a['server']} | {a['kind']} | {a['differ']} | {a['asked']} |" for a in answers]
    if data["failures"]:
        out += ["\n### Failed\n", *[f"- {f['what']}: {f['error'].strip().splitlines()[-1] if f['error'].strip() else '-'}" for f in data["failures"]]]
    return "\n".join(out)


def one_session(rows, cell, name, other):
    """Rows of two servers in a cell, of the session that has most of the first one's and some of the other's."""
    of = {n: [r for r in rows if (r["cell"], r["server"]) == (cell, n) and r.get("tok_per_s")] for n in (name, other)}
    sessions = [r["session"] for r in of[name] if any(x["session"] == r["session"] for x in of[other])]
    session = max(sorted(set(sessions)), key=sessions.count, default=None)
    return [[r for r in of[n] if r["session"] == session] for n in (name, other)]


def median(rows, metric, q):
    return statistics.median([figure(r, metric, q) for r in rows if figure(r, metric, q)] or [0])


def versus(rows, names, cells):
    """Ours against each other server: over 1 is better."""
    out = []
    for cell in cells:
        for name in names:
            theirs, mine = one_session(rows, cell, name, OURS)
            if name.split("+")[0] == OURS or not theirs:
                continue
            ratio = statistics.median(r["tok_per_s"] for r in mine) / statistics.median(r["tok_per_s"] for r in theirs)
            found = [(median(theirs, m, q) / median(mine, m, q), f"{m[:-3].upper()} {q}") for m in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
                     for q in ("p50", "p90", "p99") if median(mine, m, q) and median(theirs, m, q)]
            if found:
                least = min(found, key=lambda x: x[0])
                lost = ", ".join(where for r, where in found if r < 1) or "nothing"
                out.append(f"| {cell} | {name} | {ratio:.2f} | {least[0]:.2f} | {least[1]} | {lost} |")
    return out


def variants(rows, names, cells):
    out = []
    for cell in cells:
        for name in [n for n in names if "+" in n]:
            of, default = one_session(rows, cell, name, name.split("+")[0])
            if of:
                ratios = [median(of, m, "p50") / median(default, m, "p50") if median(default, m, "p50") else float("nan") for m in ("ttft_ms", "tpot_ms")]
                speed = statistics.median(r["tok_per_s"] for r in of) / statistics.median(r["tok_per_s"] for r in default)
                out.append(f"| {cell} | {name} | {speed:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return out


# ---- pictures ----

def draw(results, out, program):
    """The posts' pictures, by `roseinfer bench plot`: of each server and load the repeat with the median E2E."""
    if shutil.which("gnuplot") is None:
        say("no gnuplot here: draw elsewhere with --pictures")
        return
    rows = results.data["rows"]
    for model in dict.fromkeys(r["model"] for r in rows):
        folder = os.path.join(out, "pictures", model)
        os.makedirs(folder, exist_ok=True)
        of, online = [r for r in rows if r["model"] == model], []
        meta = {"model": model, "tool": "bench/rivals/run"}
        for name, cell in dict.fromkeys((r["server"], r["cell"]) for r in of if "tok_per_s" in r):
            online.append(median_row([r for r in of if (r["server"], r["cell"]) == (name, cell)], lambda r: r["e2e_ms"]["p50"]))
        offline = {cell: [r for r in of if r["cell"] == cell and "output_throughput_tps" in r] for cell in results.data["meta"]["cells"]}
        for cell, found in [("online", online), *offline.items()]:
            if not found:
                continue
            where = os.path.join(folder, cell)
            os.makedirs(where, exist_ok=True)
            key = "summaries" if cell == "online" else "results"
            found = [{**r, "backend": r["server"]} for r in found]
            with open(os.path.join(where, ("online" if cell == "online" else "offline") + "_results.json"), "w") as f:
                json.dump({"meta": meta, key: found, **({"by_backend": {}} if cell == "online" else {})}, f)
            done = subprocess.run([program, "bench", "plot", where], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                results.failed(f"{model}: pictures of {cell}", done.stderr)
            for path in glob.glob(os.path.join(where, "figures", "online_cdf_*")):  # they need the single requests
                os.unlink(path)
    say(f"pictures are in {os.path.join(out, 'pictures')}")
