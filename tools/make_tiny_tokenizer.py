#!/usr/bin/env python3
"""Write tests/tokenizer/data: the tiny tokenizers of the unit tests, and golden ids for them.

Needs: pip install tokenizers. Run from the repository root; the result is checked in, so the tests
need no Python:

    python3 tools/make_tiny_tokenizer.py

  tiny/tokenizer.json, tiny/golden.txt      about 500 tokens, GPT-2's pattern, two special tokens
  rich/tokenizer.json, rich/golden.txt      NFC, a Split pattern, digits, a template, added tokens
golden.txt: one case a line: hex of the text, a space, flags of rose_encode, then the ids.
"""
import json
import os

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers,
                        processors, trainers)
from tokenizers.models import BPE

OUT = "tests/tokenizer/data"
PLAIN_SPECIAL, ADD_SPECIAL = 1, 2

PROSE = """The little girl sat by the window and looked at the snow. "I'll go out," she said, "when it's
stopped." Her brother didn't hear; he'd been reading about the sea and the ships that they've built
there. 1859, 2026 and 31415 are numbers. The dog slept, the cat slept, and the old clock ticked on the
wall as it had ticked for a hundred years. Été, größer, привет, 日本語. while (i < n) { x[i++] = 0; }
"""

CASES = [
    "", " ", "Hello world", "It's  DON'T they'll we'Ve I'd", "a\n\n b\t\tc \r\n", "  leading and trailing  ",
    "3.14159 1859 ½ ٣٤", "naïve café été größer", "日本語と漢字", "привет, мир", "😀👨‍👩‍👧‍👦🇩🇪", "e\u0301 a\u0323\u0308 \u1112\u1161\u11ab",
    "x<|end|>y <|pad|> z", "<|end|><|end|>", "<|end", "\u3000\u00a0\u2028 x", "\x00\x01\x7f", "a" * 70, " " * 70,
    "while (i < n) { x[i++] = 0; }", "'s't'r're'v've", "<keep> <KEEP> a<keep>b , <keep>.", "Å Å \ufb01", "\U0001d165\U0001d15f",
]


def trainer(size, special):
    return trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def save(tok, name, flags):
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(json.loads(tok.to_str()), f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(folder, "golden.txt"), "w", encoding="ascii") as f:
        for flag in flags:
            tok.encode_special_tokens = bool(flag & PLAIN_SPECIAL)
            for text in CASES:
                ids = tok.encode(text, add_special_tokens=bool(flag & ADD_SPECIAL)).ids
                f.write(" ".join([text.encode().hex() or "-", str(flag)] + [str(i) for i in ids]) + "\n")


def main():
    tiny = Tokenizer(BPE())
    tiny.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tiny.decoder = decoders.ByteLevel()
    tiny.train_from_iterator([PROSE], trainer(512, ["<|end|>", "<|pad|>"]))
    save(tiny, "tiny", (0, PLAIN_SPECIAL, ADD_SPECIAL))

    rich = Tokenizer(BPE(ignore_merges=True))
    rich.normalizer = normalizers.NFC()
    rich.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                                   r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    rich.decoder = decoders.ByteLevel()
    rich.train_from_iterator([PROSE], trainer(400, ["<|end|>"]))
    rich.add_tokens([AddedToken("<keep>", single_word=True, normalized=False),
                     AddedToken("<KEEP>", lstrip=True, rstrip=True, normalized=True),
                     AddedToken("Å 日", normalized=True)])
    end = rich.token_to_id("<|end|>")
    rich.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|end|>:0 $A:0", special_tokens=[("<|end|>", end)])])
    save(rich, "rich", (0, PLAIN_SPECIAL, ADD_SPECIAL))


main()
