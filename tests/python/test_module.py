#!/usr/bin/env python3
"""The Python module on the built library: `test_module.py ROOT LIBRARY BINARY MODEL`; closes with `N passed, N failed`.

Its results are compared with those of the server for the same request, of each form of call with the others, and of
many requests at once with each alone."""
import asyncio
import contextlib
import gc
import io
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT, LIBRARY, BIN, MODEL = (os.path.abspath(a) for a in sys.argv[1:5])
os.environ["ROSE_LIBRARY"] = LIBRARY
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "packages")]
from checks import check, results  # noqa: E402

import roseinfer  # noqa: E402
from roseinfer import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams  # noqa: E402
from roseinfer.options import engine_names, is_hub_name  # noqa: E402

PROMPT = "Once upon a time"
PROMPTS = [PROMPT, "The king", "There was a little girl", "In the morning"]
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 24}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" \
           "{% if add_generation_prompt %}assistant:{% endif %}"
SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}}


def raised(kind, call):
    """The message of the exception of exactly this class that call() raises."""
    try:
        call()
    except Exception as e:  # pylint: disable=broad-except
        return str(e) if type(e) is kind else f"{type(e).__name__} instead: {e}"
    return ""


def refuses(name, kind, fragment, call):
    text = raised(kind, call)
    check(name, fragment in text and " instead: " not in text, text or "nothing was raised")


class Server:
    """`BINARY serve MODEL`, asked with the standard library."""

    def __init__(self, *options, model=MODEL):
        self.p = subprocess.Popen([BIN, "serve", model, "--port", "0", "--device", "cpu", *options], stderr=subprocess.PIPE)
        log = []
        for line in self.p.stderr:
            log.append(line.decode())
            m = re.search(r"listening on http://[^ ]*:(\d+)", log[-1])
            if m:
                self.url = f"http://127.0.0.1:{m.group(1)}"
                threading.Thread(target=self.p.stderr.read, daemon=True).start()
                return
        raise RuntimeError("the server did not start: " + "".join(log))

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as r:
            return json.load(r)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        self.p.wait(60)


def output(result):
    return result.outputs[0]


def test_server(llm, s):
    def ask(**body):
        c = s.post("/v1/completions", dict(body, prompt=PROMPT, return_token_ids=True))["choices"]
        return [(x["text"], x["token_ids"], x["finish_reason"], x.get("stop_reason")) for x in c]

    def ours(**params):
        outputs = llm.generate(PROMPT, SamplingParams(**params))[0].outputs
        return [(o.text, o.token_ids, o.finish_reason, o.stop_reason) for o in outputs]

    cases = {"greedy": {"temperature": 0, "max_tokens": 40}, "sampled": SAMPLED, "three choices": dict(SAMPLED, n=3),
             "a stop string": dict(SAMPLED, stop=["the ", "zzz"], max_tokens=60),
             "its stop string kept": dict(SAMPLED, stop=["the "], include_stop_str_in_output=True, max_tokens=60),
             "penalties": dict(SAMPLED, presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.2),
             "a bias": dict(SAMPLED, logit_bias={"300": 20, "301": 20}), "min_p": dict(SAMPLED, min_p=0.2, top_k=0),
             "allowed ids": dict(SAMPLED, allowed_token_ids=[300, 301, 302]),
             "bad words": {"temperature": 0, "max_tokens": 40, "bad_words": ["the", " was", "little girl", "  a", ","]},
             "ignored ends": {"temperature": 0, "max_tokens": 64, "ignore_eos": True},
             "a schema": dict(SAMPLED, structured_outputs={"json": SCHEMA}, max_tokens=60),
             "choices": dict(SAMPLED, structured_outputs={"choice": ["red", "green", "blue"]}),
             "an expression": dict(SAMPLED, structured_outputs={"regex": "[a-c]{3}-[0-9]{2}"})}
    for name, body in cases.items():
        params = dict(body)
        if "structured_outputs" in params and name != "choices":  # a dict has the same meaning
            params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
        if "logit_bias" in params:
            params["logit_bias"] = {int(k): v for k, v in params["logit_bias"].items()}
        want, got = ask(**body), ours(**SamplingParams(**params).clone().__dict__)
        check(f"as the server: {name}", got == want, (got, want))
    stopped = ours(**dict(SAMPLED, stop=["the ", "zzz"], max_tokens=60))
    check("the stop string is named", stopped[0][2:] == ("stop", "the "), stopped)
    reply = s.post("/v1/embeddings", {"input": PROMPTS})["data"]
    got = [e.outputs.embedding for e in llm.embed(PROMPTS)]
    check("as the server: embeddings", all(a == b["embedding"] or max(abs(x - y) for x, y in zip(a, b["embedding"])) < 1e-6
                                           for a, b in zip(got, reply)), (got[0][:3], reply[0]["embedding"][:3]))
    check("a vector has the length 1", all(abs(math.sqrt(sum(x * x for x in v)) - 1) < 1e-5 for v in got))
    check("encode gives the vectors of embed", [e.outputs.data for e in llm.encode(PROMPTS)] == got)
    scores = [d["score"] for d in s.post("/v1/score", {"text_1": PROMPT, "text_2": PROMPTS})["data"]]
    ours_s = [r.outputs.score for r in llm.score(PROMPT, PROMPTS)]
    check("as the server: scores", len(scores) == 4 and all(abs(a - b) < 1e-6 for a, b in zip(scores, ours_s)) and abs(ours_s[0] - 1) < 1e-6, (scores, ours_s))
    check("scores of text by text", [r.outputs.score for r in llm.score(PROMPTS, PROMPTS[::-1])][:2] == [llm.score(a, b)[0].outputs.score for a, b in zip(PROMPTS, PROMPTS[::-1])][:2])
    logprobs = s.post("/v1/completions", dict(SAMPLED, prompt=PROMPT, logprobs=3))["choices"][0]["logprobs"]
    o = output(llm.generate(PROMPT, SamplingParams(**SAMPLED, logprobs=3))[0])
    ours_lp = [o.logprobs[i][t].logprob for i, t in enumerate(o.token_ids)]
    check("as the server: log-probabilities", len(ours_lp) == len(logprobs["token_logprobs"]) and
          all(abs(a - b) < 1e-4 for a, b in zip(ours_lp, logprobs["token_logprobs"])), (ours_lp, logprobs))
    check("log-probabilities sum up", abs(o.cumulative_logprob - sum(ours_lp)) < 1e-6)
    ranks = [sorted(v.rank for v in x.values()) for x in o.logprobs]
    check("ranks begin at 1", all(len(r) in (3, 4) and r[:3] == [1, 2, 3] for r in ranks), ranks)
    chat = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0,
                                           "max_tokens": 20})["choices"][0]["message"]["content"]
    got = output(llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0, max_tokens=20))[0])
    check("as the server: a chat", got.text == chat, (got.text, chat))


