#!/usr/bin/env python3
"""Compare the ids of chats with transformers' apply_chat_template(tokenize=True): `ids.py --binary build/roseinfer`.

The server's /tokenize against transformers, for honest messages: no message spells a control token. Templates: those of
tests/template/data and of --dir (or $ROSE_CHAT_TEMPLATES). Tokenizers: byte-level BPE with the control tokens of all
families; Phi-3's and Llama 2's vocabularies where --data (or $ROSE_SHARED_DATA, else ../shared/data) has them; SmolLM2's
GGUF with its own template where $ROSE_SMOLLM2 names it, or build/models/smollm2 has it. What is missing is said. Prints
"N chats, 0 differ"; exit 1 on a difference.
"""
import argparse
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tokenizer"))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import families
from parity import PATTERNS, PROSE, ROOT
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

CONTROL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>",
           "<end_of_turn>", "[INST]", "[/INST]", "<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>",
           "<|start|>", "<|message|>", "[TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "<|start_of_role|>", "<|end_of_role|>",
           "<|end_of_text|>", "<|endoftext|>", "<|begin_of_text|>"]
ROLES = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}" \
        "{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"  # as Phi-4-mini has it
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather <now> & \"here\" in Zürich.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": " a city "},
                                                        "n": {"type": "integer", "default": 3}}, "required": ["city"]}}}
TEXTS = ["Hi", "  spaced\n\n", "", "Zürich é 東京 😀‍👩", "1234 567,89 'quoted' \"x\"", "def f(x):\n\treturn x\n", "<|im_", "[INS", "a<b>c</",
         "</think>\n\nx", "<think>\nhm\n</think>\n\nshown", PROSE, "{{ x }}{% y %}", "/no_think be brief", "\u00a0x\u2028y \x01"]


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


CHATS = [[user(t)] for t in TEXTS] + [[{"role": "system", "content": t}, user("q"), bot(t), user(t + " ")] for t in TEXTS]
CHATS += [[user("a"), bot("b")], [user("x"), bot("y", reasoning_content="thought\n"), user("z")],
          [{"role": "developer", "content": "d"}, user("x")], [user("a"), user("b")], [{"role": "other", "content": "x"}],
          [user("W?"), {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {
              "name": "get_weather", "arguments": {"city": "Zürich", "n": 2, "d": {"a": [1, None, True]}}}}]},
           {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"t\": 21}"}, bot("21."), user("Thanks")]]
OPTIONS = [{"add_generation_prompt": True}, {"add_generation_prompt": False},
           {"add_generation_prompt": False, "continue_final_message": True}, {"add_generation_prompt": True, "tools": [TOOL]},
           {"add_generation_prompt": True, "kwargs": {"enable_thinking": False, "date_string": "1 Jan 2020", "custom": "é"}}]


class Server:
    def __init__(self, binary, model):
        self.p = subprocess.Popen([binary, "serve", model, "--port", "0", "--trust-request-chat-template", "--num-kv-pages", "512",
                                   "--max-num-seqs", "4"], stderr=subprocess.PIPE, text=True)
        log = []
        for line in self.p.stderr:
            log.append(line)
            m = re.search(r"listening on (http://\S+)", line)
            if m:
                self.url = m.group(1)
                return
        raise SystemExit("the server did not start: " + "".join(log))

    def ids(self, body):
        """(ids, None) or (None, the error)."""
        r = urllib.request.Request(self.url + "/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(r) as f:
                return json.load(f)["tokens"], None
        except urllib.error.HTTPError as e:
            return None, e.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.p.terminate()
        self.p.stderr.read()
        self.p.wait(60)


def theirs(tok, messages, template, option):
    kwargs = {k: v for k, v in option.items() if k != "kwargs"}
    try:
        out = tok.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=False, **kwargs,
                                      **option.get("kwargs", {}))
        return out, None
    except Exception as e:  # whatever Python raises inside a template
        return None, f"{type(e).__name__}: {e}"


def for_us(messages):
    """Arguments of tool calls as clients send them: JSON in a string."""
    messages = json.loads(json.dumps(messages))
    for m in messages:
        for c in m.get("tool_calls", []):
            c["function"]["arguments"] = json.dumps(c["function"]["arguments"])
    return messages


