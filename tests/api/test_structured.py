#!/usr/bin/env python3
"""Structured output over HTTP: `test_structured.py BINARY MODEL`; closes with `N passed, N failed`.

The official openai package asks for JSON by schema (also through pydantic), regular expressions, choices, grammars and
structural tags. Each reply is checked by code that knows nothing of the server's grammars. Seeds are fixed.
"""
import asyncio
import enum
import json
import re
import sys
import threading
import time

import pydantic

from test_openai import NAME, ONLY, PROMPT, SLOW, Server, check, complete, openai, raised, results, stream_texts

WORD = {"type": "string", "maxLength": 8}
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "kind", "age"], "properties": {
    "name": WORD, "kind": {"enum": ["king", "queen", "cat"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}}
LIST = {"type": "array", "minItems": 2, "maxItems": 3, "items": {"anyOf": [{"type": "boolean"}, {"const": "x\u00e9\n"}]}}
TAG = {"type": "triggered_tags", "triggers": ["<n"], "at_least_one": True, "stop_after_first": True, "tags": [
    {"type": "tag", "begin": "<n>", "content": {"type": "json_schema", "json_schema": {"enum": [1, 22, 333]}}, "end": "</n>"}]}
DATE = r"[12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9]"
NUMBERS = 'root ::= number (", " number){1,3} "."\nnumber ::= [1-9] [0-9]?\n'
LARK = '?start: sum\nsum: N (" " OP " " N) ~ 1..2 -> add\nOP: "+" | "*"\nN: "-"? D~1..3\n%import common.DIGIT -> D\n'


def is_person(text, ordered=True):
    v = json.loads(text)
    keys = list(v)
    return (keys == ["name", "kind", "age"] if ordered else sorted(keys) == ["age", "kind", "name"]) and \
        isinstance(v["name"], str) and len(v["name"]) <= 8 and v["kind"] in ("king", "queen", "cat") and \
        type(v["age"]) is int and 0 <= v["age"] <= 120


def is_list(text):
    v = json.loads(text)
    return 2 <= len(v) <= 3 and all(x in (True, False, "x\u00e9\n") for x in v)


def is_object(text):
    return isinstance(json.loads(text), dict)


def of_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}


# fields of the request, and the test of its text
KINDS = {
    "response_format json_schema": ({"response_format": of_schema(PERSON)}, is_person),
    "response_format json_schema, not strict": ({"response_format": of_schema(LIST, False)}, is_list),
    "response_format structural_tag": ({"response_format": {"type": "structural_tag", "format": TAG["tags"][0]}},
                                       lambda t: re.fullmatch("<n>(1|22|333)(\\.0+)?</n>", t)),
    "structured_outputs json": ({"structured_outputs": {"json": PERSON}}, lambda t: is_person(t, False)),
    "structured_outputs json as text": ({"structured_outputs": {"json": json.dumps(LIST)}}, is_list),
    "structured_outputs regex": ({"structured_outputs": {"regex": DATE}}, lambda t: re.fullmatch(DATE, t)),
    "structured_outputs choice": ({"structured_outputs": {"choice": ["sun", "moon", "a star", "\u661f"]}},
                                  lambda t: t in ("sun", "moon", "a star", "\u661f")),
    "structured_outputs grammar": ({"structured_outputs": {"grammar": NUMBERS}},
                                   lambda t: re.fullmatch(r"[1-9][0-9]?(, [1-9][0-9]?){1,3}\.", t)),
    "structured_outputs structural_tag": ({"structured_outputs": {"structural_tag": json.dumps(
        {"type": "structural_tag", "format": TAG["tags"][0]})}}, lambda t: re.fullmatch("<n>(1|22|333)(\\.0+)?</n>", t)),
    "guided_json": ({"guided_json": PERSON}, lambda t: is_person(t, False)),
    "guided_regex": ({"guided_regex": "(ab|c{3}){2,5}!"}, lambda t: re.fullmatch("(ab|c{3}){2,5}!", t)),
    "guided_choice": ({"guided_choice": ["yes", "yes!", "no"]}, lambda t: t in ("yes", "yes!", "no")),
    "guided_grammar": ({"guided_grammar": 'root ::= "a" x "b" | "ab"\nx ::= "a" y "b" | "ab"\ny ::= "ab"'},
                       lambda t: t in ("ab", "aabb", "aaabbb")),
    "structured_outputs grammar in Lark": ({"structured_outputs": {"grammar": LARK}},
                                           lambda t: re.fullmatch(r"-?\d+( [+*] -?\d+){1,2}", t)),
    "guided_grammar in Lark": ({"guided_grammar": 'start: "on"i | WORD "!"\nWORD: /[ab]{2}/\n'},
                               lambda t: re.fullmatch("(?i:on)|[ab]{2}!", t)),
    "SGLang's regex": ({"regex": "[a-f]{3}"}, lambda t: re.fullmatch("[a-f]{3}", t)),
    "SGLang's ebnf": ({"ebnf": 'root ::= "on" | "off"'}, lambda t: t in ("on", "off")),
    "json_schema": ({"json_schema": LIST}, is_list),
    "llama.cpp's grammar": ({"grammar": 'root ::= [0-9] | "x" x\nx ::= "y"+ "."'},
                            lambda t: re.fullmatch(r"[0-9]|xy+\.", t)),
}