def test_forms(llm):
    greedy = SamplingParams(temperature=0, max_tokens=16)
    alone = [output(llm.generate(p, greedy)[0]) for p in PROMPTS]
    together = [output(r) for r in llm.generate(PROMPTS, greedy)]
    check("many prompts give what each gives alone", together == alone, (together, alone))
    result = llm.generate(PROMPT, greedy)[0]
    check("a result names its prompt", result.prompt == PROMPT and result.finished and result.n_prompt_tokens > 0, result)
    ids = llm.tokenize(PROMPT)
    check("text and ids", llm.detokenize(ids) == PROMPT, ids)
    for name, prompt in [("ids", ids), ("a dict", {"prompt": PROMPT}), ("a dict of ids", {"prompt_token_ids": ids})]:
        check(f"a prompt as {name}", output(llm.generate(prompt, greedy)[0]) == alone[0])
    pieces = list(llm.stream(PROMPT, greedy))
    check("a stream is the same text", "".join(p.text for p in pieces) == alone[0].text and
          [p.token_id for p in pieces if p.token_id is not None] == alone[0].token_ids, pieces)
    check("only the last piece has a reason", [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1) and
          pieces[-1].finish_reason == "length", pieces[-1])
    mixed = llm.generate(PROMPTS[:2], [greedy, SamplingParams(temperature=0, max_tokens=3)])
    check("parameters for each prompt", [len(output(r).token_ids) for r in mixed] == [16, 3], mixed)
    check("no seed: random", output(llm.generate(PROMPT, SamplingParams(max_tokens=32))[0]).text !=
          output(llm.generate(PROMPT, SamplingParams(max_tokens=32))[0]).text)
    check("the parameters of the model", len(output(llm.generate(PROMPT)[0]).token_ids) > 0)
    check("nothing to do", llm.generate([]) == [] and llm.embed([]) == [])
    obj = json.loads(output(llm.generate(PROMPT, SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA),
                                                                seed=3, max_tokens=200))[0]).text)
    check("a schema is obeyed", set(obj) == {"name", "age"} and 0 <= obj["age"] <= 99, obj)
    long = llm.generate(PROMPT, SamplingParams(temperature=0, ignore_eos=True, max_tokens=None))[0]
    check("no max_tokens: to the end of the context", output(long).finish_reason == "length" and
          long.n_prompt_tokens + len(output(long).token_ids) >= llm.max_model_len - 1, long.n_prompt_tokens)
    check("facts", llm.vocab_size > 1000 and llm.embedding_size > 0 and llm.has_chat_template and llm.eos_token_ids)
    chat = [{"role": "user", "content": "Hello"}]
    reply = output(llm.chat(chat, greedy)[0])
    check("a streamed chat is the same text", "".join(p.text for p in llm.stream_chat(chat, greedy)) == reply.text)
    by_ids = output(llm.generate(llm.tokenize_chat(chat), greedy)[0])
    check("a chat is its ids", by_ids.token_ids == reply.token_ids, (by_ids, reply))
    two = llm.chat([chat, [{"role": "user", "content": "Good night"}]], greedy)
    check("a list of chats", output(two[0]) == reply and len(two) == 2, two)