def compare(name, server, tok, templates, total):
    n = differ = failed = special = 0
    control = set(tok.all_special_ids) | {i for i, t in tok.added_tokens_decoder.items() if t.special}
    for template, messages, option in itertools.product(templates, CHATS, OPTIONS):
        body = {"messages": for_us(messages), **option, **({"chat_template": template} if template != tok.chat_template else {})}
        if "kwargs" in body:
            body["chat_template_kwargs"] = body.pop("kwargs")
        a, b = server.ids(body), theirs(tok, messages, template, option)
        n += 1
        failed += b[0] is None
        special += sum(i in control for i in b[0] or [])
        if a[0] != b[0]:
            differ += 1
            if differ <= 5:
                print(f"{name}: {template[:60]!r} {json.dumps({'messages': messages, **option})[:500]}\n  ours   {str(a)[:600]}\n  theirs {str(b)[:600]}")
    print(f"{name:36} {len(templates):3} templates {n:6} chats, {special} control tokens, {failed} fail on both sides, {differ} differ")
    total[0] += n
    total[1] += differ + (special == 0)


def run_tokenizer(args, name, tok, templates, total, bos="<s>", eos="</s>"):
    with tempfile.TemporaryDirectory() as d:
        source, folder = os.path.join(d, "tok"), os.path.join(d, "model")
        os.mkdir(source)
        tok.save(os.path.join(source, "tokenizer.json"))
        subprocess.run([args.binary, "random-model", folder, "--arch", "llama", "--tokenizer", source, "--layers", "1", "--d-model", "32",
                        "--heads", "1", "--max-positions", "4096"], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"bos_token": bos, "eos_token": eos}, f)
        reference = PreTrainedTokenizerFast(tokenizer_file=os.path.join(source, "tokenizer.json"), bos_token=bos, eos_token=eos)
        with Server(args.binary, folder) as s:
            compare(name, s, reference, templates, total)


def byte_level():
    tok = Tokenizer(BPE())
    tok.normalizer, tok.decoder = normalizers.NFC(), decoders.ByteLevel()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS["qwen"]), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in CONTROL])
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>", normalized=False)])
    return tok


def run_smollm2(args, path, total):
    meta = families.read_gguf(path)
    tokens = meta["tokenizer.ggml.tokens"]
    with tempfile.TemporaryDirectory() as d, Server(args.binary, path) as s:
        file = os.path.join(d, "tokenizer.json")
        families.smollm2_tokenizer(meta)[0].save(file)
        reference = PreTrainedTokenizerFast(tokenizer_file=file, **{k: tokens[meta[f"tokenizer.ggml.{k}_id"]]
                                                                    for k in ("bos_token", "eos_token")})
        reference.chat_template = meta["tokenizer.chat_template"]
        compare("SmolLM2's GGUF", s, reference, [reference.chat_template, ROLES], total)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default=os.path.join(ROOT, "build/roseinfer"))
    p.add_argument("--dir", default=os.environ.get("ROSE_CHAT_TEMPLATES"))
    p.add_argument("--data", default=os.environ.get("ROSE_SHARED_DATA", os.path.join(ROOT, "../shared/data")))
    p.add_argument("--smollm2", default=os.environ.get("ROSE_SMOLLM2", os.path.join(
        ROOT, "build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))
    args = p.parse_args()
    files = sorted(glob.glob(os.path.join(HERE, "data/*.jinja")))
    files += sorted(glob.glob(os.path.join(args.dir, "*.jinja"))) if args.dir else []
    templates = [ROLES]
    for f in files:
        with open(f, encoding="utf-8", newline="") as t:
            templates.append(t.read())
    total = [0, 0]
    run_tokenizer(args, "byte-level, all control tokens", byte_level(), templates, total)
    for name, title in (("phi-3", "Phi-3's vocabulary"), ("llama-spm", "Llama 2's vocabulary")):
        path = os.path.join(args.data, f"vocab-gguf/ggml-vocab-{name}.gguf")
        if not os.path.exists(path):
            print(f"{title}: not compared, {path} is not there")
            continue
        meta = families.read_gguf(path)
        pieces = list(zip(meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.scores"], meta["tokenizer.ggml.token_type"]))
        run_tokenizer(args, title, families.hf_pieces(pieces, "legacy"), templates, total)
    if os.path.exists(args.smollm2):
        run_smollm2(args, args.smollm2, total)
    else:
        print(f"SmolLM2: not compared, {args.smollm2} is not there (tools/smollm2 fetches it)")
    print(f"{total[0]} chats, {total[1]} differ")
    sys.exit(total[1] > 0)


if __name__ == "__main__":
    main()
