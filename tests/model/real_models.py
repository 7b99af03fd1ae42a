#!/usr/bin/env python3
"""The small files of released models, replayed: `real_models.py ROSEINFER [--keep FOLDER] [NAME...]`; closes with `N passed, N failed`.

real_models.json.xz holds config.json, generation_config.json, tokenizer_config.json and their like of 84 models, as people have
them. Each becomes a folder of a small model: widths, layers and vocabulary shrink, the weights are random (--load-format dummy),
a tokenizer of bytes stands in, and ids of special tokens move below the small vocabulary. All other fields stay as they are.
real_models.tsv says what must happen: `roseinfer serve` starts and answers, or it refuses the folder for its family or its
quantization, by name, and `roseinfer inspect` says the same. tools/golden/real_models_transformers.py compares with
transformers."""
import concurrent.futures
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 1024
SMALL = {"num_hidden_layers": 4, "n_layer": 4, "intermediate_size": 64, "n_inner": 64, "vocab_size": VOCAB}
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id", "unk_token_id")


def load():
    """{model: {file: text}}"""
    with lzma.open(os.path.join(HERE, "real_models.json.xz"), "rt", encoding="utf-8") as f:
        return json.load(f)["models"]


def expected():
    """[(model, result, words)]"""
    with open(os.path.join(HERE, "real_models.tsv"), encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f if not line.startswith("#")]
    return [(row[0], row[1], row[2].split(" | ")) for row in rows]


def text_of(token):
    return token.get("content") if isinstance(token, dict) else token


class Tokens:
    """The special tokens of a model, with ids from 256 on."""

    def __init__(self, settings, special_map):
        self.flags, self.old = {}, {}
        decoder = settings.get("added_tokens_decoder") or {}
        named = [settings.get(k) for k in ("bos_token", "eos_token", "pad_token", "unk_token")]
        first = [text_of(t) for t in named + list(special_map.values()) if isinstance(text_of(t), str)]
        order = sorted(decoder.items(), key=lambda kv: kv[1]["content"] not in first)
        for text in [t["content"] for _, t in order] + first:
            if text not in self.flags and len(self.flags) < VOCAB - 256:
                self.flags[text] = {}
        for old, token in order:
            if token["content"] in self.flags:
                self.flags[token["content"]] = {k: v for k, v in token.items() if k != "content"}
                self.old[int(old)] = token["content"]
        self.new = {text: 256 + i for i, text in enumerate(self.flags)}

    def moved(self, v, vocab):
        """An id, or a list of ids, of the old vocabulary in the small one. What is no id stays what it is."""
        if isinstance(v, list):
            return [self.moved(x, vocab) for x in v]
        if isinstance(v, bool) or not isinstance(v, int) or v < 0:
            return v
        if v in self.old:
            return self.new[self.old[v]]
        return VOCAB + v - vocab if v >= vocab else v if v < 256 else VOCAB - 1 - v % 64

    def settings(self, old):
        """tokenizer_config.json with the new ids."""
        decoder = {str(self.new[t["content"]]): t for t in (old.get("added_tokens_decoder") or {}).values()
                   if t["content"] in self.new}
        return {**old, "added_tokens_decoder": decoder} if decoder else old

    def tokenizer(self):
        """A byte-level tokenizer.json without merges."""
        plain = [c for c in range(256) if 0x21 <= c <= 0x7E or 0xA1 <= c <= 0xAC or c >= 0xAE]
        alphabet = [chr(c) for c in plain]
        alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
        vocab = {c: i for i, c in enumerate(alphabet)}
        vocab.update(self.new)
        vocab.update({f"\u0120w{i}": i for i in range(256 + len(self.new), VOCAB)})
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [{"id": self.new[t], "content": t, **flags, **own} for t, own in self.flags.items()]
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                "pre_tokenizer": level, "post_processor": None, "decoder": level,
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                          "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}


def shrink(config, tokens):
    """config.json of the small model. The width of a head stays, because lists of RoPE have its length."""
    c = {**config}
    heads = c.get("num_attention_heads") or c.get("n_head") or 1
    kv = c.get("num_key_value_heads") or heads
    width = c.get("hidden_size") or c.get("n_embd") or 64
    head_dim = c.get("head_dim") or width // heads
    small_kv = 1 if kv < heads else 2
    vocab = c.get("vocab_size") or 0
    layers = min(c.get("num_hidden_layers") or c.get("n_layer") or 1, SMALL["n_layer"])
    for field, size in {**SMALL, "num_attention_heads": 2, "n_head": 2, "num_key_value_heads": small_kv, "hidden_size": 2 * head_dim,
                        "n_embd": 2 * head_dim, "num_hidden_layers": layers, "n_layer": layers}.items():
        if isinstance(c.get(field), int):
            c[field] = size
    for field in ("layer_types", "no_rope_layers"):
        if isinstance(c.get(field), list):
            c[field] = c[field][:layers]
    for field in IDS:
        if field in c:
            c[field] = tokens.moved(c[field], vocab)
    return c