def test_outputs(llm):
    r = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, n=2))[0]
    m = r.metrics
    check("the ids of the prompt", r.prompt_token_ids == llm.tokenize(PROMPT) and r.n_prompt_tokens == len(r.prompt_token_ids), r)
    order = [m.arrival_time, m.first_scheduled_time, m.first_token_time, m.last_token_time, m.finished_time]
    check("the times are in order", order == sorted(order) and order[2] < order[3] and abs(m.time_in_queue - (order[1] - order[0])) < 1e-3, m)
    check("the clock is that of time.time", abs(m.finished_time - time.time()) < 60, m)
    stopped = llm.generate(PROMPT, SamplingParams(temperature=0, stop=["e"], max_tokens=60))[0]
    check("a stop string has an end", stopped.outputs[0].finish_reason == "stop" and stopped.metrics.finished_time >= stopped.metrics.first_token_time, stopped)
    e = llm.embed(PROMPT)[0]
    check("an embedding has ids and times", e.prompt_token_ids[:2] == r.prompt_token_ids[:2] and e.metrics.finished_time and e.metrics.first_token_time is None, e)
    seen = []

    class Bar:
        def __init__(self, **kw):
            seen.append((kw["total"], kw["desc"]))
            self.postfix = kw["postfix"]

        def update(self, k):
            seen.append((k, self.postfix))

        def close(self):
            seen.append("closed")
    llm.generate([PROMPT, [], PROMPT], SamplingParams(max_tokens=2, n=2), use_tqdm=Bar)
    check("a bar of another", seen[0] == (3, "Processed prompts") and [s[0] for s in seen[1:-1]] == [1, 1, 1] and seen[-1] == "closed" and "toks/s" in seen[-2][1], seen)
    for call in (lambda: llm.generate(PROMPTS, SamplingParams(max_tokens=2), use_tqdm=True), lambda: llm.embed(PROMPTS, use_tqdm=True)):
        out = io.StringIO()
        with contextlib.redirect_stderr(out), without_tqdm():
            call()
        check("our own bar", "Processed prompts: 0/4" in out.getvalue() and "Processed prompts: 4/4" in out.getvalue() and out.getvalue().endswith("\n"), out.getvalue())
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        llm.generate(PROMPTS, SamplingParams(max_tokens=2))
        llm.generate(PROMPTS, SamplingParams(max_tokens=2), use_tqdm=False)
    check("no bar without a terminal", out.getvalue() == "", out.getvalue())


@contextlib.contextmanager
def without_tqdm():
    kept = sys.modules.get("tqdm")
    sys.modules["tqdm"] = None
    try:
        yield
    finally:
        sys.modules.pop("tqdm")
        if kept is not None:
            sys.modules["tqdm"] = kept


def test_tokenizer(llm, s):
    t = llm.get_tokenizer()
    ids = s.post("/tokenize", {"prompt": PROMPT + "<|endoftext|>"})["tokens"]
    check("the tokenizer encodes as the server", t.encode(PROMPT + "<|endoftext|>") == ids and t(PROMPT + "<|endoftext|>").input_ids == ids, ids)
    check("and decodes", t.decode(ids) == PROMPT + "<|endoftext|>" and t.decode(ids, skip_special_tokens=True) == PROMPT and t.batch_decode([ids[:2], ids[2:]]) == [t.decode(ids[:2]), t.decode(ids[2:])])
    check("several texts", t([PROMPT, "a"])["attention_mask"] == [[1] * len(t.encode(PROMPT)), [1]], t([PROMPT, "a"]))
    check("special tokens", (t.bos_token, t.bos_token_id, t.eos_token_id, t.pad_token_id, t.unk_token) == ("<|endoftext|>", 0, 0, None, "<|endoftext|>"))
    check("sizes", t.vocab_size == len(t) == llm.vocab_size and t.model_max_length == llm.max_model_len and t.chat_template == TEMPLATE)
    chat = [{"role": "user", "content": "Hello"}]
    check("the text of a chat", t.apply_chat_template(chat, tokenize=False) == "user: Hello\n" and t.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == "user: Hello\nassistant:")
    check("the ids of a chat", t.apply_chat_template(chat, add_generation_prompt=True) == llm.tokenize_chat(chat))
    own = "{{ messages[0].content }} {{ word }}"
    check("a template of one's own", t.apply_chat_template(chat, chat_template=own, tokenize=False, word="there") == "Hello there")
    greedy = SamplingParams(temperature=0, max_tokens=8)
    check("a chat by a template of one's own", output(llm.chat(chat, greedy, chat_template="Once {{ messages[0].content }}")[0]) == output(llm.generate("Once Hello", greedy)[0]))
    refuses("a template that does not compile", roseinfer.InvalidArgumentError, "", lambda: llm.chat(chat, chat_template="{% if %}", raise_errors=True))
    refuses("what the tokenizer has not", AttributeError, "transformers", lambda: t.pad)
    with LLM(MODEL, device="cpu", threads=1, num_kv_pages=64) as plain:
        check("without a chat template", plain.get_tokenizer().chat_template is None and plain.get_tokenizer().eos_token_id == 0)
        check("a template for a model without one", plain.get_tokenizer().apply_chat_template(chat, chat_template=TEMPLATE, tokenize=False) == "user: Hello\n")


