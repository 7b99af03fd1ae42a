#!/usr/bin/env python3
"""Grammars that are made to be costly: the CPU time that the compiler spends on each, and whether it refuses.

tests/grammar/costs.py TOKENIZER [--tool build/tests/tools/grammar_bench] [--only NAME] [--mode closed|ordered|open]

TOKENIZER: a folder with GPT-2's encoder.json and vocab.bpe (or vocab.json and merges.txt).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

SCHEMA, REGEX, EBNF, TAG = 1, 2, 4, 5


def strings(n, **more):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}, **more}


def objects(n):
    return [{"type": "object", "properties": {f"a{i}": {"type": "string"}, f"b{i}": {"type": "integer"}},
             "required": [f"a{i}"]} for i in range(n)]


def kinds(n):
    """Objects that a property tells apart, as discriminated unions of pydantic have it."""
    return [{"type": "object", "properties": {"kind": {"const": f"k{i}"}, f"b{i}": {"type": "integer"}},
             "required": ["kind", f"b{i}"]} for i in range(n)]


def tags(n, triggers):
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": [
        {"begin": f"<function={i}>", "content": {"type": "json_schema", "json_schema": strings(2)}, "end": "</function>"}
        for i in range(n)]}}


def cases():
    yield "dependentRequired 100", SCHEMA, strings(100, dependentRequired={f"p{i}": [f"p{(i + 1) % 100}"] for i in range(100)})
    yield "dependentRequired 100 star", SCHEMA, strings(101, dependentRequired={f"p{i}": ["p100"] for i in range(100)})
    yield "dependentRequired 100 without properties", SCHEMA, {
        "type": "object", "dependentRequired": {f"p{i}": [f"q{i}"] for i in range(100)}}
    yield "dependentRequired 8", SCHEMA, strings(8, dependentRequired={f"p{i}": [f"p{(i + 1) % 8}"] for i in range(8)})
    yield "dependentRequired 14", SCHEMA, strings(28, dependentRequired={f"p{i}": [f"p{i + 14}"] for i in range(14)})
    yield "dependentSchemas 60", SCHEMA, strings(60, dependentSchemas={
        f"p{i}": {"properties": {f"p{(i + 1) % 60}": {"minLength": 1}}} for i in range(60)})
    for n in (10, 50, 200):
        yield f"oneOf {n} objects", SCHEMA, {"oneOf": objects(n)}
        yield f"oneOf {n} kinds", SCHEMA, {"oneOf": kinds(n)}
        yield f"anyOf {n} objects", SCHEMA, {"anyOf": objects(n)}
    yield "oneOf 50 closed objects", SCHEMA, {"oneOf": [dict(o, additionalProperties=False) for o in objects(50)]}
    yield "oneOf 60 objects, 3000 required", SCHEMA, {"oneOf": [
        {"type": "object", "properties": {"a": True}, "additionalProperties": True, "required": [f"n{k}" for k in range(3000)],
         "minProperties": i} for i in range(60)]}
    yield "oneOf 12 objects, names required only", SCHEMA, {"oneOf": [
        {"type": "object", "properties": {"a": True}, "required": [f"n{k}" for k in range(3000)], "minProperties": i}
        for i in range(12)]}
    yield "oneOf 50 patterns", SCHEMA, {"oneOf": [{"type": "string", "pattern": f"^a{i}[a-z]*$"} for i in range(50)]}
    yield "oneOf 50 same patterns", SCHEMA, {"oneOf": [{"type": "string", "pattern": f"[a-z]{i}"} for i in range(50)]}
    yield "oneOf 50 strings", SCHEMA, {"oneOf": [{"type": "string", "minLength": i} for i in range(50)]}
    yield "allOf 30 anyOf", SCHEMA, {"allOf": [{"anyOf": [{"required": [f"p{i}"]}, {"required": [f"q{i}"]}]} for i in range(30)]}
    yield "if 30", SCHEMA, strings(31, allOf=[{"if": {"properties": {f"p{i}": {"const": "x"}}},
                                               "then": {"required": [f"p{i + 1}"]}} for i in range(30)])
    yield "not 40", SCHEMA, {"allOf": [{"not": {"pattern": f"a{i}"}} for i in range(40)], "type": "string"}
    yield "not enum of 2000 numbers", SCHEMA, {"type": "integer", "not": {"enum": list(range(2000))}}
    yield "not enum of 2000 strings", SCHEMA, {"type": "string", "not": {"enum": [f"w{i}" for i in range(2000)]}}
    yield "patterns in allOf 12", SCHEMA, {"type": "string", "allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(12)]}
    yield "pattern a.{15}b", SCHEMA, {"type": "string", "pattern": "a.{15}b", "maxLength": 300}
    yield "pattern with maxLength 50000", SCHEMA, {"type": "string", "pattern": "^([a-z]+ )*[a-z]+$", "maxLength": 50000}
    yield "500 patterns with lengths", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"^[a-z]+{i}$", "maxLength": 300} for i in range(500)}}
    yield "500 emails with lengths", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "format": "email", "maxLength": 300} for i in range(500)}}
    yield "500 dates with a minimum", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "format": "date-time", "minLength": 3} for i in range(500)}}
    yield "300 integers with bounds", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "integer", "minimum": i, "maximum": 10 ** 9 + i} for i in range(300)}}
    yield "300 multiples", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "integer", "multipleOf": 9973 - i, "minimum": i} for i in range(300)}}
    yield "patternProperties 5", SCHEMA, {"type": "object", "patternProperties": {
        f"{c}.{{6}}{c}": {"type": "string"} for c in "abcde"}}
    yield "patternProperties 5 of 1000 objects", SCHEMA, {"type": "object", "properties": {f"p{i}": {
        "type": "object", "patternProperties": {f"^{c}{i}": {"type": "string"} for c in "abcde"}} for i in range(1000)}}
    yield "open objects 2000", SCHEMA, {"type": "object", "properties": {
        f"p{i}": strings(3, additionalProperties={"type": "integer"}) for i in range(2000)}}
    yield "open object of 3000", SCHEMA, strings(3000, additionalProperties={"type": "integer"})
    yield "minProperties 60 of 1000", SCHEMA, strings(1000, minProperties=60)
    yield "enum 100000", SCHEMA, {"enum": [f"word {i}" for i in range(100000)]}
    yield "enum 30000 in allOf", SCHEMA, {"allOf": [{"enum": [f"w{i}" for i in range(30000)]},
                                                    {"enum": [f"w{2 * i}" for i in range(30000)]}]}
    yield "enum 5000 with bounds", SCHEMA, {"enum": list(range(5000)), "minimum": 3, "multipleOf": 7}
    yield "refs 1000", SCHEMA, {"$defs": {f"d{i}": {"type": "object", "properties": {
        f"x{k}": {"$ref": f"#/$defs/d{(i * 7 + k) % 1000}"} for k in range(8)}} for i in range(1000)}, "$ref": "#/$defs/d0"}
    yield "ref allOf pairs", SCHEMA, {"$defs": {f"d{i}": {"properties": {"x": {"allOf": [
        {"$ref": f"#/$defs/d{(i + 1) % 40}"}, {"$ref": f"#/$defs/d{(i * 7 + 3) % 40}"}]}}} for i in range(40)},
        "$ref": "#/$defs/d0"}
    yield "anchors 2000", SCHEMA, {"$defs": {f"d{i}": {"$anchor": f"a{i}", "type": "string"} for i in range(2000)},
                                   "properties": {f"p{i}": {"$ref": f"#a{i}"} for i in range(2000)}}
    yield "deep arrays 190", SCHEMA, json.loads('{"items":' * 90 + "{}" + "}" * 90)
    yield "categories 200", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": "^\\p{L}+\\p{Nd}*$", "maxLength": 20} for i in range(200)}}
    yield "classes 3000", SCHEMA, {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"^[^x]{{1,{i + 1}}}[\\u0100-\\u2000]+$"} for i in range(3000)}}
    yield "propertyNames 500", SCHEMA, {"type": "object", "properties": {f"p{i}": {
        "type": "object", "propertyNames": {"pattern": f"^[a-z]{{1,20}}{i}$"}} for i in range(500)}}
    yield "tags 2000, one trigger", TAG, tags(2000, ["<function="])
    yield "tags 2000, 2000 triggers", TAG, tags(2000, [f"<function={i}>" for i in range(2000)])
    yield "tags 200, nested stops", TAG, {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": f"<a{i}>", "content": {"type": "any_text"}, "end": f"</a{i}>"} for i in range(200)]}}
    yield "excludes 2000", TAG, {"type": "structural_tag", "format": {
        "type": "any_text", "excludes": [f"word {i}" for i in range(2000)]}}
    yield "old tags 2000", TAG, {"structures": [{"begin": f"<f{i}>", "schema": strings(2), "end": f"</f{i}>"}
                                               for i in range(2000)], "triggers": ["<f"]}
    yield "regex (a|b)*a(a|b){14}", REGEX, "(?=[ab]*$)(a|b)*a(a|b){14}"
    yield "regex 20 look-aheads", REGEX, "".join(f"(?=.*a{i})" for i in range(20)) + ".*"
    yield "regex 3000 classes", REGEX, "[^a]" * 3000
    yield "regex 60 of \\p", REGEX, "\\p{L}" * 60
    yield "regex nested counts", REGEX, "(?=.*a)((([a-z]{1,20}){1,20}){1,20}){1,20}"
    yield "ebnf 20000 rules", EBNF, "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(20000)) + '\nr20000 ::= "b"'
    yield "ebnf 20000 rules back", EBNF, "\n".join(f'r{i} ::= "a" r{i - 1}' for i in range(20000, 0, -1)) + '\nr0 ::= "b"\nroot ::= r20000'
    yield "ebnf 20000 rules up", EBNF, 'r0 ::= "b"\n' + "\n".join(f'r{i} ::= "a" r{i - 1}' for i in range(1, 20000)) + '\nroot ::= r19999'
    yield "lark 500000 flags", EBNF, "start: /a/" + "i" * 500000
    yield "ebnf unit chain", EBNF, "root ::= r0\n" + "\n".join(f'r{i} ::= r{i + 1} | "x{i}"' for i in range(5000)) + '\nr5000 ::= "b"'


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tokenizer")
    p.add_argument("--tool", default="build/tests/tools/grammar_bench")
    p.add_argument("--only", default="")
    p.add_argument("--mode", choices=["closed", "ordered", "open"], default="closed", help="closed: as the server compiles")
    args = p.parse_args()
    jobs = [c for c in cases() if args.only in c[0]]
    with tempfile.TemporaryDirectory() as folder:
        for old, new in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
            name = old if os.path.exists(os.path.join(args.tokenizer, old)) else new
            os.symlink(os.path.abspath(os.path.join(args.tokenizer, name)), os.path.join(folder, new))
        with open(os.path.join(folder, "jobs"), "w", encoding="utf-8") as f:
            for name, kind, what in jobs:
                f.write(json.dumps({"name": name, "kind": kind, "tests": [],
                                    "text": what if isinstance(what, str) else json.dumps(what)}) + "\n")
        run = subprocess.run([args.tool, folder, f.name] + [args.mode] * (args.mode != "open"), capture_output=True, text=True)
    print(f"{'grammar':<42} {'compile ms':>10} {'first ms':>9} {'work':>9} {'MiB':>6}")
    worst = 0
    for line in run.stdout.splitlines()[1:]:
        x = json.loads(line)
        worst = max(worst, x["compile_ns"])
        print(f"{x['name'][:42]:<42} {x['compile_ns'] / 1e6:10.1f} {(x.get('first_ns', 0)) / 1e6:9.1f} "
              f"{x.get('work', 0) / 1e6:8.2f}M {x.get('bytes', 0) / 2**20:6.1f}  {x['compile_ns'] / max(1, x.get('work', 1)):6.1f} ns  {x.get('error', '')}")
    print(f"slowest: {worst / 1e6:.0f} ms")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
