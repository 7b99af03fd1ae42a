#!/usr/bin/env python3
"""Generate src/tokenizer/unicode_ranges.c: the character classes that Hugging Face `tokenizers` uses.

Its parts carry Unicode data of different ages (Oniguruma for patterns, Rust's own tables for Digits
and for single_word, an older set for normalisation), so no Unicode version of a library here would
agree with it. We ask the package itself about every code point.

Needs: pip install tokenizers, and libutf8proc.so.2 (the package libutf8proc2), against which the
normaliser's exceptions are found. Run from the repository root:

    python3 tools/gen_unicode_tables.py > src/tokenizer/unicode_ranges.c
"""
import ctypes
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

CHARS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# Properties that a Split pattern may name; the C side finds them by these names.
PROPERTIES = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "N", "Nd", "Nl", "No",
              "P", "S", "Z", "Han"]


def onig_class(pattern):
    """Code points that match a one-character Oniguruma pattern."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(CHARS), 4096):
        for piece, _ in split.pre_tokenize_str("".join(CHARS[i:i + 4096])):
            found.add(ord(piece))
    return found


def rust_numeric():
    split = pre_tokenizers.Digits(individual_digits=False)
    return {ord(c) for c in CHARS if len(split.pre_tokenize_str("a" + c)) == 2}


def rust_word():
    """What single_word counts as part of a word."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tok = Tokenizer(BPE(vocab={a: i for i, a in enumerate(letters)}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.add_tokens([AddedToken("<m>", single_word=True, normalized=False)])
    mark = tok.token_to_id("<m>")
    return {ord(c) for c in CHARS if mark not in tok.encode("<m>" + c).ids}


def check_byte_level(letters, numbers, spaces):
    """ByteLevel's own pattern must see the classes that Split sees."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    classified = letters | numbers | spaces
    for c in CHARS:
        one = [len(split.pre_tokenize_str(lead + c)) == 1 for lead in "a1!"]
        o = ord(c)
        want = [o in letters, o in numbers, o not in classified]
        if one != want:
            sys.exit(f"ByteLevel and Split disagree about U+{o:04X}")


def norm_exceptions():
    """Code points that utf8proc decomposes, composes or reorders and `tokenizers` does not."""
    lib = ctypes.CDLL("libutf8proc.so.2")
    lib.utf8proc_decompose_char.argtypes = [
        ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_ssize_t, ctypes.c_int,
        ctypes.POINTER(ctypes.c_int)]
    lib.utf8proc_decompose_char.restype = ctypes.c_ssize_t
    stable, compat, decompose = 1 << 1, 1 << 2, 1 << 4
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    nfc = normalizers.NFC()
    buf = (ctypes.c_int32 * 32)()

    def theirs(c, options):
        last = ctypes.c_int(0)
        n = lib.utf8proc_decompose_char(c, buf, 32, stable | options, ctypes.byref(last))
        return [buf[i] for i in range(n)]

    found = set()
    for ch in CHARS:
        c = ord(ch)
        canonical = theirs(c, decompose)
        if [ord(x) for x in nfd.normalize_str(ch)] != canonical:
            found.add(c)
            found.update(canonical)
        elif [ord(x) for x in nfkd.normalize_str(ch)] != theirs(c, decompose | compat):
            found.add(c)
        if nfc.normalize_str("".join(map(chr, canonical))) != ch and canonical != [c]:
            # An exclusion from composition for both, or a pair that only one of them composes.
            lib.utf8proc_normalize_utf32.restype = ctypes.c_ssize_t
            pair = (ctypes.c_int32 * (len(canonical) + 1))(*canonical)
            n = lib.utf8proc_normalize_utf32(pair, len(canonical), stable | (1 << 3))
            if list(pair[:n]) != [ord(x) for x in nfc.normalize_str("".join(map(chr, canonical)))]:
                found.update(canonical)
    # Combining classes: does the mark move before one of a higher class, after one of a lower?
    lib.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_uint16)
    for ch in CHARS:
        ccc = lib.utf8proc_get_property(ord(ch))[1]
        if ord(ch) in found or len(theirs(ord(ch), decompose)) > 1:
            continue
        moves_left = nfd.normalize_str("a\u0345" + ch) != nfd.normalize_str("a\u0345") + nfd.normalize_str(ch)
        moves_right = nfd.normalize_str("a" + ch + "\u0334") == "a\u0334" + nfd.normalize_str(ch) \
            and nfd.normalize_str(ch) != "\u0334"
        if moves_left != (0 < ccc < 240) or moves_right != (ccc > 1):
            if moves_left or moves_right:
                sys.exit(f"U+{ord(ch):04X}: a mark for tokenizers, class {ccc} for utf8proc")
            found.add(ord(ch))
    return found


def emit_runs(named):
    """Neighbouring code points of the same classes as runs, which name their classes by a number."""
    kinds, runs = {0: 0}, []
    of = [0] * 0x110000
    for bit, (_, points) in enumerate(named):
        for c in points:
            of[c] |= 1 << bit
    for c in range(0xD800, 0xE000):
        of[c] = 1 << 31
    for c, classes in enumerate(of):
        kind = kinds.setdefault(classes, len(kinds))
        if not runs or runs[-1][1] != kind:
            runs.append((c, kind))
    print("const uint32_t rose_cp_kinds[] = {")
    wrap(f"0x{classes:x}," for classes in kinds)
    print("};\n\nconst rose_cp_run rose_cp_runs[] = {")
    wrap(f"{{0x{first:x},{kind}}}," for first, kind in [*runs, (0x110000, 0)])
    print("};")


def wrap(items):
    line = "   "
    for item in items:
        if len(line) + 1 + len(item) > 100:
            print(line)
            line = "   "
        line += " " + item
    print(line)


def main():
    sets = {p: onig_class(rf"\p{{{p}}}") for p in PROPERTIES}
    spaces, words, digits = onig_class(r"\s"), onig_class(r"\w"), onig_class(r"\d")
    check_byte_level(sets["L"], sets["N"], spaces)
    named = [(p, sets[p]) for p in PROPERTIES]
    named += [("\\\\s", spaces), ("\\\\w", words), ("\\\\d", digits),
              ("rust_word", rust_word()), ("rust_numeric", rust_numeric()),
              ("norm_inert", norm_exceptions())]
    print("/* tokenizer/unicode_ranges.c - generated by tools/gen_unicode_tables.py from tokenizers "
          f"{tokenizers.__version__};\n * do not edit. See unicode.h. */")
    print("/* clang-format off */")
    print('#include "tokenizer/unicode.h"\n')
    print("const char *const rose_cp_names[] = {")
    wrap(f'"{name}",' for name, _ in named)
    print("    NULL\n};\n")
    emit_runs(named)


main()