def test_options():
    """Every option of an engine that the command line has, and the names of vLLM."""
    shown = subprocess.run([BIN, "tune", "--help-all"], stdout=subprocess.PIPE, check=True).stdout.decode()
    names = {m.replace("-", "_") for m in re.findall(r"^ +--(?:\[no-\])?([a-z-]+)", shown, re.M)} - {"help", "help_all"}
    check("the options are those of the command line", names == set(engine_names()) and len(names) > 40, names ^ set(engine_names()))
    small = {"device": "cpu", "threads": 1, "num_kv_pages": 64}
    vllm = {"model": MODEL, "tokenizer": MODEL, "dtype": "float", "max_model_len": 128, "gpu_memory_utilization": 0.9, "enforce_eager": True, "enable_prefix_caching": False,
            "enable_chunked_prefill": True, "seed": 5, "tensor_parallel_size": 1, "trust_remote_code": True, "disable_log_stats": True, "max_num_seqs": 8, "max_num_batched_tokens": 64,
            "quantization": None, "swap_space": 4, "runner": "generate", "task": "generate", "tokenizer_mode": "auto", "kv_cache_dtype": "auto", "block_size": 16, "load_format": "safetensors"}
    with LLM(**vllm, **small) as llm:
        params = SamplingParams(max_tokens=12)
        first = [output(r).text for r in llm.generate([PROMPT] * 3, params)]
        check("vLLM's names", llm.max_model_len == 128 and llm.generate([list(range(40))] * 2, params)[1].num_cached_tokens == 0, llm.max_model_len)
    with LLM(MODEL, **small, seed=5, dtype="float32", kv_cache_memory="8M", decode_first=False) as llm:
        again = [output(r).text for r in llm.generate([PROMPT] * 3, params)]
        check("a seed of the engine", first == again and len(set(first)) == 3, (first, again))
        with Server("--seed", "5", "--dtype", "float32", "--generation-config", "none") as s:
            texts = [s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 12})["choices"][0]["text"] for _ in range(3)]
        check("the seed of serve --seed", texts == again, (texts, again))
        check("the defaults of SamplingParams", llm.get_default_sampling_params() == SamplingParams() and len(output(llm.generate(PROMPT)[0]).token_ids) <= 16)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as f:
            json.dump({"temperature": 0.6, "top_k": 20, "max_new_tokens": 5, "do_sample": True}, f)
        with LLM(MODEL, **small, generation_config=folder, prefix_cache=True) as llm:
            p = llm.get_default_sampling_params()
            check("what the model recommends", p == SamplingParams(temperature=0.6, top_k=20, max_tokens=5), p)
            check("and a request without parameters has it", len(output(llm.generate(PROMPT)[0]).token_ids) == 5)
    wrong = [({"tensor_parallel_size": 2}, "one device"), ({"kv_cache_dtype": "fp8"}, "not there yet"), ({"tokenizer": "other"}, "its own tokenizer"),
             ({"quantization": "awq"}, "none|int8"), ({"device": "cuda:x"}, "auto|cpu|cuda"), ({"max_num_seqs": 5000}, "max_num_seqs '5000'"), ({"dtype": "fp8"}, "expected one of"),
             ({"prefix_cache": 3}, "true or false"), ({"gpu_memory_utilization": 1.5}, "0.01 to 1"), ({"chat_template": 5}, "chat_template"), ({"revision": "main"}, "no model of the hub"),
             ({"task": "classify"}, "task 'classify'"), ({"threads": [1]}, "not list")]
    for options, word in wrong:
        refuses(f"{options}", roseinfer.InvalidArgumentError, word, lambda: LLM(MODEL, **options))
    for name, meant in (("max_num_seq", "max_num_seqs"), ("gpu_memory_utilisation", "gpu_memory_utilization"), ("enable_prefix_cache", "enable_prefix_caching"), ("prefixcache", "prefix_cache")):
        refuses(f"{name} is near {meant}", TypeError, f"did you mean '{meant}'?", lambda: LLM(MODEL, **{name: 1}))
    for field, word in (("best_of", "n is the number"), ("guided_decoding", "structured_outputs"), ("use_beam_search", "no beam search")):
        refuses(f"SamplingParams({field}=...)", roseinfer.InvalidArgumentError, word, lambda: SamplingParams(**{field: 3}))
    refuses("a misspelled field", TypeError, "did you mean 'max_tokens'?", lambda: SamplingParams(max_token=3))
    check("fields that ask for what is so", SamplingParams(best_of=1, detokenize=True, prompt_logprobs=None, n=2) == SamplingParams(n=2))


def test_hub():
    """A model of the hub that is in the cache, as the program `pull` finds it."""
    with tempfile.TemporaryDirectory() as cache:
        commit = "0123456789abcdef0123456789abcdef01234567"
        shutil.copytree(MODEL, os.path.join(cache, "models--rose--tiny", "snapshots", commit))
        os.makedirs(os.path.join(cache, "models--rose--tiny", "refs"))
        with open(os.path.join(cache, "models--rose--tiny", "refs", "main"), "w", encoding="utf-8") as f:
            f.write(commit)
        os.environ.update(HF_HUB_CACHE=cache, HF_HUB_OFFLINE="1", ROSE_PROGRAM=BIN)
        with LLM("rose/tiny", device="cpu", threads=1, num_kv_pages=64) as llm:
            check("a model by its name", llm.get_tokenizer().name_or_path.startswith(cache) and llm.vocab_size > 1000, llm.get_tokenizer().name_or_path)
        refuses("a model that is not there, offline", roseinfer.ModelError, "HF_HUB_OFFLINE is set", lambda: LLM("rose/none"))
        refuses("a revision that is not there", roseinfer.ModelError, "not in the cache", lambda: LLM("rose/tiny", revision="v2"))
        for path in ("/rose/tiny", "./rose", "rose", "a/b/c", os.path.relpath(MODEL)):
            check(f"{path} is a path", not is_hub_name(path))
        del os.environ["HF_HUB_CACHE"], os.environ["HF_HUB_OFFLINE"]