def folder_of(files, where):
    """Writes the folder of the small model. A model without config.json gets Llama 3's sizes."""
    os.makedirs(where)
    read = {name: json.loads(text) for name, text in files.items() if name.endswith(".json")}
    settings = read.get("tokenizer_config.json") or read.get("tokenizer_config_head.json") or {}
    tokens = Tokens(settings, read.get("special_tokens_map.json") or {})
    config = read.get("config.json") or {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "bos_token_id": 128000,
        "eos_token_id": 128009, "rope_theta": 500000.0}
    vocab = config.get("vocab_size") or 0
    written = {**read, "config.json": shrink(config, tokens), "tokenizer.json": tokens.tokenizer()}
    written.pop("tokenizer_config_head.json", None)
    if settings:
        written["tokenizer_config.json"] = tokens.settings(settings)
    if "generation_config.json" in read:
        written["generation_config.json"] = {k: tokens.moved(v, vocab) if k in IDS else v
                                             for k, v in read["generation_config.json"].items()}
    for name, value in written.items():
        with open(os.path.join(where, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)
    for name, text in files.items():
        if not name.endswith(".json"):
            with open(os.path.join(where, name), "w", encoding="utf-8") as f:
                f.write(text)


OPTIONS = ("--load-format", "dummy", "--device", "cpu", "--threads", "1", "--num-kv-pages", "600")


def serve(binary, folder, *options):
    """(what the server answered or None, its log)"""
    p = subprocess.Popen([binary, "serve", folder, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
    log, answer = [], None
    for line in p.stderr:
        log.append(line)
        url = re.search(r"listening on (http://\S+)", line)
        if url and answer is None:
            body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, "ignore_eos": True}).encode()
            asked = urllib.request.Request(url[1] + "/v1/completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(asked, timeout=60) as r:
                    answer = json.load(r)["usage"]["completion_tokens"]
            except Exception as e:  # pylint: disable=broad-except
                answer = repr(e)
            p.terminate()
    p.wait()
    return answer, "".join(log)


def fault_of(binary, files, result, words, where):
    """"" if the model does what the table says."""
    folder_of(files, where)
    options = (*OPTIONS, "--max-model-len", "8192" if "--max-model-len" in words else "64")  # 8192: the log names the option
    answer, log = serve(binary, where, *options)
    last = (log.strip().splitlines() or ["nothing"])[-1]
    looked = subprocess.run([binary, "inspect", where, "--no-tensors", *options], capture_output=True, text=True, check=False)
    if result == "starts":
        missing = [w for w in words if w != "-" and w not in log]
        return "" if answer == 2 and looked.returncode == 0 and not missing else f"{answer}: {last}; {looked.stderr}; {missing}"
    said = (looked.stderr.strip().splitlines() or ["nothing"])[-1]
    named = all(w in last for w in words) and ("model_type" if result == "family" else "are quantized by") in last
    return "" if answer is None and named and said == last and looked.returncode == 1 else f"{answer}: {last}; inspect: {said}"


def main():
    binary, keep, names = os.path.abspath(sys.argv[1]), None, sys.argv[2:]
    if names[:1] == ["--keep"]:
        keep, names = names[1], names[2:]
    models, rows = load(), expected()
    rows = [r for r in rows if not names or r[0] in names]
    failed = 0 if names or sorted(models) == sorted(r[0] for r in rows) else 1
    if failed:
        print("[  FAILED  ] the table has one row for each model")
    where = keep or tempfile.mkdtemp()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        faults = pool.map(lambda r: fault_of(binary, models[r[0]], r[1], r[2], os.path.join(where, r[0])), rows)
        for (name, result, _), fault in zip(rows, faults):
            failed += fault != ""
            print(f"[       OK ] {name}: {result}" if fault == "" else f"[  FAILED  ] {name}: {result}\n    {fault}", flush=True)
    if keep is None:
        shutil.rmtree(where)
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
