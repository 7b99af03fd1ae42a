#!/usr/bin/env python3
"""Agents of five turns through the packages openai and anthropic: `test_agents.py BINARY MODEL`; closes with `N passed, N failed`.

A turn is a request, the calls of tools in its reply, and their results, which go back with the reply as the package gave it. The
requests have the shapes of Codex (responses) and Claude Code (messages), and of a loop over chat completions. First a model that
writes scripts answers, with Qwen3's template where ../shared/data has it: turn k is script k, so what the packages read can be
compared with what the model wrote. The same with a template of Mistral, which refuses much of what agents send. Then SmolLM2 calls
tools by force; without a network this part is left out.
"""
import json
import os
import subprocess
import sys
import tempfile
import threading

import anthropic
import openai
import script_model
import test_openai
from test_openai import Server, check, httpx, results

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QWEN3 = os.path.join(os.environ.get("ROSE_CHAT_TEMPLATES", os.path.join(ROOT, "../shared/data/chat-templates")), "Qwen-Qwen3-0.6B.jinja")
CHATML = os.path.join(ROOT, "tests/template/data/chatml.jinja")
MISTRAL = os.path.join(ROOT, "tests/template/data/mistral.jinja")
TURNS = 5


def call(name, **arguments):
    return name, arguments


# What the model does in each turn: (reasoning, text, calls).
PLAN = [
    ("I look at the files first.", "", [call("shell", command=["ls", "-la"], workdir="/src")]),
    ("", "Two files matter.", [call("read_file", path="/src/a.c", limit=40), call("read_file", path="/src/b \"c\".c", limit=None)]),
    ("The loop is wrong.\nI mend it.", "", [call("edit", path="/src/a.c", old="for (;;)\n\t{", new="while (n-- > 0)\n\t{ /* é */")]),
    ("", "", [call("shell", command=["sh", "-c", "make test 2>&1 | tail -n 3"], workdir="/src")]),
    ("All is well.", "The tests pass now.", []),
]
STRING = {"type": "string"}
TOOLS = {"shell": {"command": {"type": "array", "items": STRING}, "workdir": STRING},
         "read_file": {"path": STRING, "limit": {"type": ["integer", "null"]}},
         "edit": {"path": STRING, "old": STRING, "new": STRING}}


def schema(properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def script(reasoning, text, calls):
    blocks = [f"<think>\n{reasoning}\n</think>\n" if reasoning else "", text]
    blocks += ["<tool_call>\n" + json.dumps({"name": n, "arguments": a}, ensure_ascii=False) + "\n</tool_call>" for n, a in calls]
    return "\n".join(b for b in blocks if b)


def mistral_script(reasoning, text, calls):
    del reasoning  # the template shows none
    return text + ("[TOOL_CALLS]" + json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False) if calls else "")


COUNT = ("{% set count = namespace(answers=0) %}{% for m in messages %}{% if m.role == 'assistant' and (m.content or m.tool_calls) %}"
         "{% set count.answers = count.answers + 1 %}{% endif %}{% endfor %}")
CHOOSE = "{{ '<<' ~ count.answers ~ '>>' }}"


def make_mistral(folder):
    with open(MISTRAL, encoding="utf-8") as f:
        template = COUNT + "{% set bos_token = '' %}{% set eos_token = '' %}" + f.read() + CHOOSE
    script_model.make(folder, {str(k): mistral_script(*turn) for k, turn in enumerate(PLAN)}, template)


def make_scripts(folder):
    template = COUNT
    with open(QWEN3 if os.path.exists(QWEN3) else CHATML, encoding="utf-8") as f:
        template += f.read()
    if not os.path.exists(QWEN3):  # its detection of reasoning
        template += "{# <think> #}"
    script_model.make(folder, {str(k): script(*turn) for k, turn in enumerate(PLAN)}, template + CHOOSE)


def result_of(name, k):
    """What a tool of turn k gives back."""
    return f"{name}: result {k}\n" + "line of a file\n" * 8


