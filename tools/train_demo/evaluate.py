#!/usr/bin/env python3
"""Measure an exported folder with transformers: held-out loss, and samples to read.

    python3 evaluate.py --model ../../models/rose-tiny --data children_pd.txt
"""

import argparse
import math

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus

PROMPTS = ("Once upon a time", "The little girl", '"Where are you going?" said', "A Fox and a Crow")


@torch.no_grad()
def held_out_loss(model, ids, context):
    """Nats a token over windows of context tokens that follow each other without overlap."""
    total = 0.0
    for i in range(0, len(ids) - 1, context):
        window = ids[i : i + context + 1]
        logits = model(window[None, :-1]).logits[0].float()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / (len(ids) - 1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--model", required=True, help="Hugging Face folder")
    ap.add_argument("--data", help="the corpus; without it only samples are printed")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--tokens", type=int, default=120, help="tokens a sample (default 120)")
    args = ap.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    eot = tokenizer.eos_token_id
    if args.data:
        _, held = corpus.split(corpus.read_books(args.data)[0])
        ids = [eot]
        for document in held:
            ids += tokenizer.encode(document) + [eot]
        loss = held_out_loss(model, torch.tensor(ids), model.config.n_positions)
        n_bytes = sum(len(d.encode()) for d in held)
        print(
            f"held-out: {len(ids)} tokens, {loss:.4f} nats a token, perplexity {math.exp(loss):.2f}, "
            f"{loss * (len(ids) - 1) / n_bytes / math.log(2):.4f} bits a byte"
        )
    torch.manual_seed(args.seed)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        for name, options in (
            ("greedy", {"do_sample": False}),
            ("temperature 0.8, top_p 0.9", {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 0}),
        ):
            out = model.generate(**ids, max_new_tokens=args.tokens, pad_token_id=eot, **options)
            print(f"--- {name}\n{tokenizer.decode(out[0])}")


if __name__ == "__main__":
    main()