def test_reranker():
    """The tiny model with a token "yes", since it has only "no": the scores of the server."""
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(MODEL, os.path.join(folder, "ranker"))
        with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
            t = json.load(f)
        vocab = t["model"]["vocab"]
        last = max(vocab, key=vocab.get)
        vocab["yes"] = vocab.pop(last)
        t["model"]["merges"] = [m for m in t["model"]["merges"] if "".join(m.split() if isinstance(m, str) else m) != last]
        with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(t, f)
        texts = ["a king", "<|endoftext|> the sea", "a"]
        with Server("--task", "rerank", "--num-kv-pages", "128", "--threads", "2", model=model) as s:
            want = [d["score"] for d in s.post("/v1/score", {"text_1": PROMPT, "text_2": texts})["data"]]
            told = s.post("/v1/score", {"text_1": PROMPT, "text_2": "a king", "instruction": "Is it short?"})["data"][0]["score"]
        with LLM(model, task="rerank", device="cpu", threads=2, num_kv_pages=128) as llm:
            got = llm.score(PROMPT, texts)
            check("as the server: a reranker", [round(r.outputs.score, 6) for r in got] == [round(w, 6) for w in want] and len(set(want)) == 3, (got, want))
            check("an instruction", abs(llm.score(PROMPT, "a king", instruction="Is it short?")[0].outputs.score - told) < 1e-6)
            bad = llm.score(PROMPT, ["a king", "long " * 100000, "\ud800"])
            check("a bad pair", bad[0].outputs.score == got[0].outputs.score and bad[0].error is None and all(isinstance(b.error, roseinfer.InvalidArgumentError) for b in bad[1:]), bad)
        asyncio.run(rank_async(model, got[0].outputs.score))
    with LLM(MODEL, task="rerank", device="cpu", threads=1, num_kv_pages=64) as llm:
        refuses("no answers in the vocabulary", roseinfer.InvalidArgumentError, "'yes'", lambda: llm.score("a", "b", raise_errors=True))


async def rank_async(model, want):
    async with AsyncLLM(model, task="rerank", device="cpu", threads=2, num_kv_pages=128) as llm:
        check("a reranker in asyncio", (await llm.score(PROMPT, "a king")).outputs.score == want)


LEFT_OPEN = """
import pickle, sys, roseinfer
llm = roseinfer.LLM(sys.argv[1], device="cpu", threads=2, num_kv_pages=64)
stream = llm.stream("Once upon a time")
next(stream)
for what in (llm, stream, llm.get_tokenizer()):
    try:
        pickle.dumps(what)
    except TypeError as e:
        print("open the LLM inside the actor" in str(e))
tokenizer = llm.get_tokenizer()
del llm
print(len(tokenizer.encode("Once upon")))
"""


def test_left_open():
    """A program that ends with an open engine says nothing, and what cannot be pickled says what to do."""
    p = subprocess.run([sys.executable, "-c", LEFT_OPEN, MODEL], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}, timeout=120, capture_output=True, text=True, check=False)
    check("what cannot be pickled, and an engine that is left open", p.stdout.split()[:3] == ["True"] * 3 and p.returncode == 0 and not p.stderr, (p.stdout, p.stderr))


def test_errors(llm):
    refuses("no model", roseinfer.ModelError, "no-such-folder", lambda: LLM("/no-such-folder"))
    refuses("an unknown dtype", roseinfer.InvalidArgumentError, "float7", lambda: LLM(MODEL, dtype="float7"))
    refuses("an unknown option", TypeError, "colour", lambda: LLM(MODEL, colour="red"))
    refuses("an option out of range", roseinfer.InvalidArgumentError, "threads", lambda: LLM(MODEL, threads=-1))
    for field, value in [("temperature", -1.0), ("top_p", 2.0), ("logprobs", 21), ("repetition_penalty", 1000.0),
                         ("max_tokens", 0), ("max_tokens", -1), ("n", 0), ("stop", ""), ("stop_token_ids", [-1])]:
        text = raised(roseinfer.InvalidArgumentError, lambda: llm.generate(PROMPT, SamplingParams(**{field: value})))
        check(f"{field}={value!r} is refused", text and " instead: " not in text, text)
    refuses("an empty prompt", roseinfer.InvalidArgumentError, "prompt", lambda: llm.generate([[]], raise_errors=True))
    refuses("a prompt of another type", roseinfer.InvalidArgumentError, "float", lambda: llm.generate([1.5], raise_errors=True))
    refuses("an unknown id", roseinfer.InvalidArgumentError, "", lambda: llm.generate([[1 << 31]], raise_errors=True))
    refuses("a schema that is none", roseinfer.InvalidArgumentError, "",
            lambda: llm.generate(PROMPT, SamplingParams(structured_outputs=StructuredOutputsParams(json="{"))))
    refuses("two structures", roseinfer.InvalidArgumentError, "2 members", lambda: llm.generate(
        PROMPT, SamplingParams(structured_outputs=StructuredOutputsParams(regex="a", json_object=True))))
    refuses("a stream of two", roseinfer.InvalidArgumentError, "n:", lambda: llm.stream(PROMPT, SamplingParams(n=2)))
    refuses("too few parameters", roseinfer.InvalidArgumentError, "2 prompts",
            lambda: llm.generate(PROMPTS[:2], [SamplingParams()]))
    refuses("a chat without a role", roseinfer.InvalidArgumentError, "", lambda: llm.chat([{"content": "x"}], raise_errors=True))
    check("every error is a RoseError, and some are Python's own", issubclass(roseinfer.InvalidArgumentError, ValueError) and
          issubclass(roseinfer.OutOfMemoryError, MemoryError) and
          all(issubclass(getattr(roseinfer, e), roseinfer.RoseError) for e in roseinfer.__all__ if e.endswith("Error")))
    check("nothing is left", not llm._engine._requests, llm._engine._requests)