def good(test, text):
    """Whether the test holds; a text that is no JSON fails it."""
    try:
        return bool(test(text))
    except (ValueError, KeyError, TypeError):
        return False


def chat(s, fields, **kw):
    kw = {"max_tokens": 80, "temperature": 1.0, "seed": 11, **kw}
    body = {k: kw.pop(k) for k in list(kw) if k in ("ignore_eos", "min_tokens", "repetition_penalty")}
    return s.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "Tell me of a king."}],
                                            extra_body={**fields, **body}, **kw)


def text_of(s, fields, **kw):
    kw = {"max_tokens": 80, "temperature": 1.0, "seed": 11, **kw}
    extra = {**fields, **kw.pop("extra_body", {})}
    return complete(s, extra_body=extra, **kw)


def metric(s, name):
    return float(re.search(rf"^roseinfer:{name}\{{[^}}]*\}} (\S+)", s.get("/metrics").text, re.M).group(1))


# ---- the tests ----

def test_kinds(s):
    before = metric(s, "grammar_cache_misses_total"), metric(s, "grammar_cache_hits_total")
    prompt = complete(s, echo=True, max_tokens=0).choices[0].text
    for name, (fields, test) in KINDS.items():
        r = text_of(s, fields)
        check(f"{name}: a completion", r.choices[0].finish_reason == "stop" and good(test, r.choices[0].text), r)
        c = chat(s, fields, temperature=1.3)
        check(f"{name}: a chat", c.choices[0].finish_reason == "stop" and good(test, c.choices[0].message.content), c)
        texts, _, usage = stream_texts(s, max_tokens=80, temperature=1.0, seed=11, extra_body=fields)
        check(f"{name}: streamed the same", texts == {0: r.choices[0].text} and
              usage.completion_tokens == r.usage.completion_tokens, texts)
        e = complete(s, max_tokens=80, temperature=1.0, seed=11, echo=True, extra_body=fields)
        check(f"{name}: after the echo of the prompt", e.choices[0].text == prompt + r.choices[0].text, e)
        greedy = text_of(s, fields, temperature=0)
        done = greedy.choices[0].finish_reason == "stop"
        check(f"{name}: greedy", not done or good(test, greedy.choices[0].text), greedy)
    misses = metric(s, "grammar_cache_misses_total") - before[0]
    hits = metric(s, "grammar_cache_hits_total") - before[1]
    check("each grammar was compiled once", misses <= len(KINDS) and misses + hits == 5 * len(KINDS), (misses, hits))
    check("the cache has a size", metric(s, "grammar_cache_bytes") > 1000 and metric(s, "grammar_cache_grammars") > 5)


def test_json_object(s):
    """Objects have no bound, so max_tokens may end some of them. The bias helps others to end."""
    ended = 0
    bias = {s.post("/tokenize", {"prompt": t}).json()["tokens"][0]: 6 for t in ('"', "}", '"}')}
    for seed in range(12):
        r = text_of(s, {"response_format": {"type": "json_object"}}, seed=seed, max_tokens=120, logit_bias=bias)
        c = r.choices[0]
        ended += c.finish_reason == "stop"
        check(f"json_object, seed {seed}", c.text.lstrip().startswith("{") and
              (good(is_object, c.text) if c.finish_reason == "stop" else c.finish_reason == "length"), r)
    check("some objects end", ended > 0, ended)
    r = text_of(s, {"response_format": {"type": "json_object", "schema": PERSON}})
    check("json_object with a schema", good(is_person, r.choices[0].text), r)
    r = text_of(s, {"structured_outputs": {"json_object": True}, "logit_bias": {}}, max_tokens=1)
    check("json_object: true", r.choices[0].text.strip()[:1] in ("", "{"), r)


