#!/usr/bin/env python3
"""Make the golden vectors of tests/golden/families: what transformers computes for each family.

    python3 -m venv .venv && .venv/bin/pip install -r tools/golden/requirements.txt
    make && .venv/bin/python tools/golden/make_families.py

For each NAME.config.json there, written by hand, `roseinfer random-model --config` writes a tiny
model, which transformers runs on the CPU: weights and arithmetic FP32, attention "eager". Writes NAME.json and NAME.f32 (see
tests/golden/README.md), rope.json with the inverse frequencies of well-known models, and
../states.json with pooled states of two of the models.
"""

import argparse
import functools
import json
import os
import subprocess
import tempfile

import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import make_golden

ROOT = make_golden.ROOT
FOLDER = os.path.join(ROOT, "tests/golden/families")
TOLERANCE = 1e-4  # largest error of a log-probability
INIT_STD = 0.1  # attention is then neither uniform nor a choice of one key
WIDE_STD = {"phi3": 0.06, "phi3-short": 0.06}  # of wide models, for the same attention
MIN_MARGIN = 1e-3  # of a greedy token: a seed with closer ones is not taken
MIN_DIFFERENT = 12  # greedy tokens: a continuation that repeats itself shows little
MAX_SEEDS = 40
VOCAB = 320

# Head sizes 48, 64, 80, 96, 128, 256; groups of 1, 2, 3, 4, 6, 7, 8 heads; old and new spellings of
# the RoPE fields. Sequences pass every window and every original context.
MODELS = sorted(f[: -len(".config.json")] for f in os.listdir(FOLDER) if f.endswith(".config.json"))


def ramp(n, first, last):
    return [round(first + (last - first) * i / (n - 1), 4) for i in range(n)]


# dynamic and longrope: the length that fixes the frequencies. All passes are padded to it.
SERVED = {"llama-dynamic": 384, "phi3": 384, "phi3-short": 64}


@torch.no_grad()
def logits_of(model, ids, served):
    padded = ids + [0] * max(served - len(ids), 0)
    return model(torch.tensor([padded]), use_cache=False).logits[0, : len(ids)]


def greedy(model, ids, n, served):
    if not served:
        return make_golden.greedy(model, ids, n)
    ids = list(ids)
    for _ in range(n):
        ids.append(int(logits_of(model, ids, served)[-1].argmax()))
    return ids[-n:]