WRONG = [("temperature", "hot"), ("temperature", None), ("temperature", math.nan), ("top_p", [1]), ("top_k", 1.5), ("top_k", -7), ("min_p", "x"),
         ("n", "2"), ("n", 2.0), ("n", 1 << 40), ("n", -1), ("seed", "s"), ("max_tokens", "9"), ("max_tokens", 1 << 40), ("min_tokens", None),
         ("stop", 5), ("stop", [5]), ("stop", ["\ud800"]), ("stop_token_ids", ["a"]), ("stop_token_ids", 5), ("logit_bias", [1]),
         ("logit_bias", {"a": 1}), ("logit_bias", {1: "a"}), ("allowed_token_ids", [1.5]), ("bad_token_ids", [5]), ("bad_token_ids", [["a"]]), ("bad_words", "word"), ("bad_words", [""]), ("bad_words", [5]),
         ("logprobs", "1"), ("priority", "a"), ("priority", 1 << 40), ("cache_salt", 5), ("presence_penalty", "x"),
         ("structured_outputs", "json"), ("structured_outputs", {"jsn": SCHEMA}), ("structured_outputs", StructuredOutputsParams(choice=5)),
         ("structured_outputs", StructuredOutputsParams(json={"a": {1, 2}}))]


def test_wrong_values(llm):
    """Values of a wrong type or range are errors of the library, whatever Python or ctypes would raise, and begin no work."""
    for field, value in WRONG:
        text = raised(roseinfer.InvalidArgumentError, lambda: llm.generate([PROMPT] * 2, SamplingParams(**{field: value})))
        check(f"{field}={value!r}"[:60] + " is an InvalidArgumentError", text and " instead: " not in text, text or "nothing was raised")
    for what, call in (("prompts", lambda: llm.generate(5)), ("sampling_params", lambda: llm.generate(PROMPT, 5)), ("sampling_params", lambda: llm.generate([PROMPT], [5])),
                       ("messages", lambda: llm.chat(5)), ("", lambda: llm.chat([{"role": "user", "content": "x"}], chat_template_kwargs={"a": {1}})),
                       ("text", lambda: llm.tokenize("\ud800")), ("ids", lambda: llm.detokenize(["a"])), ("dimensions", lambda: llm.embed(PROMPT, dimensions=-1)),
                       ("dtype", lambda: LLM(MODEL, dtype=5)), ("threads", lambda: LLM(MODEL, threads="two")), ("threads", lambda: LLM(MODEL, threads=True)), ("seed", lambda: LLM(MODEL, seed=-1)),
                       ("data_1", lambda: llm.score(5, "a")), ("data_2", lambda: llm.score("a", [5])), ("2 texts", lambda: llm.score(["a"] * 2, ["b"] * 3)), ("pooling_params", lambda: llm.embed("a", pooling_params=5)),
                       ("pooling_task", lambda: llm.encode("a", pooling_task="token_embed")), ("model", lambda: LLM(5))):
        refuses(f"a wrong value of {what}", roseinfer.InvalidArgumentError, what, call)
    check("nothing is left after wrong values", not llm._engine._requests, llm._engine._requests)


