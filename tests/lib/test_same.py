#!/usr/bin/env python3
"""The library and the server give the same bits for the same request: `test_same.py BINARY MODEL`.

Texts, log-probabilities, chats, structured output and embeddings of build/libroseinfer.so, through ctypes, against the
replies of a server."""
import base64
import ctypes as c
import http.client
import importlib.machinery
import importlib.util
import json
import os
import struct
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BIN, MODEL = sys.argv[1:3]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
loader = importlib.machinery.SourceFileLoader("peers_gguf", os.path.join(ROOT, "tools/peers_gguf"))
peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers_gguf", loader))
loader.exec_module(peers)
struct_of = peers.struct_of


class Library:
    def __init__(self):
        subprocess.run(["make", "-s", "--no-print-directory", "-j2", "build/libroseinfer.so"], cwd=ROOT, check=True)
        self.lib, self.err, self.rose = c.CDLL(os.path.join(ROOT, "build/libroseinfer.so")), c.create_string_buffer(512), c.c_void_p()
        self.lib.rose_lib_embedding.restype = c.POINTER(c.c_float)
        options = struct_of("rose_lib_options")(chat_template=TEMPLATE.encode())
        self.check(self.lib.rose_lib_open(c.byref(self.rose), MODEL.encode(), c.byref(options), self.err))

    def check(self, status):
        if status < 0:
            raise RuntimeError(self.err.value.decode())
        return status

    def read(self, r):
        """Text, ids, lists of (logprob, id) of each token."""
        text, ids, probs = b"", [], []
        piece, entry = struct_of("rose_lib_piece")(), c.c_uint32 * 3
        while self.check(self.lib.rose_lib_next(r, c.byref(piece), -1)):
            text += c.string_at(piece.text, piece.text_len)
            if not piece.has_token:
                continue
            ids.append(piece.id)
            if piece.n_logprobs:
                raw = c.cast(piece.logprobs, c.POINTER(entry))
                probs.append([struct.pack("I", raw[i][2]) for i in range(piece.n_logprobs)])
        self.lib.rose_lib_release(r)
        return text.decode(), ids, probs

    def generate(self, prompt, chat=False, **values):
        p, r = struct_of("rose_lib_params")(), c.c_void_p()
        self.lib.rose_lib_params_init(c.byref(p), c.c_size_t(c.sizeof(p)), None)
        for name, v in values.items():
            if name == "stop":
                v = c.cast((c.c_char_p * len(v))(*(s.encode() for s in v)), c.c_void_p)
            setattr(p, name, v.encode() if isinstance(v, str) else v)
        submit = self.lib.rose_lib_submit_chat if chat else self.lib.rose_lib_submit_text
        text = (json.dumps(prompt) if chat else prompt).encode()
        more = [None] if chat else []
        self.check(submit(self.rose, text, c.c_size_t(len(text)), *more, c.byref(p), c.byref(r), self.err))
        return self.read(r)

    def embed(self, text):
        r, n, piece = c.c_void_p(), c.c_size_t(), struct_of("rose_lib_piece")()
        self.check(self.lib.rose_lib_submit_embed_text(self.rose, text.encode(), c.c_size_t(len(text.encode())), None,
                                                       c.byref(r), self.err))
        self.check(self.lib.rose_lib_next(r, c.byref(piece), -1))
        v = self.lib.rose_lib_embedding(r, c.byref(n))
        raw = struct.pack(f"<{n.value}f", *v[:n.value])
        self.lib.rose_lib_release(r)
        return raw


class Server:
    def __init__(self):
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", "--chat-template", TEMPLATE], stderr=subprocess.PIPE,
                                  text=True)
        for line in self.p.stderr:
            if "listening on http://" in line:
                self.port = int(line.rsplit(":", 1)[1])
                return
        raise RuntimeError("the server did not start")

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        if reply.status != 200:
            raise RuntimeError(text)
        return json.loads(text)

    def close(self):
        self.p.terminate()
        self.p.stderr.close()
        self.p.wait()


SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["n", "ok"]}'
PROMPT = "Once upon a time there was a king"
# What the library is told, and the fields of the server that differ from it.
CASES = [
    ({"max_tokens": 40}, {}),
    ({"max_tokens": 40, "temperature": 1.0, "seed": 11}, {}),
    ({"max_tokens": 40, "temperature": 1.5, "seed": 12, "top_p": 0.8, "top_k": 30, "min_p": 0.02}, {}),
    ({"max_tokens": 40, "temperature": 1.0, "seed": 13, "repetition_penalty": 1.3, "presence_penalty": 0.5,
      "frequency_penalty": 0.25, "min_tokens": 10}, {}),
    ({"max_tokens": 60, "stop": [".", "king", ","], "n_stop": 3}, {"stop": [".", "king", ","], "n_stop": None}),
    ({"max_tokens": 60, "stop": [".", "king"], "n_stop": 2, "include_stop": 1, "min_tokens": 12},
     {"stop": [".", "king"], "n_stop": None, "include_stop": None, "include_stop_str_in_output": True}),
    ({"max_tokens": 120, "temperature": 1.0, "seed": 14, "structure": 2, "structure_text": SCHEMA},
     {"structure": None, "structure_text": None, "guided_json": json.loads(SCHEMA)}),
    ({"max_tokens": 30, "temperature": 1.0, "seed": 15, "structure": 3, "structure_text": "[a-f]{4,9}!"},
     {"structure": None, "structure_text": None, "guided_regex": "[a-f]{4,9}!"}),
]


def f32(value):
    return struct.pack("<f", value)


def main():
    passed = failed = 0

    def same(what, got, want):
        nonlocal passed, failed
        passed, failed = passed + (got == want), failed + (got != want)
        if got != want:
            print(f"FAILED: {what}: the library gives {got!r}, the server {want!r}")

    lib, server = Library(), Server()
    try:
        for i, (values, other) in enumerate(CASES):
            text, ids, probs = lib.generate(PROMPT, logprobs=1, top_logprobs=3, **values)
            fields = {"temperature": 0, **values, **other}
            body = {"prompt": PROMPT, "logprobs": 3, "return_token_ids": True, **{k: v for k, v in fields.items() if v is not None}}
            reply = server.ask("/v1/completions", body)["choices"][0]
            same(f"text of case {i}", text, reply["text"])
            same(f"log-probabilities of case {i}", [p[0] for p in probs], [f32(x) for x in reply["logprobs"]["token_logprobs"]])
            for at, (mine, theirs) in enumerate(zip(probs, reply["logprobs"]["top_logprobs"])):
                if not set(f32(x) for x in theirs.values()) <= set(mine):
                    same(f"top log-probabilities of token {at} of case {i}", mine, theirs)
                    break
        for options in ({"max_tokens": 30}, {"max_tokens": 30, "temperature": 1.0, "seed": 5}):
            messages = [{"role": "user", "content": "Tell me of a \"king\"."}, {"role": "assistant", "content": "é"},
                        {"role": "user", "content": "more"}]
            reply = server.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, **options})
            same(f"chat {options}", lib.generate(messages, chat=True, **options)[0], reply["choices"][0]["message"]["content"])
        for text in ("a king", "The sea and the ships " * 9, "é"):
            reply = server.ask("/v1/embeddings", {"input": text, "encoding_format": "base64"})
            same(f"embedding of {text!r}", lib.embed(text), base64.b64decode(reply["data"][0]["embedding"]))
    finally:
        server.close()
        lib.lib.rose_lib_close(lib.rose)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
