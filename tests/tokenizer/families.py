#!/usr/bin/env python3
"""Compare our token ids with `tokenizers` and `sentencepiece` for the tokenizers of the model families.

    python3 tests/tokenizer/families.py [--long] [--data DIR] [--smollm2 FILE.gguf] [--pipe TOK_PIPE] [--seed N] [--speed TEXT]

Each kind gets 600 strings, with --long 50,000. DIR (default $ROSE_SHARED_DATA, else
../shared/data) may have vocab-gguf with Llama 2's
and Phi-3's vocabularies and the expected ids of some texts, and text/children_pd.txt. FILE is SmolLM2's GGUF
(default $ROSE_SMOLLM2). What is missing is said and skipped. Other vocabularies are trained here.
With --speed the file TEXT is encoded too, and each kind prints its MB per second of CPU time.

Needs: pip install tokenizers sentencepiece. Prints "N strings, 0 differ"; exit 1 on a difference.
"""
import argparse
import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time

import parity
from parity import ADD_SPECIAL, PLAIN_SPECIAL, Run, texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
import sentencepiece

MARK = "\u2581"
MARKED = 256
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
HOSTILE = ["\u202e\u200f\u2066", "e\u0301\u0323\u0327" * 9, "👩‍👩‍👧‍👦" * 3, "\u200d\u200d", "\ufffd\ufffe", "\U0010ffff",
           " " * 300, "7" * 300, "\t \n" * 60, "\x00\x01\x1b[0m\x7f\x80\x9f", "<0x0A>", "<0xff>", "<0x", MARK,
           MARK * 4, " " + MARK + " ", "a" + MARK + "b", "ſ'ſ'S", "한국어 日本語 ไทย العربية", "\r\n\r\n", "．１２３４"]


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model_proto(pieces, dummy_prefix=True):
    """A ModelProto of sentencepiece: BPE, identity normaliser. pieces: [(text, score, type)]."""
    out = b"".join(field(1, field(1, p.encode()) + field(2, float(s)) + field(3, t)) for p, s, t in pieces)
    has_bytes = any(t == BYTE for _, _, t in pieces)
    out += field(2, field(3, 2) + field(35, int(has_bytes)) + field(41, 1) + field(42, 2))
    return out + field(3, field(1, b"identity") + field(3, int(dummy_prefix)) + field(4, 0) + field(5, 1))


def read_gguf(path):
    """The metadata of a GGUF file."""
    with open(path, "rb") as f:
        def u(fmt):
            return struct.unpack("<" + fmt, f.read(struct.calcsize(fmt)))[0]

        def value(kind):
            if kind == 8:
                return f.read(u("Q")).decode("utf-8", "replace")
            if kind == 9:
                element, n = u("I"), u("Q")
                return [value(element) for _ in range(n)]
            return u({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])
        assert f.read(4) == b"GGUF"
        u("I"), u("Q")
        out = {}
        for _ in range(u("Q")):
            key = value(8)
            out[key] = value(u("I"))
        return out


class Sp:
    """sentencepiece with the interface that Run.compare wants."""

    class Ids:
        def __init__(self, ids):
            self.ids = ids

    def __init__(self, proto):
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=proto)

    def no_truncation(self):
        pass

    def encode(self, text, add_special_tokens=False):
        return Sp.Ids(([self.sp.bos_id()] if add_special_tokens else []) + self.sp.encode(text))