def test_one_bad_prompt(llm):
    """One bad prompt gives one error, in its own output; the others have the results that they have alone."""
    greedy = SamplingParams(temperature=0, max_tokens=8)
    alone = [output(r).text for r in llm.generate(PROMPTS, greedy)]
    for bad in ([], 1.5, [1 << 31], "\ud800", {"x": 1}, None, "long " * 100000, ["a"]):
        got = llm.generate(PROMPTS[:2] + [bad] + PROMPTS[2:], greedy)
        good = [r for i, r in enumerate(got) if i != 2]
        check(f"a bad prompt {bad!r}"[:60], [output(r).text for r in good] == alone and all(r.error is None for r in good) and not got[2].outputs
              and isinstance(got[2].error, roseinfer.InvalidArgumentError), [(r.error, r.outputs) for r in got])
        text = raised(roseinfer.InvalidArgumentError, lambda: llm.generate(PROMPTS[:2] + [bad], greedy, raise_errors=True))
        check("the same, raised", text == str(got[2].error), text)
        text = raised(roseinfer.InvalidArgumentError, lambda: pickle.loads(pickle.dumps(got[2])).outputs[0].text)
        check("the same, where somebody takes the result", text == str(got[2].error) and got[2].outputs[:] == [], text)
    got = llm.generate([[], PROMPT], SamplingParams(temperature=0, max_tokens=8, n=3))
    check("n results or one error", len(got[1].outputs) == 3 and not got[0].outputs and got[0].error is not None, got)
    hello = [{"role": "user", "content": "Hello"}]
    for bad in ([{"content": "x"}], 5, [{"role": "user", "content": {1}}]):
        got = llm.chat([hello, bad, hello], greedy)
        check(f"a bad chat {bad}", output(got[0]).text == output(got[2]).text and isinstance(got[1].error, roseinfer.InvalidArgumentError), got)
    got = llm.embed([PROMPT, [], PROMPT])
    check("a bad text of embed", len(got[0].outputs.embedding) == llm.embedding_size and got[0].outputs == got[2].outputs
          and not got[1].outputs.embedding and isinstance(got[1].error, roseinfer.InvalidArgumentError) and got[0].error is None, got[1])
    refuses("a bad text of embed, raised", roseinfer.InvalidArgumentError, "", lambda: llm.embed([PROMPT, []], raise_errors=True))
    refuses("wrong parameters that the library finds", roseinfer.InvalidArgumentError, "temperature", lambda: llm.generate([PROMPT, []], SamplingParams(temperature=-1.0)))
    check("nothing is left after bad prompts", not llm._engine._requests, llm._engine._requests)


CTRL_C = """
import signal, sys, threading, time, os
import roseinfer
llm = roseinfer.LLM(sys.argv[1], device="cpu", threads=2)
def press():
    time.sleep(0.5)
    pressed.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
pressed = []
thread = threading.Thread(target=press)
thread.start()
try:
    llm.generate(["Once upon a time"] * 200, roseinfer.SamplingParams(max_tokens=400, n=20, ignore_eos=True))
    print("no interrupt")
except KeyboardInterrupt:
    took = time.monotonic() - pressed[0]
    print("interrupted", len(llm._engine._requests), took)
llm.generate("Once", roseinfer.SamplingParams(max_tokens=2))
llm.close()
print("closed")
"""


def test_ctrl_c():
    """Ctrl-C ends a batch and frees its requests; the engine goes on. The time is printed, not judged."""
    p = subprocess.run([sys.executable, "-c", CTRL_C, MODEL], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}, timeout=120, capture_output=True,
                       text=True, check=False)
    check("Ctrl-C in a batch", p.stdout.startswith("interrupted 0 ") and p.stdout.endswith("closed\n") and p.returncode == 0, (p.stdout, p.stderr))
    print(p.stdout.splitlines()[:1])


def test_small(options):
    """An engine with room for 3 requests: a request that is not freed would soon fill it."""
    with LLM(MODEL, max_num_seqs=2, max_num_queued_reqs=1, **dict(options, num_kv_pages=64)) as llm:
        params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
        ends = []
        for _ in range(10):
            for _ in llm.stream(PROMPT, params):
                break  # the iterator is dropped
            llm.stream(PROMPT, params)  # never asked for a piece
            with llm.stream(PROMPT, params) as s:
                next(s)
                s.cancel()
                ends += [list(s)[-1].finish_reason]
        gc.collect()
        # A stream may come to its end before the cancel does, but not each of ten.
        check("cancelled streams end with abort", "abort" in ends and set(ends) <= {"abort", "length"}, ends)
        check("dropped streams are freed", not llm._engine._requests, llm._engine._requests)
        check("more prompts than the queue holds", len(llm.generate([PROMPT] * 20, SamplingParams(max_tokens=4))) == 20)
        streams = []
        try:
            for _ in range(20):
                streams.append(llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)))
            text = ""
        except roseinfer.QueueFullError as e:
            text = str(e)
        check("a full queue is an error of a stream", "queue" in text, (len(streams), text))
        for s in streams:
            s.close()
        check("closed streams make room", len(llm.generate([PROMPT] * 3, SamplingParams(max_tokens=2))) == 3)


def test_threads(options):
    with LLM(MODEL, **options) as llm:
        params = [SamplingParams(**dict(SAMPLED, seed=i)) for i in range(8)]
        want = [output(r).token_ids for r in llm.generate([PROMPT] * 8, params)]
        got = [None] * 8

        def work(i):
            got[i] = output(llm.generate(PROMPT, params[i])[0]).token_ids

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check("8 threads get the same ids as one", got == want, (got, want))
    llm = LLM(MODEL, **options)
    ends, began = [], threading.Semaphore(0)

    def wait_for_close():
        try:
            for piece in llm.stream(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True, temperature=0)):
                began.release()
            ends.append(piece.finish_reason)
        except roseinfer.ClosedError:
            ends.append("closed")

    threads = [threading.Thread(target=wait_for_close) for _ in range(4)]
    for t in threads:
        t.start()
    for _ in threads:
        began.acquire()
    llm.close()
    llm.close()
    for t in threads:
        t.join()
    check("close ends the streams of other threads", len(ends) == 4 and set(ends) <= {"abort", "closed", "length"}, ends)
    refuses("a closed engine", roseinfer.ClosedError, "closed", lambda: llm.generate(PROMPT))
    refuses("facts of a closed engine", roseinfer.ClosedError, "closed", lambda: llm.vocab_size)
    left = LLM(MODEL, **options)
    stream = left.stream(PROMPT)
    left.close()
    refuses("a stream after close", roseinfer.ClosedError, "closed", lambda: list(stream))
    with LLM(MODEL, **options) as llm:
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=4))
        pid = os.fork()
        if pid == 0:
            good = [raised(roseinfer.ClosedError, call) for call in (lambda: llm.tokenize("x"), lambda: next(stream))]
            os._exit(0 if all("was forked" in text for text in good) else 1)
        check("a forked process is told", os.waitpid(pid, 0)[1] == 0)
        stream.close()


