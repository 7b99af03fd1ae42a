#!/usr/bin/env python3
"""Compare our token ids, and the text decoded from them, with Hugging Face `tokenizers`.

    python3 tests/tokenizer/parity.py [MODEL_DIR ...] [--pipe build/tests/tools/tok_pipe] [--seed N]

Each MODEL_DIR is compared as it is and, if it has vocab.json and merges.txt, also from those files
alone (against transformers' GPT2Tokenizer where that is installed). Then come tokenizers trained
here, with every combination of added-token flags, every normalizer and the usual Split patterns; and
GPT-2's own, if ROSE_GPT2_TOKENIZER names a folder with its vocab.json and merges.txt.

Needs: pip install tokenizers (and transformers for the second form). Prints "N strings, 0 differ";
exit 1 on a difference.
"""
import argparse
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers,
                        processors, trainers)
from tokenizers.models import BPE

ROOT = os.environ.get("ROSE_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
PLAIN_SPECIAL, ADD_SPECIAL = 1, 2

PROSE = """
It was the best of times, it was the worst of times; and nobody (not even the clerk) knew which. "I'd
rather you hadn't," she said, "but they'll come, we've asked, I'm sure -- it's done." The year 1859 saw
3,141,592 people; 27% of them couldn't read. DON'T SHOUT! WE'LL BE THERE, I'VE SAID SO, HE'D AGREE.
Le cœur a ses raisons que la raison ne connaît point. Übermut tut selten gut; Füße größer als Maß.
Всё смешалось в доме Облонских. Η Ελλάδα είναι ωραία. שלום עולם, مرحبا بالعالم، नमस्ते दुनिया।
吾輩は猫である。名前はまだ無い。人之初，性本善。 한국어는 재미있다. สวัสดีชาวโลก xin chào thế giới.
Price: $1,234.56 / €99,99 / ¥5000; e-mail: someone@example.org; http://example.org/a?b=c&d=%20#e
"""

SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\x0b", "\x0c", "\x1c", "\x1f", "\x85",
          "\u00a0", "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u200b", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", " \n", "\n ", "\t \t"]

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺", "1️⃣", "🧑🏿‍🚀", "©️", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "‼️", "🫨"]

CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'LL",
                "'D", "'lL", "'", "''", "'x", "’s", "’t", "'ſ", "'\u212a", "'r", "'v", "'l", "' s"]

PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
             r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
             r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "words": r"\w+|[^\w\s]+",
    "maybe empty": r"\d*",
}


class Ours:
    """The C side: tok_pipe on one folder."""

    def __init__(self, pipe, folder):
        self.proc = subprocess.Popen([pipe, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, n):
        data = self.proc.stdout.read(n)
        if len(data) != n:
            sys.exit("tok_pipe ended early")
        return data

    def encode(self, text, flags):
        raw = text.encode()
        self.proc.stdin.write(struct.pack("<II", flags, len(raw)) + raw)
        self.proc.stdin.flush()
        (n,) = struct.unpack("<I", self.read(4))
        ids = None if n == 0xFFFFFFFF else list(struct.unpack(f"<{n}I", self.read(4 * n)))
        (size,) = struct.unpack("<I", self.read(4))
        return ids, self.read(size)

    def close(self):
        self.proc.stdin.close()
        return self.proc.wait()


class Run:
    def __init__(self, pipe):
        self.pipe, self.strings, self.differ = pipe, 0, 0

    def compare(self, name, folder, theirs, texts, flags=0, decode=True):
        start, before, differ = time.monotonic(), self.strings, self.differ
        theirs.no_truncation()
        theirs.encode_special_tokens = bool(flags & PLAIN_SPECIAL)
        ours = Ours(self.pipe, folder)
        for text in texts:
            want = theirs.encode(text, add_special_tokens=bool(flags & ADD_SPECIAL)).ids
            got, decoded = ours.encode(text, flags)
            same = got == want
            if same and decode:
                same = decoded.decode() == theirs.decode(want, skip_special_tokens=False)
            self.strings += 1
            if not same:
                self.differ += 1
                if self.differ <= 20:
                    print(f"DIFFER {name}: {text[:80]!r}\n  theirs {want[:24]}\n  ours   {(got or [])[:24]}")
                    if got == want or got is None:
                        print(f"  decoded {decoded[:80]!r}")
        if ours.close() != 0:
            self.differ += 1
            print(f"{name}: tok_pipe failed")
        print(f"{name:44} {self.strings - before:6} strings, {self.differ - differ} differ, "
              f"{time.monotonic() - start:.1f} s", flush=True)


def sources():
    out = []
    for folder, _, files in sorted(os.walk(os.path.join(ROOT, "src"))):
        for f in sorted(files):
            if f.endswith((".c", ".h")) and "unicode_ranges" not in f:
                with open(os.path.join(folder, f), encoding="utf-8") as fh:
                    out.append(fh.read())
    return out


def random_char(rng):
    plane = rng.choice([0] * 6 + [1] * 3 + [2, 3, 14, 15, 16, rng.randrange(17)])
    while True:
        c = plane << 16 | rng.randrange(0x10000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(rng, added):
    """A short text out of everything that is hard."""
    words = PROSE.split()
    parts = []
    for _ in range(rng.randrange(1, 12)):
        k = rng.randrange(12)
        if k <= 2:
            parts.append(rng.choice(words))
        elif k == 3:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
        elif k == 4:
            parts.append(rng.choice(CONTRACTIONS))
        elif k == 5:
            parts.append(rng.choice(EMOJI))
        elif k == 6:
            parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 5))))
        elif k == 7:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))) + rng.choice(["", "²", "½", "٣", "Ⅷ"]))
        elif k == 8:
            base = rng.choice("aeiouAEO가각ᄀqあक")
            parts.append(base + "".join(chr(rng.choice([0x300, 0x301, 0x308, 0x323, 0x327, 0x328, 0x345,
                                                        0x334, 0x5b0, 0x94d, 0x93c, 0x1161, 0x11a8,
                                                        0x3099, 0x1d165, 0x20d0]))
                                        for _ in range(rng.randrange(1, 5))))
        elif k == 9 and added:
            parts.append(rng.choice(added))
        elif k == 10:
            parts.append("".join(rng.choice("abcXYZ019 _-+=(){}[]<>|'\"\\/.,;:!?\n\t") for _ in range(rng.randrange(1, 16))))
        else:
            parts.append(" ")
    return "".join(parts)