def compare(s, who, k, reasoning, text, calls):
    want = PLAN[k] if s.whole else ("", *PLAN[k][1:])
    check(f"{who}, turn {k}: what the model wrote", (reasoning.strip(), text.strip(), calls) == want, (reasoning, text, calls, want))


def compare_usage(s, who, k, total, cached, before):
    """The prompt grows, and what came before is in the prefix cache but for the last page and the last tokens."""
    check(f"{who}, turn {k}: the prefix cache has the conversation", total > before and (not s.whole or cached >= max(0, before - 48)),
          (total, cached, before))
    return total


# ---- Codex: responses ----

PERMISSIONS = "<permissions instructions>\nsandbox_mode is workspace-write. " + "Ask before you leave it. " * 10
LATER = "<model_switch>\nThe approval policy is now never."


def codex_request(s, items):
    return {"model": s.name, "instructions": "You are a coding agent. " * 12, "input": items,
            "tools": [{"type": "function", "name": n, "description": f"runs {n}", "strict": False, "parameters": schema(p)} for n, p in TOOLS.items()],
            "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-a"}


def message(role, text):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def test_codex(s):
    items = [message("developer", PERMISSIONS), message("user", "<environment_context>\n<cwd>/src</cwd>"), message("user", "Mend the loop.")]
    before = 0
    for k in range(TURNS):
        if k == 2:  # a change of the settings, in the middle
            count = [s.client.responses.input_tokens.count(**{n: v for n, v in codex_request(s, x).items() if n not in ("store", "include", "prompt_cache_key")}).input_tokens
                     for x in (items, [*items, message("developer", LATER)])]
            check("codex: an instruction in the middle is in the prompt", count[1] - count[0] > len(LATER) // 2, count)
            items.append(message("developer", LATER))
        events = list(s.client.responses.create(stream=True, **codex_request(s, items)))
        final = events[-1].response
        check(f"codex, turn {k}: completed", events[-1].type == "response.completed" and events[0].type == "response.created", events[-1])
        done = [e.item for e in events if e.type == "response.output_item.done"]
        check(f"codex, turn {k}: the items of the stream", [i.to_dict() for i in done] == [i.to_dict() for i in final.output], (done, final.output))
        calls = [i for i in final.output if i.type == "function_call"]
        compare(s, "codex", k, "".join(c.text for i in final.output if i.type == "reasoning" for c in i.content), final.output_text,
                [call(c.name, **json.loads(c.arguments)) for c in calls])
        before = compare_usage(s, "codex", k, final.usage.input_tokens, final.usage.input_tokens_details.cached_tokens, before)
        items += [i.to_dict() for i in final.output]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": result_of(c.name, k)} for c in calls]


# ---- Claude Code: messages ----

def claude_request(s, messages):
    return {"model": s.name, "max_tokens": 1000, "messages": messages, "thinking": {"type": "enabled", "budget_tokens": 512},
            "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={len(messages)};\nYou are a CLI."},
                       {"type": "text", "text": "Be concise. " * 20, "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": n, "description": f"runs {n}", "input_schema": schema(p)} for n, p in TOOLS.items()],
            "metadata": {"user_id": "u"}}


