#!/usr/bin/env python3
"""Write the trained weights and the tokenizer as a Hugging Face folder (BF16, head tied).

    python3 export.py --weights run/weights.pt --record run/train.json --tokenizer tokenizer \\
        --out ../../models/rose-tiny
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import save_file

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
LINEAR = {"qkv": "attn.c_attn", "proj": "attn.c_proj", "fc": "mlp.c_fc", "out": "mlp.c_proj"}


def hugging_face_name(name):
    """Our parameter name -> (its name in transformers' GPT-2, whether to transpose)."""
    parts = name.split(".")
    if parts[0] != "blocks":
        return "transformer." + name, False
    layer, module, kind = parts[1], parts[2], parts[3]
    target = f"transformer.h.{layer}.{LINEAR.get(module, module)}.{kind}"
    return target, module in LINEAR and kind == "weight"  # Conv1D stores [in][out]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--weights", required=True, help="weights.pt of train.py")
    ap.add_argument("--record", required=True, help="train.json of train.py")
    ap.add_argument("--tokenizer", required=True, help="folder of train_tokenizer.py")
    ap.add_argument("--out", required=True, help="folder to write")
    args = ap.parse_args()

    with open(args.record, encoding="utf-8") as f:
        shape = json.load(f)["shape"]
    tensors = {}
    for name, value in torch.load(args.weights, map_location="cpu", weights_only=True).items():
        target, transpose = hugging_face_name(name)
        tensors[target] = (value.t() if transpose else value).to(torch.bfloat16).contiguous()

    os.makedirs(args.out, exist_ok=True)
    save_file(tensors, os.path.join(args.out, "model.safetensors"), metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        shutil.copyfile(os.path.join(args.tokenizer, name), os.path.join(args.out, name))
    with open(os.path.join(args.tokenizer, "vocab.json"), encoding="utf-8") as f:
        eot = json.load(f)["<|endoftext|>"]

    def write(name, value):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2)
            f.write("\n")

    write(
        "config.json",
        {
            "activation_function": "gelu_new",
            "architectures": ["GPT2LMHeadModel"],
            "attn_pdrop": 0.1,
            "bos_token_id": eot,
            "embd_pdrop": 0.1,
            "eos_token_id": eot,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": shape["context"],
            "n_embd": shape["d_model"],
            "n_head": shape["n_heads"],
            "n_inner": shape["d_ff"],
            "n_layer": shape["n_layers"],
            "n_positions": shape["context"],
            "resid_pdrop": 0.1,
            "scale_attn_weights": True,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": shape["vocab_size"],
        },
    )
    write("generation_config.json", {"bos_token_id": eot, "eos_token_id": eot})
    total = sum(os.path.getsize(os.path.join(args.out, n)) for n in os.listdir(args.out))
    print(f"{args.out}: {len(tensors)} tensors, {total} bytes")


if __name__ == "__main__":
    main()