def code_points(step, planes=range(17)):
    """Every code point of the planes, step at a time, each after a letter, a digit, a space or a mark."""
    rng = random.Random(step)
    for plane in planes:
        points = [c for c in range(plane << 16, (plane + 1) << 16) if not 0xD800 <= c < 0xE000]
        for i in range(0, len(points), step):
            yield "".join(rng.choice(("a", "1", " ", "!", "")) + chr(p) for p in points[i:i + step])


def texts(rng, n, added=(), code=True):
    out = ["", " ", "a", "'", "''", "\n", "\x00", "a\x00b", " a", "  a", "a ", "a  "]
    out += PROSE.split("\n") + [PROSE] + SPACES + EMOJI + CONTRACTIONS + ["I" + c for c in CONTRACTIONS]
    out += ["x" + s + "y" for s in SPACES] + ["x" + s * 3 + "y" for s in SPACES] + list(added)
    if code:
        for src in sources():
            out += src.split("\n")[: n // 60]
    while len(out) < n:
        out.append(random_text(rng, added))
    return out[:n]


def long_lines(rng, added=()):
    """Lines of 1 MB."""
    prose = PROSE.replace("\n", " ")
    yield (prose * (1_000_000 // len(prose) + 1))[:1_000_000]
    yield "a" * 1_000_000
    yield " " * 1_000_000
    yield "".join(rng.choice("abcdefgh") for _ in range(1_000_000))
    yield "".join(random_char(rng) for _ in range(200_000))
    yield "!?" * 250_000 + "7" * 500_000
    if added:
        yield (added[0] + " x ") * (300_000 // len(added[0]))


def alphabet_trainer(vocab_size, special=()):
    return trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def train(vocab_size=1500, **model):
    tok = Tokenizer(BPE(**model))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(sources() + [PROSE] * 20, alphabet_trainer(vocab_size))
    return tok


def with_parts(base, **parts):
    """A copy of a tokenizer with some of its parts replaced."""
    tok = Tokenizer.from_str(base.to_str())
    for name, part in parts.items():
        setattr(tok, name, part)
    return tok


def flag_tokens():
    """One added token for each combination of the five flags, and tokens that lie in each other."""
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    out = []
    for i, values in enumerate(itertools.product([False, True], repeat=len(flags))):
        out.append(AddedToken(f"<{i}>" if i % 2 else f"tok{i}", **dict(zip(flags, values))))
    out += [AddedToken("tok", normalized=False), AddedToken("<1><3>", normalized=False),
            AddedToken("<1", normalized=True), AddedToken("a b", normalized=False, rstrip=True),
            AddedToken("\n\n", normalized=False), AddedToken("Ａ", normalized=True),
            AddedToken("日e\u0301", normalized=True, single_word=True)]
    return out


def added_runs(run, rng, base, folder):
    tok = Tokenizer.from_str(base.to_str())
    for token in flag_tokens():
        (tok.add_special_tokens if token.special else tok.add_tokens)([token])
    contents = [t.content for t in flag_tokens()]
    mixed = [rng.choice(["", " ", "x", "\u3000", "é", "-"]).join(rng.choices(contents, k=rng.randrange(1, 6)))
             for _ in range(1500)] + texts(rng, 1500, contents, code=False)
    for name, norm in [("", None), (" NFC", normalizers.NFC()), (" NFKD", normalizers.NFKD())]:
        variant = tok if norm is None else with_parts(tok, normalizer=norm)
        if norm is not None:  # reload, so that the added tokens are normalised too
            variant = Tokenizer.from_str(variant.to_str())
        variant.save(os.path.join(folder, "tokenizer.json"))
        for flags in (0, PLAIN_SPECIAL):
            run.compare(f"added tokens{name}, flags {flags}", folder, variant, mixed, flags)


def part_runs(run, rng, base, folder):
    """Normalizers, patterns, options: each a variant of the same trained tokenizer."""
    def one(name, tok, n, flags=0, extra=(), decode=True):
        tok = Tokenizer.from_str(tok.to_str())
        tok.save(os.path.join(folder, "tokenizer.json"))
        run.compare(name, folder, tok, texts(rng, n, code=False) + list(extra), flags, decode)

    for form in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(),
                 normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])):
        one(f"normalizer {type(form).__name__}", with_parts(base, normalizer=form), 700,
            extra=code_points(512, [0, 1]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for name, pattern in PATTERNS.items():
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        extra = list(code_points(512, [0])) + ["a" * 100_000, " " * 100_000, "1" * 50_000 + "\n" * 50_000]
        one(f"pattern {name}", with_parts(base, pre_tokenizer=pre_tokenizers.Sequence([split, byte_level])),
            700, extra=extra)
    for name, stages in {
        "removed": [pre_tokenizers.Split(Regex(r"\s+"), "removed"), byte_level],
        "removed, invert": [pre_tokenizers.Split(Regex(r"\p{L}+"), "removed", invert=True), byte_level],
        "literal": [pre_tokenizers.Split(".", "isolated"), byte_level],
        "digits": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "digit runs": [pre_tokenizers.Digits(individual_digits=False), byte_level],
        "prefix space": [pre_tokenizers.Split(Regex(r"[a-c]"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)],
    }.items():
        one(f"stages {name}", with_parts(base, pre_tokenizer=pre_tokenizers.Sequence(stages)), 700)
    tok = with_parts(base, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    one("prefix space", tok, 500)
    tok = with_parts(base, post_processor=processors.TemplateProcessing(
        single="!:0 $A:0 ?:0", special_tokens=[("!", base.token_to_id("!")), ("?", base.token_to_id("?"))]))
    one("template", tok, 300, ADD_SPECIAL)
    one("template off", tok, 300)
    model = json.loads(base.to_str())
    model["model"]["ignore_merges"] = True
    model["model"]["merges"] = model["model"]["merges"][::2]
    one("ignore_merges", Tokenizer.from_str(json.dumps(model)), 700)
    for unk, fuse in ((None, False), ("!", False), ("!", True)):
        model = json.loads(base.to_str())
        gone = {a for a in pre_tokenizers.ByteLevel.alphabet() if a in "jqXÃÂâ\u0120"}
        model["model"]["merges"] = [m for m in model["model"]["merges"] if not gone & set("".join(m))]
        kept = [t for t in sorted(model["model"]["vocab"], key=model["model"]["vocab"].get) if not gone & set(t)]
        model["model"]["vocab"] = {t: i for i, t in enumerate(kept)}
        model["model"].update(unk_token=unk, fuse_unk=fuse)
        one(f"alphabet with holes, unk {unk}, fuse {fuse}", Tokenizer.from_str(json.dumps(model)), 400)


def gpt2_from_files(folder):
    """What transformers makes of vocab.json + merges.txt, or our reading of it without transformers."""
    try:
        from transformers import GPT2Tokenizer
        return GPT2Tokenizer.from_pretrained(folder).backend_tokenizer
    except ImportError:
        tok = Tokenizer(BPE.from_file(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt")))
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tok.decoder = decoders.ByteLevel()
        tok.add_special_tokens(["<|endoftext|>"])
        return tok


def files_only(folder, target):
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if os.path.exists(os.path.join(folder, name)):
            shutil.copy(os.path.join(folder, name), target)


def folder_runs(run, rng, folder, n):
    added = ["<|endoftext|>", "<|endoftext|", "|endoftext|>"]
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        run.compare(f"{os.path.basename(folder)} tokenizer.json", folder, tok,
                    itertools.chain(texts(rng, n, added), long_lines(rng, added), code_points(256, [0, 1, 14])))
        run.compare(f"{os.path.basename(folder)} plain special", folder, tok, texts(rng, 500, added), PLAIN_SPECIAL)
    if os.path.exists(os.path.join(folder, "merges.txt")):
        with tempfile.TemporaryDirectory() as target:
            files_only(folder, target)
            tok = gpt2_from_files(target)
            run.compare(f"{os.path.basename(folder)} vocab.json + merges.txt", target, tok,
                        itertools.chain(texts(rng, n, added), long_lines(rng, added)))


def config_runs(run, rng, base, folder):
    """vocab.json + merges.txt with the small files that transformers writes beside them."""
    base.model.save(folder)
    vocab = len(json.load(open(os.path.join(folder, "vocab.json"), encoding="utf-8")))
    decoder = {str(vocab): {"content": "<|endoftext|>", "lstrip": False, "rstrip": False, "single_word": False,
                            "normalized": False, "special": True},
               str(vocab + 1): {"content": "<|pad|>", "lstrip": True, "rstrip": True, "single_word": False,
                                "normalized": False, "special": True},
               str(vocab + 2): {"content": "plain one", "lstrip": False, "rstrip": False, "single_word": True,
                                "normalized": True, "special": False}}
    cases = {
        "nothing": {},
        "decoder": {"tokenizer_config.json": {"added_tokens_decoder": decoder, "pad_token": "<|pad|>",
                                              "tokenizer_class": "GPT2Tokenizer"}},
        "map": {"special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": True,
                                            "rstrip": False, "single_word": False, "normalized": False},
                                            "unk_token": "<s>", "additional_special_tokens": ["<x>", "<y>"]}},
        "prefix space": {"tokenizer_config.json": {"add_prefix_space": True}},
        "bos": {"tokenizer_config.json": {"add_bos_token": True, "bos_token": "<|endoftext|>"}},
        "added": {"added_tokens.json": {"<|endoftext|>": vocab, "zz top": vocab + 1}},
    }
    added = ["<|endoftext|>", " <|pad|> ", "plain one", "plain ones", "<s>", " </s> ", "<x>", "<y>", "zz top"]
    for name, files in cases.items():
        with tempfile.TemporaryDirectory() as target:
            files_only(folder, target)
            for f, content in files.items():
                with open(os.path.join(target, f), "w", encoding="utf-8") as fh:
                    json.dump(content, fh)
            tok = gpt2_from_files(target)
            for flags in (0, ADD_SPECIAL):
                run.compare(f"GPT2Tokenizer, {name}, flags {flags}", target, tok, texts(rng, 300, added, code=False), flags)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--pipe", default=os.path.join(ROOT, "build/tests/tools/tok_pipe"))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ROSE_TEST_SEED", "1")))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    rng, run, start = random.Random(args.seed), Run(args.pipe), time.monotonic()
    for model in args.models:
        folder_runs(run, rng, os.path.normpath(model), 5000)
    gpt2 = os.environ.get("ROSE_GPT2_TOKENIZER")
    if gpt2:
        folder_runs(run, rng, os.path.normpath(gpt2), 8000)
    base = train()
    with tempfile.TemporaryDirectory() as folder:
        base.save(os.path.join(folder, "tokenizer.json"))
        run.compare("trained, every code point", folder, base, code_points(128))
        run.compare("trained", folder, base, itertools.chain(texts(rng, 4000), long_lines(rng)))
        added_runs(run, rng, base, folder)
        part_runs(run, rng, base, folder)
    try:
        import transformers  # noqa: F401
        with tempfile.TemporaryDirectory() as folder:
            config_runs(run, rng, base, folder)
    except ImportError:
        print("transformers is not installed: vocab.json + merges.txt with settings not compared")
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{run.strings} strings, {run.differ} differ")
    sys.exit(1 if run.differ or run.strings < 20000 else 0)


if __name__ == "__main__":
    main()
