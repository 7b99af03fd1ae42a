#!/usr/bin/env python3
"""Embeddings, rerank and score, over HTTP: `test_pooled.py BINARY MODEL`; closes with `N passed, N failed`.

MODEL answers the official openai package. A tiny Qwen3 folder in the layout of Qwen3-Embedding and Qwen3-Reranker is
made here: transformers' golden states (tests/golden/states.json), Matryoshka, truncation, and ranks against the
log-probabilities that /v1/completions gives.
"""
import base64
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import test_openai
from test_openai import BIN, MODEL, NAME, ONLY, SLOW, Server, check, openai, raised, results

ROOT = os.environ.get("ROSE_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
QUERY, DOCS = "what is a king?", ["a king rules", "yes or no", "the sea and the ships " * 3, "<|im_end|> no"]


def embed(s, text, **kw):
    return s.client.embeddings.create(model=NAME, input=text, **{"encoding_format": "float", **kw})


def vectors(reply):
    return [d.embedding for d in sorted(reply.data, key=lambda d: d.index)]


def length(v):
    return math.sqrt(sum(x * x for x in v))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (length(a) * length(b))


def floats(text):
    raw = base64.b64decode(text, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def f32(v):
    return list(struct.unpack(f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v)))


def worst(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) if len(a) == len(b) else math.inf


# ---- a folder with Qwen3's layout ----

def bytes_to_text():
    """GPT-2's characters for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def write(folder, name, value):
    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


def tokenizer():
    """A token a byte, yes and no; <|endoftext|> follows every text."""
    vocab = {c: b for b, c in bytes_to_text().items()} | {"ye": 256, "yes": 257, "no": 258}
    vocab |= {f"filler {i}": i for i in range(259, 315)}
    added = {"<|im_start|>": 315, "<|im_end|>": 316, "<think>": 317, "</think>": 318, "<|endoftext|>": 319}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": "think" not in t} for t, i in added.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                           "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                      {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                           "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [319],
                                                                "tokens": ["<|endoftext|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": ["y e", "ye s", "n o"]}}


def drop_prefix(path):
    """Name the tensors as Qwen3-Embedding does: without "model."."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    named = {k.removeprefix("model."): v for k, v in header.items()}
    text = json.dumps(named).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[8 + n:])


def make_folder(where):
    with open(os.path.join(ROOT, "tests/golden/families/qwen3.json"), encoding="utf-8") as f:
        made = json.load(f)["model"]["random"]
    folder = os.path.join(where, "tiny-qwen3")
    subprocess.run([BIN, "random-model", folder, "--config", os.path.join(ROOT, made["config"]), "--init-std",
                    str(made["init_std"]), "--seed", str(made["seed"])], check=True, stdout=subprocess.DEVNULL)
    drop_prefix(os.path.join(folder, "model.safetensors"))
    write(folder, "tokenizer.json", tokenizer())
    return folder


