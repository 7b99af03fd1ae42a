#!/usr/bin/env python3
"""A model served from safetensors and from an F32 GGUF file gives the same bits: `test_gguf.py BINARY`.

For each family: a random model, the file that llama.cpp's converter would write of it, and the same requests to both;
ids, texts, logprobs and usage must be equal. The vectors below reach past windows and past the original contexts.
Standard library only.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import to_gguf
from same_bits import Server, check, results

COMMON = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48,
          "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
          "bos_token_id": 299, "eos_token_id": 299, "rope_theta": 500000.0, "hidden_act": "silu",
          "hidden_activation": "gelu_pytorch_tanh"}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
LONG = {"type": "longrope", "short_factor": [1 + i / 10 for i in range(12)], "long_factor": [1 + i for i in range(12)]}
FAMILIES = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "llama3": {"model_type": "llama", "tie_word_embeddings": True, "rope_scaling": LLAMA3},
    "mistral": {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": 24},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True,
              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False},
    "smollm3": {"model_type": "smollm3", "tie_word_embeddings": True},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": 20, "query_pre_attn_scalar": 48, "tie_word_embeddings": True,
               "rope_local_base_freq": 10000.0, "final_logit_softcapping": 30.0, "num_hidden_layers": 7,
               "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "phi3": {"model_type": "phi3", "tie_word_embeddings": False, "sliding_window": 40, "partial_rotary_factor": 0.5,
             "original_max_position_embeddings": 64, "rope_scaling": LONG},
}


class Args:
    def __init__(self, binary, model):
        self.binary, self.model, self.args = binary, model, "--device cpu --dtype float32"


def answers(binary, model):
    rng = random.Random(7)
    out = []
    with Server(Args(binary, model)) as s:
        for n in (1, 30, 120):
            for prompt in ("".join(rng.choice("abc def,.") for _ in range(n)), [rng.randrange(299) for _ in range(n)]):
                body = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "logprobs": 5, "echo": True, "ignore_eos": True,
                        "return_token_ids": True}
                status, text = s.request("/v1/completions", body)
                reply = json.loads(text)
                out.append((status, reply.get("model"), reply.get("choices"), reply.get("usage")))
    return out


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as d:
        for name, fields in FAMILIES.items():
            config, folder, file = os.path.join(d, name + ".json"), os.path.join(d, name), os.path.join(d, name + ".gguf")
            with open(config, "w", encoding="utf-8") as f:
                json.dump({**COMMON, **fields}, f)
            subprocess.run([binary, "random-model", folder, "--config", config, "--init-std", "0.2"], check=True, stdout=subprocess.DEVNULL)
            to_gguf.write(folder, file)
            a, b = answers(binary, folder), answers(binary, file)
            check(f"{name}: answers", all(reply[:2] == (200, name) for reply in a + b), (a[0], b[0]))
            check(f"{name}: the same bits", a == b, next(((x, y) for x, y in zip(a, b) if x != y), ""))
        folder, file = os.path.join(d, "gpt2"), os.path.join(d, "gpt2.gguf")
        subprocess.run([binary, "random-model", folder, "--layers", "3", "--d-model", "64", "--heads", "4", "--vocab-size", "300",
                        "--max-positions", "256", "--init-std", "0.2"], check=True, stdout=subprocess.DEVNULL)
        to_gguf.write(folder, file)
        a, b = answers(binary, folder), answers(binary, file)
        check("gpt2: the same bits", a == b and a[0][0] == 200, next(((x, y) for x, y in zip(a, b) if x != y), a[0]))
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