def test_pydantic(s):
    class Kind(enum.Enum):
        SUN = "sun"
        MOON = "moon"

    class Place(pydantic.BaseModel):
        kind: Kind
        near: bool
        size: int = pydantic.Field(ge=1, le=9)
        note: str = pydantic.Field(max_length=6)

    class Answer(pydantic.BaseModel):
        places: list[Place] = pydantic.Field(min_length=1, max_length=2)
        other: Place | None

    r = s.client.chat.completions.parse(model=NAME, messages=[{"role": "user", "content": "Where?"}], max_tokens=300,
                                        temperature=1.0, seed=4, response_format=Answer)
    got = r.choices[0].message.parsed
    check("parse() with pydantic", isinstance(got, Answer) and 1 <= len(got.places) <= 2 and r.choices[0].finish_reason == "stop",
          r)
    with s.client.chat.completions.stream(model=NAME, messages=[{"role": "user", "content": "Where?"}], max_tokens=300,
                                          temperature=1.0, seed=4, response_format=Answer) as stream:
        final = stream.get_final_completion()
    check("stream() with pydantic", final.choices[0].message.parsed == got, final)
    e = raised(openai.LengthFinishReasonError, lambda: s.client.chat.completions.parse(
        model=NAME, messages=[{"role": "user", "content": "Where?"}], max_tokens=3, response_format=Answer))
    check("parse() of a cut text: LengthFinishReasonError", e is not None, e)


def test_choices(s):
    fields = {"response_format": of_schema(PERSON)}
    r = text_of(s, fields, n=3, seed=5)
    texts = [c.text for c in r.choices]
    check("n = 3: three texts, all by the schema", len(set(texts)) == 3 and all(good(is_person, t) for t in texts), texts)
    check("the first choice has the seed itself", text_of(s, fields, seed=5).choices[0].text == texts[0])
    again = text_of(s, fields, n=3, seed=5, prompt=[PROMPT, "The king", PROMPT])
    check("three prompts", [c.text for c in again.choices][:3] == texts == [c.text for c in again.choices][6:] and
          all(good(is_person, c.text) for c in again.choices), again)
    streamed, _, _ = stream_texts(s, max_tokens=80, temperature=1.0, n=3, seed=5, extra_body=fields)
    check("n = 3 streamed", [streamed[i] for i in range(3)] == texts, streamed)


def test_logprobs(s):
    fields = {"response_format": of_schema(PERSON)}
    bare = text_of(s, fields)
    r = text_of(s, fields, logprobs=5, extra_body={"return_token_ids": True})
    lp = r.choices[0].logprobs
    check("logprobs change nothing", r.choices[0].text == bare.choices[0].text, r)
    n = r.usage.completion_tokens
    check("logprobs of each token", n == len(lp.tokens) == len(lp.token_logprobs) and
          "".join(lp.tokens[:-1]) == r.choices[0].text and all(v <= 0 for v in lp.token_logprobs), lp)
    check("they are the model's own: another id was likelier", any(
        v < max(t.values()) for v, t in zip(lp.token_logprobs, lp.top_logprobs)), lp)
    ids = s.post("/tokenize", {"prompt": PROMPT}).json()["tokens"] + r.choices[0].token_ids
    score = complete(s, prompt=ids[:-1], echo=True, logprobs=0, max_tokens=0).choices[0].logprobs.token_logprobs
    check("and equal to those of the same text without a grammar", score[len(ids) - n:] == lp.token_logprobs[:-1],
          (score, lp.token_logprobs))
    c = chat(s, fields, logprobs=True, top_logprobs=2)
    content = c.choices[0].logprobs.content
    check("chat: logprobs", len(content) == c.usage.completion_tokens and
          "".join(e.token for e in content[:-1]) == c.choices[0].message.content, c)


