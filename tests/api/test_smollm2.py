#!/usr/bin/env python3
"""Greedy replies of SmolLM2-135M-Instruct in FP32 equal those of transformers: `test_smollm2.py BINARY`.

tests/golden/smollm2.json has the chats, the ids of their prompts and replies, and where a reply must no longer be compared;
tools/golden/make_smollm2.py made it. Skips (exit code 77) where tools/smollm2 cannot fetch the model. Standard library only.
"""
import concurrent.futures
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from same_bits import Server, check, results

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Args:
    def __init__(self, binary, model):
        self.binary, self.model, self.args = binary, model, "--device cpu --dtype float32 --max-model-len 512"


def reply(server, chat, max_tokens):
    status, text = server.request("/v1/chat/completions", {"messages": chat["messages"], "max_tokens": max_tokens, "temperature": 0,
                                                           "return_token_ids": True})
    return json.loads(text) if status == 200 else {"status": status, "body": text}


def compare(chat, got, max_tokens):
    name = f"{len(chat['messages'])} messages, {chat['messages'][-1]['content'][:40]!r}"
    if "status" in got:
        check(name, False, got)
        return
    choice = got["choices"][0]
    ids, prompt, want = choice["token_ids"], got["prompt_token_ids"], chat["reply"]
    check(f"{name}: ids of the prompt", prompt == chat["prompt"], (prompt, chat["prompt"]))
    if chat["end"] == "margin":  # another token may be the best one there
        check(f"{name}: {len(want)} tokens", ids[:len(want)] == want, (ids, want))
        return
    check(f"{name}: {len(want)} tokens", ids == want, (ids, want))
    check(f"{name}: text and reason", (choice["message"]["content"], choice["finish_reason"]) == (chat["text"], chat["end"]), (choice, chat))


def main():
    binary = os.path.abspath(sys.argv[1])
    fetch = subprocess.run(["sh", os.path.join(ROOT, "tools/smollm2")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if fetch.returncode != 0:
        print(fetch.stderr.strip() or "tools/smollm2 failed")
        return 77
    model = os.path.join(ROOT, fetch.stdout.strip())
    with open(os.path.join(ROOT, "tests/golden/smollm2.json"), encoding="utf-8") as f:
        golden = json.load(f)
    chats, n = golden["chats"], golden["max_tokens"]
    check("30 chats and more", len(chats) >= 30 and sum(len(c["reply"]) for c in chats) > 1000)
    with Server(Args(binary, model)) as s, concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:
        for chat, got in zip(chats, pool.map(lambda c: reply(s, c, n), chats)):
            compare(chat, got, n)
    chat = next(c for c in chats if len(c["messages"]) == 1 and c["end"] == "stop" and "\n" not in c["messages"][0]["content"])
    p = subprocess.run([binary, "chat", model, "--device", "cpu", "--dtype", "float32", "--temperature", "0", "-n", str(n)],
                       input=chat["messages"][0]["content"] + "\n", stdout=subprocess.PIPE, text=True)
    check("roseinfer chat gives the same reply", p.returncode == 0 and p.stdout == chat["text"] + "\n", p)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