async def with_asyncio(options, want):
    async with AsyncLLM(MODEL, **options) as llm:
        params = [SamplingParams(**dict(SAMPLED, seed=i)) for i in range(50)]

        async def one(i):
            return [p async for p in llm.stream(PROMPT, params[i])]

        fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        streams = await asyncio.gather(*(one(i) for i in range(50)))
        check("50 streams at once: the ids of each alone",
              [[p.token_id for p in s if p.token_id is not None] for s in streams] == want)
        check("50 streams take neither threads nor descriptors",
              (len(os.listdir("/proc/self/fd")), threading.active_count()) == (fds, threads))
        got = await asyncio.gather(*(llm.generate(PROMPT, p) for p in params))
        check("50 results at once", [output(r).token_ids for r in got] == want)
        check("nothing is left", not llm._engine._requests and not llm._streams)

        endless = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0)
        generator = llm.stream(PROMPT, endless)
        first = await generator.__anext__()
        await generator.aclose()
        check("a closed generator frees its request", first.finish_reason is None and not llm._engine._requests)

        started = asyncio.Event()

        async def listen():
            while True:  # a stream may end before the task is cancelled
                async for _ in llm.stream(PROMPT, endless):
                    started.set()

        task = asyncio.ensure_future(listen())
        await started.wait()
        task.cancel()
        cancelled = (await asyncio.gather(task, return_exceptions=True))[0]
        check("a cancelled task frees its request", isinstance(cancelled, asyncio.CancelledError) and
              not llm._engine._requests, cancelled)
        task = asyncio.ensure_future(llm.generate(PROMPT, endless))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        check("a cancelled generate frees its request", not llm._engine._requests)

        three = await llm.generate(PROMPT, SamplingParams(**dict(SAMPLED, n=3)))
        check("three choices", len(three.outputs) == 3 and three.prompt == PROMPT)
        reply = await llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0, max_tokens=8))
        text = "".join([p.text async for p in llm.stream_chat([{"role": "user", "content": "Hello"}],
                                                              SamplingParams(temperature=0, max_tokens=8))])
        check("a chat", output(reply).text == text and text)
        check("a result has ids and times", reply.prompt_token_ids and reply.metrics.finished_time >= reply.metrics.first_token_time, reply)
        check("a tokenizer", (await llm.get_tokenizer()).encode(PROMPT) == llm.tokenize(PROMPT))
        check("a score", abs((await llm.score(PROMPT, PROMPT)).outputs.score - 1) < 1e-6)
        vector = (await llm.embed(PROMPT)).outputs.embedding
        check("an embedding", len(vector) == llm.embedding_size)
        try:
            await llm.generate(PROMPT, SamplingParams(temperature=-1))
            text = ""
        except roseinfer.InvalidArgumentError as e:
            text = str(e)
        check("an error of a request", "temperature" in text, text)

        started.clear()
        task = asyncio.ensure_future(listen())
        await started.wait()
        await llm.close()
        end = (await asyncio.gather(task, return_exceptions=True))[0]
        check("close ends a stream", isinstance(end, roseinfer.ClosedError), end)
    return llm


def test_asyncio(options, llm):
    want = [output(llm.generate(PROMPT, SamplingParams(**dict(SAMPLED, seed=i)))[0]).token_ids for i in range(50)]
    closed = asyncio.run(with_asyncio(options, want))
    refuses("after close", roseinfer.ClosedError, "closed", lambda: asyncio.run(closed.generate(PROMPT)))

    async def begin(llm):
        async for _ in llm.stream(PROMPT):
            break

    other = AsyncLLM(MODEL, **options)
    asyncio.run(begin(other))
    refuses("another event loop", RuntimeError, "another event loop", lambda: asyncio.run(begin(other)))
    asyncio.run(other.close())


def main():
    options = {"device": "cpu", "threads": 2, "chat_template": TEMPLATE, "num_kv_pages": 1024}
    check("the version is the program's", f"roseinfer {roseinfer.__version__}" in
          subprocess.run([BIN, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode())
    with LLM(MODEL, **options) as llm:
        with Server("--chat-template", TEMPLATE, "--num-kv-pages", "1024", "--threads", "2") as s:
            test_server(llm, s)
            test_tokenizer(llm, s)
        test_forms(llm)
        test_outputs(llm)
        test_errors(llm)
        test_wrong_values(llm)
        test_one_bad_prompt(llm)
        test_asyncio(options, llm)
    test_options()
    test_hub()
    test_reranker()
    test_left_open()
    test_ctrl_c()
    test_small(options)
    test_threads(options)
    return results()


if __name__ == "__main__":
    sys.exit(main())