def test_rules(s):
    """Penalties, min_tokens, ignore_eos, biases and allowed ids beside a grammar."""
    eos = 0
    for name, extra in (("penalties", {"repetition_penalty": 1.8, "presence_penalty": 1.5, "frequency_penalty": -1.0}),
                        ("top_k 1", {"top_k": 1}), ("top_p and min_p", {"top_p": 0.5, "min_p": 0.05}),
                        ("a bias that asks for the end", {"logit_bias": {str(eos): 100}}),
                        ("a bias against the end", {"logit_bias": {str(eos): -100}}),
                        ("bad words", {"bad_words": ["king"]}),
                        ("min_tokens 30", {"min_tokens": 30}), ("ignore_eos", {"ignore_eos": True})):
        r = text_of(s, {"response_format": of_schema(PERSON)}, max_tokens=100, extra_body=extra)
        c = r.choices[0]
        check(f"{name}: by the schema", c.finish_reason == "stop" and good(is_person, c.text), r)
        if name == "bad words":
            check("bad words: not there", '"king"' not in c.text, c.text)
    fields = {"regex": "[ab]{2,40}"}
    short = text_of(s, fields, extra_body={"logit_bias": {str(eos): 100}}).choices[0].text
    check("the end is only where the grammar allows it", re.fullmatch("[ab]{2}", short), short)
    r = text_of(s, fields, extra_body={"min_tokens": 12, "logit_bias": {str(eos): 100}})
    check("min_tokens keeps the end away", r.usage.completion_tokens == 13 and re.fullmatch("[ab]{2,40}", r.choices[0].text), r)
    long = text_of(s, fields, extra_body={"ignore_eos": True, "logit_bias": {str(eos): 100}})
    check("ignore_eos: the text is as long as it can be", re.fullmatch("[ab]{40}", long.choices[0].text) and
          long.choices[0].finish_reason == "stop", long)
    r = text_of(s, {"guided_choice": ["yes"]}, extra_body={"min_tokens": 20})
    check("min_tokens cannot lengthen a text that is complete", r.choices[0].text == "yes" and
          r.choices[0].finish_reason == "stop", r)
    a = s.post("/tokenize", {"prompt": "a"}).json()["tokens"]
    r = s.post("/v1/completions", {"prompt": PROMPT, "regex": "b+", "allowed_token_ids": a})
    check("allowed_token_ids without any of the grammar: no_token_left", r.status_code == 400 and
          r.json()["error"]["code"] == "no_token_left", r.text)
    r = text_of(s, {"regex": "[a-z ]{5,60}"}, stop=["e", "o"])
    check("a stop string ends the text before the grammar does", r.choices[0].finish_reason == "stop" and
          not set("eo") & set(r.choices[0].text), r)
    check("a chat keeps the space that it must begin with", chat(s, {"guided_choice": [" a"]}).choices[0].message.content == " a")
    r = text_of(s, {"response_format": of_schema(PERSON)}, max_tokens=4)
    check("max_tokens inside JSON: length", r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 4 and
          not good(is_person, r.choices[0].text), r)
    r = complete(s, max_tokens=0, echo=True, extra_body={"guided_regex": "x"})
    check("max_tokens 0: a prompt is only scored", r.choices[0].text == PROMPT, r)
    for schema in ({"type": "string", "minLength": 3, "maxLength": 12}, {"type": "number", "minimum": -5, "maximum": 5},
                   {"type": "string", "pattern": "^\u00e9[\u4e00-\u4e05]{2}$"}):
        for seed in range(3):
            r = text_of(s, {"guided_json": schema}, seed=seed, max_tokens=100)
            v = json.loads(r.choices[0].text) if r.choices[0].finish_reason == "stop" else None
            sound = v is None if r.choices[0].finish_reason == "length" else \
                3 <= len(v) <= 12 if "minLength" in schema else -5 <= v <= 5 if "minimum" in schema else \
                re.fullmatch("\u00e9[\u4e00-\u4e05]{2}", v)
            check(f"{json.dumps(schema)[:40]}, seed {seed}", sound, r)