class Recorder:
    def __init__(self):
        self.values, self.n_values, self.worst, self.margin = [], 0, 0.0, float("inf")

    def vector(self, logprobs, position, stride):
        picked = logprobs[position, ::stride].numpy().astype("<f4")
        self.values.append(picked)
        self.n_values += len(picked)
        return {"position": position, "stride": stride, "n": len(picked),
                "offset": self.n_values - len(picked),
                "max_abs": float(logprobs[position].abs().max())}  # fmt: skip

    def prompt(self, models, name, ids, n_greedy, served):
        model, exact = models
        new = greedy(model, ids, n_greedy, served)
        logits = logits_of(model, ids + new, served)
        last = len(ids) - 1
        steps = logits[last : last + n_greedy]
        assert steps.argmax(1).tolist() == new  # one pass agrees with step by step
        best = steps.topk(2, dim=1).values
        margin = (best[:, 0] - best[:, 1]).tolist()
        self.margin = min(self.margin, *margin)
        if self.margin < MIN_MARGIN:
            return None
        logprobs = torch.log_softmax(logits.double(), -1)
        reference = torch.log_softmax(logits_of(exact, ids + new, served), -1)
        self.worst = max(self.worst, float((logprobs - reference).abs().max()))
        picked = [(p, 7) for p in sorted({0, last // 2} - {last})] + [(last, 1)]
        picked += [(last + n_greedy // 2, 7), (last + n_greedy - 1, 1)]
        return {"name": name, "ids": ids, "greedy": new,
                "margin": [float(f"{m:.4g}") for m in margin],
                "logits": [self.vector(logprobs, p, s) for p, s in picked]}  # fmt: skip


def make_model(program, name, seed, folder):
    subprocess.run(
        [program, "random-model", folder, "--config", os.path.join(FOLDER, name + ".config.json"),
         "--init-std", str(WIDE_STD.get(name, INIT_STD)), "--seed", str(seed)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def load(folder):
    """Gemma3Attention reads attn_logit_softcapping and does not pass it on: we do that here."""
    model = make_golden.load(folder)
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    if softcap:
        model.forward = functools.partial(model.forward, softcap=softcap)
    return model


def record(name, folder, seed):
    models = (load(folder), load(folder).double())
    rng = np.random.RandomState(seed)
    served = SERVED.get(name, 0)
    lengths = {"short": (5, 200), "long": (150, 200)}
    if served and served < 200:
        lengths = {"short": (5, 40), "long": (30, served - 30)}
    recorder = Recorder()
    prompts = []
    for prompt, (n, n_greedy) in lengths.items():
        ids = rng.randint(0, VOCAB, n).tolist()
        prompts.append(recorder.prompt(models, prompt, ids, n_greedy, served))
        if prompts[-1] is None:
            break
    return recorder, prompts, served


def make(program, name):
    for seed in range(1, MAX_SEEDS + 1):
        with tempfile.TemporaryDirectory() as scratch:
            folder = os.path.join(scratch, name)
            make_model(program, name, seed, folder)
            recorder, prompts, served = record(name, folder, seed)
            files = make_golden.describe_files(folder)
        if recorder.margin < MIN_MARGIN:
            continue
        different = min(len(set(p["greedy"])) for p in prompts)
        if different >= MIN_DIFFERENT:
            break
    else:
        raise SystemExit(f"{name}: no seed has margins of {MIN_MARGIN} and {MIN_DIFFERENT} tokens")
    options = {"config": f"tests/golden/families/{name}.config.json", "dtype": "F32",
               "init_std": WIDE_STD.get(name, INIT_STD), "seed": seed}  # fmt: skip
    result = {
        "format": 1,
        "name": name,
        "model": {"random": options, "files": files},
        "made_by": make_golden.made_by("tools/golden/make_families.py"),
        "values": "log-probabilities",
        "served_context": served,
        "tolerance": TOLERANCE,
        "reference_error": recorder.worst,
        "values_file": f"families/{name}.f32",
        "n_values": recorder.n_values,
        "prompts": prompts,
    }
    np.concatenate(recorder.values).tofile(os.path.join(FOLDER, name + ".f32"))
    make_golden.write(FOLDER, name, result)
    print(f"{name:14} seed {seed:2}, smallest margin {recorder.margin:.3g}, {different} different "
          f"tokens, FP32 against FP64 {recorder.worst:.2g}, {recorder.n_values} values", flush=True)  # fmt: skip


# Frequencies as real models have them: name, head_dim, context, fields, served lengths.
ROPES = [
    ("tinyllama", 64, 2048, {"rope_type": "default", "rope_theta": 10000.0}, [2048]),
    ("llama-3.2-1b", 64, 131072, {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, [131072]),
    ("llama-3.1-8b", 128, 131072, {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, [131072]),
    ("qwen2.5", 128, 32768, {"rope_type": "default", "rope_theta": 1000000.0}, [32768]),
    ("qwen2.5-yarn", 128, 32768, {
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
        "original_max_position_embeddings": 32768}, [131072]),
    ("yarn-all", 80, 4096, {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 24.0,
        "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096}, [131072]),
    ("smollm3", 128, 65536, {"rope_type": "default", "rope_theta": 5000000.0}, [65536]),
    ("gemma3-full", 256, 131072, {
        "rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}, [131072]),
    ("gemma3-sliding", 256, 131072, {"rope_type": "default", "rope_theta": 10000.0}, [131072]),
    ("dynamic", 128, 2048, {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, [2048, 2049, 3000, 4096]),
    ("phi3-mini-128k", 96, 131072, {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": ramp(48, 1.05, 3.1),
        "long_factor": ramp(48, 1.03, 64.7), "original_max_position_embeddings": 4096},
     [4096, 4097]),
]  # fmt: skip


def rope_table(head_dim, context, fields, served):
    made = transformers.LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
        max_position_embeddings=context, rope_parameters=dict(fields),
    )  # fmt: skip
    if fields["rope_type"] == "default":
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
        inv_freq, factor = rotary.compute_default_rope_parameters(made)
    else:
        length = torch.tensor(served) if served > context else served
        inv_freq, factor = ROPE_INIT_FUNCTIONS[fields["rope_type"]](made, seq_len=length)
    return inv_freq.numpy().astype("<f4"), float(factor)


def make_ropes():
    tables = []
    for name, head_dim, context, fields, lengths in ROPES:
        for served in lengths:
            inv_freq, factor = rope_table(head_dim, context, fields, served)
            tables.append({
                "name": name, "head_dim": head_dim, "max_position_embeddings": context,
                "rope_parameters": fields, "served_context": served, "attention_factor": factor,
                "inv_freq_bits": inv_freq.view("<u4").tolist()})  # fmt: skip
    made_by = make_golden.made_by("tools/golden/make_families.py")
    make_golden.write(FOLDER, "rope", {"format": 1, "made_by": made_by, "tables": tables})
    print(f"rope: {len(tables)} tables")


@torch.no_grad()
def states_of(folder, ids):
    """The state of the last token, and the mean over all tokens: what transformers' models without a
    head give as last_hidden_state."""
    hidden = make_golden.load(folder).base_model(torch.tensor([ids])).last_hidden_state[0]
    numbers = lambda v: [float(f"{x:.9g}") for x in v.tolist()]
    return {"last": numbers(hidden[-1]), "mean": numbers(hidden.double().mean(0))}


def make_states(program):
    models = []
    for name in ("families/qwen3", "random-f32"):
        with open(os.path.join(ROOT, "tests/golden", name + ".json"), encoding="utf-8") as f:
            made = json.load(f)
        with tempfile.TemporaryDirectory() as folder:
            if "config" in made["model"]["random"]:
                make_model(program, "qwen3", made["model"]["random"]["seed"], folder)
            else:
                make_golden.make_random_model(program, made["model"]["random"], folder)
            assert make_golden.describe_files(folder) == made["model"]["files"]
            prompts = [{"name": p["name"], **states_of(folder, p["ids"])}
                       for p in made["prompts"] if p["name"] in ("short", "long")]  # fmt: skip
        models.append({"name": name, "tolerance": TOLERANCE, "prompts": prompts})
    made_by = make_golden.made_by("tools/golden/make_families.py")
    make_golden.write(os.path.dirname(FOLDER), "states",
                      {"format": 1, "made_by": made_by, "models": models})  # fmt: skip
    print("states: 2 models")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--roseinfer", default=os.path.join(ROOT, "build/roseinfer"))
    ap.add_argument("names", nargs="*", help="models, rope or states; all by default")
    args = ap.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in args.names or ["rope", *MODELS, "states"]:
        if name == "rope":
            make_ropes()
        elif name == "states":
            make_states(args.roseinfer)
        else:
            make(args.roseinfer, name)


if __name__ == "__main__":
    main()
