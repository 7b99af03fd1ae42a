#!/usr/bin/env python3
"""/v1/responses and /v1/messages: `test_dialects.py BINARY MODEL`; closes with `N passed, N failed`.

Drives the server with the official packages openai and anthropic. What these APIs answer is compared with the chat
completion that they stand for, and streams with replies that are not streamed.
"""
import json
import re
import sys
import typing

import anthropic
import pydantic
import test_openai
from test_openai import NAME, Server, check, httpx, openai, raised, results

ASK = "Once upon a time there was a"
# Shows tools as a model of the hermes format would see them, and has no other control text.
TEMPLATE = ("{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9,
              "minimum": 0}}, "required": ["city", "days"], "additionalProperties": False}


class Answer(pydantic.BaseModel):
    word: typing.Literal["yes", "no"]
    number: typing.Literal[1, 2]


def claude(s):
    return anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0, timeout=300)


def events(response):
    """[(event, data)] of a stream; checks that nothing else is in it."""
    out = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return out


def chat_text(s, messages, **kw):
    r = s.client.chat.completions.create(model=NAME, messages=messages, **kw)
    return r.choices[0].message.content, r.usage


def respond(s, **kw):
    return s.client.responses.create(**{"model": NAME, "input": ASK, "max_output_tokens": 24, "temperature": 0, **kw})


def message(c, extra_body=None, **kw):
    """The package has no arguments for temperature and the like any more."""
    extra = {"temperature": 0, **(extra_body or {})}
    return c.messages.create(**{"model": NAME, "messages": [{"role": "user", "content": ASK}], "max_tokens": 24, **kw},
                             extra_body=extra)


def stream_message(c, **kw):
    return c.messages.stream(**{"model": NAME, "messages": [{"role": "user", "content": ASK}], "max_tokens": 24, **kw},
                             extra_body={"temperature": 0})


def without_ids(response):
    """A response as a dict, without what differs from one request to the next."""
    d = response.model_dump()
    d["usage"].pop("input_tokens_details")
    for k in ("id", "created_at"):
        d.pop(k)
    for item in d["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return d


# ---- responses ----

def test_responses(s):
    r = respond(s)
    text, usage = chat_text(s, [{"role": "user", "content": ASK}], max_tokens=24, temperature=0)
    check("responses: the chat's text", r.output_text == text and len(text) > 0, (r.output_text, text))
    check("responses: usage", (r.usage.input_tokens, r.usage.output_tokens) ==
          (usage.prompt_tokens, usage.completion_tokens), r.usage)
    check("responses: incomplete", r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and
          r.output[0].status == "incomplete", r)
    check("responses: fields", r.id.startswith("resp_") and r.object == "response" and r.model == NAME and
          r.error is None and r.store is False and r.temperature == 0 and r.max_output_tokens == 24, r)
    r = respond(s, instructions="Be brief.", input=[{"role": "user", "content": [{"type": "input_text", "text": ASK}]}],
                temperature=1, extra_body={"seed": 7})
    text, _ = chat_text(s, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}], max_tokens=24,
                        temperature=1, seed=7)
    check("responses: instructions, seed", r.output_text == text and r.instructions == "Be brief.", (r.output_text, text))
    again = respond(s, input=[{"role": "user", "content": ASK}, *[o.model_dump() for o in r.output],
                              {"role": "user", "content": "And then?"}])
    text, _ = chat_text(s, [{"role": "user", "content": ASK}, {"role": "assistant", "content": r.output_text},
                            {"role": "user", "content": "And then?"}], max_tokens=24, temperature=0)
    check("responses: an output is sent back as input", again.output_text == text, (again.output_text, text))
    raw = s.client.responses.with_raw_response.create(model=NAME, input=ASK, max_output_tokens=1, store=True,
                                                      truncation="auto", metadata={"a": "b"},
                                                      top_logprobs=3, extra_body={"text": {"foo": 1}, "bar": 2})
    ignored = set(raw.headers["x-ignored-fields"].split(", "))
    check("responses: ignored fields are named", ignored == {"store", "truncation", "top_logprobs", "text.foo", "bar"}, ignored)
    check("responses: store is answered honestly", raw.parse().store is False and raw.parse().metadata == {"a": "b"})