BAD = (
    ({"response_format": of_schema({"type": "nothing"})}, "response_format", "#/type"),
    ({"response_format": of_schema({"items": {"uniqueItems": True}})}, "response_format", "#/items/uniqueItems"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "an object"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "json_object"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "regex"),
    ({"structured_outputs": {"grammar": "root ::= nowhere"}}, "structured_outputs.grammar", "nowhere"),
    ({"structured_outputs": {"grammar": "start: <think>"}}, "structured_outputs.grammar", "tokens in a grammar"),
    ({"guided_grammar": "root = 'a'"}, "guided_grammar", "or Lark with rules `name: ...`"),
    ({"guided_json": {"required": "a"}}, "guided_json", "#/required: must be a list of strings"),
    ({"guided_json": {"properties": {"x": {"$ref": 5}}}}, "guided_json", "#/properties/x/$ref: must be a string"),
    ({"guided_json": {"minLength": 2 ** 62}}, "guided_json", "#/minLength"),
    ({"guided_regex": "[0-9]{4294967296}"}, "guided_regex", "a count beyond 4294967293"),
    ({"guided_regex": "a**"}, "guided_regex", "a quantifier follows a quantifier"),
    ({"guided_regex": "\\Aab\\Z"}, "guided_regex", "the escape \\A is not supported"),
    ({"guided_json": {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]}},
     "guided_json", "too costly to compile: it needs more than 30 million steps"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least one"),
    ({"guided_choice": ["a"] * 131073}, "guided_choice", "131073 texts, and the limit is 131072"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "exclude each other"),
    ({"structured_outputs": {"structural_tag": '{"type": "x"}'}}, "structured_outputs.structural_tag", "\"x\""),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "exclude each other"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
)


def test_bad(s):
    before = s.settle()["finished"]
    for fields, param, message in BAD:
        e = raised(openai.BadRequestError, lambda fields=fields: text_of(s, fields))
        check(f"{json.dumps(fields)[:60]}", e is not None and e.param == param and message in e.message and
              e.type == "invalid_request_error", e)
        c = raised(openai.BadRequestError, lambda fields=fields: chat(s, fields, stream=True))
        check("  a chat: the same", c is not None and (c.param, c.message) == (e.param, e.message), c)
        r = s.post("/v1/completions/render", {"prompt": "x", **fields})
        check("  render: the same", r.status_code == 400 and r.json()["error"]["message"] in e.message, r.text)
    check("nothing was generated", s.settle()["finished"] == before)
    r = s.post("/v1/completions/render", {"prompt": "x", "response_format": of_schema(LIST)}).json()
    check("render shows the grammar", r[0]["sampling_params"]["structured_outputs"] == {"json": LIST}, r)
    r = s.post("/v1/completions/render", {"prompt": "x", "regex": "a"}).json()
    check("render shows an expression", r[0]["sampling_params"]["structured_outputs"] == {"regex": "a"}, r)
    r = s.post("/v1/completions/render", {"prompt": "x"}).json()
    check("render without a grammar", r[0]["sampling_params"]["structured_outputs"] is None, r)


def test_members(s):
    """Members that nobody knows are named in X-Ignored-Fields."""
    for fields, ignored in (({"response_format": {"type": "json_object", "foo": 1}}, "response_format.foo"),
                            ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "bar": 1}}},
                             "response_format.json_schema.bar"),
                            ({"structured_outputs": {"regex": "a", "backend": "x"}}, "structured_outputs.backend"),
                            ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
                            ({"guided_regex": "a", "guided_decoding_backend": "auto"}, None),
                            ({"structured_outputs": {"regex": "a", "json": None, "disable_fallback": True}}, None)):
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 2, **fields})
        check(f"{json.dumps(fields)[:60]}: ignored", r.status_code == 200 and r.headers.get("x-ignored-fields") == ignored,
              (r.text, r.headers))