def test_claude(s):
    c = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=300)
    messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
                                             {"type": "text", "text": "Mend the loop.", "cache_control": {"type": "ephemeral"}}]}]
    before = 0
    for k in range(TURNS):
        with c.messages.stream(**claude_request(s, messages)) as stream:
            final = stream.get_final_message()
        blocks = final.content
        compare(s, "claude", k, "".join(b.thinking for b in blocks if b.type == "thinking"), "".join(b.text for b in blocks if b.type == "text"),
                [call(b.name, **b.input) for b in blocks if b.type == "tool_use"])
        check(f"claude, turn {k}: stop_reason", final.stop_reason == ("tool_use" if PLAN[k][2] else "end_turn"), final.stop_reason)
        u = final.usage
        before = compare_usage(s, "claude", k, u.input_tokens + u.cache_read_input_tokens, u.cache_read_input_tokens, before)
        request = {n: v for n, v in claude_request(s, messages).items() if n not in ("max_tokens", "metadata")}
        n = c.messages.count_tokens(**request).input_tokens
        check(f"claude, turn {k}: count_tokens", n == before, (n, before))
        messages.append({"role": "assistant", "content": blocks})
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": result_of(b.name, k)}]}
            for b in blocks if b.type == "tool_use"] + [{"type": "text", "text": f"<system-reminder>\nReminder {k}.\n</system-reminder>"}]})
        if k == 1:  # as Claude Code does since 2.1.2
            messages.append({"role": "system", "content": "Available agent types: a, b, c. " * 6})
            request = {n: v for n, v in claude_request(s, messages).items() if n not in ("max_tokens", "metadata")}
            more = c.messages.count_tokens(**request).input_tokens
            request["messages"] = messages[:-1]
            n = c.messages.count_tokens(**request).input_tokens
            check("claude: a system message in the middle is in the prompt", more - n > 100, (more, n))


# ---- a loop over chat completions ----

def test_chat(s):
    tools = [{"type": "function", "function": {"name": n, "description": f"runs {n}", "parameters": schema(p)}} for n, p in TOOLS.items()]
    messages = [{"role": "developer", "content": "You mend loops. " * 10}, {"role": "user", "content": "Mend the loop."}]
    before = first = 0
    for k in range(TURNS):
        r = s.client.chat.completions.create(model=s.name, messages=messages, tools=tools)
        m = r.choices[0].message
        calls = m.tool_calls or []
        compare(s, "chat", k, m.reasoning_content if hasattr(m, "reasoning_content") else "", m.content or "",
                [call(c.function.name, **json.loads(c.function.arguments)) for c in calls])
        check(f"chat, turn {k}: finish_reason", r.choices[0].finish_reason == ("tool_calls" if PLAN[k][2] else "stop"), r.choices[0])
        before = compare_usage(s, "chat", k, r.usage.prompt_tokens, r.usage.prompt_tokens_details.cached_tokens, before)
        first = before if k == 0 else first
        check(f"chat, turn {k}: the content of a reply without text is None", bool(m.content) == bool(PLAN[k][1]), m)
        messages.append(m)
        messages += [{"role": "tool", "tool_call_id": c.id, "content": result_of(c.function.name, k)} for c in calls]
        if k == 1:
            messages.append({"role": "system", "content": "Be quick."})
        if k == 2:
            messages.append({"role": "user", "content": "Go on."})
            before = first  # Qwen3's template leaves out the reasoning of the turns before a user's message


# ---- a stream that waits ----

def test_waiting(s):
    """The packages read a stream that had signs of life before its first token. One request runs at a time here, so a second one
    waits until the first is done."""
    def occupy():
        s.client.completions.create(model=s.name, prompt=[[5, 6], [7, 8]], max_tokens=4000, extra_body={"ignore_eos": True})

    def during(work):
        busy = threading.Thread(target=occupy)
        busy.start()
        while s.get("/health").json()["running"] == 0:
            pass
        out = work()
        busy.join()
        return out

    body = {"model": s.name, "stream": True, "messages": [{"role": "user", "content": "x"}], "max_tokens": 200}
    for path, ping in (("/v1/chat/completions", ": ping\n\n"), ("/v1/messages", "event: ping\ndata: {\"type\":\"ping\"}\n\n")):
        r = during(lambda path=path: httpx.post(s.url + path, json=body, timeout=300))
        check(f"waiting: {path} begins with signs of life", r.status_code == 200 and r.text.startswith(ping * 2), r.text[:300])
    answers = during(lambda: "".join(c.choices[0].delta.content or "" for c in s.client.chat.completions.create(**{**body, "tools": []})))
    want = s.client.chat.completions.create(**{**body, "stream": False}).choices[0].message.content or ""
    check("waiting: openai, chat", answers.strip() == want.strip(), (answers, want))
    events = during(lambda: list(s.client.responses.create(model=s.name, input="x", stream=True)))
    check("waiting: openai, responses", [events[0].type, events[-1].type] == ["response.created", "response.completed"], events)

    def claude():
        c = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=300)
        with c.messages.stream(model=s.name, max_tokens=200, messages=body["messages"]) as stream:
            return stream.get_final_message()
    final = during(claude)
    check("waiting: anthropic", final.stop_reason == "end_turn" and final.content, final)


