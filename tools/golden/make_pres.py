#!/usr/bin/env python3
"""Make tests/golden/pres.txt: the ids of llama.cpp for each value of tokenizer.ggml.pre that src/tokenizer/pres.c has.

    python3 tools/golden/make_pres.py PROGRAM

`PROGRAM MODEL.gguf TEXTS` loads the vocabulary of a GGUF file with llama.cpp, tokenises each text of the file TEXTS (a NUL
ends each) without special tokens, and prints the ids of a text as one line. The committed file comes from a program over
llama_vocab::load and llama_vocab::tokenize of llama.cpp 0c1e57098, the sources in llama-cpp-python 0.3.36.

The vocabulary is trained here on the texts themselves, over white space and all: every place where a pattern cuts or does
not cut then shows in the ids."""
import collections
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
OUT = os.path.join(ROOT, "tests/golden/pres.txt")
MERGES = 500

TEXTS = [
    "Hello world, it's 12345 o'clock; WE'LL see! I'M 1st, you'Re 2nd.", "don't DON'T 'tis 's'S'll'LL 've x'd '' 'x",
    "1 12 123 1234 1234567 3.14 1,000,000 0x1F x1 1x v2.0", "٣٤٥ ½² Ⅻ １２ ①", "camelCase CamelCase ALLCAPS aB ABc XMLHttp iOS",
    "été ÉCOLE étéÉCOLE ñandú Ωmega ΩΜ ǅ ʰx ªº µm", "日本語と漢字かな交じり文、カナ。한국어는 ไทยคำ", "नमस्ते हिन्दी", "cafe\u0301 e\u0301\u0327 \u0301x", "שָׁלוֹם مَرْحَبًا",
    "👨‍👩‍👧‍👦 👍🏽🏳️‍🌈 1️⃣ ❤️x 😀😀", "a  b   c    d\t\te \t f", "line\nline\n\n  next\r\n\r\nlast \n", "   leading and trailing   ", "\n\n\n   \n",
    "a\u00a0b\u3000c\u2003d \u2003 e\u1680\u200bf\u2028g", "\x0b\x0c\x1c\x85 x", "if (x==1) { y+=2; } // a/b/c\n\t/* d */", "<|im_start|>user\n<s></s>[INST]",
    "--- *** ___ === ... ?! !!! $5 €9 £3 +1 ^2 `code` ~/x |a|", "http://example.org/a?b=c&d=%20#e mail@x.y", "“quoted” ‘single’ don’t – dash — em…", "𝒜𝒷 𐐀𐐨 ﬀ ａＢｃ ꙮ Ა ა",
    "Straße GROẞ ijĳ İı", "。，、！？；：（）《》", "a,b.c;d:e!f?g(h)i[j]k{l}m", "#include <stdio.h>\nint main(void){return 0;}\n", " .  ,   ! \n?", "tab\there\n\tindent\n        eight",
    "x" * 9 + " " * 33 + "y" + " " * 5]
PIECES = [" ", "  ", "\n", "\t", "a", "B", "Ab", "9", "123", "'s", "'LL", "é", "É", "字", "ท", "न", "\u0301", "😀", "-", "/", "$", "。", "\u3000", "\r\n", "”", "Ω", "{", "½"]


def alphabet():
    """GPT-2's character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def train(texts, letters):
    """The merges of byte-pair encoding over whole texts."""
    words = [[letters[b] for b in t.encode()] for t in texts]
    merges = []
    while len(merges) < MERGES:
        pairs = collections.Counter(p for w in words for p in zip(w, w[1:]))
        (a, b), _ = min(pairs.items(), key=lambda x: (-x[1], x[0]))
        merges.append((a, b))
        for w in words:
            for i in range(len(w) - 2, -1, -1):
                if i + 1 < len(w) and (w[i], w[i + 1]) == (a, b):
                    w[i:i + 2] = [a + b]
    return merges


def gguf(path, pre, tokens, merges):
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def strings(key, values):
        return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))

    pairs = [text(k) + struct.pack("<I", 8) + text(v) for k, v in
             (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", pre))]
    pairs += [strings("tokenizer.ggml.tokens", tokens), strings("tokenizer.ggml.merges", [a + " " + b for a, b in merges])]
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + bytes(128))


def names():
    source = open(os.path.join(ROOT, "src/tokenizer/pres.c"), encoding="utf-8").read()
    return [n for row in re.findall(r'\.names =\s*((?:"[^"]*"\s*)+)', source) for n in re.sub(r'"\s*"?', " ", row).split()]


def main():
    program = sys.argv[1]
    r = random.Random(1)
    texts = TEXTS + ["".join(r.choices(PIECES, k=12)) for _ in range(12)]
    letters = alphabet()
    merges = train(texts, letters)
    tokens = list(dict.fromkeys(letters + [a + b for a, b in merges]))
    ids = {t: collections.defaultdict(list) for t in texts}
    with tempfile.TemporaryDirectory() as tmp:
        model, listing = os.path.join(tmp, "m.gguf"), os.path.join(tmp, "texts")
        for name in names():
            gguf(model, name, tokens, merges)
            with open(listing, "wb") as f:  # we apply NFC for qwen2, llama.cpp does not: see pres.c
                f.write(b"".join((unicodedata.normalize("NFC", t) if name == "qwen2" else t).encode() + b"\0" for t in texts))
            lines = subprocess.run([program, model, listing], check=True, capture_output=True, text=True).stdout.splitlines()
            assert len(lines) == len(texts), (name, lines[:3])
            for t, line in zip(texts, lines):
                ids[t][line].append(name)
    with open(OUT, "w", encoding="utf-8") as f:
        f.write("# Made by tools/golden/make_pres.py from llama.cpp 0c1e57098 (llama-cpp-python 0.3.36); no tolerance.\n"
                "# t: the token of the next id. m: a merge. x: a text in hexadecimal; then the ids for values of\n"
                "# tokenizer.ggml.pre. qwen2 had the text in NFC.\n")
        f.writelines(f"t {t}\n" for t in tokens)
        f.writelines(f"m {a} {b}\n" for a, b in merges)
        for t in texts:
            f.write(f"x {t.encode().hex()}\n")
            f.writelines(f"{' '.join(who)}: {line}\n" for line, who in ids[t].items())


main()