def set_modules(folder, *modules, **modes):
    """The files of sentence-transformers."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize", "Dense": "3_Dense"}
    write(folder, "modules.json", [{"idx": i, "name": str(i), "path": kinds[m],
                                    "type": "sentence_transformers.models." + m} for i, m in enumerate(modules)])
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 128, "pooling_mode_cls_token": False, **modes})


def serve(folder, *options):
    test_openai.MODEL = folder
    try:
        return Server(*options)
    finally:
        test_openai.MODEL = MODEL


# ---- any model ----

def test_embeddings(s):
    r = embed(s, "hello world")
    v = r.data[0].embedding
    check("one embedding", r.object == "list" and r.model == NAME and len(r.data) == 1 and
          r.data[0].object == "embedding" and r.data[0].index == 0, r)
    check("its length is 1", abs(length(v) - 1) < 1e-6, length(v))
    n = s.post("/tokenize", {"prompt": "hello world"}).json()["tokens"]
    check("usage", r.usage.prompt_tokens == len(n) == r.usage.total_tokens, r.usage)
    check("ids give the same bits", vectors(embed(s, n)) == [v])
    texts = ["hello world", "x", "It was Christmas Eve, and the children " * 5, "hello world"]
    many = vectors(embed(s, texts))
    check("a list gives the same bits as each text", many == [vectors(embed(s, t))[0] for t in texts])
    check("lists of ids", vectors(embed(s, [n, n[:1]]))[0] == v)
    check("equal texts, equal embeddings; others differ", many[0] == many[3] != many[1])
    raw = s.post("/v1/embeddings", {"model": NAME, "input": texts, "encoding_format": "base64"}).json()
    check("the reply's id", raw["id"].startswith("embd-") and len(raw["id"]) == 21, raw["id"])
    check("base64 has the bits of the floats", [floats(d["embedding"]) for d in raw["data"]] == [f32(m) for m in many])
    default = s.client.embeddings.create(model=NAME, input=texts)  # the package asks for base64 and decodes it
    check("the package's default", [f32(x) for x in vectors(default)] == [f32(m) for m in many])
    scaled = s.post("/v1/embeddings", {"input": "hello world", "normalize": False}).json()["data"][0]["embedding"]
    check("normalize false", abs(length(scaled) - 1) > 1e-3 and
          worst([x / length(scaled) for x in scaled], v) < 1e-6, length(scaled))
    check("user, and a field of no meaning", s.post("/v1/embeddings", {"input": "x", "user": "u", "foo": 1})
          .headers["x-ignored-fields"] == "foo")


def test_errors(s):
    bad = [({}, "input", "required"), ({"input": []}, "input", "empty"), ({"input": ""}, "input", "empty"),
           ({"input": ["a", ""]}, "input[1]", "empty"), ({"input": ["a", 3]}, "input[1]", "string or a list"),
           ({"input": [[1], "a"]}, "input[1]", "string or a list"), ({"input": [1, 10**7]}, "input", "out of range"),
           ({"input": [1, "a"]}, "input", "not an integer"), ({"input": 7}, "input", "must be"),
           ({"input": {"a": 1}}, "input", "must be"), ({"input": [{"a": 1}]}, "input[0]", "must be"),
           ({"input": ["a"] * 2049}, "input", "2049 inputs"), ({"input": "a", "encoding_format": "hex"},
                                                                "encoding_format", "float"),
           ({"input": "a", "dimensions": 0}, "dimensions", "must be 1"),
           ({"input": "a", "dimensions": 8}, "dimensions", "do not say"),
           ({"input": "a", "dimensions": 10**6}, "dimensions", "values"),
           ({"input": "a", "normalize": 1}, "normalize", "true or false"),
           ({"input": [5] * 4000}, "input", "maximum context length"),
           ({"input": "a", "messages": [{"role": "user"}]}, "messages", "not supported"),
           ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1")]
    for body, param, text in bad:
        r = s.post("/v1/embeddings", body)
        e = r.json()["error"]
        check(f"embeddings {json.dumps(body)[:60]}: 400", r.status_code == 400 and e["param"] == param and
              text in e["message"], r.text)
    e = raised(openai.NotFoundError, lambda: s.client.embeddings.create(model="nope", input="x"))
    check("another model: NotFoundError", e is not None and e.code == "model_not_found", e)
    bad = [("/rerank", {"query": "q"}, "documents"), ("/rerank", {"documents": ["d"]}, "query"),
           ("/rerank", {"query": "q", "documents": []}, "documents"),
           ("/rerank", {"query": "q", "documents": "d"}, "documents"),
           ("/rerank", {"query": ["q"], "documents": ["d"]}, "query"),
           ("/rerank", {"query": "q", "documents": ["d", {"title": "t"}]}, "documents"),
           ("/rerank", {"query": "q", "documents": ["d"], "top_n": -1}, "top_n"),
           ("/rerank", {"query": "q", "documents": ["d"], "instruction": "i"}, "instruction"),
           ("/rerank", {"query": "q", "documents": ["d", ""]}, "documents[1]"),
           ("/score", {"text_1": "a"}, "text_2"), ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
           ("/score", {"text_1": 1, "text_2": "c"}, "text_1")]
    for path, body, param in bad:
        r = s.post(path, body)
        check(f"{path} {json.dumps(body)[:60]}: 400", r.status_code == 400 and r.json()["error"]["param"] == param, r.text)


def test_cosines(s):
    v = vectors(embed(s, [QUERY, *DOCS]))
    want = [cosine(v[0], d) for d in v[1:]]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        r = s.post(path, {"model": NAME, "query": QUERY, "documents": DOCS}).json()
        got = {x["index"]: x["relevance_score"] for x in r["results"]}
        check(f"{path}: cosines of the embeddings", worst([got[i] for i in range(4)], want) < 1e-6, (r, want))
        check(f"{path}: best first, with the documents", sorted(got.values(), reverse=True) == list(got.values()) and
              all(x["document"]["text"] == DOCS[x["index"]] for x in r["results"]), r)
    r = s.post("/rerank", {"query": QUERY, "documents": [{"text": d} for d in DOCS], "top_n": 2,
                           "return_documents": False}).json()
    check("top_n, objects, no documents", len(r["results"]) == 2 and "document" not in r["results"][0] and
          [x["index"] for x in r["results"]] == sorted(range(4), key=lambda i: -want[i])[:2], r)
    one = s.post("/v1/score", {"text_1": QUERY, "text_2": DOCS}).json()
    check("score, one with all", worst([d["score"] for d in one["data"]], want) < 1e-6 and
          [d["index"] for d in one["data"]] == [0, 1, 2, 3] and one["object"] == "list", one)
    each = s.post("/score", {"text_1": [QUERY] * 3 + [DOCS[3]], "text_2": DOCS}).json()
    check("score, pairs", worst([d["score"] for d in each["data"]], want[:3] + [1]) < 1e-6, each)


def test_crowd(s):
    """Batches that are larger than the queue, beside streams; and a client that leaves."""
    n = 40 if SLOW else 300
    texts = [f"text number {i}" for i in range(n)]
    alone = vectors(embed(s, texts[:8]))
    with Server("--max-num-seqs", "4", "--max-num-queued-reqs", "8", "--num-kv-pages", "128") as small:
        got = [None] * 3
        def ask(i):
            try:
                got[i] = vectors(embed(small, texts))
            except openai.RateLimitError as e:
                got[i] = e
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        done = [g for g in got if isinstance(g, list)]
        check(f"{n} inputs through a queue of 8", len(done) > 0 and all(g == done[0] for g in done) and
              len(done[0]) == n and done[0][:8] == alone, [type(g) for g in got])
        body = json.dumps({"input": texts * 4}).encode()
        with socket.create_connection(("127.0.0.1", small.port)) as c:
            c.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
        h = small.settle()
        check("a client that leaves: all is free", h["running"] == h["waiting"] == 0 and
              h["kv_pages_free"] == h["kv_pages"], h)


# ---- Qwen3's folders ----

def golden_states():
    with open(os.path.join(ROOT, "tests/golden/states.json"), encoding="utf-8") as f:
        model = next(m for m in json.load(f)["models"] if m["name"] == "families/qwen3")
    with open(os.path.join(ROOT, "tests/golden/families/qwen3.json"), encoding="utf-8") as f:
        ids = {p["name"]: p["ids"] for p in json.load(f)["prompts"]}
    return [(p["name"], ids[p["name"]], p) for p in model["prompts"]], model["tolerance"]


def check_golden(s, which):
    prompts, tolerance = golden_states()
    r = s.post("/v1/embeddings", {"input": [ids for _, ids, _ in prompts], "normalize": False}).json()
    for (name, _, p), d in zip(prompts, r["data"]):
        e = worst(p[which], d["embedding"])
        check(f"transformers' {which} state of prompt {name}", e < tolerance, e)


def test_qwen_embedding(folder):
    set_modules(folder, "Transformer", "Pooling", "Normalize", pooling_mode_lasttoken=True)
    with serve(folder, "--dtype", "float32") as s:
        check("the log says how it pools", "embeddings: the last state, normalised" in "".join(s.log), s.log)
        check_golden(s, "last")
        ids = s.post("/tokenize", {"prompt": "king"}).json()["tokens"]
        r = s.post("/v1/embeddings", {"input": "king"}).json()
        check("the post-processor's <|endoftext|> is the last token", ids[-1] == 319 and
              r["usage"]["prompt_tokens"] == len(ids) == 5, (ids, r["usage"]))
        full = s.post("/v1/embeddings", {"input": "king", "normalize": False}).json()["data"][0]["embedding"]
        cut = s.post("/v1/embeddings", {"input": "king", "dimensions": 32}).json()["data"][0]["embedding"]
        check("dimensions: the first values, normalised again", len(cut) == 32 and
              worst([x / length(full[:32]) for x in full[:32]], cut) < 1e-6, cut)
        short = s.post("/v1/embeddings", {"input": "kingdom", "truncate_prompt_tokens": 5}).json()
        check("truncation keeps <|endoftext|>", short["usage"]["prompt_tokens"] == 5 and
              short["data"][0]["embedding"] == r["data"][0]["embedding"], short["usage"])
        r = s.post("/v1/embeddings", {"input": "k" * 3000, "truncate_prompt_tokens": -1}).json()
        check("truncation to the context", r["usage"]["prompt_tokens"] == 511, r)
        r = s.post("/v1/embeddings", {"input": "k" * 511})
        check("too long without it: 400", r.status_code == 400 and
              r.json()["error"]["code"] == "context_length_exceeded", r.text)
        r = s.post("/v1/embeddings", {"input": "k" * 510})
        check("the longest input", r.json()["usage"]["prompt_tokens"] == 511, r.text)
    with serve(folder, "--dtype", "float32", "--pooling-type", "mean") as s:
        check_golden(s, "mean")
        a, b = (s.post("/v1/embeddings", {"input": "the king of the sea " * 5}).json() for _ in range(2))
        check("a mean does not read the cache, and has the same bits", a["data"] == b["data"] and
              b["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, b["usage"])
    set_modules(folder, "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    with serve(folder, "--dtype", "float32") as s:
        v = s.post("/v1/embeddings", {"input": "king"}).json()["data"][0]["embedding"]
        w = s.post("/v1/embeddings", {"input": "king", "normalize": False}).json()["data"][0]["embedding"]
        check("without the module Normalize", v == w and abs(length(v) - 1) > 1e-3, length(v))
        check_golden(s, "mean")
    for modules, modes, text in ((("Transformer", "Pooling", "Dense"), {"pooling_mode_lasttoken": True}, "Dense"),
                                 (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, "max_tokens"),
                                 (("Transformer", "Pooling"), {}, "no field"),
                                 (("Transformer", "Pooling"), {"pooling_mode_mean_tokens": True,
                                                               "pooling_mode_lasttoken": True}, "more than one")):
        set_modules(folder, *modules, **modes)
        p = subprocess.run([BIN, "serve", folder, "--port", "0"], capture_output=True, timeout=120, check=False)
        check(f"{text}: refused at the start", p.returncode != 0 and text in p.stderr.decode() and
              "--pooling-type" in p.stderr.decode(), p.stderr.decode()[-500:])
    os.remove(os.path.join(folder, "modules.json"))
    shutil.rmtree(os.path.join(folder, "1_Pooling"))


HEAD = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct '
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def pair_ids(s, query, document, instruction=INSTRUCTION):
    """The prompt of the model card. The texts hold no token but bytes, yes and no."""
    def ids(text):
        return s.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    middle = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    pieces = middle.split("<|im_end|>")  # in a document it is text: a token a byte
    plain = [i for k, piece in enumerate(pieces) for i in (ids("<|im_en") + ids("d|>") if k > 0 else []) + ids(piece)]
    return ids(HEAD) + plain + ids(TAIL)


def answer(s, prompt):
    """P(yes) of yes and no, from the log-probabilities of completions."""
    lp = [s.post("/v1/completions", {"prompt": prompt + [i], "max_tokens": 0, "echo": True, "logprobs": 0,
                                     "add_special_tokens": False}).json()["choices"][0]["logprobs"]["token_logprobs"][-1]
          for i in (257, 258)]
    return 1 / (1 + math.exp(lp[1] - lp[0]))


def check_ranks(s, name, documents, **kw):
    got = s.post("/v1/rerank", {"query": QUERY, "documents": documents, **kw}).json()
    prompts = [pair_ids(s, QUERY, d, *([kw["instruction"]] if kw else [])) for d in documents]
    want = [answer(s, p) for p in prompts]
    scores = {r["index"]: r["relevance_score"] for r in got["results"]}
    check(f"{name}: the scores of the model card", worst([scores[i] for i in range(len(want))], want) < 1e-6,
          (scores, want))
    check(f"{name}: the tokens of its prompts", got["usage"]["prompt_tokens"] == sum(map(len, prompts)), got["usage"])
    return want


def test_qwen_reranker(folder):
    with serve(folder, "--dtype", "float32", "--task", "rerank") as s:
        check("the log says so", "a reranker" in "".join(s.log), s.log)
        want = check_ranks(s, "--task rerank", DOCS)
        check("documents differ", max(want) - min(want) > 1e-6, want)
        told = check_ranks(s, "an instruction", DOCS[:2], instruction="Is it short?")
        check("the instruction counts", told != want[:2], told)
        r = s.post("/score", {"text_1": QUERY, "text_2": DOCS}).json()
        check("score gives the same", worst([d["score"] for d in r["data"]], want) < 1e-6, r)
        r = s.post("/score", {"text_1": [QUERY, "x"], "text_2": DOCS[:2]}).json()
        check("score of pairs", abs(r["data"][1]["score"] - answer(s, pair_ids(s, "x", DOCS[1]))) < 1e-6, r)
        before = s.post("/score", {"text_1": QUERY, "text_2": DOCS[2]}).json()
        check("the second time most of it is cached", before["usage"]["prompt_tokens_details"]["cached_tokens"] > 100 and
              before["data"][0]["score"] == s.post("/score", {"text_1": QUERY, "text_2": DOCS[2]}).json()["data"][0]["score"],
              before)
        r = s.post("/score", {"text_1": QUERY, "text_2": "d" * 2000})
        check("a document that is too long: 400", r.status_code == 400 and
              r.json()["error"]["code"] == "context_length_exceeded", r.text)
        r = s.post("/score", {"text_1": QUERY, "text_2": "d" * 2000, "truncate_prompt_tokens": 450}).json()
        check("its text is cut, not the template", r["usage"]["prompt_tokens"] == 450, r)
        r = s.post("/score", {"text_1": "q" * 40000, "text_2": ["d"] * 1000, "truncate_prompt_tokens": 450})
        check("a long query for many documents: 400", r.status_code == 400 and
              "limit is 33554432" in r.json()["error"]["message"], r.text[:500])
        r = s.post("/score", {"text_1": QUERY, "text_2": "d", "truncate_prompt_tokens": 50})
        check("less than the template: 400", r.status_code == 400 and "template" in r.json()["error"]["message"], r.text)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    write(folder, "config.json", {**config, "architectures": ["Qwen3ForSequenceClassification"],
                                  "tie_word_embeddings": True})
    with serve(folder, "--dtype", "float32") as s:
        check_ranks(s, "by its architecture", DOCS[:2])
    with serve(folder, "--task", "embed") as s:
        r = s.post("/score", {"text_1": "x", "text_2": "x"}).json()
        check("--task embed: cosines", abs(r["data"][0]["score"] - 1) < 1e-6, r)
    check_no_text(folder, config)
    write(folder, "config.json", config)
    bytes_alone = os.path.join(os.path.dirname(folder), "bytes-alone")
    subprocess.run([BIN, "random-model", bytes_alone, "--layers", "1", "--d-model", "32", "--heads", "2", "--vocab-size",
                    "300", "--max-positions", "1024"], check=True, stdout=subprocess.DEVNULL)
    with serve(bytes_alone, "--task", "rerank") as s:
        r = s.post("/score", {"text_1": "x", "text_2": "x"})
        check("a model without a token yes: 400", r.status_code == 400 and
              r.json()["error"]["code"] == "not_a_reranker", r.text)


def drop_head(path):
    """The file without lm_head.weight, which is its last tensor."""
    with open(path, "rb") as f:
        b = f.read()
    n = struct.unpack("<Q", b[:8])[0]
    header, data = json.loads(b[8:8 + n]), b[8 + n:]
    begin, end = header.pop("lm_head.weight")["data_offsets"]
    assert end == len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data[:begin])


def check_no_text(folder, config):
    """A model without a head that config.json does not tie writes no text and says what it is; its states are served."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        whole = f.read()
    drop_head(path)
    for name, what in (("Qwen3ForSequenceClassification", "a reward model or classifier"), ("Qwen3Model", "an embedding model"),
                       ("Qwen3ForCausalLM", "a model without its head")):
        write(folder, "config.json", {**config, "architectures": [name], "tie_word_embeddings": False})
        with serve(folder) as s:
            asked = {"prompt": "x", "max_tokens": 3}
            for path_of, body in (("/v1/completions", asked), ("/v1/completions", {**asked, "stream": True}),
                                  ("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}),
                                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                                  ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
                                  ("/v1/responses", {"input": "x"})):
                r = s.post(path_of, {"model": s.get("/v1/models").json()["data"][0]["id"], **body})
                check(f"{name}: {path_of} {sorted(body)}: 400 says what it is", r.status_code == 400 and
                      f"it is {what} ({name})" in r.text, r.text[:400])
            check(f"{name}: is_generation", s.get("/get_model_info").json()["is_generation"] is False)
            r = s.post("/v1/embeddings", {"input": "x"})
            check(f"{name}: an embedding", r.status_code == 200 and len(r.json()["data"][0]["embedding"]) > 8, r.text[:400])
            r = s.post("/score", {"text_1": "x", "text_2": "x"})
            check(f"{name}: cosines, but not where the model has a head of its own for scores", r.status_code == 200 if
                  name != "Qwen3ForSequenceClassification" else r.json()["error"]["code"] == "not_a_reranker", r.text[:400])
    p = subprocess.run([BIN, "generate", folder, "-p", "x"], capture_output=True, text=True, timeout=120, check=False)
    check("generate says it", p.returncode == 1 and "lm_head.weight is missing" in p.stderr and
          "generates no text" in p.stderr, p.stderr)
    with open(path, "wb") as f:
        f.write(whole)


def main():
    tests = [test_embeddings, test_errors, test_cosines, test_crowd]
    chosen = [t for t in tests if not ONLY or t.__name__ in ONLY]
    if chosen:
        with Server() as s:
            for t in chosen:
                t(s)
    with tempfile.TemporaryDirectory() as where:
        folder = make_folder(where)
        for t in (test_qwen_embedding, test_qwen_reranker):
            if not ONLY or t.__name__ in ONLY:
                t(folder)
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(results["failed"] > 0)


main()