def test_responses_stream(s):
    whole = respond(s)
    got = list(respond(s, stream=True))
    check("responses stream: numbers", [e.sequence_number for e in got] == list(range(len(got))), got)
    types = [e.type for e in got]
    deltas = types.count("response.output_text.delta")
    check("responses stream: order", types == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas, "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.incomplete"], types)
    text = "".join(e.delta for e in got if e.type == "response.output_text.delta")
    done = [e.text for e in got if e.type == "response.output_text.done"]
    check("responses stream: text", text == whole.output_text and done == [text], (text, done))
    check("responses stream: the last event is the reply", without_ids(got[-1].response) == without_ids(whole),
          (got[-1].response, whole))
    with s.client.responses.stream(model=NAME, input=ASK, max_output_tokens=24, temperature=0) as stream:
        for _ in stream:
            pass
        # the package gives the final response of a completed one alone
        snapshot = stream._state._ResponseStreamState__current_snapshot  # pylint: disable=protected-access
    check("responses.stream", snapshot.output_text == whole.output_text, snapshot)
    one = "".join(e.delta for e in respond(s, stream=True, max_output_tokens=1) if e.type == "response.output_text.delta")
    check("responses stream: one token", whole.output_text.startswith(one) and one, one)


def test_responses_logprobs(s):
    kw = {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2,
          "max_output_tokens": 6}
    whole = respond(s, **kw).output[0].content[0].logprobs
    chat = s.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": ASK}], max_tokens=6,
                                            temperature=0, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    check("responses logprobs: those of the chat", [(p.token, p.logprob) for p in whole] ==
          [(p.token, p.logprob) for p in chat] and len(whole[0].top_logprobs) == 2, whole)
    got = list(respond(s, stream=True, **kw))
    parts = [p.token for e in got if e.type == "response.output_text.delta" for p in e.logprobs]
    done = [[p.token for p in e.logprobs] for e in got if e.type == "response.output_text.done"]
    want = [p.token for p in whole]
    check("responses logprobs: each delta has those of its text", "".join(parts) == "".join(
        e.delta for e in got if e.type == "response.output_text.delta"), (parts, got))
    check("responses logprobs: streamed", done == [want] and parts == want[:len(parts)] and parts, (parts, done, want))


def test_responses_errors(s):
    for kw, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
                      ({"conversation": "c"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
                      ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": 10**6}, "max_output_tokens"),
                      ({"temperature": -1}, "temperature"), ({"input": []}, "input"), ({"top_logprobs": 21, "include": [
                          "message.output_text.logprobs"]}, "top_logprobs"),
                      ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"), ({"input": [{"role": "user", "content": [
                          {"type": "input_image", "image_url": "data:"}]}]}, "input"),
                      ({"input": "word " * 5000}, "input"),
                      ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no"}}}}, "text.format")):
        e = raised(openai.BadRequestError, lambda kw=kw: respond(s, **kw))
        check(f"responses: {param} is refused by name", e is not None and e.param == param, (kw, e))
    e = raised(openai.NotFoundError, lambda: respond(s, model="nope"))
    check("responses: another model", e is not None and e.code == "model_not_found", e)
    e = raised(openai.NotFoundError, lambda: s.client.responses.retrieve("resp_1"))
    check("responses.retrieve is not there", e is not None and "not implemented" in str(e), e)


# ---- messages ----

def test_input_tokens(s):
    for kw in ({"input": ASK}, {"input": [{"role": "developer", "content": "a"}, {"role": "user", "content": ASK}], "instructions": "Be brief."}):
        n = s.client.responses.input_tokens.count(model=NAME, **kw)
        r = respond(s, **kw)
        check("responses: input_tokens", n.object == "response.input_tokens" and n.input_tokens == r.usage.input_tokens, (n, r.usage))
    e = raised(openai.BadRequestError, lambda: s.client.responses.input_tokens.count(model=NAME, input=[]))
    check("responses: input_tokens checks the body", e is not None and e.param == "input", e)