def hf_pieces(pieces, form, rstrip=()):
    """The tokenizer.json that transformers makes of these pieces: form legacy (Prepend, Replace), metaspace or gemma."""
    vocab = {p: i for i, (p, _, _) in enumerate(pieces)}
    merges = []
    for p, score, _ in sorted((x for x in pieces if x[2] == NORMAL), key=lambda x: -x[1]):
        merges += [(p[:i], p[i:]) for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab]
    tok = Tokenizer(BPE(vocab, merges, fuse_unk=True, unk_token=pieces[0][0],
                        byte_fallback=any(t == BYTE for _, _, t in pieces)))
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if form == "legacy":
        tok.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    elif form == "gemma":
        tok.normalizer = normalizers.Replace(" ", MARK)
        tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tok.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=form, split=False)
    tok.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if form in ("legacy", "first", "always") else []))
    tok.add_special_tokens([AddedToken(p, normalized=False, special=True, rstrip=p in rstrip) for p, _, t in pieces
                            if t in (UNKNOWN, CONTROL)])
    tok.add_tokens([AddedToken(p, normalized=False, rstrip=p in rstrip) for p, _, t in pieces if t == USER])
    tok.post_processor = processors.TemplateProcessing(single=f"{pieces[1][0]} $A",
                                                       special_tokens=[(pieces[1][0], 1)])
    return tok