def hostile():
    deep = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"anyOf": [
        {"$ref": f"#/$defs/d{i + 1}"}, {"type": "null"}]}}} for i in range(300)}
    wide = {"type": "object", "required": [f"k{i}" for i in range(2000)],
            "properties": {f"k{i}": {"type": "string", "pattern": "^(a|b)*" + "[ab]" * 12 + "$"} for i in range(2000)}}
    yield "a number of repeats", {"regex": "((a{1000}){1000}){1000}"}
    yield "an exponential automaton", {"guided_json": {"type": "string", "pattern": "^(a|b)*a(a|b){60}$", "maxLength": 5000,
                                                      "minLength": 100}}
    yield "a schema that multiplies", {"guided_json": {"allOf": [
        {"anyOf": [{"properties": {f"p{i}_{k}": {"type": "integer"}}, "required": [f"p{i}_{k}"]} for k in range(8)]}
        for i in range(12)]}}
    yield "deep in a string", {"guided_json": '{"not":' * 5000 + "{}" + "}" * 5000}
    yield "deep brackets", {"regex": "(" * 100000 + ")" * 100000}
    yield "a deep grammar", {"grammar": "root ::= " + "(" * 50000 + '"a"' + ")" * 50000}
    yield "nested references", {"guided_json": {"$ref": "#/$defs/d0", "$defs": {**deep, "d300": {}}}}
    yield "large counts", {"guided_json": {"type": "array", "minItems": 10 ** 9, "items": wide}}
    yield "many items", {"guided_json": {"type": "array", "prefixItems": [{}] * 50000}}
    yield "long lists", {"guided_json": {"allOf": [{"enum": [f"a{i}" for i in range(k, 50000)]} for k in (0, 1)]}}
    yield "many properties", {"guided_json": {"type": "object", "required": [f"a{i}" for i in range(50000)]}}
    yield "endless recursion", {"guided_json": {"$ref": "#"}}
    yield "a grammar without an end", {"ebnf": 'root ::= "a" root'}


def test_hostile(s):
    """Texts that are made to cost: each gets its answer, and a stream of another request goes on."""
    n_tokens = 200
    want = complete(s, max_tokens=n_tokens, extra_body={"ignore_eos": True}).choices[0].text
    got, stop = [], threading.Event()

    def stream():
        while not stop.is_set():
            texts, _, _ = stream_texts(s, max_tokens=n_tokens, extra_body={"ignore_eos": True})
            got.append(texts[0])

    t = threading.Thread(target=stream)
    t.start()
    for name, fields in hostile():
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 8, **fields})
        e = r.json().get("error")
        check(f"{name}: {r.status_code}", r.status_code == 200 or (r.status_code == 400 and e["message"]), r.text)
        if r.status_code == 400:
            print(f"    {e['message'][:140]}")
    stop.set()
    t.join()
    check("the stream beside them is unharmed", got and all(g == want for g in got), got)
    check("the server is sound", s.settle()["status"] == "ok")


def test_ambiguous(s):
    """A text with thousands of readings passes a limit while it is generated."""
    fields = {"regex": "((a{1,99}){1,99}){1,99}b"}
    e = raised(openai.BadRequestError, lambda: text_of(s, fields, temperature=0, max_tokens=400, n=2))
    check("an ambiguous grammar: 400", e is not None and e.code == "structured_output" and e.param == "regex" and
          "less ambiguous" in e.message, e)
    text = []

    def read():
        for chunk in text_of(s, fields, temperature=0, max_tokens=400, stream=True):
            text.append(chunk.choices[0].text)
    e = raised(openai.APIError, read)
    # A server that finds the error before it has sent anything answers 400 and sends no text.
    none_sent = isinstance(e, openai.BadRequestError)
    check("in a stream: the text so far, then the error", e is not None and "less ambiguous" in e.message and
          (not text if none_sent else re.fullmatch("a+", "".join(text))), (e, text))


def crowd_requests():
    """30 requests of all kinds, some plain."""
    kinds = list(KINDS.values())
    for i in range(30):
        fields, extra = ({}, {}) if i % 5 == 4 else (kinds[i % len(kinds)][0], {})
        if i % 3 == 0:
            extra = {"repetition_penalty": 1.3, "logprobs": 2}
        if i % 7 == 0:
            extra = {**extra, "min_tokens": 5}
        yield {"prompt": [PROMPT, "The king", "In a"][i % 3], "max_tokens": 40 + i, "temperature": [0, 0.7, 1.2][i % 3],
               "seed": i, "n": 1 + i % 2, **fields, **extra}


def body_of(r):
    return [(c["text"], c["finish_reason"], c["logprobs"]) for c in r.json()["choices"]]


