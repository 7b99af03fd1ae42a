"""Writes a Hugging Face folder as a GGUF file with F32 weights, by the rules of llama.cpp's converter. For tests: the
families that we serve, weights in F32, a tokenizer of byte-level BPE. Standard library only."""
import array
import json
import math
import os
import struct

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
ARCH = {"gemma3_text": "gemma3", "mistral": "llama"}
PERMUTED = ("llama", "smollm3")
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "post_attention_layernorm": "ffn_norm", "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}
GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm"}


def tensors(folder):
    """(name, shape, fp32 values) of model.safetensors."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            assert t["dtype"] == "F32", t
            f.seek(8 + n + t["data_offsets"][0])
            yield name, t["shape"], array.array("f", f.read(t["data_offsets"][1] - t["data_offsets"][0]))


def gguf_name(name, model_type):
    stem, kind = name.rsplit(".", 1)
    parts = stem.removeprefix("transformer.").split(".")
    layer = ""
    for i, part in enumerate(parts):
        if part.isdigit():
            layer, parts = f"blk.{part}.", parts[i + 1:]
            break
    stem = ".".join(parts)
    table = {**NAMES, **(GEMMA if model_type == "gemma3_text" else {})}
    return f"{layer}{table[stem]}.{kind}"


def permute(values, shape, heads):
    """Rows of a head, [2][half], become [half][2]."""
    columns = shape[1] if len(shape) > 1 else 1
    half = shape[0] // heads // 2
    out = array.array("f")
    for h in range(heads):
        for i in range(half):
            for j in range(2):
                row = (h * 2 + j) * half + i
                out.extend(values[row * columns:(row + 1) * columns])
    return out


def transpose(values, shape):
    rows, columns = shape
    out = array.array("f")
    for c in range(columns):
        out.extend(values[c::columns])
    return out, [columns, rows]


def convert_tensor(c, name, shape, values):
    """The tensor as the file holds it."""
    model_type = c["model_type"]
    if ARCH.get(model_type, model_type) in PERMUTED and ".q_proj." in name:
        values = permute(values, shape, c["num_attention_heads"])
    if ARCH.get(model_type, model_type) in PERMUTED and ".k_proj." in name:
        values = permute(values, shape, c["num_key_value_heads"])
    if model_type == "gemma3_text" and name.endswith("norm.weight"):
        values = array.array("f", (v + 1 for v in values))
    if model_type == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        values, shape = transpose(values, shape)
    return gguf_name(name, model_type), shape, values


def rope_tensors(c, head_dim):
    """Factors of llama3 and longrope."""
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "llama3":
        out, old = array.array("f"), scaling["original_max_position_embeddings"]
        for i in range(head_dim // 2):
            length = 2 * math.pi * c["rope_theta"] ** (2 * i / head_dim)
            low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
            smooth = min(1, max(0, (old / length - low) / (high - low)))
            out.append(1 / ((1 - smooth) / factor + smooth))
        yield "rope_freqs.weight", [len(out)], out
    if kind == "longrope":
        for name in ("long", "short"):
            values = array.array("f", scaling[name + "_factor"])
            yield f"rope_factors_{name}.weight", [len(values)], values


def settings(c, arch, head_dim):
    """(key, type, value) of the architecture."""
    gpt2 = arch == "gpt2"
    def get(new, old):
        return c[old if gpt2 else new]
    width, layers, heads = get("hidden_size", "n_embd"), get("num_hidden_layers", "n_layer"), get("num_attention_heads", "n_head")
    context = get("max_position_embeddings", "n_positions")
    yield "block_count", U32, layers
    yield "embedding_length", U32, width
    yield "attention.head_count", U32, heads
    yield "feed_forward_length", U32, (c.get("n_inner") or 4 * width) if gpt2 else c["intermediate_size"]
    yield "context_length", U32, context
    if gpt2:
        yield "attention.layer_norm_epsilon", F32, c["layer_norm_epsilon"]
        return
    yield "attention.layer_norm_rms_epsilon", F32, c["rms_norm_eps"]
    yield "attention.head_count_kv", U32, c["num_key_value_heads"]
    yield "attention.key_length", U32, head_dim
    yield "attention.value_length", U32, head_dim
    yield "rope.freq_base", F32, c["rope_theta"]
    yield "rope.dimension_count", U32, int(head_dim * c.get("partial_rotary_factor", 1))
    if c.get("sliding_window"):
        yield "attention.sliding_window", U32, c["sliding_window"]
    if c.get("final_logit_softcapping"):
        yield "final_logit_softcapping", F32, c["final_logit_softcapping"]
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        yield "rope.scaling.type", STRING, kind
        yield "rope.scaling.factor", F32, scaling["factor"]
    if kind == "yarn":
        yield "rope.scaling.original_context_length", U32, scaling["original_max_position_embeddings"]
    if kind == "longrope":
        old = c["original_max_position_embeddings"]
        yield "rope.scaling.original_context_length", U32, old
        yield "rope.scaling.attn_factor", F32, math.sqrt(1 + math.log(context / old) / math.log(old))


def tokenizer(folder, c, vocab_size):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        t = json.load(f)
    words = {i: w for w, i in t["model"]["vocab"].items()} | {a["id"]: a["content"] for a in t["added_tokens"]}
    control = {a["id"] for a in t["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    yield "tokenizer.ggml.model", STRING, "gpt2"
    yield "tokenizer.ggml.pre", STRING, "gpt-2"
    yield "tokenizer.ggml.tokens", (ARRAY, STRING), [words.get(i, f"[PAD{i}]") for i in range(vocab_size)]
    yield "tokenizer.ggml.token_type", (ARRAY, I32), [3 if i in control else 1 for i in range(vocab_size)]
    yield "tokenizer.ggml.merges", (ARRAY, STRING), merges
    yield "tokenizer.ggml.bos_token_id", U32, c["bos_token_id"]
    yield "tokenizer.ggml.eos_token_id", U32, c["eos_token_id"]
    yield "tokenizer.ggml.add_bos_token", BOOL, False


def packed(kind, value):
    if kind == STRING:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], value)


def pair(key, kind, value):
    out = packed(STRING, key)
    if isinstance(kind, tuple):
        return out + struct.pack("<IIQ", ARRAY, kind[1], len(value)) + b"".join(packed(kind[1], v) for v in value)
    return out + struct.pack("<I", kind) + packed(kind, value)


def write(folder, path):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    arch = ARCH.get(c["model_type"], c["model_type"])
    head_dim = c.get("head_dim", 0)
    pairs = [pair("general.architecture", STRING, arch)]
    pairs += [pair(f"{arch}.{key}", kind, value) for key, kind, value in settings(c, arch, head_dim)]
    pairs += [pair(*row) for row in tokenizer(folder, c, c["vocab_size"])]
    entries = [convert_tensor(c, *t) for t in tensors(folder)] + list(rope_tensors(c, head_dim))
    directory, at = b"", 0
    for name, shape, values in entries:
        directory += packed(STRING, name) + struct.pack("<I", len(shape))
        directory += b"".join(struct.pack("<Q", n) for n in reversed(shape)) + struct.pack("<IQ", 0, at)
        at += (len(values) * 4 + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(pairs)) + b"".join(pairs) + directory
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for _, _, values in entries:
            raw = values.tobytes()
            f.write(raw + bytes(-len(raw) % 32))