# ---- SmolLM2 ----

SMALL = {"look": {"path": {"enum": ["a.c", "b.c"]}, "lines": {"type": "integer", "minimum": 1, "maximum": 99}}, "test": {"quick": {"type": "boolean"}}}


NEXT = ["look", "test", "look", "test"]


def fits(name, arguments):
    if name == "test":
        return list(arguments) == ["quick"] and arguments["quick"] in (True, False)
    return name == "look" and arguments.get("path") in ("a.c", "b.c") and 1 <= arguments.get("lines", 0) <= 99


def test_small_codex(s):
    items = [message("developer", "Use the tools."), message("user", "Look at a.c.")]
    for k in range(TURNS):
        last = k == TURNS - 1
        tools = [{"type": "function", "name": n, "description": n, "parameters": schema(p)} for n, p in SMALL.items()]
        stream = s.client.responses.create(model=s.name, input=items, instructions="You are an agent.", tools=tools, temperature=0,
                                           max_output_tokens=60, tool_choice="none" if last else {"type": "function", "name": NEXT[k]}, stream=True)
        final = list(stream)[-1].response
        calls = [i for i in final.output if i.type == "function_call"]
        check(f"SmolLM2, codex, turn {k}", bool(final.output_text) and not calls if last else final.status == "completed" and
              [c.name for c in calls] == [NEXT[k]] and fits(NEXT[k], json.loads(calls[0].arguments)), final)
        items += [i.to_dict() for i in final.output]
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": "int main(void);"} for c in calls]


def test_small_claude(s):
    c = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=300)
    messages = [{"role": "user", "content": "Look at a.c."}]
    for k in range(TURNS):
        last = k == TURNS - 1
        with c.messages.stream(model=s.name, max_tokens=60, system="You are an agent.", messages=messages, extra_body={"temperature": 0},
                               tools=[{"name": n, "description": n, "input_schema": schema(p)} for n, p in SMALL.items()],
                               tool_choice={"type": "none"} if last else {"type": "tool", "name": NEXT[k]}) as stream:
            final = stream.get_final_message()
        uses = [b for b in final.content if b.type == "tool_use"]
        check(f"SmolLM2, claude, turn {k}", [b.type for b in final.content] == ["text"] if last else
              final.stop_reason == "tool_use" and [b.name for b in uses] == [NEXT[k]] and fits(NEXT[k], uses[0].input), final)
        messages.append({"role": "assistant", "content": final.content})
        messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "int main(void);"} for b in uses]})
        if k == 1:
            messages.append({"role": "system", "content": "Be brief."})


def serve(model, *options):
    test_openai.MODEL = model
    s = Server("--generation-config", "none", *options)
    s.name = s.client.models.list().data[0].id
    s.whole = True  # the template shows reasoning, and what it shows stays at its place
    return s


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "scripts")
        make_scripts(model)
        with serve(model) as s:
            test_codex(s)
            test_claude(s)
            test_chat(s)
        make_mistral(os.path.join(folder, "mistral"))
        with serve(os.path.join(folder, "mistral")) as s:
            s.whole = False
            test_codex(s)
            test_claude(s)
            test_chat(s)
        with serve(model, "--max-num-seqs", "1", "--sse-ping-s", "0.05") as s:
            test_waiting(s)
    fetch = subprocess.run(["sh", os.path.join(ROOT, "tools/smollm2")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if fetch.returncode == 0:
        with serve(os.path.join(ROOT, fetch.stdout.strip()), "--max-model-len", "2048") as s:
            test_small_codex(s)
            test_small_claude(s)
    else:
        print("SmolLM2 is left out: " + (fetch.stderr.strip() or "tools/smollm2 failed"))
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
