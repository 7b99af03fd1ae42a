#!/usr/bin/env python3
"""What the server sent it takes back: `test_history.py BINARY MODEL`; closes with `N passed, N failed`.

A model that writes scripts calls a tool, with arguments that are odd or cut by max_tokens. The packages openai and anthropic read
the reply, streamed and not, in three APIs. Its message then goes back as the package gives it, also with `content` null or left
out, and the prompt must show the call. MODEL is not used; other tests take it, too.
"""
import json
import os
import sys
import tempfile

import anthropic
import script_model
import test_openai
from test_openai import Server, check, results

USER = {"role": "user", "content": "x"}
PARAMETERS = {"type": "object", "properties": {"a": {}, "s": {"type": "string"}, "i": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}}]
RESPONSES_TOOLS = [{"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS}]
CLAUDE_TOOLS = [{"name": "f", "description": "d", "input_schema": PARAMETERS}]

# The arguments that the model writes, and what the prompt of the next turn shows of them.
ARGUMENTS = {
    "good": ('{"a": 1}', '{"a": 1}'),
    "big": ('{"a": 12345678901234567890, "i": -98765432109876543210}', '{"a": 12345678901234567890, "i": -98765432109876543210}'),
    "twice": ('{"s": "one", "s": "two"}', '{"s": "two"}'),
    "raw": ('{"s": "first\nsecond"}', '{"s": "first\\nsecond"}'),
    "comma": ('{"a": [98, 99,], }', '{"a": [98, 99]}'),
    "no_json": ("{'s': three}", "{'s': three}"),
}
ITEM_OF = {"good": "a=1;", "big": "a=12345678901234567890;i=-98765432109876543210;", "twice": "s=two;", "raw": "s=first\nsecond;",
           "comma": "a=[98, 99];", "no_json": "arguments={'s': three};"}
LONG = '{"s": "rm -r /tmp/some folder and no more", "i": 77}'
CUTS = {"hermes": '<tool_call>\n{"name": "f", "arguments": ' + LONG + "}\n</tool_call>",
        "qwen3_xml": "<tool_call>\n<function=f>\n<parameter=s>\nrm -r /tmp/a folder\n</parameter>\n<parameter=i>\n77\n</parameter>\n</function>\n</tool_call>",
        "pythonic": '[f(s="rm -r /tmp/another folder", i=77)]'}
# Templates that cannot take null: the first adds the content, the second wants the members of the arguments.
ADDS = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ '[' + m.role + ']' + m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
        "</tool_call>{% endfor %}{% endfor %}{{ script }}")
ITEMS = ADDS.replace("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
                     "{% for k, v in c.function.arguments | items %}{{ k ~ '=' ~ v }};{% endfor %}")


def serve(model, *options):
    test_openai.MODEL = model
    s = Server("--generation-config", "none", *options)
    s.name = s.client.models.list().data[0].id
    s.claude = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=300)
    return s


def script(name):
    return {"chat_template_kwargs": {"script": f"<<{name}>>"}}


def prompt_of(s, body):
    """The text of the prompt that these messages make."""
    r = s.post("/tokenize", {"model": s.name, **body})
    if r.status_code != 200:
        return f"{r.status_code} {r.text}"
    return s.post("/detokenize", {"model": s.name, "tokens": r.json()["tokens"]}).json()["prompt"]


# ---- one call, in three APIs ----

def chat(s, name, stream, **more):
    """The message of the reply, and its finish_reason."""
    r = s.client.chat.completions.create(model=s.name, messages=[USER], tools=TOOLS, temperature=0, stream=stream, extra_body=script(name), **more)
    if not stream:
        return r.choices[0].message.to_dict(), r.choices[0].finish_reason
    message, finish = {"role": "assistant", "content": None}, None
    for chunk in r:
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for c in choice.delta.tool_calls or []:
                calls = message.setdefault("tool_calls", [])
                if c.id:
                    calls.append({"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": ""}})
                calls[-1]["function"]["arguments"] += (c.function.arguments or "")
            message["content"] = ((message["content"] or "") + choice.delta.content) if choice.delta.content else message["content"]
    return message, finish


