#!/usr/bin/env python3
"""Make tests/golden/smollm2.json: greedy replies of SmolLM2-135M-Instruct to chats, by transformers in FP32.

    python3 -m venv .venv && .venv/bin/pip install -r tools/golden/requirements.txt
    .venv/bin/python tools/golden/make_smollm2.py          # 5 minutes on two cores

transformers reads the GGUF file that tools/smollm2 fetches and widens its blocks to FP32; each tensor is compared here
with what the package `gguf` makes of the file, whose values tests/model compares with ours (ggml-blocks.bin). A reply
has up to 64 tokens. It ends before the first token whose logit is less than 1e-3 above the second best, since another
order of additions may choose another token there. tests/api/test_smollm2.py compares the server with the file.
"""

import datetime
import hashlib
import json
import os
import platform
import subprocess

import gguf
import numpy as np
import torch
import transformers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OUT = os.path.join(ROOT, "tests/golden/smollm2.json")
MAX_TOKENS = 64
MIN_MARGIN = 1e-3

ONE_TURN = [
    "What is the capital of France?",
    "Name three primary colours.",
    "How many legs does a spider have?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "What is 17 + 25?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "Write a Python function that reverses a string.",
    "Fix this C code:\n```c\nint main() { printf(\"hi\") return 0; }\n```",
    "What does `ls -la | grep '^d'` print?",
    "Turn this into JSON: name Ada, age 36, city London.",
    "Summarise: The cat sat on the mat. The dog barked at the cat. The cat ran away.",
    "Wie heißt die Hauptstadt von Österreich?",
    "¿Cuál es tu comida favorita?",
    "Où se trouve la tour Eiffel ?",
    "日本の首都はどこですか。",
    "Привет! Как дела?",
    "Tell me a joke about rabbits 🐇.",
    "List five fruits, one on each line.",
    "Is 91 a prime number? Explain.",
    "  Why   is the sky blue?\n\n",
    "Hi",
    "Write the opening sentence of a detective story.",
    "Which is heavier, a kilogram of feathers or a kilogram of iron?",
    "SELECT name FROM users WHERE age > 30; -- what does this do?",
    "Correct the spelling: I recieved teh pakage yesturday.",
]  # fmt: skip


def turns(*texts, system=None):
    """Messages whose roles alternate, the user first."""
    start = [] if system is None else [{"role": "system", "content": system}]
    return start + [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(texts)]


CHATS = [turns(text) for text in ONE_TURN] + [
    turns("My name is Rose.", "Hello Rose! How can I help you today?", "What is my name?"),
    turns("Name a planet.", "Mars.", "Another one.", "Venus.", "And the largest one?"),
    turns("What is 2 + 2?", "4", "Multiply that by 3.", system="You are a calculator. Answer with a number."),
    turns("Where is my treasure?", system="You are a pirate. Answer like one."),
    turns("Say hello.", system=""),
    turns("def add(a, b):\n    return a + b", "This function adds two numbers.", "Now write one that subtracts."),
]  # fmt: skip


def check_weights(model, path):
    """The values that transformers loaded are those that the package gguf reads, in another order of rows in Q and K."""
    reader = gguf.GGUFReader(path)
    ours = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    theirs = {}
    for name, value in model.state_dict().items():
        theirs.setdefault(tuple(value.shape), []).append(np.sort(value.numpy(), axis=None))
    for name, value in ours.items():
        value = np.sort(value, axis=None)
        if not any(np.array_equal(value, t) for t in theirs[tuple(ours[name].shape)]):
            raise SystemExit(f"{name}: transformers loaded other values")
    print(f"{len(ours)} tensors have the values of the package gguf")


@torch.inference_mode()
def replies(model, prompts):
    """For each prompt: greedy ids, the smallest margin among them, and why they end. All prompts are one batch."""
    n, longest = len(prompts), max(map(len, prompts))
    step = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    out, smallest, ends, cache = [[] for _ in prompts], [float("inf")] * n, [None] * n, None
    for _ in range(MAX_TOKENS):
        result = model(step, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        best = torch.topk(result.logits[:, -1], 2)
        for i in range(n):
            margin, token = float(best.values[i, 0] - best.values[i, 1]), int(best.indices[i, 0])
            if ends[i] is not None:
                continue
            if margin < MIN_MARGIN:
                ends[i] = "margin"
                continue
            smallest[i] = min(smallest[i], margin)
            out[i].append(token)
            if token == model.config.eos_token_id:
                ends[i] = "stop"
        step = best.indices[:, :1]
        mask = torch.cat([mask, torch.ones(n, 1, dtype=mask.dtype)], 1)
        places = places[:, -1:] + 1
    return [(o, m, e or "length") for o, m, e in zip(out, smallest, ends)]


def main():
    path = subprocess.run(["sh", os.path.join(ROOT, "tools/smollm2")], check=True, capture_output=True, text=True).stdout.strip()
    path = os.path.join(ROOT, path)
    folder, name = os.path.split(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    check_weights(model, path)
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in CHATS]
    chats = []
    for messages, ids, (got, smallest, end) in zip(CHATS, prompts, replies(model, prompts)):
        text = tokenizer.decode(got, skip_special_tokens=True)
        print(f"{len(got):3} {end:6} {smallest:.4f} {messages[-1]['content']!r} -> {text!r}", flush=True)
        chats.append({"messages": messages, "prompt": ids, "reply": got, "text": text, "end": end, "margin": round(smallest, 5)})
    with open(path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    made_by = {
        "script": "tools/golden/make_smollm2.py",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "transformers": transformers.__version__, "torch": torch.__version__,
        "tokenizers": __import__("tokenizers").__version__, "python": platform.python_version(),
    }  # fmt: skip
    with open(OUT, "w", encoding="utf-8") as f:
        head = {"model": {"name": name, "sha256": digest}, "made_by": made_by, "max_tokens": MAX_TOKENS, "min_margin": MIN_MARGIN}
        f.write(json.dumps(head, ensure_ascii=False)[:-1] + ',\n"chats": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in chats))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
