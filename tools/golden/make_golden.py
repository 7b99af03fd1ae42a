#!/usr/bin/env python3
"""Make the golden vectors of tests/golden: what transformers computes, for the tests of our engine.

    python3 -m venv .venv && .venv/bin/pip install -r tools/golden/requirements.txt
    make && .venv/bin/python tools/golden/make_golden.py

Runs models/rose-tiny and three random models (made by `roseinfer random-model`) in PyTorch on the
CPU: weights and arithmetic FP32, attention "eager". Writes one NAME.json and one NAME.f32 a model;
tests/golden/README.md describes them. Needed only to refresh the vectors, never to run the tests.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import tempfile

import numpy as np
import tokenizers
import torch
import transformers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOLERANCE = 1e-4  # largest logit error, relative to the largest magnitude at that position
MAX_GREEDY = 200
STRIDE = 7  # of the vocabulary, at every position but the last of a prompt

# dtype, head and naming differ so that each way to store a model is met; so do the shapes: head
# sizes 24, 16 and 64, an MLP that is not 4 x the width, odd vocabularies.
RANDOM_MODELS = {
    "random-f32": dict(
        layers=3, d_model=96, heads=4, d_ff=384, vocab_size=611, max_positions=128, dtype="F32",
        tied=True, prefix=True, max_shard_bytes=0, seed=1,
    ),
    "random-f16": dict(
        layers=2, d_model=80, heads=5, d_ff=200, vocab_size=1000, max_positions=64, dtype="F16",
        tied=False, prefix=False, max_shard_bytes=120000, seed=2,
    ),
    "random-bf16": dict(
        layers=4, d_model=192, heads=3, d_ff=768, vocab_size=4099, max_positions=256, dtype="BF16",
        tied=False, prefix=True, max_shard_bytes=0, seed=3,
    ),
}  # fmt: skip

# Chosen among fifteen for a greedy continuation that does not soon repeat itself.
ONE_TOKEN = " of"
SHORT = "It was Christmas Eve, and the children"
TWO_PAGES = (
    "King Arthur and his knights rode out of the forest in the grey of the morning, and"
)


def make_random_model(program, options, out):
    command = [program, "random-model", "--arch", "gpt2"]
    for key, value in options.items():
        if isinstance(value, bool):
            command += [] if value else ["--no-" + key]
        elif key != "max_shard_bytes" or value:
            command += ["--" + key.replace("_", "-"), str(value)]
    subprocess.run(command + [out], check=True)


def hash64(data):
    """FNV-1a over little-endian 64-bit words, the last one padded with zeros: quick to recompute."""
    data += b"\0" * (-len(data) % 8)
    h = 0xCBF29CE484222325
    for word in np.frombuffer(data, "<u8").tolist():
        h = ((h ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def describe_files(folder):
    files = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors") or name == "config.json":
            with open(os.path.join(folder, name), "rb") as f:
                data = f.read()
            files.append(
                {
                    "name": name,
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "hash64": f"{hash64(data):016x}",
                }
            )
    return files


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.eval()


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids])).logits[0].numpy()


@torch.no_grad()
def greedy(model, ids, n):
    """n tokens by argmax, nothing stops it; with the cache (the caller checks it in one pass)."""
    out, cache, feed = [], None, ids
    for _ in range(n):
        step = model(torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache, feed = step.past_key_values, [int(step.logits[0, -1].argmax())]
        out += feed
    return out


def relative_error(a, reference):
    return float(np.abs(a - reference).max() / np.abs(reference).max())


class Recorder:
    """Collects the vectors of one model and the error of FP32 itself, against FP64."""

    def __init__(self, model):
        self.model, self.exact = model, None
        self.values, self.n_values, self.worst = [], 0, 0.0

    def vector(self, logits, position, stride):
        picked = logits[position, ::stride].astype("<f4")
        self.values.append(picked)
        self.n_values += len(picked)
        return {
            "position": position,
            "stride": stride,
            "n": len(picked),
            "offset": self.n_values - len(picked),
            "max_abs": float(np.abs(logits[position]).max()),
        }

    def prompt(self, name, ids, text=None):
        context = self.model.config.n_positions
        n_greedy = min(MAX_GREEDY, context - len(ids))
        continuation = greedy(self.model, ids, n_greedy)
        logits = logits_of(self.model, ids + continuation)
        exact = logits_of(self.exact, ids + continuation)
        self.worst = max(self.worst, *(relative_error(a, b) for a, b in zip(logits, exact)))
        steps = logits[len(ids) - 1 : len(ids) - 1 + n_greedy]
        ranked = np.sort(steps, axis=1)
        assert steps.argmax(axis=1).tolist() == continuation  # one pass agrees with step by step
        last = len(ids) - 1
        positions = sorted({0, last // 2} - {last})
        entry = {"name": name, "ids": ids, "greedy": continuation}
        if text is not None:
            entry["text"] = text
        entry["margin"] = [float(f"{m:.4g}") for m in ranked[:, -1] - ranked[:, -2]]
        entry["logits"] = [self.vector(logits, p, STRIDE) for p in positions]
        entry["logits"].append(self.vector(logits, last, 1))
        if n_greedy > 1:  # the last position that the continuation reaches: deep in the cache
            entry["logits"].append(self.vector(logits, last + n_greedy - 1, STRIDE))
        return entry


def held_out(model, tokenizer, path):
    """Windows of a whole context that do not overlap; each token but the first is predicted once."""
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    ids = [tokenizer.eos_token_id] + tokenizer.encode(text)
    context, windows = model.config.n_positions, []
    for first in range(0, len(ids) - 1, context):
        n = min(context, len(ids) - 1 - first)
        logits = torch.tensor(logits_of(model, ids[first : first + n]), dtype=torch.float64)
        target = torch.tensor(ids[first + 1 : first + n + 1])
        nll = torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
        windows.append({"first": first, "n": n, "nll_sum": nll})
    mean = sum(w["nll_sum"] for w in windows) / (len(ids) - 1)
    return {"file": os.path.basename(path), "ids": ids, "windows": windows, "nll_mean": mean}


def write(out, name, value):
    """JSON with one line for each value below the second level: a readable diff."""
    def entry(v, depth):
        if depth == 0 or not isinstance(v, (dict, list)) or not v:
            return json.dumps(v, separators=(", ", ": "))
        pad = " " * (4 - depth)
        if isinstance(v, dict):
            body = [f"{json.dumps(k)}: {entry(x, depth - 1)}" for k, x in v.items()]
            return "{\n" + ",\n".join(pad + b for b in body) + "\n" + pad[1:] + "}"
        if not isinstance(v[0], dict):
            return json.dumps(v, separators=(",", ":"))
        return "[\n" + ",\n".join(pad + entry(x, depth - 1) for x in v) + "\n" + pad[1:] + "]"

    with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
        f.write(entry(value, 3) + "\n")


def made_by(script):
    return {
        "script": script,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
    }


def make(out, name, folder, origin, prompts_of, text_file=None):
    model = load(folder)
    recorder = Recorder(model)
    recorder.exact = load(folder).double()
    prompts = [recorder.prompt(*p) for p in prompts_of(model.config)]
    result = {
        "format": 1,
        "name": name,
        "model": {**origin, "files": describe_files(folder)},
        "made_by": made_by("tools/golden/make_golden.py"),
        "tolerance": TOLERANCE,
        "reference_error": recorder.worst,
        "values_file": name + ".f32",
        "n_values": recorder.n_values,
        "prompts": prompts,
    }
    if text_file:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        result["held_out"] = held_out(model, tokenizer, text_file)
    np.concatenate(recorder.values).tofile(os.path.join(out, name + ".f32"))
    write(out, name, result)
    for p in prompts:
        margin = min(p["margin"])
        print(
            f"{name:12} {p['name']:10} {len(p['ids']):3} ids, {len(p['greedy']):3} greedy "
            f"({len(set(p['greedy']))} different), smallest margin {margin:.3g}"
        )
    print(f"{name:12} FP32 against FP64: {recorder.worst:.2g}; {recorder.n_values} values")
    if text_file:
        print(f"{name:12} held-out: {result['held_out']['nll_mean']:.6f} nats a token")


def rose_tiny_prompts(tokenizer, text):
    long = tokenizer.encode(text)

    def prompts(config):
        n = config.n_positions
        for name, text in (("one", ONE_TOKEN), ("short", SHORT), ("two-pages", TWO_PAGES)):
            yield name, tokenizer.encode(text), text
        yield "long", long[: n - MAX_GREEDY], None
        yield "limit", long[: n - 4], None

    return prompts


def random_prompts(seed):
    def prompts(config):
        rng = np.random.RandomState(seed)
        n = config.n_positions
        for name, length in (("one", 1), ("short", 17), ("long", n // 2), ("limit", n - 4)):
            yield name, rng.randint(0, config.vocab_size, length).tolist(), None

    return prompts


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--roseinfer", default=os.path.join(ROOT, "build/roseinfer"))
    ap.add_argument("--out", default=os.path.join(ROOT, "tests/golden"))
    args = ap.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    for name, options in RANDOM_MODELS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, name)
            make_random_model(args.roseinfer, options, folder)
            make(args.out, name, folder, {"random": options}, random_prompts(options["seed"]))

    folder = os.path.join(ROOT, "models/rose-tiny")
    text_file = os.path.join(ROOT, "tests/golden/held-out.txt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with open(text_file, encoding="utf-8", newline="") as f:
        prompts = rose_tiny_prompts(tokenizer, f.read())
    make(args.out, "rose-tiny", folder, {"folder": "models/rose-tiny"}, prompts, text_file)


if __name__ == "__main__":
    main()
