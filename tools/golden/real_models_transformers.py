#!/usr/bin/env python3
"""Compares the replayed models of tests/model/real_models.tsv with transformers: `real_models_transformers.py ROSEINFER [NAME...]`.

For each model that must start: transformers reads the released config.json and generation_config.json, loads the small model with
the weights of `roseinfer random-model`, and its log-probabilities of one text are compared with ours. For the others it says
whether transformers knows the model_type. Needs transformers, torch and safetensors. What it printed last is in the head of the
table."""
import json
import os
import subprocess
import sys
import tempfile
import urllib.request

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/model"))
import real_models  # noqa: E402

IDS = [(i * 37 + 11) % 250 for i in range(40)]


def read_released(files, where):
    """What transformers says of the files as they were released."""
    for name in ("config.json", "generation_config.json"):
        if name in files:
            with open(os.path.join(where, name), "w", encoding="utf-8") as f:
                f.write(files[name])
    if "config.json" in files:
        AutoConfig.from_pretrained(where)
    if "generation_config.json" in files:
        GenerationConfig.from_pretrained(where)


@torch.no_grad()
def theirs(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    logprobs = torch.log_softmax(model(torch.tensor([IDS]), use_cache=False).logits[0].double(), -1)
    return [logprobs[i, IDS[i + 1]].item() for i in range(len(IDS) - 1)]


def ours(binary, folder):
    options = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "64", "--port", "0")
    p = subprocess.Popen([binary, "serve", folder, *options], stderr=subprocess.PIPE, text=True)
    log = []
    for line in p.stderr:
        log.append(line)
        if "listening on http://" not in line:
            continue
        body = json.dumps({"prompt": IDS, "max_tokens": 1, "echo": True, "logprobs": 1}).encode()
        asked = urllib.request.Request(line.split("listening on ")[1].strip() + "/v1/completions", body,
                                       {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as r:
            got = json.load(r)["choices"][0]["logprobs"]["token_logprobs"][1:len(IDS)]
        p.terminate()
        p.wait()
        return got
    raise RuntimeError(log[-1])


def compare(binary, files, where):
    small, model = os.path.join(where, "small"), os.path.join(where, "model")
    os.makedirs(os.path.join(where, "released"))
    read_released(files, os.path.join(where, "released"))
    real_models.folder_of(files, small)
    subprocess.run([binary, "random-model", model, "--config", os.path.join(small, "config.json"), "--init-std", "0.1"], check=True,
                   stdout=subprocess.DEVNULL)
    return max(abs(a - b) for a, b in zip(theirs(model), ours(binary, model)))


def main():
    models, worst = real_models.load(), 0.0
    for name, result, _ in real_models.expected():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        if result == "starts":
            with tempfile.TemporaryDirectory() as where:
                try:
                    off = compare(sys.argv[1], models[name], where)
                    worst = max(worst, off)
                    print(f"{name}: loads, log-probabilities differ by {off:.1e} at most", flush=True)
                except Exception as e:  # pylint: disable=broad-except
                    print(f"{name}: FAILED: {type(e).__name__}: {str(e)[:300]}", flush=True)
        else:
            kind = json.loads(models[name]["config.json"])["model_type"]
            print(f"{name}: {result}; transformers has model_type {kind}: {kind in CONFIG_MAPPING_NAMES}", flush=True)
    print(f"worst: {worst:.1e}")


main()
