#!/usr/bin/env python3
"""The JSON reader and writer against Python's json: `test_json.py JSON_PIPE`; closes with `N passed, N failed`.

Texts are made at random and spoiled. Both sides must give the same verdict, and the same value with the same text of every
number. We refuse three things that Python accepts: half a surrogate pair, a NUL in a key, and more than 2,048 levels.
ROSE_TEST_SEED chooses other texts.
"""
import json
import os
import random
import struct
import subprocess
import sys

ANY, NUL, LAST_WINS, NONFINITE, CONTROL = 1, 2, 4, 8, 16
PYTHON = ANY | NUL | LAST_WINS | NONFINITE
rng = random.Random(int(os.environ.get("ROSE_TEST_SEED", "20261128")))
failures = []
passed = 0


class Refused(Exception):
    pass


def pairs(items):
    if any("\0" in key for key, _ in items):
        raise Refused("a NUL in a key")
    json.dumps(items, ensure_ascii=False).encode("utf-8")  # half a surrogate pair has no UTF-8; a later key may hide it
    return dict(items)


def value(text, control=False):
    """What Python reads, with the text of each number; Refused where it or we refuse."""
    try:
        v = json.loads(text.decode("utf-8"), strict=not control, parse_int=lambda s: ("int", s), parse_float=lambda s: ("real", s),
                       parse_constant=lambda s: ("constant", s), object_pairs_hook=pairs)
        json.dumps(v, ensure_ascii=False).encode("utf-8")
        return v
    except (ValueError, RecursionError) as e:
        raise Refused(str(e)) from e


class Pipe:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, text, flags):
        self.p.stdin.write(struct.pack("=II", flags, len(text)) + text)
        self.p.stdin.flush()
        n, = struct.unpack("=I", self.p.stdout.read(4))
        return self.p.stdout.read(n)


def check(pipe, text, control=False):
    global passed
    got = pipe.read(text, PYTHON | (CONTROL if control else 0))
    try:
        want = value(text, control)
        ok = got[:1] == b"V" and value(got[1:]) == want
    except Refused as e:
        want = e
        ok = got[:1] == b"E" and len(got) > 1
    if ok:
        passed += 1
    else:
        failures.append(text)
        print(f"FAIL {text[:300]!r}: Python {want!r:.200}, ours {got[:200]!r}")


NUMBERS = ["0", "-0", "1", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
           "12345678901234567890", "18446744073709552000", "1000000000000000019884624838656", "0.1", "-0.0", "1e5", "1E+5",
           "1e-400", "1e400", "-1e400", "1.7976931348623157e308", "2.5e-324", "1.10", "NaN", "Infinity", "-Infinity", "1" * 400,
           "01", "-01", "1.", ".5", "1e", "1e+", "+1", "--1", "0x1", "1_0", "-", "nan", "-NaN", "١"]
STRINGS = ["", "a", "\\n\\t\\\\\\\"\\/\\b\\f\\r", "\\u00e9", "\\ud83c\\udf39", "\\ud83c", "\\udf39", "\\udf39\\ud83c", "\\uD83C\\u0041",
           "\\u0000", "\\u12", "\\x41", "\\", "é€🌹", "\x7f", "a\nb", "\x00", "\x1f", "key", "key2", "\\u006bey", "x" * 100]
WORDS = ["true", "false", "null", "True", "nul", "nullx", ""]
SPACE = ["", "", "", "", " ", "\n", "\t\r ", "\v", "\ufeff"]


def space():
    return rng.choice(SPACE[:-2]) if rng.random() < 0.97 else rng.choice(SPACE)


def number():
    if rng.random() < 0.5:
        return rng.choice(NUMBERS[:28] if rng.random() < 0.9 else NUMBERS)
    whole = str(rng.randrange(10 ** rng.randrange(1, 30)))
    return rng.choice(["", "-"]) + whole + rng.choice(["", "", "." + str(rng.randrange(1000))]) + rng.choice(["", "", f"e{rng.randrange(-330, 330)}"])


def string():
    good = [s for s in STRINGS if s.isprintable() and s not in ("\\ud83c", "\\udf39", "\\udf39\\ud83c", "\\uD83C\\u0041", "\\u12", "\\x41", "\\")]
    return '"' + "".join(rng.choice(good if rng.random() < 0.95 else STRINGS) for _ in range(rng.randrange(4))) + '"'


def make(depth):
    kind = rng.random()
    if depth == 0 or kind < 0.5:
        return space() + rng.choice([number, string, lambda: rng.choice(WORDS[:3] if rng.random() < 0.95 else WORDS)])() + space()
    n = rng.randrange(5) if rng.random() < 0.95 else rng.randrange(40)
    if kind < 0.75:
        return space() + "[" + ",".join(make(depth - 1) for _ in range(n)) + space() + "]" + space()
    return space() + "{" + ",".join(space() + string() + space() + ":" + make(depth - 1) for _ in range(n)) + space() + "}"


def spoil(text):
    text = bytearray(text)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        byte = rng.choice(b"{}[]\",:\\ \n\tutrfn0123456789+-.eE\x00\x1f\x7f\x80\xc3\xff\xed\xa0")
        how = rng.randrange(4)
        if how == 0:
            text.insert(at, byte)
        elif at < len(text):
            if how == 1:
                del text[at]
            elif how == 2:
                text[at] = byte
            else:
                del text[at:]
    return bytes(text)


def main():
    pipe = Pipe(sys.argv[1])
    for fixed in NUMBERS + WORDS + [f'"{s}"' for s in STRINGS] + ["", "[]", "{}", "[" * 900 + "]" * 900]:
        for control in (False, True):
            check(pipe, fixed.encode(), control)
            check(pipe, b'{"a":[' + fixed.encode() + b'],"a":1}', control)
    for text in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xc3", b"\xe2\x82"):
        check(pipe, b'"' + text + b'"')
    for _ in range(20000):
        text = make(4).encode()
        check(pipe, text)
        check(pipe, spoil(text), rng.random() < 0.2)
    many = {f"k{rng.randrange(3000)}": i for i in range(5000)}  # an object with an index
    check(pipe, ("{" + ",".join(f'"k{rng.randrange(3000)}":{i}' for i in range(5000)) + "}").encode())
    check(pipe, json.dumps(many).encode())
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