def test_messages(s):
    c = claude(s)
    m = message(c)
    text, usage = chat_text(s, [{"role": "user", "content": ASK}], max_tokens=24, temperature=0)
    check("messages: the chat's text", [b.text for b in m.content] == [text], (m, text))
    check("messages: fields", m.id.startswith("msg_") and (m.type, m.role, m.model, m.stop_reason, m.stop_sequence) ==
          ("message", "assistant", NAME, "max_tokens", None), m)
    u = m.usage
    check("messages: usage", (u.input_tokens + u.cache_read_input_tokens, u.output_tokens) ==
          (usage.prompt_tokens, usage.completion_tokens), u)
    long = [{"role": "user", "content": ASK * 60}]
    n = c.messages.count_tokens(model=NAME, messages=long).input_tokens
    m = message(c, messages=long, max_tokens=32000, extra_body={"ignore_eos": True})
    check("messages: the context ends before max_tokens", m.stop_reason == "model_context_window_exceeded" and
          n + m.usage.output_tokens == s.get("/server_info").json()["context_length"], (n, m))
    n = c.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": ASK}]).input_tokens
    check("messages: count_tokens", n == usage.prompt_tokens, n)
    stop = text[6:9]
    m = message(c, stop_sequences=[stop])
    check("messages: a stop sequence", m.stop_reason == "stop_sequence" and m.stop_sequence == stop and
          m.content[0].text == text[:text.index(stop)], m)
    begun = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "It was"}]
    m = message(c, messages=begun, system="Be brief.")
    text, _ = chat_text(s, [{"role": "system", "content": "Be brief."}, *begun], max_tokens=24, temperature=0,
                        extra_body={"add_generation_prompt": False, "continue_final_message": True})
    check("messages: the reply continues the last turn", m.content[0].text == text, (m, text))
    m = message(c, extra_body={"seed": 3, "temperature": 1, "top_k": 5, "top_p": 0.9})
    text, _ = chat_text(s, [{"role": "user", "content": ASK}], max_tokens=24, temperature=1, top_p=0.9, seed=3,
                        extra_body={"top_k": 5})
    check("messages: sampling", m.content[0].text == text, (m, text))


def test_messages_stream(s):
    c = claude(s)
    whole = message(c)
    with stream_message(c) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("messages stream: text", text == whole.content[0].text, text)
    same = ("content", "stop_reason", "stop_sequence", "model", "role")
    check("messages stream: the message", {k: getattr(final, k) for k in same if k != "content"} ==
          {k: getattr(whole, k) for k in same if k != "content"} and [b.text for b in final.content] == [text], final)
    check("messages stream: usage", final.usage.output_tokens == whole.usage.output_tokens and
          final.usage.input_tokens + final.usage.cache_read_input_tokens ==
          whole.usage.input_tokens + whole.usage.cache_read_input_tokens, final.usage)
    got = events(s.post("/v1/messages", {"messages": [{"role": "user", "content": ASK}], "max_tokens": 24, "temperature": 0,
                                         "stream": True}, headers={"x-api-key": "k", "anthropic-version": "2023-06-01",
                                                                   "anthropic-beta": "x"}))
    names = [name for name, _ in got]
    deltas = names.count("content_block_delta")
    check("messages stream: order", names == ["message_start", "ping", "content_block_start",
                                              *["content_block_delta"] * deltas, "content_block_stop", "message_delta",
                                              "message_stop"] and all(n == d["type"] for n, d in got), names)


