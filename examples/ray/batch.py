#!/usr/bin/env python3
"""A batch of prompts over all machines of a Ray cluster, with Ray Data.

    python3 batch.py MODEL IN OUT --actors 4 --gpus 1
    python3 batch.py models/rose-tiny prompts.jsonl answers.jsonl --actors 2 --cpus 1 --device cpu

IN is a Parquet or JSON Lines file, or a folder of them. Its rows have a column `prompt`, and may have a column `seed`; all
columns are kept. OUT is a new folder of files of the type that its name ends in, .parquet or .jsonl. Its rows have five more
columns: text, finish_reason, prompt_tokens, tokens and error. A prompt that fails has its error there and an empty text.

Each actor opens the model once, in its own process. MODEL must exist on every machine, and so must the package roseinfer.
"""
import argparse
import json
import os
import sys

import ray
from ray.data import ActorPoolStrategy

from roseinfer import LLM, SamplingParams


class Generator:
    """One actor: an open model, and one call for each batch of rows."""

    def __init__(self, model, options, params, chat):
        self.llm = LLM(model, **options)
        self.params, self.ask = params, self.llm.chat if chat else self.llm.generate
        self.chat = chat

    def __call__(self, rows):
        prompts = [str(p) for p in rows["prompt"]]
        seeds = [int(s) for s in rows["seed"]] if "seed" in rows else [None] * len(prompts)
        results = self.ask([[{"role": "user", "content": p}] for p in prompts] if self.chat else prompts,
                           [SamplingParams(seed=s, **self.params) for s in seeds])
        first = [r.outputs[0] if r.outputs else None for r in results]
        rows["text"] = [o.text if o else "" for o in first]
        rows["finish_reason"] = [o.finish_reason if o else "error" for o in first]
        rows["prompt_tokens"] = [r.n_prompt_tokens for r in results]
        rows["tokens"] = [len(o.token_ids) if o else 0 for o in first]
        rows["error"] = [str(r.error or "") for r in results]
        return rows


def kind_of(path):
    kind = os.path.splitext(path.rstrip("/"))[1]
    if kind not in (".parquet", ".jsonl"):
        sys.exit(f"batch.py: {path}: the name must end in .parquet or .jsonl")
    return kind


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("input", metavar="IN")
    p.add_argument("output", metavar="OUT")
    p.add_argument("--address", help="of a running cluster; without it Ray starts on this machine")
    p.add_argument("--actors", type=int, default=1, help="open models in all (1)")
    p.add_argument("--cpus", type=int, default=1, help="CPUs of an actor, and its compute threads (1)")
    p.add_argument("--gpus", type=float, default=0, help="GPUs of an actor (0)")
    p.add_argument("--batch-size", type=int, default=256, help="rows of one call; a killed actor loses this work at most (256)")
    p.add_argument("--chat", action="store_true", help="each prompt is the user's message of a chat")
    p.add_argument("--max-tokens", type=int, default=64)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--device", default="auto", help="auto, cpu or cuda")
    p.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="more options of LLM")
    a = p.parse_args()
    read = {".parquet": ray.data.read_parquet, ".jsonl": lambda path: ray.data.read_json(path, lines=True)}[kind_of(a.input)]
    write = {".parquet": ray.data.Dataset.write_parquet, ".jsonl": ray.data.Dataset.write_json}[kind_of(a.output)]
    if os.path.exists(a.output):
        sys.exit(f"batch.py: {a.output} exists; name a new folder, or remove it")
    # Reading and writing are tasks of Ray: without a CPU beside the actors' they would wait for ever.
    need = a.actors * a.cpus + 1
    ray.init(**({"address": a.address} if a.address else {"num_cpus": max(need, os.cpu_count()), "include_dashboard": False}))
    if (have := ray.cluster_resources().get("CPU", 0)) < need:
        print(f"batch.py: waits until the cluster has {need} CPUs: {a.cpus} for each actor and 1 to read and write; it has {have:g}")
    # A small file is one block, which one actor would take whole.
    rows = read(a.input).repartition(target_num_rows_per_block=a.batch_size).map_batches(
        Generator, batch_size=a.batch_size, num_cpus=a.cpus, num_gpus=a.gpus,
        # A second call fills the places that the last rows of the first leave empty: any number of threads may use an LLM.
        compute=ActorPoolStrategy(size=a.actors, max_concurrent_calls_per_actor=2, enable_true_multi_threading=True),
        fn_constructor_kwargs={"model": os.path.abspath(a.model), "options": {"device": a.device, "threads": a.cpus, **a.options},
                               "params": {"max_tokens": a.max_tokens, "temperature": a.temperature}, "chat": a.chat})
    write(rows, os.path.abspath(a.output))
    print(f"written: {a.output}")


if __name__ == "__main__":
    main()