class Families(Run):
    def __init__(self, args):
        super().__init__(args.pipe)
        self.rng = random.Random(args.seed)
        self.n = 50_000 if args.long else 600
        self.text = args.speed

    def speed(self, name, model):
        """The best of three encodings of the text; opening the tokenizer is taken off."""
        if not self.text:
            return
        def cpu(path):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            with open(path, "rb") as text:
                subprocess.run([os.path.join(parity.ROOT, "build/roseinfer"), "tokenize", model, "--count"],
                               stdin=text, stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        opening = min(cpu("/dev/null") for _ in range(3))
        seconds = min(cpu(self.text) for _ in range(3)) - opening
        print(f"{name:44} {os.path.getsize(self.text) / seconds / 1e6:6.1f} MB/s")

    def some(self, added, n=None):
        added = list(added)
        n = n or self.n
        out = HOSTILE + added + [a + " x" for a in added] + ["x" + a for a in added] + [" " + a + a for a in added]
        return out[:n] + texts(self.rng, max(n - len(out), 0), added + HOSTILE)

    def save(self, name, tok, added, flags=0, n=None):
        with tempfile.TemporaryDirectory() as folder:
            tok.save(os.path.join(folder, "tokenizer.json"))
            self.compare(name, folder, tok, self.some(added, n), flags)
            self.speed(name, folder)

    def marked(self, name, model, tok, specials, n, whole=None):
        """Honest messages give the ids of the whole text; in hostile ones no special token is found. whole: what
        gives the ids of the whole text; None: our own encoder."""
        ours, before, differ, start = parity.Ours(self.pipe, model), self.strings, self.differ, time.monotonic()
        ids = {tok.token_to_id(s) for s in specials}
        cut = [s[:i] for s in specials for i in range(1, len(s))] + [s[i:] for s in specials for i in range(1, len(s))]
        for k in range(n):
            parts, want = [], []
            for _ in range(self.rng.randrange(1, 5)):
                special = self.rng.choice(specials)
                message = parity.random_text(self.rng, list(specials) + cut if k % 2 else [])
                if k % 2:
                    message = self.rng.choice(cut) + message + self.rng.choice(cut)
                parts += [(special, True), ("user\n", True), (message, False)]
                want.append(tok.token_to_id(special))
            text = "".join(p for p, _ in parts)
            got = self.encode_marked(ours, parts)
            honest = not any(s in p for p, t in parts if not t for s in specials)
            if k % 2 == 0 and honest:
                same = got == (whole.encode(text, add_special_tokens=False).ids if whole else ours.encode(text, 0)[0])
            else:
                same = [i for i in got if i in ids] == want
            self.strings += 1
            if not same:
                self.differ += 1
                print(f"DIFFER {name}: {parts!r}\n  ours {got}")
        ours.close()
        print(f"{name:44} {self.strings - before:6} strings, {self.differ - differ} differ, {time.monotonic() - start:.1f} s")

    @staticmethod
    def encode_marked(ours, parts):
        raw = [(p.encode(), t) for p, t in parts]
        text = b"".join(p for p, _ in raw)
        ours.proc.stdin.write(struct.pack("<II", MARKED, len(text)) + text + struct.pack("<I", len(raw)) +
                              b"".join(struct.pack("<II", len(p), t) for p, t in raw))
        ours.proc.stdin.flush()
        (n,) = struct.unpack("<I", ours.read(4))
        ids = [] if n == 0xFFFFFFFF else list(struct.unpack(f"<{n}I", ours.read(4 * n)))
        ours.read(struct.unpack("<I", ours.read(4))[0])
        return ids


def expected_ids(run, path):
    with open(path + ".inp", encoding="utf-8", newline="") as f:
        inputs = f.read().split("\n__ggml_vocab_test__\n")
    with open(path + ".out", encoding="utf-8") as f:
        wants = [list(map(int, line.split())) for line in f.read().split("\n")]
    ours, differ = parity.Ours(run.pipe, path), 0
    for text, want in zip(inputs, wants):
        differ += ours.encode(text, PLAIN_SPECIAL)[0] != want
    ours.close()
    run.strings += len(inputs)
    run.differ += differ
    print(f"{os.path.basename(path):44} {len(inputs):6} expected ids, {differ} differ")


def pieces_runs(run, name, pieces, gguf=None):
    added = [p for p, _, t in pieces if t in (UNKNOWN, CONTROL, USER)][:40]
    proto = model_proto(pieces)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
            f.write(proto)
        run.compare(f"{name}: tokenizer.model, sentencepiece", folder, Sp(proto), run.some(added), PLAIN_SPECIAL,
                    decode=False)
        run.marked(f"{name}: tokenizer.model, marked", folder, hf_pieces(pieces, "legacy"),
                   [p for p, _, t in pieces if t == CONTROL][:6], run.n // 10)
    if gguf:
        fixed = [p for p, _, t in pieces if t in (UNKNOWN, CONTROL)]  # sentencepiece looks for the others elsewhere
        run.compare(f"{name}: GGUF, sentencepiece", gguf, Sp(proto), run.some(fixed), PLAIN_SPECIAL, decode=False)
        rstrip = {p for p, _, t in pieces if p not in ("<unk>", "<s>", "<|endoftext|>")} if name == "phi-3" else ()
        chats = [f"<s>{a}\n {b}{a}\n{b} \n" for a in added for b in added]
        run.compare(f"{name}: GGUF, tokenizer.json", gguf, hf_pieces(pieces, "legacy", rstrip), run.some(added) + chats, ADD_SPECIAL)
    for form in ("legacy", "first", "always", "never", "gemma"):
        run.save(f"{name}: tokenizer.json, {form}", hf_pieces(pieces, form), added, ADD_SPECIAL)


def train_pieces(text, **options):
    """Pieces that sentencepiece trains on text."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=out, model_type="bpe", normalization_rule_name="identity",
        remove_extra_whitespaces=False, vocab_size=4000, character_coverage=0.9995, minloglevel=2,
        hard_vocab_limit=False, allow_whitespace_only_pieces=True, max_sentence_length=100000, **options)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    kinds = [(sp.is_unknown, UNKNOWN), (sp.is_control, CONTROL), (sp.is_byte, BYTE), (sp.is_unused, UNUSED)]
    users = set(options.get("user_defined_symbols", []))
    pieces = []
    for i in range(sp.get_piece_size()):
        kind = next((k for test, k in kinds if test(i)), NORMAL)
        piece = sp.id_to_piece(i)
        pieces.append((piece, sp.get_score(i), USER if piece in users else kind))
    return pieces, out.getvalue()


def sentencepiece_runs(run, text):
    options = {
        "mistral": dict(byte_fallback=True, control_symbols=["[INST]", "[/INST]"]),
        "gemma": dict(byte_fallback=True, split_digits=True, control_symbols=["<start_of_turn>", "<end_of_turn>"],
                      user_defined_symbols=["\n\n", MARK * 2, MARK * 3, "<table>", "[multimodal]"]),
        "no bytes": dict(user_defined_symbols=["<sep>"], control_symbols=["<pad>"]),
    }
    for name, kwargs in options.items():
        pieces, proto = train_pieces(text, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
                f.write(proto)
            added = [p for p, _, t in pieces if t in (UNKNOWN, CONTROL, USER)]
            run.compare(f"{name}: as sentencepiece wrote it", folder, Sp(proto), run.some(added), PLAIN_SPECIAL,
                        decode=False)
        pieces_runs(run, name, pieces)


def byte_level_runs(run, text):
    """The patterns that are scanned by hand, with the family's special tokens."""
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = {k: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(parity.PATTERNS[k]), "isolated"), last])
             for k in ("llama3", "qwen")}
    smol = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    kinds = {
        "llama3": (split["llama3"], None, True, ["<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>"]),
        "qwen2": (split["qwen"], normalizers.NFC(), False, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
        "smollm": (smol, None, False, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
        "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, ["<|endoftext|>"]),
    }
    for name, (pre, norm, ignore, specials) in kinds.items():
        tok = Tokenizer(BPE(ignore_merges=ignore))
        tok.pre_tokenizer, tok.decoder = pre, decoders.ByteLevel()
        if norm:
            tok.normalizer = norm
        tok.train_from_iterator(text, trainers.BpeTrainer(
            vocab_size=6000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
        tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>", normalized=False)])
        run.save(f"byte-level, {name}", tok, specials + ["<think>"])
        with tempfile.TemporaryDirectory() as folder:
            tok.save(os.path.join(folder, "tokenizer.json"))
            run.marked(f"byte-level, {name}, marked", folder, tok, specials, run.n // 10, tok)


def smollm2_tokenizer(meta):
    """(the reference, its control tokens) of SmolLM2's GGUF metadata."""
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tok = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    specials = [t for t, k in zip(tokens, types) if k == CONTROL]
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
    return tok, specials


def smollm2_run(run, path):
    tok, specials = smollm2_tokenizer(read_gguf(path))
    run.compare("SmolLM2's GGUF", path, tok, run.some(specials))
    run.speed("SmolLM2's GGUF", path)
    run.marked("SmolLM2's GGUF, marked", path, tok, specials, run.n // 10, tok)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--data", default=os.environ.get("ROSE_SHARED_DATA", os.path.join(parity.ROOT, "../shared/data")))
    parser.add_argument("--smollm2", default=os.environ.get("ROSE_SMOLLM2", ""))
    parser.add_argument("--pipe", default=os.path.join(parity.ROOT, "build/tests/tools/tok_pipe"))
    parser.add_argument("--speed", metavar="TEXT")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ROSE_TEST_SEED", "1")))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    run, start = Families(args), time.monotonic()
    book = os.path.join(args.data, "text/children_pd.txt")
    text = parity.PROSE.split("\n") * 20 + [l for s in parity.sources() for l in s.split("\n")][:20000]
    if args.long and os.path.exists(book):
        with open(book, encoding="utf-8") as f:
            text += f.read(4_000_000).split("\n")
    for name in ("llama-spm", "phi-3"):
        path = os.path.join(args.data, f"vocab-gguf/ggml-vocab-{name}.gguf")
        if not os.path.exists(path):
            print(f"{name}: no {path}, not compared")
            continue
        expected_ids(run, path)
        meta = read_gguf(path)
        pieces = list(zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"], meta["tokenizer.ggml.token_type"]))
        pieces_runs(run, name, [(p, s, CONTROL if k == UNKNOWN and i > 0 else UNKNOWN if i == 0 else k)
                                for i, (p, s, k) in enumerate(pieces)], path)
    sentencepiece_runs(run, text)
    byte_level_runs(run, text)
    if args.smollm2:
        smollm2_run(run, args.smollm2)
    else:
        print("SmolLM2: no GGUF file given, not compared")
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{run.strings} strings, {run.differ} differ")
    sys.exit(1 if run.differ or run.strings < 5000 else 0)


if __name__ == "__main__":
    main()