def responses(s, name, stream, **more):
    r = s.client.responses.create(model=s.name, input=[USER], tools=RESPONSES_TOOLS, temperature=0, stream=stream, extra_body=script(name), **more)
    return list(r)[-1].response if stream else r


def claude(s, name, stream, max_tokens=200):
    body = {"model": s.name, "max_tokens": max_tokens, "messages": [USER], "tools": CLAUDE_TOOLS, "extra_body": {"temperature": 0, **script(name)}}
    if not stream:
        return s.claude.messages.create(**body)
    with s.claude.messages.stream(**body) as events:
        return events.get_final_message()


def check_chat(s, name, want, shown, streams):
    for stream in streams:
        m, finish = chat(s, name, stream)
        calls = m.get("tool_calls") or []
        arguments = calls[0]["function"]["arguments"] if calls else None
        check(f"chat, {name}, stream {stream}: as the model wrote it", arguments == want and finish == "tool_calls", (m, finish))
        if not calls:
            continue
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "ok"}
        for what, reply in (("the package's message", m), ("content null", {**m, "content": None}),
                            ("no content", {k: v for k, v in m.items() if k != "content"}), ("content ''", {**m, "content": ""})):
            r = s.client.chat.completions.create(model=s.name, messages=[USER, reply, result], tools=TOOLS, max_tokens=4, extra_body=script("text"))
            text = prompt_of(s, {"messages": [USER, reply, result], "tools": TOOLS})
            check(f"chat, {name}, stream {stream}: {what} comes back", bool(r.choices) and shown in text and "None" not in text, text)


def check_responses(s, name, want):
    for stream in (False, True):
        r = responses(s, name, stream)
        calls = [i for i in r.output if i.type == "function_call"]
        check(f"responses, {name}, stream {stream}: as the model wrote it", [c.arguments for c in calls] == [want], r)
        items = [USER, *(i.to_dict() for i in r.output), *({"type": "function_call_output", "call_id": c.call_id, "output": "ok"} for c in calls)]
        r = s.client.responses.create(model=s.name, input=items, tools=RESPONSES_TOOLS, max_output_tokens=4, extra_body=script("text"))
        check(f"responses, {name}, stream {stream}: it comes back", r.status in ("completed", "incomplete"), r)


def check_claude(s, name, want):
    try:
        value = json.loads(want)
    except ValueError:
        value = {"_raw_arguments": want}
    for stream in (False, True):
        if stream and "_raw_arguments" in value:
            continue  # the pieces are no JSON, so the package fails, as with any server
        m = claude(s, name, stream)
        uses = [b for b in m.content if b.type == "tool_use"]
        check(f"messages, {name}, stream {stream}: as the model wrote it", [b.input for b in uses] == [value] and m.stop_reason == "tool_use", m)
        turns = [USER, {"role": "assistant", "content": m.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "ok"} for b in uses]}]
        m = s.claude.messages.create(model=s.name, max_tokens=4, messages=turns, tools=CLAUDE_TOOLS, extra_body=script("text"))
        check(f"messages, {name}, stream {stream}: it comes back", m.type == "message", m)


def test_calls(s, as_text):
    for name, (want, shown) in ARGUMENTS.items():
        if not as_text:
            check_chat(s, name, want, ITEM_OF[name], (False,))
            continue
        check_chat(s, name, want, shown, (False, True))
        check_responses(s, name, want)
        check_claude(s, name, want)


def test_replies_without_content(s):
    for reply in ({"role": "assistant", "content": None}, {"role": "assistant"}, {"role": "assistant", "content": None, "tool_calls": []}):
        messages = [USER, reply, {"role": "user", "content": "y"}]
        text = prompt_of(s, {"messages": messages})
        check(f"chat: {reply} shows no None", text == "[user]x[assistant][user]y", text)
        if "tool_calls" not in reply:
            r = s.post("/v1/responses", {"input": messages, "max_output_tokens": 4, **script("text")})
            check(f"responses: {reply}", r.status_code == 200, r.text)
            r = s.post("/v1/messages", {"messages": messages, "max_tokens": 4, **script("text")})
            check(f"messages: {reply}", r.status_code == 200, r.text)


# ---- calls that max_tokens cuts ----