def test_messages_nonce(s):
    """A header line that differs in each request does not keep the prefix cache from matching."""
    c = claude(s)
    long = "You are a patient teller of tales, and each of your tales is short. " * 6

    def ask(nonce):
        return message(c, system=[{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={nonce};"},
                                  {"type": "text", "text": long, "cache_control": {"type": "ephemeral"}}], max_tokens=4)
    first, second = ask("a1"), ask("b2")
    total = first.usage.input_tokens + first.usage.cache_read_input_tokens
    check("messages: prompts with another nonce are cached", second.usage.cache_read_input_tokens >= total - 32 > 64,
          (first.usage, second.usage))
    plain = message(c, system=long, max_tokens=4)
    check("messages: the nonce is not in the prompt", plain.content[0].text == first.content[0].text and
          plain.usage.input_tokens + plain.usage.cache_read_input_tokens == total, plain)


def test_messages_errors(s):
    c = claude(s)
    for kw, text in (({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"), ({"extra_body": {"temperature": 7e3}}, "temperature"),
                     ({"stop_sequences": [""]}, "stop string"), ({"system": 5}, "system"),
                     ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
                         "type": "base64", "media_type": "image/png", "data": ""}}]}]}, "'image'"),
                     ({"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}}, "tool_choice"),
                     ({"messages": [{"role": "user", "content": "word " * 3000}]}, "prompt is too long: "),
                     ({"extra_body": {"container": "c"}}, "container")):
        e = raised(anthropic.BadRequestError, lambda kw=kw: message(c, **kw))
        check(f"messages: {text} is refused by name", e is not None and text in e.body["error"]["message"] and
              e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error", (kw, e))
    e = raised(anthropic.NotFoundError, lambda: message(c, model="nope"))
    check("messages: another model", e is not None and e.body["error"]["type"] == "not_found_error", e)
    r = s.post("/v1/messages", {"messages": [{"role": "user", "content": "x"}]})
    check("messages: max_tokens is required", r.status_code == 400 and "'max_tokens' is required" in r.text, r.text)
    r = httpx.post(s.url + "/v1/messages", content="{}", headers={"Content-Type": "text/plain"})
    check("messages: content type", r.status_code == 415 and r.json()["type"] == "error", r.text)
    e = raised(anthropic.NotFoundError, c.messages.batches.list)
    check("messages: a path that is not there", e is not None and e.body["error"]["type"] == "not_found_error", e)
    r = httpx.get(s.url + "/v1/messages")
    check("messages: method", r.status_code == 405 and r.json()["type"] == "error" and r.headers["allow"] == "POST", r.text)
    r = httpx.post(s.url + "/v1/messages", content=b"x" * ((1 << 25) + 1), headers={"Content-Type": "application/json"})
    check("messages: a body that is too long", r.status_code == 413 and r.json()["error"]["type"] == "request_too_large", r.text[:200])
    r = httpx.post(s.url + "/v1/messages", content="{}", headers={"Content-Type": "application/json", "Host": "elsewhere.example"})
    check("messages: a foreign host", r.status_code == 403 and r.json()["error"]["type"] == "permission_error", r.text)
    # the words hold numbers: what the prompt has, and what it may have
    r = s.post("/v1/messages", {"messages": [{"role": "user", "content": "word " * 600}], "max_tokens": 1})
    found = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", r.json().get("error", {}).get("message", ""))
    n = c.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": "word " * 600}]).input_tokens
    check("messages: how much too long", found and int(found[1]) == n and n > int(found[2]) == s.client.models.retrieve(NAME).max_model_len - 1, (r.text, n))


def test_cancel(s):
    before = s.settle()["cancelled"]
    stream = respond(s, stream=True, max_output_tokens=400, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    c = claude(s)
    with c.messages.stream(model=NAME, messages=[{"role": "user", "content": ASK}], max_tokens=400,
                           extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    h = s.settle()
    check("clients that leave end their requests", h["cancelled"] == before + 2 and h["running"] == 0, h)


# ---- structured output, tools and reasoning ----

def test_formats(s):
    r = s.client.responses.parse(model=NAME, input=ASK, text_format=Answer, max_output_tokens=60, temperature=0)
    check("responses.parse", isinstance(r.output_parsed, Answer), r)
    with s.client.responses.stream(model=NAME, input=ASK, text_format=Answer, max_output_tokens=60, temperature=0) as stream:
        for _ in stream:
            pass
        check("responses.stream with a format", stream.get_final_response().output_parsed == r.output_parsed)
    r = respond(s, text={"format": {"type": "json_object"}}, max_output_tokens=40)
    check("responses: json_object", r.output_text.startswith("{") and r.text.format.type == "json_object", r)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    m = message(claude(s), output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=40)
    check("messages: output_config.format", json.loads(m.content[0].text)["n"] in (1, 2), m)


def test_tools(s):
    tool = {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": True}
    kw = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 120}
    r = respond(s, **kw)
    calls = [o for o in r.output if o.type == "function_call"]
    good = [c for c in calls if c.name == "weather" and json.loads(c.arguments)["city"] in ("Rome", "Oslo")]
    check("responses: a call", len(calls) > 0 and good == calls and r.status == "completed", r)
    got = list(respond(s, **kw, stream=True))
    pieces = "".join(e.delta for e in got if e.type == "response.function_call_arguments.delta")
    check("responses stream: the same call", without_ids(got[-1].response) == without_ids(r) and
          pieces == "".join(c.arguments for c in calls), got)
    named = respond(s, **{**kw, "tool_choice": {"type": "function", "name": "weather"}})
    check("responses: a named function", [o.name for o in named.output if o.type == "function_call"] == ["weather"], named)
    turns = [{"role": "user", "content": ASK}, *[o.model_dump(exclude_none=True) for o in r.output],
             *[{"type": "function_call_output", "call_id": c.call_id, "output": "rain"} for c in calls]]
    check("responses: the result of a call", respond(s, input=turns, tools=[tool], tool_choice="none").output_text, turns)
    e = raised(openai.BadRequestError, lambda: respond(s, tools=[{**tool, "name": "no name"}]))
    check("responses: the name of a function", e is not None and e.param == "tools[0].name", e)


def test_tool_use(s):
    c = claude(s)
    tool = {"name": "weather", "description": "d", "input_schema": PARAMETERS}
    kw = {"tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 120}
    m = message(c, **kw)
    uses = [b for b in m.content if b.type == "tool_use"]
    check("messages: a tool_use", len(uses) == 1 and m.stop_reason == "tool_use" and uses[0].name == "weather" and
          uses[0].input["city"] in ("Rome", "Oslo"), m)
    with stream_message(c, **kw) as stream:
        final = stream.get_final_message()
    check("messages stream: the same tool_use", [(b.name, b.input) for b in final.content if b.type == "tool_use"] ==
          [(b.name, b.input) for b in uses] and final.stop_reason == "tool_use", final)
    turns = [{"role": "user", "content": ASK}, {"role": "assistant", "content": [b.model_dump() for b in m.content]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": uses[0].id, "content": "rain"},
                                          {"type": "text", "text": "Well?"}]}]
    after = message(c, messages=turns, tools=[tool], tool_choice={"type": "none"})
    check("messages: the result of a tool", after.content[0].type == "text" and after.content[0].text, after)
    n = c.messages.count_tokens(model=NAME, messages=turns, tools=[tool]).input_tokens
    check("messages: count_tokens with tools", n == after.usage.input_tokens + after.usage.cache_read_input_tokens, n)


def test_reasoning(s):
    r = respond(s)
    got = list(respond(s, stream=True))
    pieces = "".join(e.delta for e in got if e.type == "response.reasoning_text.delta")
    check("responses: reasoning", r.output[0].type == "reasoning" and r.output[0].content[0].text and
          without_ids(got[-1].response) == without_ids(r) and pieces == r.output[0].content[0].text, (r, got))
    check("responses: reasoning tokens", 0 < r.usage.output_tokens_details.reasoning_tokens <= r.usage.output_tokens, r.usage)
    c = claude(s)
    m = message(c)
    check("messages: thinking", m.content[0].type == "thinking" and m.content[0].thinking == pieces, m)
    with stream_message(c) as stream:
        final = stream.get_final_message()
    check("messages stream: thinking", final.content[0].thinking == m.content[0].thinking, final)
    turns = [{"role": "user", "content": ASK}, {"role": "assistant", "content": [b.model_dump() for b in m.content] + [
        {"type": "text", "text": "Yes."}]}, {"role": "user", "content": "Go on."}]
    short = [turns[0], {"role": "assistant", "content": "Yes."}, turns[2]]
    check("messages: thinking is not sent to the model again", c.messages.count_tokens(model=NAME, messages=turns) ==
          c.messages.count_tokens(model=NAME, messages=short))


def main():
    base = ("--generation-config", "none")
    with Server(*base) as s:
        for test in (test_responses, test_responses_stream, test_responses_logprobs, test_responses_errors, test_input_tokens, test_messages,
                     test_messages_stream, test_messages_nonce, test_messages_errors, test_cancel, test_formats):
            if not test_openai.ONLY or test.__name__ in test_openai.ONLY:
                test(s)
    with Server(*base, "--chat-template", TEMPLATE, "--tool-call-parser", "hermes") as s:
        test_tools(s)
        test_tool_use(s)
    with Server(*base, "--chat-template", TEMPLATE, "--reasoning-parser", "deepseek_r1") as s:
        test_reasoning(s)
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
