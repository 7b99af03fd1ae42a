#!/usr/bin/env python3
"""Unmodified clients: `test_clients.py BINARY MODEL GROUP`; closes with `N passed, N failed`.

GROUP is a group of tests/api/clients.txt: tools/test_clients runs this file with the Python of a group's own environment.
MODEL writes nonsense. So each reply that must have a form is bound by a schema whose texts end, and the tests ask whether the
client got a valid object, not what it says. No client may use the network: each proxy of the environment is a closed port.
"""
import array
import asyncio
import glob
import json
import os
import subprocess
import sys
import tempfile
import traceback
import typing
import urllib.request

os.environ.update({
    "OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False", "OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false", "PYDANTIC_AI_NO_BANNER": "1", "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost", **{name: "http://127.0.0.1:9" for name in (
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")}})
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from same_bits import Server, check, results  # noqa: E402  pylint: disable=wrong-import-position

BIN, MODEL, GROUP = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
ONLY = sys.argv[4:]  # names of tests, to run fewer
FOLDER = os.path.dirname(os.path.abspath(sys.executable))
NAME = os.path.basename(MODEL)
ASK = "Once upon a time there was a"
USER = [{"role": "user", "content": ASK}]
# Shows tools as a model of the format hermes would see them. MODEL's context is short, so they are shown by name alone.
TEMPLATE = ("{% for t in tools or [] %}<tool_call>{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: "
            "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\n"
            "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 0,
              "maximum": 9}}, "required": ["city", "days"], "additionalProperties": False}

class Args:
    def __init__(self, model, args):
        self.binary, self.model, self.args = BIN, model, args


def sound(args):
    """Whether these arguments obey PARAMETERS."""
    args = json.loads(args) if isinstance(args, str) else args
    return set(args) == {"city", "days"} and args["city"] in ("Rome", "Oslo") and args["days"] in range(10)


def tool(**kw):
    return {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS, **kw}}


def answer_type():
    """A pydantic model whose every text ends: it has no other properties, and no text without a limit."""
    import pydantic

    class Answer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        word: typing.Literal["yes", "no"]
        number: int = pydantic.Field(ge=0, le=9)
        name: str = pydantic.Field(max_length=8)
    return Answer


def choice_type():
    import pydantic

    class Choice(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        word: typing.Literal["yes", "no"]
    return Choice


# ---- group sdk: each takes the base URL of MODEL's server ----

def test_openai(url):
    import openai
    answer = answer_type()
    with openai.OpenAI(base_url=url + "/v1", max_retries=0, timeout=300) as c:
        kw = {"model": NAME, "max_tokens": 24, "temperature": 0}
        whole = c.completions.create(prompt=ASK, **kw)
        text = "".join(x.choices[0].text for x in c.completions.create(prompt=ASK, stream=True, **kw))
        check("openai: completions", text and text == whole.choices[0].text, (whole, text))
        whole = c.chat.completions.create(messages=USER, **kw)
        text = "".join(x.choices[0].delta.content or "" for x in c.chat.completions.create(messages=USER, stream=True, **kw))
        check("openai: chat", text and text == whole.choices[0].message.content, (whole, text))
        kw["max_tokens"] = 120
        r = c.chat.completions.parse(messages=USER, response_format=answer, **kw)
        check("openai: chat parse", isinstance(r.choices[0].message.parsed, answer), r)
        r = c.chat.completions.create(messages=USER, response_format={"type": "json_object"}, logit_bias=bias(url, "{}"), **kw)
        check("openai: json_object", json.loads(r.choices[0].message.content) == {}, r)
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            tools = {"tools": [tool(), tool(name="weather2")], "tool_choice": choice, "parallel_tool_calls": False}
            r = c.chat.completions.create(messages=USER, **tools, **kw)
            calls = r.choices[0].message.tool_calls or []
            check(f"openai: tools, {choice}", len(calls) == 1 and sound(calls[0].function.arguments) and
                  r.choices[0].finish_reason == "tool_calls", r)
            with c.chat.completions.stream(messages=USER, **tools, **kw) as stream:
                final = stream.get_final_completion()
            again = final.choices[0].message.tool_calls or []
            check(f"openai: tools in a stream, {choice}", [x.function.arguments for x in again] ==
                  [x.function.arguments for x in calls], final)
        talk = USER + [r.choices[0].message.model_dump(exclude_none=True),
                       {"role": "tool", "tool_call_id": calls[0].id, "content": "rain"}]
        r = c.chat.completions.create(messages=talk, tools=[tool(strict=True)], **kw)
        check("openai: the result of a tool, tools auto", r.choices[0].message.content, r)
        r = c.responses.create(model=NAME, input=ASK, max_output_tokens=24, temperature=0)
        text = "".join(e.delta for e in c.responses.create(model=NAME, input=ASK, max_output_tokens=24, temperature=0, stream=True)
                       if e.type == "response.output_text.delta")
        check("openai: responses", text and text == r.output_text, (r, text))
        r = c.responses.parse(model=NAME, input=ASK, max_output_tokens=120, temperature=0, text_format=answer)
        check("openai: responses parse", isinstance(r.output_parsed, answer), r)
        flat = {"type": "function", **tool(strict=True)["function"]}
        r = c.responses.create(model=NAME, input=ASK, max_output_tokens=120, temperature=0, tools=[flat], tool_choice="required")
        calls = [o for o in r.output if o.type == "function_call"]
        check("openai: responses tools", calls and sound(calls[0].arguments), r)
        v = c.embeddings.create(model=NAME, input=[ASK, "A king"]).data  # in base64, as the package asks by itself
        w = c.embeddings.create(model=NAME, input=ASK, encoding_format="float").data
        floats = array.array("f", w[0].embedding).tolist()
        check("openai: embeddings", len(v) == 2 and len(floats) == 256 and v[0].embedding == floats and
              v[1].embedding != floats, (v, w))
        talk = [{"role": "system", "content": "Be brief.", "name": "s"}, {"role": "user", "content": ASK, "name": "u"},
                {"role": "assistant", "content": None, "refusal": None}, {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]
        r = c.chat.completions.create(messages=talk, stop=["1", "2", "3", "4", "5"], n=2, logprobs=True, top_logprobs=2, **kw)
        check("openai: names, an empty turn, five stop strings, n", len(r.choices) == 2 and r.choices[1].logprobs.content, r)
        check("openai: models", [m.id for m in c.models.list()] == [NAME])


def test_openai_async(url):
    import openai

    async def many():
        async with openai.AsyncOpenAI(base_url=url + "/v1", max_retries=0, timeout=300) as c:
            return await asyncio.gather(*[c.chat.completions.parse(
                model=NAME, messages=USER, max_tokens=120, seed=i, response_format=answer_type()) for i in range(16)])
    got = [r.choices[0].message.parsed for r in asyncio.run(many())]
    check("openai: 16 at once, each parsed", all(got) and len({g.name for g in got}) > 1, got)


def bias(url, characters):
    """A bias to the ids of these characters: one of them comes next wherever a grammar allows it. `{}` ends a free object."""
    def post(text):
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        return urllib.request.Request(url + "/tokenize", body, {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return {str(json.load(direct.open(post(text)))["tokens"][0]): 100 for text in characters}


def test_anthropic(url):
    import anthropic
    with anthropic.Anthropic(base_url=url, max_retries=0, timeout=300) as c:
        kw = {"model": NAME, "messages": USER, "extra_body": {"temperature": 0}}
        m = c.messages.create(max_tokens=24, **kw)
        with c.messages.stream(max_tokens=24, **kw) as stream:
            text = "".join(stream.text_stream)
        check("anthropic: messages", text and text == m.content[0].text and m.stop_reason == "max_tokens", (m, text))
        n = c.messages.count_tokens(model=NAME, messages=USER).input_tokens
        check("anthropic: count_tokens", n == m.usage.input_tokens + m.usage.cache_read_input_tokens, (n, m))
        tools = [{"name": "weather", "description": "d", "input_schema": PARAMETERS}]
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
            m = c.messages.create(max_tokens=120, tools=tools, tool_choice=choice, **kw)
            uses = [b for b in m.content if b.type == "tool_use"]
            with c.messages.stream(max_tokens=120, tools=tools, tool_choice=choice, **kw) as stream:
                final = stream.get_final_message()
            check(f"anthropic: tools, {choice['type']}", len(uses) == 1 and sound(uses[0].input) and m.stop_reason == "tool_use" and
                  [b.input for b in final.content if b.type == "tool_use"] == [uses[0].input], (m, final))
        talk = USER + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": uses[0].id, "content": "rain"}]}]
        m = c.messages.create(max_tokens=24, tools=tools, **{**kw, "messages": talk})
        check("anthropic: the result of a tool, tools auto", m.content and m.content[0].type == "text", m)
        # The package takes limits such as maxLength out of the schema, so the type has none.
        m = c.messages.parse(max_tokens=120, output_format=choice_type(), **kw)
        check("anthropic: parse", m.parsed_output.word in ("yes", "no"), m)


def test_openai_agents(url):
    import agents
    agents.set_tracing_disabled(True)
    asyncio.run(openai_agents(agents, url))


async def openai_agents(agents, url):
    import openai
    client = openai.AsyncOpenAI(base_url=url + "/v1", max_retries=0, timeout=300)
    asked = []

    @agents.function_tool
    def weather(city: typing.Literal["Rome", "Oslo"], days: int) -> str:
        """The weather."""
        asked.append((city, days))
        return "rain"
    for model in (agents.OpenAIResponsesModel(NAME, client), agents.OpenAIChatCompletionsModel(NAME, client)):
        kind = type(model).__name__

        def agent(stop=".", model=model, settings=None, **kw):
            # The package takes a response that max_tokens ends for a failure, so a text ends at a stop string.
            return agents.Agent("a", model=model, model_settings=agents.ModelSettings(
                temperature=0, max_tokens=120, extra_body={"stop": stop}, **(settings or {})), **kw)
        r = await agents.Runner.run(agent(instructions="Be brief."), ASK)
        check(f"openai-agents: {kind}", r.final_output, r)
        run = agents.Runner.run_streamed(agent(instructions="Be brief."), ASK)
        async for _ in run.stream_events():
            pass
        check(f"openai-agents: {kind}, streamed", run.final_output == r.final_output, (run, r))
        r = await agents.Runner.run(agent(settings={"tool_choice": "required", "parallel_tool_calls": False},
                                          tools=[weather]), ASK)
        check(f"openai-agents: {kind}, a tool is run", len(asked) == 1 and asked[0][0] in ("Rome", "Oslo") and r.final_output,
              (asked, r))
        asked.clear()
        r = await agents.Runner.run(agent([], output_type=answer_type()), ASK)
        check(f"openai-agents: {kind}, output_type", r.final_output.word in ("yes", "no"), r)


def test_langchain(url):
    import langchain_openai
    answer = answer_type()
    kw = {"base_url": url + "/v1", "model": NAME, "max_retries": 0, "temperature": 0}
    m = langchain_openai.ChatOpenAI(max_tokens=24, **kw)
    text = m.invoke(ASK).content
    check("langchain-openai: invoke, stream", text and text == "".join(x.content for x in m.stream(ASK)), text)
    check("langchain-openai: batch", [x.content for x in m.batch([ASK] * 4)] == [text] * 4)
    text = langchain_openai.OpenAI(max_tokens=24, **kw).invoke(ASK)
    check("langchain-openai: OpenAI", text, text)
    r = langchain_openai.ChatOpenAI(max_tokens=24, use_responses_api=True, **kw).invoke(ASK)
    check("langchain-openai: responses", r.text, r)
    m = langchain_openai.ChatOpenAI(max_tokens=120, **kw)
    for method in ("json_schema", "function_calling"):
        got = m.with_structured_output(answer, method=method).invoke(ASK)
        check(f"langchain-openai: with_structured_output, {method}", isinstance(got, answer), got)
    m = langchain_openai.ChatOpenAI(max_tokens=120, logit_bias=bias(url, "{}"), **kw)
    got = m.with_structured_output(None, method="json_mode").invoke(ASK)
    check("langchain-openai: with_structured_output, json_mode", got == {}, got)
    m = langchain_openai.ChatOpenAI(max_tokens=120, **kw)
    r = m.bind_tools([tool()], tool_choice="required", parallel_tool_calls=False).invoke(ASK)
    check("langchain-openai: bind_tools", len(r.tool_calls) == 1 and sound(r.tool_calls[0]["args"]), r)
    chunks = list(m.bind_tools([tool()], tool_choice="weather", parallel_tool_calls=False).stream(ASK))
    whole = chunks[0]
    for c in chunks[1:]:
        whole = whole + c
    check("langchain-openai: bind_tools, streamed", len(whole.tool_calls) == 1 and sound(whole.tool_calls[0]["args"]), whole)
    # By default this class counts tokens with tiktoken, which downloads a file; so the count is off.
    e = langchain_openai.OpenAIEmbeddings(base_url=url + "/v1", model=NAME, check_embedding_ctx_length=False)
    v = e.embed_documents([ASK, "A king"])
    check("langchain-openai: embeddings", len(v) == 2 and len(v[0]) == 256 and v[0] == e.embed_query(ASK), v)


def test_pydantic_ai(url):
    import anthropic
    import openai
    import pydantic_ai
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    answer = answer_type()
    provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=url + "/v1", max_retries=0, timeout=300))
    claude = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropic(base_url=url, max_retries=0, timeout=300))
    for model in (OpenAIChatModel(NAME, provider=provider), OpenAIResponsesModel(NAME, provider=provider),
                  AnthropicModel(NAME, provider=claude)):
        kind = type(model).__name__
        short, long = {"temperature": 0, "max_tokens": 24}, {"temperature": 0, "max_tokens": 120}
        r = pydantic_ai.Agent(model, instructions="Be brief.", model_settings=short).run_sync(ASK)
        check(f"pydantic-ai: {kind}", r.output, r)
        # It knows by the names of Anthropic's models which of them have native output.
        native = [] if kind == "AnthropicModel" else [pydantic_ai.NativeOutput(answer)]
        for output in (answer, pydantic_ai.ToolOutput(answer), *native):
            name = type(output).__name__ if isinstance(output, (pydantic_ai.ToolOutput, pydantic_ai.NativeOutput)) else "a type"
            r = pydantic_ai.Agent(model, output_type=output, model_settings=long).run_sync(ASK)
            check(f"pydantic-ai: {kind}, output_type is {name}", isinstance(r.output, answer), r)
        asked = []
        # A call is demanded in each turn. The bias makes it one of `weather` in the first turn, where there is this function.
        agent = pydantic_ai.Agent(model, output_type=answer, model_settings={
            **long, "parallel_tool_calls": False, "extra_body": {"logit_bias": bias(url, "w")}})

        async def once(_, definition):
            return None if asked else definition  # pylint: disable=cell-var-from-loop

        @agent.tool_plain(prepare=once)
        def weather(city: typing.Literal["Rome", "Oslo"], days: int) -> str:
            asked.append((city, days))  # pylint: disable=cell-var-from-loop
            return "rain"
        r = agent.run_sync(ASK)
        check(f"pydantic-ai: {kind}, tools", asked and isinstance(r.output, answer), (asked, r))


def test_litellm(url):
    import litellm
    litellm.telemetry = False
    kw = {"api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_retries": 0}
    for provider in ("openai", "hosted_vllm"):
        model = f"{provider}/{NAME}"
        r = litellm.completion(model=model, messages=USER, max_tokens=24, **kw)
        text = "".join(x.choices[0].delta.content or "" for x in
                       litellm.completion(model=model, messages=USER, max_tokens=24, stream=True, **kw))
        check(f"litellm: {provider}, chat", text and text == r.choices[0].message.content, (r, text))
        r = litellm.completion(model=model, messages=USER, max_tokens=120, tools=[tool()], tool_choice="required", **kw)
        calls = r.choices[0].message.tool_calls or []
        check(f"litellm: {provider}, tools", calls and sound(calls[0].function.arguments), r)
        r = litellm.completion(model=model, messages=USER, max_tokens=120, response_format=answer_type(), **kw)
        check(f"litellm: {provider}, response_format", answer_type().model_validate_json(r.choices[0].message.content), r)
        r = litellm.responses(model=model, input=ASK, max_output_tokens=24, api_base=url + "/v1", api_key="none", temperature=0)
        check(f"litellm: {provider}, responses", r.output[0].content[0].text, r)
        r = litellm.embedding(model=model, input=[ASK], api_base=url + "/v1", api_key="none", encoding_format="float")
        check(f"litellm: {provider}, embedding", len(r.data[0]["embedding"]) == 256, r)
    r = litellm.text_completion(model=f"text-completion-openai/{NAME}", prompt=ASK, max_tokens=24, **kw)
    check("litellm: text", r.choices[0].text, r)
    # Its Anthropic bridge makes chats of messages; its provider for Anthropic asks /v1/messages itself.
    for model, base in ((f"hosted_vllm/{NAME}", url + "/v1"), (f"anthropic/{NAME}", url)):
        r = asyncio.run(litellm.anthropic.messages.acreate(model=model, messages=USER, max_tokens=24, api_base=base, api_key="none"))
        check(f"litellm: messages, {model}", r["content"][0]["text"], r)
    r = litellm.completion(model=f"anthropic/{NAME}", messages=USER, max_tokens=120, tools=[tool()], tool_choice="required",
                           api_base=url, api_key="none", temperature=0)
    calls = r.choices[0].message.tool_calls or []
    check("litellm: anthropic, tools", calls and sound(calls[0].function.arguments), r)


def command(name, *args, env):
    """Runs a program of this environment; (exit code, its output)."""
    p = subprocess.run([os.path.join(FOLDER, name), *args], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    return p.returncode, p.stdout


def test_llm(url):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
            for model, more in (("rose", "supports_schema: true\n  supports_tools: true"), ("rose-text", "completion: true")):
                f.write(f"- model_id: {model}\n  model_name: {NAME}\n  api_base: {url}/v1\n  {more}\n")
        env = {"LLM_USER_PATH": d}
        for model, option in (("rose", "-u"), ("rose", "--no-stream"), ("rose-text", "--no-stream")):
            rc, out = command("llm", "-m", model, option, "-o", "max_tokens", "24", "-o", "temperature", "0", ASK, env=env)
            check(f"llm: {model} {option}", rc == 0 and out.strip(), out)
        rc, out = command("llm", "-m", "rose", "--schema", json.dumps(PARAMETERS), "-o", "max_tokens", "120", "-o", "temperature", "0",
                          ASK, env=env)
        check("llm: --schema", rc == 0 and sound(out), out)


# ---- group instructor ----

def test_instructor(url):
    import instructor
    import openai
    import pydantic
    c = openai.OpenAI(base_url=url + "/v1", max_retries=0, timeout=300)

    class Loose(pydantic.BaseModel):
        word: str | None = None

    # JSON asks for any object, and MD_JSON for no form at all: only the prompt has the schema, and MODEL does not read it.
    fence = "```json\\n\\{\"word\": \"(yes|no)\"\\}\\n```"
    for mode, answer, more in (("TOOLS", answer_type(), {}), ("TOOLS_STRICT", answer_type(), {}), ("JSON_SCHEMA", answer_type(), {}),
                               ("RESPONSES_TOOLS", answer_type(), {}), ("JSON", Loose, {"logit_bias": bias(url, "{}")}),
                               ("MD_JSON", choice_type(), {"extra_body": {"structured_outputs": {"regex": fence}}})):
        got = instructor.from_openai(c, mode=getattr(instructor.Mode, mode)).chat.completions.create(
            model=NAME, messages=USER, max_tokens=120, temperature=0, max_retries=0, response_model=answer, **more)
        check(f"instructor: {mode}", isinstance(got, answer), got)
    parts = list(instructor.from_openai(c).chat.completions.create_partial(
        model=NAME, messages=USER, max_tokens=120, temperature=0, max_retries=0, response_model=answer_type()))
    check("instructor: create_partial", len(parts) > 1 and parts[-1].word in ("yes", "no"), parts)


# ---- group frameworks ----

def test_llama_index(url):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    answer = answer_type()
    kw = {"model": NAME, "api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_tokens": 120, "max_retries": 0,
          "context_window": 512}
    text = OpenAILike(is_chat_model=False, **kw).complete(ASK).text
    pieces = "".join(x.delta for x in OpenAILike(is_chat_model=False, **kw).stream_complete(ASK))
    check("llama-index: complete", text and pieces == text, (text, pieces))
    llm = OpenAILike(is_chat_model=True, is_function_calling_model=True, **kw)
    talk = [ChatMessage(role="user", content=ASK)]
    text = llm.chat(talk).message.content
    check("llama-index: chat", text and "".join(x.delta or "" for x in llm.stream_chat(talk)) == text, text)
    r = llm.as_structured_llm(answer).chat(talk)
    check("llama-index: as_structured_llm by a function", isinstance(r.raw, answer), r)
    llm = OpenAILike(is_chat_model=True, should_use_structured_outputs=True, **kw)
    r = llm.as_structured_llm(answer).chat(talk)
    check("llama-index: as_structured_llm by response_format", isinstance(r.raw, answer), r)


def test_dspy(url):
    import dspy
    kw = {"api_base": url + "/v1", "api_key": "none", "temperature": 0, "max_tokens": 100, "cache": False, "num_retries": 0}
    text = dspy.LM(f"openai/{NAME}", **kw)(ASK)[0]
    check("dspy: LM", text, text)
    text = dspy.LM(f"text-completion-openai/{NAME}", model_type="text", **kw)(ASK)[0]
    check("dspy: LM, text", text, text)
    # Its adapters want texts of forms that MODEL does not write, and ask for a schema only of models on dspy's list; so we ask.
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    with dspy.context(lm=dspy.LM(f"hosted_vllm/{NAME}", response_format=form, **kw), adapter=dspy.JSONAdapter()):
        signature = dspy.Signature({"question": (str, dspy.InputField()),
                                    "answer": (typing.Literal["yes", "no"], dspy.OutputField())}, "Answer.")
        got = dspy.Predict(signature)(question="Q?")
    check("dspy: Predict with JSONAdapter", got.answer in ("yes", "no"), got)


# ---- groups of benchmarks ----

TASK = """task: two
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
metadata:
  version: 1
"""


def test_lm_eval(url):
    """Two items; with its tokenizer at home and with the server's, whose answers must be the same."""
    likely = []
    with tempfile.TemporaryDirectory() as d:
        data = os.path.join(d, "two.jsonl")
        with open(data, "w", encoding="utf-8") as f:
            for label, context in enumerate((ASK, "The king and the queen lived in a")):
                f.write(json.dumps({"context": context, "choices": [" little girl", " castle"], "label": label}) + "\n")
        with open(os.path.join(d, "two.yaml"), "w", encoding="utf-8") as f:
            f.write(TASK.format(data=data))
        for backend in ("huggingface", "remote"):
            args = f"model={NAME},base_url={url}/v1/completions,tokenizer_backend={backend},max_length=512,max_retries=1"
            args += f",tokenizer={MODEL}" if backend == "huggingface" else ""
            rc, out = command("lm_eval", "--model", "local-completions", "--model_args", args, "--tasks", "two", "--include_path", d,
                              "--output_path", os.path.join(d, backend), "--log_samples",
                              env={"HF_HOME": os.path.join(d, "cache"), "HF_DATASETS_CACHE": os.path.join(d, "datasets")})
            samples = glob.glob(os.path.join(d, backend, "**", "samples_two_*.jsonl"), recursive=True)
            rows = []
            if samples:
                with open(samples[0], encoding="utf-8") as f:
                    rows = sorted((r["doc_id"], str(r["filtered_resps"])) for r in map(json.loads, f))
            check(f"lm-eval: local-completions, tokenizer_backend={backend}", rc == 0 and len(rows) == 2, (rc, out[-2500:]))
            likely.append(rows)
    check("lm-eval: both tokenizers give the same", likely[0] == likely[1], likely)


def test_aiperf(url):
    """Where HF_HUB_OFFLINE is set, even to 0, aiperf 0.13.0 takes no folder as a tokenizer."""
    with tempfile.TemporaryDirectory() as d:
        rc, out = command("aiperf", "profile", "--model", NAME, "--url", url, "--endpoint-type", "chat", "--streaming", "--concurrency",
                          "4", "--request-count", "12", "--tokenizer", MODEL, "--isl", "60", "--isl-stddev", "0", "--osl", "12",
                          "--artifact-dir", d, "--ui", "none", env={"HOME": d, "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""})
        files = glob.glob(os.path.join(d, "**", "profile_export_aiperf.json"), recursive=True)
        report = {}
        if files:
            with open(files[0], encoding="utf-8") as f:
                report = json.load(f)
        check("aiperf: profile", rc == 0 and report.get("request_count", {}).get("avg") == 12 and not report.get("error_summary"),
              (rc, out[-2500:], report.get("request_count"), report.get("error_summary")))


def test_guidellm(url):
    with tempfile.TemporaryDirectory() as d:
        rc, out = command("guidellm", "run", "--backend", f"kind=openai_http,target={url},model={NAME}", "--profile",
                          "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12", "--tokenizer",
                          f"kind=huggingface_auto,model={MODEL}", "--data", "kind=synthetic_text,prompt_tokens=60,output_tokens=12",
                          "--output", f"kind=json,path={d}", "--disable-progress", env={"HOME": d})
        files = glob.glob(os.path.join(d, "*.json"))
        counts = {}
        if files:
            with open(files[0], encoding="utf-8") as f:
                counts = json.load(f)["benchmarks"][0]["metrics"]["request_totals"]
        check("guidellm: every request succeeds", rc == 0 and counts.get("successful", 0) >= 12 and counts.get("errored") == 0,
              (rc, counts, out[-2500:]))


GROUPS = {"sdk": [test_openai, test_openai_async, test_anthropic, test_openai_agents, test_langchain, test_pydantic_ai, test_litellm,
                  test_llm],
          "instructor": [test_instructor], "frameworks": [test_llama_index, test_dspy], "lm-eval": [test_lm_eval],
          "aiperf": [test_aiperf], "guidellm": [test_guidellm]}


def main():
    with tempfile.TemporaryDirectory() as d:
        template = os.path.join(d, "hermes.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        with Server(Args(MODEL, ""), "--chat-template", template) as s:
            url = f"http://127.0.0.1:{s.port}"
            os.environ.update({"OPENAI_BASE_URL": url + "/v1", "ANTHROPIC_BASE_URL": url})
            for test in GROUPS[GROUP]:
                if not ONLY or test.__name__ in ONLY:
                    try:
                        test(url)
                    except Exception:  # pylint: disable=broad-except
                        check(test.__name__, False, traceback.format_exc()[-2500:])
            ignored = [line for line in s.log if "was ignored" in line]
            check("no client sends a field that the server ignores", not ignored, ignored)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