def test_crowd(s):
    """Same request, same bits: alone, in a crowd, and after a restart of the cache's contents."""
    requests = list(crowd_requests())
    alone = [body_of(s.post("/v1/completions", q)) for q in requests]
    for k in range(1 if SLOW else 3):
        got = [None] * len(requests)

        def ask(i, got=got):
            got[i] = body_of(s.post("/v1/completions", requests[i]))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        same = sum(a == b for a, b in zip(alone, got))
        check(f"the bits of 30 requests alone and in a crowd, round {k}", same == len(requests),
              [(q, a, b) for q, a, b in zip(requests, alone, got) if a != b][:2])


async def leave(s, n):
    """Starts n streams without end by a grammar, reads a little of each and leaves."""
    client = openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0, timeout=300)

    async def one(i):
        stream = await client.completions.create(model=NAME, prompt=PROMPT, max_tokens=400, stream=True, seed=i,
                                                 extra_body={"regex": f"[a-z ]{{{400 + i}}}x"})
        async for _ in stream:
            break
        await stream.close()

    await asyncio.gather(*(one(i) for i in range(n)))
    await client.close()


def test_cancel(s):
    asyncio.run(leave(s, 16))
    h = s.settle()
    check("clients that leave: nothing runs any more, all pages are free", h["running"] == 0 and
          h["kv_pages_free"] == h["kv_pages"], h)
    r = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 400, "timeout": 0.001, "regex": "[a-z ]{390}x"})
    check("a time-out: 504", r.status_code == 504 and r.json()["error"]["code"] == "timeout", r.text)
    r = text_of(s, {"response_format": of_schema(PERSON)})
    check("and the next request is served", good(is_person, r.choices[0].text), r)


def test_small_cache():
    """A cache without room: grammars are compiled for each request, and the texts are the same."""
    with Server("--grammar-cache-bytes", "0") as s:
        fields = {"guided_regex": "[ab]{3,9}"}
        texts = {text_of(s, fields, seed=3).choices[0].text for _ in range(3)}
        check("the same text each time", len(texts) == 1, texts)
        check("nothing is kept", metric(s, "grammar_cache_grammars") == 0 and metric(s, "grammar_cache_misses_total") == 3,
              s.get("/metrics").text)
    for options in (("--no-async-admit",), ("--tokenize-workers", "1"), ("--inline-admit-bytes", "0", "--threads", "1")):
        with Server(*options) as s:
            r = text_of(s, {"response_format": of_schema(PERSON)}, n=2)
            check(f"{' '.join(options)}: by the schema", all(good(is_person, c.text) for c in r.choices), r)


def test_restart(s):
    """Another server, whose cache and threads differ, gives the same bits."""
    requests = list(crowd_requests())[:10]
    want = [body_of(s.post("/v1/completions", q)) for q in requests]
    with Server("--max-num-seqs", "3", "--grammar-cache-bytes", "100000", "--threads", "2") as other:
        got = [body_of(other.post("/v1/completions", q)) for q in reversed(requests)][::-1]
    check("another server gives the same bits", got == want, (got, want))


def test_preemption(s):
    requests = [{"prompt": f"{i} {PROMPT * 4}", "max_tokens": 120, "temperature": 1.0, "seed": i, "n": 1 + i % 2,
                 "regex": f"[a-z ]{{{200 + i},300}}[.!]"} for i in range(10)]
    want, got = [body_of(s.post("/v1/completions", q)) for q in requests], [None] * len(requests)
    with Server("--num-kv-pages", "33", "--max-num-seqs", "8") as small:  # 512 tokens in all
        def ask(i):
            got[i] = body_of(small.post("/v1/completions", requests[i]))
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        n = float(re.search(r"^vllm:num_preemptions_total\{[^}]*\} (\S+)", small.get("/metrics").text, re.M).group(1))
    check("the same bits where requests were preempted", got == want and n > 0, (n, got, want))


def main():
    shared = [test_kinds, test_json_object, test_pydantic, test_choices, test_logprobs, test_rules, test_bad, test_members, test_hostile,
              test_ambiguous, test_crowd, test_cancel, test_restart,
              test_preemption]
    start = time.monotonic()
    with Server() as s:
        for t in shared:
            if not ONLY or t.__name__ in ONLY:
                t(s)
    if not ONLY or "test_small_cache" in ONLY:
        test_small_cache()
    print(f"{time.monotonic() - start:.1f} s")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
