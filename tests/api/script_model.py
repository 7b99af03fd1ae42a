"""A model that writes fixed scripts: the last token of the prompt chooses one. Standard library only.

make(folder, scripts, template): scripts are {name: text}. The tokenizer has a token <<name>> for each of them; a prompt that ends
with <<name>> is answered with that text and the end of the turn. Every token of a script occurs once, so the next token follows
from the last one alone. The model is a Llama of one layer that adds nothing to the embedding of the last token: rows of the
embedding are random signs, and row t of the head is the sum of the embeddings of the tokens before t.
"""
import array
import json
import os
import random
import struct

WIDTH = 256
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def letters():
    """GPT-2's letter of each byte."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, more = {b: chr(b) for b in seen}, 256
    for b in range(256):
        if b not in out:
            out[b], more = chr(more), more + 1
    return out


def cut(text, used):
    """The text in pieces of at least three bytes that no script has used."""
    data, pieces, at = text.encode(), [], 0
    while at < len(data):
        n = 3
        while at + n < len(data) and data[at:at + n] in used:
            n += 1
        piece, at = data[at:at + n], at + n
        while piece in used or len(piece) < 2:  # the rest of the text, which joins what came before it
            used.discard(pieces[-1])
            piece = pieces.pop() + piece
        used.add(piece)
        pieces.append(piece)
    return pieces


def tensors(n_tokens, follows):
    rng = random.Random(1)
    rows = [array.array("f", (1.0 if rng.getrandbits(1) else -1.0 for _ in range(WIDTH))) for _ in range(n_tokens)]
    head = [array.array("f", bytes(4 * WIDTH)) for _ in range(n_tokens)]
    for last, following in follows.items():
        for i in range(WIDTH):
            head[following][i] += 0.25 * rows[last][i]
    ones, layer = array.array("f", [1.0] * WIDTH), "model.layers.0."
    yield "model.embed_tokens.weight", (n_tokens, WIDTH), b"".join(r.tobytes() for r in rows)
    yield "lm_head.weight", (n_tokens, WIDTH), b"".join(r.tobytes() for r in head)
    for name in ("model.norm", layer + "input_layernorm", layer + "post_attention_layernorm"):
        yield name + ".weight", (WIDTH,), ones.tobytes()
    for name in "qkvo":
        yield layer + f"self_attn.{name}_proj.weight", (WIDTH, WIDTH), bytes(4 * WIDTH * WIDTH)
    for name, shape in (("gate", (64, WIDTH)), ("up", (64, WIDTH)), ("down", (WIDTH, 64))):
        yield layer + f"mlp.{name}_proj.weight", shape, bytes(4 * 64 * WIDTH)


def write_weights(path, parts):
    header, data = {}, b""
    for name, shape, values in parts:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


def make(folder, scripts, template, context=8192):
    os.makedirs(folder, exist_ok=True)
    letter, used = letters(), set()
    vocab = {letter[b]: b for b in range(256)}
    pieces = {name: cut(text, used) for name, text in scripts.items()}
    for piece in (p for ps in pieces.values() for p in ps):
        vocab["".join(letter[b] for b in piece)] = len(vocab)
    added = {text: len(vocab) + i for i, text in enumerate((*CONTROLS, *(f"<<{name}>>" for name in scripts)))}
    follows = {}
    for name, ps in pieces.items():
        last = added[f"<<{name}>>"]
        for piece in ps:
            follows[last] = last = vocab["".join(letter[b] for b in piece)]
        follows[last] = added["<|im_end|>"]
    n_tokens = len(vocab) + len(added)
    write_weights(os.path.join(folder, "model.safetensors"), tensors(n_tokens, follows))
    write(folder, "config.json", {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64, "vocab_size": n_tokens, "rms_norm_eps": 1e-5,
        "max_position_embeddings": context, "tie_word_embeddings": False, "eos_token_id": [added["<|im_end|>"]],
        "torch_dtype": "float32", "rope_theta": 10000.0, "hidden_act": "silu"})
    write(folder, "tokenizer.json", {
        "version": "1.0", "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": text in CONTROLS} for text, i in added.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}})
    write(folder, "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": template})