def complete(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def test_cuts(s, parser):
    """A call that is cut says so, is not closed, and comes back."""
    end = {"hermes": '77}', "qwen3_xml": "</function>", "pythonic": ")"}[parser]
    seen = 0
    for n in range(2, 60):
        r = s.post("/v1/completions", {"model": s.name, "prompt": "<<long>>", "max_tokens": n, "temperature": 0}).json()["choices"][0]
        if r["finish_reason"] != "length":
            break
        is_whole = end in r["text"]
        got = []
        for stream in (False, True):
            m, finish = chat(s, "long", stream, max_tokens=n)
            got.append([c["function"]["arguments"] for c in m.get("tool_calls") or []])
            ok = finish == "length" and all(complete(a) == is_whole for a in got[-1] if a)
            check(f"{parser}, {n} tokens, stream {stream}: not closed", ok, (r["text"], m, finish))
        check(f"{parser}, {n} tokens: streamed or not", got[0] == got[1], got)
        if not got[0] or not got[0][0] or is_whole:
            continue
        seen += 1
        if seen > 3:
            continue
        answers = responses(s, "long", True, max_output_tokens=n)
        check(f"{parser}, {n} tokens, responses: incomplete", answers.status == "incomplete" and
              [i.arguments for i in answers.output if i.type == "function_call"] == got[0], answers)
        message = claude(s, "long", False, max_tokens=n)
        uses = [b for b in message.content if b.type == "tool_use"]
        check(f"{parser}, {n} tokens, messages: max_tokens", message.stop_reason == "max_tokens" and
              [b.input for b in uses] == [{"_raw_arguments": got[0][0]}], message)
        history = [USER, {**m, "content": None}, {"role": "tool", "tool_call_id": "c", "content": "cut"}]
        text = prompt_of(s, {"messages": history, "tools": TOOLS})
        check(f"{parser}, {n} tokens: comes back", text.count("<tool_call>{") == 1, text)
        turns = [USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": uses[0].id, "content": "cut"}]}]
        again = s.claude.messages.create(model=s.name, max_tokens=4, messages=turns, tools=CLAUDE_TOOLS, extra_body=script("text"))
        check(f"{parser}, {n} tokens, messages: comes back", again.type == "message", again)
    check(f"{parser}: calls were cut", seen >= 4, seen)


# ---- bounds of schemas ----

def test_bounds(s):
    for n in (18446744073709552000, 18446744073709551615, 9223372036854775808, -9223372036854775809, 10 ** 30):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": -n if n > 0 else n, "maximum": abs(n), "enum": [1, n]}}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        text = prompt_of(s, {"messages": [USER], "tools": tools})
        check(f"tools: {n} is in the prompt with all digits", text.count(str(abs(n))) >= 3, text)
        r = s.client.chat.completions.create(model=s.name, messages=[USER], tools=tools, tool_choice="required", max_tokens=4, extra_body=script("text"))
        check(f"tools: {n} in a schema of a forced call", bool(r.choices), r)
        r = s.claude.messages.create(model=s.name, max_tokens=4, messages=[USER], tools=[{"name": "f", "input_schema": schema}], extra_body=script("text"))
        check(f"messages: {n} in a schema", r.type == "message", r)
        r = s.post("/v1/completions", {"model": s.name, "prompt": "x", "max_tokens": 60, "structured_outputs": {"json": {"const": n}}}).json()
        check(f"structured: the constant {n}", r["choices"][0]["text"] in (f"{n}", f"{n}.0"), r)


def main():
    scripts = {name: '<tool_call>\n{"name": "f", "arguments": ' + arguments + "}\n</tool_call>" for name, (arguments, _) in ARGUMENTS.items()}
    with tempfile.TemporaryDirectory() as folder:
        for template, as_text in ((ADDS, True), (ITEMS, False)):
            model = os.path.join(folder, str(as_text))
            script_model.make(model, {**scripts, "text": "Done."}, template)
            with serve(model) as s:
                test_calls(s, as_text)
                test_replies_without_content(s)
                if as_text:
                    test_bounds(s)
        for parser, text in CUTS.items():
            model = os.path.join(folder, parser)
            script_model.make(model, {"long": text, "text": "Done."}, ADDS)
            with serve(model, "--tool-call-parser", parser) as s:
                test_cuts(s, parser)
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
