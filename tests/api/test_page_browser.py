#!/usr/bin/env python3
"""The page at / in headless Chromium: `test_page_browser.py BINARY MODEL [SHOTS]`; closes with `N passed, N failed`.

The browser talks to a relay before a real server. The relay passes everything on, and counts. To a message `script: NAME`
it answers itself, so that a test can have replies that this model would never give. With SHOTS, a folder, the test writes
pictures of the views there. ONLY=NAME,... in the environment runs these tests alone. Exit code 77: there is no Chromium.
"""
import http.client
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

from test_openai import NAME, Server, check, httpx, results

try:
    from selenium import webdriver
    from selenium.webdriver.common.keys import Keys
except ImportError:
    webdriver = None

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SHOTS = sys.argv[3] if len(sys.argv) > 3 else None
WAIT_S = 120
SHIFT_ENTER = ("shift", "enter")
EVIL = "<img src=x onerror='window.hit=1'><script>window.hit=1</script><b>bold</b> &lt; &amp;"
WATCH = """window.violations = [];
document.addEventListener("securitypolicyviolation", e => violations.push(e.violatedDirective + " " + e.blockedURI));"""


def sse(*chunks):
    return "".join(f"data: {c if isinstance(c, str) else json.dumps(c)}\n\n" for c in chunks).encode()


def delta(finish=None, **members):
    return {"choices": [{"index": 0, "delta": members, "finish_reason": finish}]}


def call(index, **members):
    return delta(tool_calls=[{"index": index, **members}])


# name -> status, headers, body; the body may be a list of pieces
SCRIPTS = {
    "evil": (200, {}, sse(delta(reasoning_content="Hm " + EVIL), delta(content=EVIL + "\n```html\n"), delta(content=EVIL + "\n```\nend"),
                          call(0, id="c1", function={"name": EVIL, "arguments": json.dumps({"x": EVIL})}),
                          delta("tool_calls"), "[DONE]")),
    "error": (400, {}, json.dumps({"error": {"message": EVIL, "code": None}}).encode()),
    "plain": (502, {}, EVIL.encode()),
    "busy": (429, {"Retry-After": "7"}, json.dumps({"error": {"message": "the queue is full", "code": "rate_limit_exceeded"}}).encode()),
    "event": (200, {}, sse(delta(content="begun"), {"error": {"message": "the engine " + EVIL, "code": "engine_error"}}, "[DONE]")),
    "cut": (200, {}, sse(delta(content="half"))),
    "ignored": (200, {"X-Ignored-Fields": "verbosity"}, sse(delta(content="yes"), delta("stop"), "[DONE]")),
    "think": (200, {}, sse(delta(reasoning_content="First "), delta(reasoning_content="this."), delta(content="Then that."),
                           delta("stop"), "[DONE]")),
    "tools": (200, {}, sse(call(0, id="c1", function={"name": "weather", "arguments": '{"city": '}),
                           call(0, function={"arguments": '"Rome"}'}), delta("tool_calls"), "[DONE]")),
    # each byte a piece, CRLF as line end, a comment, a character of four bytes, an event of two lines
    "pieces": (200, {}, [bytes([b]) for b in b": hello\r\n\r\n" + sse(delta(content="a\U0001f339b")).replace(b"\n", b"\r\n") +
                         b'data: {"choices": [{"index": 0,\ndata: "delta": {"content": "c"}, "finish_reason": "stop"}]}\n\n' +
                         sse("[DONE]")]),
    "markdown": (200, {}, sse(delta(content="**bold**\n```c\nint x;\n"), delta(content="  int y;\n```\n"), delta("stop"), "[DONE]")),
    "cut+": (200, {}, sse(delta(content=" and half"), delta("stop"), "[DONE]")),
    "long": (200, {}, sse(delta(content="w" * 3000), delta("stop"), "[DONE]")),
}


class Relay(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port, prefix=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.key, self.away, self.paths, self.bodies, self.left = port, None, False, [], [], threading.Event()
        self.prefix = prefix  # taken off each path, as a proxy does
        self.url = f"http://127.0.0.1:{self.server_port}{prefix}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, headers, pieces):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True

    def hang(self):
        """A stream that goes on until the browser leaves."""
        def pieces():
            while True:
                yield sse(delta(content="tick "))
                time.sleep(0.02)
        try:
            self.answer(200, {"Content-Type": "text/event-stream"}, pieces())
        except OSError:
            self.server.left.set()

    def relay(self):
        server, body = self.server, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.paths.append(self.path)
        if server.away or not self.path.startswith(server.prefix):
            self.close_connection = True
            return
        self.path = self.path[len(server.prefix):] or "/"
        wants = server.key and self.path not in ("/", "/ready", "/health")
        if wants and self.headers.get("Authorization") != "Bearer " + server.key:
            self.answer(401, {}, [b'{"error":{"message":"the API key is wrong or missing","code":"invalid_api_key"}}'])
            return
        text = ""
        if self.command == "POST":
            server.bodies.append(json.loads(body))
            messages = server.bodies[-1].get("messages") or [{}]
            goes_on = messages[-1].get("role") == "assistant"  # then the script is the one with a + after its name
            text = (messages[-2]["content"] + "+") if goes_on else messages[-1].get("content") or ""
        if text == "script: hang":
            self.hang()
        elif text.startswith("script: "):
            status, headers, reply = SCRIPTS[text[8:]]
            self.answer(status, headers, [reply] if isinstance(reply, bytes) else reply)
        else:
            c = http.client.HTTPConnection("127.0.0.1", server.upstream, timeout=WAIT_S)
            c.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")})
            r = c.getresponse()
            skip = ("transfer-encoding", "connection", "date")
            self.answer(r.status, {k: v for k, v in r.getheaders() if k.lower() not in skip}, iter(lambda: r.read1(65536), b""))
            c.close()

    do_GET = do_POST = relay


class Page:
    """The page in a browser window of this size."""

    def __init__(self, relay, width=1280, height=800, dark=False, still=False, mode="chat", url=None):
        self.relay, self.mode = relay, mode
        o = webdriver.ChromeOptions()
        for arg in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
            o.add_argument(arg)
        o.binary_location = CHROMIUM
        o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.d = webdriver.Chrome(options=o, service=webdriver.ChromeService(DRIVER))
        cdp = self.d.execute_cdp_cmd
        cdp("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        cdp("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}]})
        cdp("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        self.d.get(url or relay.url)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.d.quit()

    def js(self, code, *args):
        return self.d.execute_script(code, *args)

    def wait(self, code, what):
        """Until the code gives true; else the test has failed."""
        end = time.monotonic() + WAIT_S
        while not self.js("return " + code):
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {self.js('return document.body.innerText')[:2000]}")
            time.sleep(0.02)

    def ready(self):
        self.wait("document.getElementById('dot').className === 'ready'", "the model's name")
        if self.mode:
            self.set(mode=self.mode)

    def press(self, name, which=-1):
        """Presses the button of this name by keyboard: of several that one."""
        self.js("[...document.querySelectorAll('button')].filter(b => b.textContent === arguments[0] || b.getAttribute('aria-label') === arguments[0])"
                ".at(arguments[1]).focus()", name, which)
        self.keys(Keys.ENTER)

    def keys(self, *keys):
        """Types to whatever has the focus."""
        a = webdriver.ActionChains(self.d)
        for k in keys:
            if k == SHIFT_ENTER:
                a.key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT)
            else:
                a.send_keys(k)
        a.perform()

    def idle(self, turns):
        self.wait(f"busy === null && document.querySelectorAll('.turn').length === {turns}", f"{turns} turns and nothing running")

    def ask(self, text, turns):
        self.js("document.getElementById('input').focus()")
        self.keys(text, Keys.ENTER)
        self.idle(turns)

    def set(self, **fields):
        for k, v in fields.items():
            self.js("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                    "e.dispatchEvent(new Event('change', {bubbles: true}))", k, v)

    def text(self, selector):
        """The text of the last element of this kind, as it is in the document."""
        return self.js("const all = document.querySelectorAll(arguments[0]); return all.length ? all[all.length - 1].textContent : null", selector)

    def shown(self, id_):
        return self.js("const e = document.getElementById(arguments[0]); return e !== null && e.checkVisibility()", id_)

    def active(self):
        return self.js("return document.activeElement.id")

    def shot(self, name):
        if SHOTS:
            os.makedirs(SHOTS, exist_ok=True)
            self.d.save_screenshot(os.path.join(SHOTS, name + ".png"))

    def clear(self):
        self.js("document.getElementById('clear').click()")
        self.idle(0)

    def sound(self, what, expected=()):
        """No violation of the policy, and no console message but those of the statuses in `expected`."""
        logs = [e for e in self.d.get_log("browser") if e["level"] in ("SEVERE", "WARNING") and
                not any(f"status of {status}" in e["message"] for status in expected)]
        check(f"{what}: no console errors", not logs, logs)
        seen = self.js("return violations")
        check(f"{what}: no violation of the policy", not seen, seen)


def test_chat(s, relay):
    with Page(relay) as p:
        p.ready()
        check("the model and the version are named", [p.text("#model-name"), p.text("#version")] == [NAME, s.get("/version").json()["version"]])
        check("chat without a template: said, and plain completion is offered", "no chat template" in p.text("#empty-text") and
              p.text("#other-mode") == "Use plain completion" and p.shown("other-mode"))
        check("the message field has the focus", p.active() == "input")
        p.set(max_tokens="24", temperature="0", system="Tell a story.")
        p.js("document.getElementById('input').focus()")
        p.keys("Once upon", SHIFT_ENTER, "a time", Keys.ENTER)
        p.idle(2)
        asked = {"messages": [{"role": "system", "content": "Tell a story."}, {"role": "user", "content": "Once upon\na time"}],
                 "max_tokens": 24, "temperature": 0}
        want = s.post("/v1/chat/completions", asked).json()
        answer = want["choices"][0]["message"]["content"]
        check("the answer is the API's", p.js("return turns[1].text") == answer, p.js("return turns[1]"))
        check("it is shown", re.sub(r"\s+", "", p.text(".assistant .body")) == re.sub(r"\s+", "", answer), p.text(".assistant .body"))
        check("the focus is back in the message field, which is empty", p.active() == "input" and p.js("return document.activeElement.value") == "")
        line = p.text(".assistant summary:not(.reasoning *)")
        n = want["usage"]["completion_tokens"]
        check("tokens, tokens a second, TTFT", re.fullmatch(rf"{n} tokens \u00b7 [\d.]+ tokens/s \u00b7 TTFT [\d.]+ m?s \u00b7 .+", line), line)
        table = p.text(".times tbody")
        check("the times of its parts", all(x in table for x in ("Receive", "Wait for a worker", "Parse", "Tokenize", "Queue",
              "Prefill to first token", "Decode", "In the server")), table)
        sums = p.js("const t = turns[1].timings; return [TIMES.reduce((n, [k]) => n + t[k], 0), t.ttft_ms]")
        check("the parts up to the first token make the TTFT", abs(sums[0] - sums[1]) < 0.02, sums)
        p.ask("And then?", 4)
        body = relay.bodies[-1]
        check("the second request has the whole conversation", [m["role"] for m in body["messages"]] ==
              ["system", "user", "assistant", "user"] and body["messages"][2]["content"] == answer, body)
        check("of what is not set only a limit is sent", set(body) == {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}, body)
        p.d.refresh()
        p.ready()
        check("a reload keeps conversation and settings", p.js("return turns.length") == 4 and p.js("return document.getElementById('system').value")
              == "Tell a story.")
        p.js("document.querySelectorAll('.assistant details')[1].open = true; showAll()")
        check("unfolded times stay unfolded", p.js("return document.querySelectorAll('.assistant details')[1].open"))
        test_edit(p, relay)
        p.sound("chat")


def test_edit(p, relay):
    p.press("Edit", 1)
    check("edit: the text is in a field with the focus", p.js("return document.activeElement.value") == "And then?")
    p.keys(" Go on", Keys.ENTER)
    p.idle(4)
    check("edit: sent anew", relay.bodies[-1]["messages"][-1]["content"] == "And then? Go on" and len(relay.bodies[-1]["messages"]) == 4)
    p.press("Edit", 1)
    p.keys("x", Keys.ESCAPE)
    check("edit: Esc leaves the text as it was", p.js("return turns[2].text") == "And then? Go on" and p.js("return turns.length") == 4)
    before = relay.bodies[-1]
    p.press("Regenerate", 1)
    p.idle(4)
    check("regenerate: the same request again", relay.bodies[-1] == before and relay.bodies[-1] is not before)
    p.press("Regenerate", 0)
    p.idle(2)
    check("regenerate: the request ends at the answer", len(relay.bodies[-1]["messages"]) == 2)
    test_branches(p)
    p.press("Clear conversation")
    check("clear: no turn is left", p.shown("empty") and p.text(".turn") is None)
    p.press("Undo")
    check("clear: undo brings all back", p.js("return [turns.length, talk.all.length]") == [4, 8] and p.text("#notice-undo") is None)


def test_branches(p):
    """What edits and new answers have replaced is there, behind arrows."""
    path = "return turns.map(t => t.text)"
    newest = p.js(path)
    check("versions: two of the first answer", p.text(".versions") == "\u2039" + "2/2" + "\u203a", p.text(".versions"))
    p.press("Earlier version")
    check("versions: the older answer has what followed", p.js("return turns.length") == 4 and p.js("return turns[2].text") == "And then? Go on" and
          p.js("return document.activeElement.getAttribute('aria-label')") == "Later version", p.js(path))
    p.press("Earlier version", 1)
    check("versions: the message before its edit", p.js("return turns[2].text") == "And then?", p.js(path))
    p.d.refresh()
    p.ready()
    check("versions: a reload shows the same branch", p.js("return turns.length > 2 && turns[2].text") == "And then?", p.js(path))
    p.press("Later version", 0)
    check("versions: back at the newest", p.js(path) == newest)
    p.press("Earlier version")


def test_text(s, relay):
    """A model without a chat template opens as plain completion, with what it is asked a second time too."""
    with Page(relay, mode=None) as p:
        p.ready()
        check("no template: plain completion", p.text("#empty-text") == "This model has no chat template. It continues your text." and
              p.text("#other-mode") == "Chat with it anyway" and p.js("return document.getElementById('input').placeholder") == "Prompt")
        check("its limit is shown", p.js("return document.getElementById('max_tokens').placeholder") == "128")
        p.set(seed="5", stops="zzz\nyyy")
        for n, prompt in ((2, "Once upon a time"), (4, "The second text")):
            p.ask(prompt, n)
            body = relay.bodies[-1]
            check("plain completion: path and body", relay.paths[-1] == "/v1/completions" and body["prompt"] == prompt and
                  body["stop"] == ["zzz", "yyy"] and body["seed"] == 5 and body["max_tokens"] == 128 and "messages" not in body, body)
            want = s.post("/v1/completions", {k: v for k, v in body.items() if not k.startswith("stream")}).json()
            check("plain completion: the answer is the API's", p.js(f"return turns[{n - 1}].text") == want["choices"][0]["text"])
        check("a limit that was reached is named", "ended by max tokens (128)" in p.text(".assistant"), p.text(".assistant"))
        whole = p.js("return turns[3].text")
        p.press("Continue")
        p.idle(4)
        check("continue: the prompt is all of the text, and the answer grows", relay.bodies[-1]["prompt"] == "The second text" + whole and
              p.js("return turns[3].text").startswith(whole) and len(p.js("return turns[3].text")) > len(whole) and
              p.text(".assistant").count("256 tokens") == 1, p.text(".assistant"))
        check("plain completion: the system prompt is hidden", not p.shown("system"))
        p.press("New conversation")
        p.press("Chat with it anyway")
        check("chat is a button away", p.shown("system") and p.active() == "input")
        p.sound("plain completion")


def test_template(s):
    """A model with a template opens as a chat, here under a prefix that the proxy does not take off."""
    with Server("--root-path", "/llm/", "--chat-template", "{% for m in messages %}{{ m.content }} {% endfor %}") as t:
        direct = Relay(t.port)
        with Page(direct, mode=None, url=direct.url + "llm") as p:
            p.ready()
            check("a template: a chat", p.text("#empty-text") == "" and not p.shown("other-mode") and p.shown("system"))
            p.set(max_tokens="4")
            p.ask("hello", 2)
            check("--root-path, without a slash at its end", p.js("return turns[1].done") and direct.paths[-1] == "/llm/v1/chat/completions", direct.paths)
            check("all under the prefix", all(x.startswith("/llm") for x in direct.paths if x != "/favicon.ico"), direct.paths)
            check("curl: the prefix too", "/llm/v1/chat/completions" in p.js("return curl()"))
            p.sound("prefix")
        direct.shutdown()
        t.settle()
    relay = Relay(s.port, "/a/b")
    with Page(relay, mode=None) as p:
        p.ready()
        p.set(max_tokens="4")
        p.ask("hello", 2)
        p.js("show('server', false)")
        p.wait("samples.length >= 1", "a sample")
        check("a proxy that takes the prefix off", p.js("return turns[1].done") and "/a/b/metrics" in relay.paths, relay.paths)
    relay.shutdown()


def test_settings(relay):
    with Page(relay) as p:
        p.ready()
        n = len(relay.bodies)
        for field, value, why in (("temperature", "5000", "a number from 0 to 100"), ("top_k", "1.5", "an integer from"),
                                  ("seed", "x", "an integer from"), ("extra", "{", "not JSON"), ("extra", "[1]", "must be a JSON object"),
                                  ("extra", '{"messages": []}', "sets the field messages"), ("key", "k\u20ac", "a character that no key has")):
            p.set(**{field: value})
            p.js("document.getElementById('input').focus()")
            p.keys("hello", Keys.ENTER)
            check(f"{field} = {value}: said, shown, not sent", why in (p.text("#notice-settings") or "") and p.active() == field and
                  p.js("return turns.length") == 0, p.text("#notices"))
            p.js("document.getElementById('input').value = ''")
            p.set(**{field: ""})
        check("no request left", len(relay.bodies) == n)
        values = {"temperature": 0.5, "max_tokens": 3, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": -3, "presence_penalty": 0.1,
                  "frequency_penalty": -0.2, "repetition_penalty": 1.1}
        p.set(**{k: str(v) for k, v in values.items()}, extra='{"logit_bias": {"5": 1}, "min_tokens": 2}')
        p.ask("hello", 2)
        body = relay.bodies[-1]
        check("all fields are sent", {k: body.get(k) for k in values} == values and body["min_tokens"] == 2 and
              body["logit_bias"] == {"5": 1} and p.text(".assistant .error") is None, (body, p.text(".assistant")))
        shown = {k: p.js("return document.getElementById(arguments[0]).placeholder", k) for k in values}
        check("the server's values are shown in the empty fields", shown == {"temperature": "1", "max_tokens": "128", "top_p": "1", "top_k": "off",
              "min_p": "0", "seed": "random", "presence_penalty": "0", "frequency_penalty": "0", "repetition_penalty": "1"}, shown)
        for theme, color in (("dark", "rgb(21, 20, 22)"), ("light", "rgb(250, 249, 248)")):
            p.set(theme=theme)
            check(f"theme {theme}", p.js("return getComputedStyle(document.body).backgroundColor") == color)
        p.set(theme="dark")
        p.d.refresh()
        p.ready()
        check("theme and settings stay", p.js("return getComputedStyle(document.body).colorScheme") == "dark" and
              p.js("return document.getElementById('top_k').value") == "40")
        p.js("document.getElementById('mode').focus()")
        p.keys(Keys.ESCAPE)
        check("Esc closes the settings and gives the focus back", not p.shown("settings") and p.active() == "show-settings")
        p.keys(Keys.ENTER)
        check("Enter on the button opens them", p.shown("settings") and p.active() == "mode")
        p.sound("settings")


def test_stop(relay):
    with Page(relay) as p:
        p.ready()
        for how in ("Esc", "button"):
            relay.left.clear()
            p.js("document.getElementById('input').focus()")
            p.keys("script: hang", Keys.ENTER)
            p.wait("turns.length > 0 && turns[turns.length - 1].text.length > 20 && document.querySelector('.busy .body').textContent.length > 20",
                   "text of a stream that goes on")
            check(f"{how}: while it runs there is a stop button, and no editing", p.shown("stop") and not p.shown("send") and
                  p.js("return [...document.querySelectorAll('#log .acts button')].every(b => b.disabled)"))
            if how == "Esc":
                p.keys(Keys.ESCAPE)
            else:
                p.js("document.getElementById('stop').click()")
            p.idle(2)
            check(f"{how}: the server is told", relay.left.wait(WAIT_S))
            last = p.js("return turns[1]")
            check(f"{how}: what came stays", "tick tick" in last["text"] and last["finish"] == "stopped by you" and
                  "stopped by you" in p.text(".assistant") and "error" not in last, last)
            p.clear()
        p.ask("script: cut", 2)
        p.press("Continue")
        p.idle(2)
        sent = relay.bodies[-1]
        check("continue: the answer so far is the last message", sent["messages"] == [{"role": "user", "content": "script: cut"},
              {"role": "assistant", "content": "half"}] and sent["continue_final_message"] is True and sent["add_generation_prompt"] is False, sent)
        check("continue: the answer grows, and its error is gone", p.js("return turns[1].text") == "half and half" and p.text(".error") is None and
              p.text(".assistant .body") == "half and half" and "complete" in p.text(".assistant"), p.text(".assistant"))
        check("a complete answer does not go on", p.js("return [...document.querySelectorAll('#log .acts button')].every(b => b.textContent !== 'Continue')"))
        p.ask("script: think", 4)
        check("the next request has the whole answer", relay.bodies[-1]["messages"][1]["content"] == "half and half")
        p.sound("stop")


def test_length(relay):
    """A message that does not fit goes back to its field; a limit that does not fit is shortened."""
    with Page(relay) as p:
        p.ready()
        p.set(max_tokens="8", temperature="0")
        p.ask("hello", 2)
        long = "word " * 700
        p.js("document.getElementById('input').value = arguments[0]; document.getElementById('input').focus()", long)
        p.keys(Keys.ENTER)
        p.wait("document.getElementById('notice-length') !== null && busy === null", "what to do about the length")
        text = p.text("#notice-length")
        check("too long: what to do", "512 tokens" in text and "Shorten the message, start a new conversation, or start the server with a larger "
              "--max-model-len" in text, text)
        check("too long: the message is in its field, the conversation as it was", p.js("return [turns.length, talk.all.length]") == [2, 2] and
              p.js("return document.getElementById('input').value") == long and p.active() == "input")
        p.press("New conversation with it")
        check("too long: the message moves to a new conversation", p.js("return [turns.length, talks.size]") == [0, 1] and
              p.js("return document.getElementById('input').value") == long and p.text("#notice-length") is None)
        p.js("document.getElementById('input').value = ''")
        p.js("document.querySelector('.talk').click()")
        p.ask("short", 4)
        check("and the conversation goes on", p.text(".assistant .error") is None and p.js("return turns[3].done"))
        p.set(max_tokens="5000")
        p.press("Regenerate")
        p.idle(4)
        sent = relay.bodies[-1]
        check("a limit beyond the context: the rest of the context is asked for", relay.bodies[-2]["max_tokens"] == 5000 and
              400 < sent["max_tokens"] < 512, (relay.bodies[-2]["max_tokens"], sent["max_tokens"]))
        p.js("Object.assign(turns[3], {finish: 'length', limit: 0}); showAll()")
        check("without a limit the context is full", "the context is full" in p.text(".assistant") and "Continue" not in p.text(".acts"), p.text(".assistant"))
        p.set(max_tokens="0")
        p.ask("script: think", 6)
        check("0 is no limit", "max_tokens" not in relay.bodies[-1])
        p.sound("length", (400,))


def test_evil(relay):
    """Text of models, errors and users stays text, in every place where it is shown."""
    with Page(relay) as p:
        p.ready()
        p.set(system=EVIL, extra=json.dumps({"stop": EVIL}))
        p.ask("script: evil", 2)
        check("answer, code and end", [e for e in p.js("return [...document.querySelectorAll('.assistant .body > *')].map(e => [e.tagName, e.textContent])")]
              == [["P", EVIL], ["DIV", "htmlCopy code" + EVIL], ["P", "end"]], p.text(".assistant .body"))
        check("reasoning", p.text(".reasoning p") == "Hm " + EVIL)
        shown = json.loads(p.text(".calls pre"))
        check("the call of a tool", shown == {"name": EVIL, "arguments": {"x": EVIL}}, shown)
        p.clear()
        for name in ("error", "plain", "event"):
            p.ask("script: " + name, 2)
            check(f"error message ({name})", EVIL in (p.text(".error") or ""), p.text(".error"))
            p.clear()
        p.ask("x", 2)
        p.js("turns = [{role: 'user', text: arguments[0]}, {role: 'assistant', text: arguments[0], ignored: arguments[0],"
             "finish: arguments[0]}]; showAll()", EVIL)
        check("a user's message", p.text(".user .body") == EVIL)
        p.js("state('ready', arguments[0]); facts = {served_model_name: arguments[0]}; showFacts()", EVIL)
        check("the model's name", p.text("#model-name") == EVIL and EVIL in p.text("#facts"))
        p.js("show('raw', false)")
        check("the raw view", json.dumps(EVIL)[1:-1] in p.text("#raw-request"))
        check("nothing of it became HTML", p.js("return document.querySelectorAll('img, b, main script').length") == 0 and
              p.js("return window.hit === undefined"))
        p.sound("evil text", (400, 502))
        # the policy itself: what the page never does is refused
        tried = p.js("""const out = [], script = document.createElement("script");
            try { document.body.innerHTML = arguments[0]; } catch (e) { out.push(e.name); }
            try { script.text = "window.hit = 1"; } catch (e) { out.push(e.name); }
            try { document.body.setAttribute("onclick", "window.hit = 1"); } catch (e) { out.push(e.name); }
            return out;""", EVIL)
        check("the browser refuses HTML and scripts from text", tried == ["TypeError"] * 3, tried)
        p.js("""const script = document.createElement("script"); script.append("window.hit = 1"); document.body.append(script);
                fetch("http://127.0.0.1:9/").catch(() => 0);""")
        p.wait("violations.some(v => v.startsWith('connect-src'))", "the refusal of another host")
        check("the browser refuses another host and another script", p.js("return window.hit === undefined"))


RENDERED = {  # Markdown -> the elements
    "# One #\n## Two\n####### seven": "<h3>One</h3><h4>Two</h4><p>####### seven</p>",
    "a *b* **c** ***d*** ~~e~~ f_g_h 2 * 3 * 4 **": "<p>a <em>b</em> <strong>c</strong> <em><strong>d</strong></em> <del>e</del> f_g_h 2 * 3 * 4 **</p>",
    "`a*b*` ``c ` d`` `e": "<p><code>a*b*</code> <code>c ` d</code> `e</p>",
    "\\*a\\* &lt; <b>x</b> a<br>b": "<p>*a* &amp;lt; &lt;b&gt;x&lt;/b&gt; a<br>b</p>",
    "[a *b*](https://x.org/c_(d) 't') [e] [f](g)": '<p><a href="https://x.org/c_(d)" rel="noopener noreferrer" target="_blank">a <em>b</em></a> [e] [f](g)</p>',
    "https://x.org/a). mailto <mailto:a@x.org>": '<p><a href="https://x.org/a" rel="noopener noreferrer" target="_blank">https://x.org/a</a>). mailto '
                                                 '<a href="mailto:a@x.org" rel="noopener noreferrer" target="_blank">mailto:a@x.org</a></p>',
    "[x [y](https://y.org) z](https://z.org)": '<p>[x <a href="https://y.org/" rel="noopener noreferrer" target="_blank">y</a> z]('
                                               '<a href="https://z.org/" rel="noopener noreferrer" target="_blank">https://z.org</a>)</p>',
    "![pic](https://x.org/p.png)": '<p><a href="https://x.org/p.png" rel="noopener noreferrer" target="_blank">pic (image)</a></p>',
    "- a\n  - b\n    1. c\n- [x] d": "<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>\u2611 d</li></ul>",
    "1. a\n  - b\n2. c\n\n   d": "<ol><li><p>a</p><ul><li>b</li></ul></li><li><p>c</p><p>d</p></li></ol>",
    "3. a\n```\nx\n```\n4. b": '<ol start="3"><li>a</li></ol><div class="code">text: x</div><ol start="4"><li>b</li></ol>',
    "> a\n> > b\n> - c\n\nd\n---": "<blockquote><p>a</p><blockquote><p>b</p></blockquote><ul><li>c</li></ul></blockquote><p>d</p><hr>",
    "a\n```py x\n  <b>\n\n*c*": '<p>a</p><div class="code">py:   &lt;b&gt;\n\n*c*</div>',
    "~~~~\n```\n~~~\n~~~~\nz": '<div class="code">text: ```\n~~~</div><p>z</p>',
    "|a|b|\n|:-|-:|\n|1 \\| 2|`3`|4|\n|5|\nx": '<div class="table"><table><thead><tr><th class="left">a</th><th class="right">b</th></tr></thead><tbody>'
                                                 '<tr><td class="left">1 | 2</td><td class="right"><code>3</code></td></tr><tr><td class="left">5</td></tr>'
                                                 "</tbody></table></div><p>x</p>",
    "a | b\nc | d": "<p>a | b\nc | d</p>",
}
# the HTML of a box, with code as "language: text"
OUTLINE = """const box = document.createElement("div");
for (const text of arguments[1] ? [...arguments[0]].map((_, i) => arguments[0].slice(0, i + 1)) : [arguments[0]]) showMarkdown(box, text);
for (const c of box.querySelectorAll(".code")) c.textContent = c.querySelector("span").textContent + ": " + c.querySelector("code").textContent;
for (const t of box.querySelectorAll(".table")) ["tabindex", "role", "aria-label"].forEach(a => t.removeAttribute(a));
return box.innerHTML;"""
MB = 1 << 20
HOSTILE = {
    "javascript": "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1)) [d](java\tscript:alert(1)) <javascript:alert(1)> "
                  "[e](data:text/html,<script>alert(1)</script>) [f](vbscript:x) [g](file:///etc/passwd) [h](//evil.org) ![i](data:image/svg+xml,x) "
                  "[j](<javascript:alert(1)>) [k](blob:x) [l](\x01javascript:alert(1))",
    "HTML": "<script>window.hit=1</script>\n\n<img src=x onerror=window.hit=1>\n\n<iframe srcdoc='x'></iframe>\n\n# <svg onload=window.hit=1>\n\n"
            "|<b onclick=x>|\n|-|\n|<style>*{}</style>|\n\n- <a href=javascript:x>\n\n```<img src=x>\n<img src=x>\n```\n[<img src=x>](https://x.org/\"onclick=x)",
    "a line": "x" * MB, "words": "word " * (MB // 5), "lines": ("a *b* " * 32 + "\n\n") * (MB // 194), "code": "```\n" + ("int x; " * 32 + "\n") * (MB // 225),
    "stars": "*" * MB, "emphasis": "*a " * 9999, "openers": "**a *b " * 4000, "closers": "a* " * 9999, "nested": "*a**b" * 5000, "ticks": "".join("`" * n + " " for n in range(240)),
    "brackets": "[" * 29999, "links": "[a](" * 7000, "targets": "[a](<b" * 5000, "parentheses": "https://x.org/" + ")" * 29000, "tail": "https://x.org/" + "*" * 29000 + "a",
    "quotes": "> " * (MB // 2), "lists": "- " * (MB // 2), "deep": "\n".join("  " * n + "- x" for n in range(700)), "numbers": "1. a\n" * 5000,
    "table": "|a" * 900 + "|\n" + "|-" * 900 + "|\n" + "|\n" * 3000, "pipes": "|" * MB + "\n" + "|-" * 9999, "hashes": "# " + "# " * 90000 + "x", "rules": "- " * 90000 + "x",
    "spaces": "[a](b" + " " * 29000 + "x", "tabs": "\t" * MB, "fences": "```\n" * 5000,
}


def test_markdown(relay):
    with Page(relay) as p:
        p.ready()
        for text, want in RENDERED.items():
            for by_character in (False, True):
                got = p.js(OUTLINE, text, by_character)
                check(f"Markdown {text[:24]!r}{' by character' if by_character else ''}", got == want, (got, want))
        for name, text in HOSTILE.items():
            seen = p.js("""const box = document.createElement("div");
                document.body.append(box);
                showMarkdown(box, arguments[0]);
                const deep = e => { let n = 0; for (; e !== box; e = e.parentNode) n++; return n; };
                const all = [...box.querySelectorAll("*")], high = box.scrollHeight;
                const out = [box.textContent.length, [...new Set(all.map(e => e.tagName))], all.map(deep).reduce((a, b) => Math.max(a, b), 0),
                    [...box.querySelectorAll("a")].map(a => a.protocol), all.flatMap(e => [...e.attributes].map(a => a.name)).filter(n => n.startsWith("on"))];
                box.remove();
                return out;""", text)
            safe = {"DIV", "SPAN", "BUTTON", "PRE", "CODE", "P", "UL", "OL", "LI", "H3", "H4", "BLOCKQUOTE", "HR", "TABLE", "THEAD", "TBODY", "TR", "TH",
                    "TD", "A", "EM", "STRONG", "DEL", "BR"}
            check(f"hostile {name}: safe elements, not deep, safe links", set(seen[1]) <= safe and seen[2] < 80 and
                  set(seen[3]) <= {"https:", "http:", "mailto:"} and not seen[4], seen)
            check(f"hostile {name}: the text is there", name in ("stars", "rules", "quotes", "lists", "table", "pipes", "fences", "code", "deep", "numbers", "tabs") or
                  seen[0] > len(text) / 3, (seen[0], len(text)))
        check("links of the first: none", p.js(OUTLINE, HOSTILE["javascript"], False).count("<a ") == 0, p.js(OUTLINE, HOSTILE["javascript"], False))
        p.ask("script: markdown", 2)
        p.d.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        p.press("Copy code")
        p.wait("document.querySelector('.bar-of-code button').textContent === 'Copied'", "the copy")
        got = p.d.execute_async_script("const done = arguments[0]; navigator.clipboard.readText().then(done, e => done(String(e)));")
        check("the code is copied", got == "int x;\n  int y;", got)
        check("the language of the code", p.text(".bar-of-code span") == "c")
        p.press("Show source")
        check("its source", p.text(".assistant .body p") == "**bold**\n```c\nint x;\n  int y;\n```\n" and p.active() == "" and
              p.js("return document.activeElement.textContent") == "Show rendered")
        p.keys(Keys.ENTER)
        check("and back", p.text(".assistant .body strong") == "bold")
        p.sound("Markdown")


def imported(p, data, name="x.json"):
    """What the page says of a file with this text."""
    p.js("notice('import', ''); load(new File([arguments[0]], arguments[1]))", data if isinstance(data, str) else json.dumps(data), name)
    p.wait("document.getElementById('notice-import') !== null", "the end of the import")
    return p.text("#notice-import span")


def test_conversations(relay):
    """Several conversations, kept over a reload: list, search, rename, delete, undo, export, import, draft, a full store."""
    with Page(relay) as p:
        p.ready()
        titles = "return [...document.querySelectorAll('.talk .title')].map(e => e.textContent)"
        for i, name in enumerate(("ignored", "think")):
            p.ask("script: " + name, 2)
            p.press("New conversation")
            p.wait(f"talks.size === {i + 1} && turns.length === 0", "a new conversation")
        p.js("document.getElementById('input').focus()")
        p.keys("an unsent draft")
        check("the newest is first", p.js(titles) == ["script: think", "script: ignored"], p.js(titles))
        p.d.refresh()
        p.ready()
        check("a reload keeps list and draft", p.js(titles) == ["script: think", "script: ignored"] and p.active() == "input" and
              p.js("return document.activeElement.value") == "an unsent draft", p.js(titles))
        p.js("document.getElementById('search').focus()")
        p.keys("First THIS")
        check("the search looks into names and messages, not into reasoning", p.js(titles) == [], p.js(titles))
        p.keys(*[Keys.BACKSPACE] * 10, "then that")
        check("the search finds a reply", p.js(titles) == ["script: think"] and p.text("#kept").startswith("1 of 2 conversations"), p.text("#kept"))
        p.keys(Keys.TAB, Keys.ENTER)
        p.wait("turns.length === 2", "the conversation")
        check("Enter opens it", p.js("return turns[1].text") == "Then that." and p.active() == "input" and p.js("return document.activeElement.value") == "")
        p.js("document.getElementById('search').value = ''; listTalks()")
        p.press("Rename")
        p.keys("Thoughts", Keys.ENTER)
        check("rename", p.js(titles)[0] == "Thoughts" and p.js("return document.activeElement.textContent") == "Rename", p.js(titles))
        p.keys(Keys.ENTER, "x", Keys.ESCAPE)
        check("Esc leaves the name", p.js(titles)[0] == "Thoughts" and p.shown("list"), p.js(titles))
        p.js("URL.createObjectURL = b => { window.blob = b; return 'data:,'; }")
        p.press("Export all")
        file = p.d.execute_async_script("const done = arguments[0]; blob.text().then(done)")
        exported = json.loads(file)
        check("export", exported["format"] == "roseinfer conversations 1" and [c["name"] for c in exported["conversations"]] == ["", "Thoughts"], exported)
        p.press("Delete")
        check("delete", p.js(titles) == ["script: ignored"] and p.js("return turns.length") == 0, p.js(titles))
        p.press("Undo")
        check("delete: undo", p.js(titles)[0] == "Thoughts" and p.js("return turns.length") == 2, p.js(titles))
        check("import of what is there", imported(p, file) == "0 conversations imported, 2 were there already.", p.text("#notices"))
        p.press("Delete")
        p.wait("talks.size === 1", "the end of the conversation")
        check("import of what is gone", imported(p, file) == "1 conversation imported, 1 were there already." and sorted(p.js(titles)) ==
              ["Thoughts", "script: ignored"], p.text("#notices"))
        p.d.refresh()
        p.ready()
        check("and it is kept", p.js("return [...talks.values()].find(t => t.name).all[1].text") == "Then that.")
        one = exported["conversations"][1]

        def broken(**members):
            return {**exported, "conversations": [{**one, **members}]}
        first, second = one["all"]
        for data, why in (("{", "it is not JSON"), ("null", "format must be"), ([], "format must be"), ({"format": "x"}, "format must be"),
                          ({**exported, "conversations": 1}, "conversations must be a list"), ({**exported, "conversations": [None]}, "conversations[0] must be an object"),
                          (broken(name=1), "conversations[0].name must be a string"), (broken(at="x"), "conversations[0].at must be a time"),
                          (broken(all={}), "conversations[0].all must be a list"), (broken(pick=1), "conversations[0].pick must be"),
                          (broken(all=[first, {**second, "role": "x"}]), "conversations[0].all[1].role must be user, assistant or tool"),
                          (broken(all=[first, {**second, "text": None}]), "conversations[0].all[1].text must be a string"),
                          (broken(all=[{**first, "up": 0}, second]), "conversations[0].all[0].up must be"),
                          (broken(all=[{**first, "pick": 0}, second]), "conversations[0].all[0].pick must be"),
                          (broken(all=[first, {**second, "calls": [1]}]), "conversations[0].all[1].calls must be"),
                          (broken(all=[first, {**second, "timings": {}}]), "conversations[0].all[1].timings must be"),
                          (broken(all=[first, {**second, "error": {}}]), "conversations[0].all[1].error must be a string")):
            said = imported(p, data)
            check(f"import refuses: {why}", "\u201cx.json\u201d is not imported: " + why in said, said)
        check("nothing of these came in", p.js("return talks.size") == 2)
        p.js("document.querySelector('.talk').click()")
        p.js("mostBytes = 500")
        p.ask("script: ignored", 4)
        p.wait("document.getElementById('notice-storage') !== null", "the end of the place")
        check("full: said, with the limit and what to do", "is not kept" in p.text("#notice-storage") and "Delete some" in p.text("#notice-storage"), p.text("#notices"))
        check("full: no import", "does not fit" in imported(p, broken(id="other")), p.text("#notices"))
        p.js("mostBytes = 20e6")
        p.ask("script: ignored", 6)
        p.wait("document.getElementById('notice-storage') === null", "a place again")
        p.js("document.getElementById('input').focus()")
        p.keys("script: hang", Keys.ENTER)
        p.wait("busy !== null", "a reply that runs")
        p.js("document.getElementById('new').click()")
        check("while a reply runs its conversation stays", "Stop it first" in p.text("#notice-busy") and p.js("return turns.length") == 8, p.text("#notices"))
        p.keys(Keys.ESCAPE)
        p.idle(8)
        p.sound("conversations")


def test_replies(relay):
    with Page(relay) as p:
        p.ready()
        for name, want in (("busy", "429: the queue is full (rate_limit_exceeded) Try again in 7 seconds."),
                           ("event", "The stream ended with an error: the engine "), ("cut", "The stream ended before its end mark")):
            p.ask("script: " + name, 2)
            check(f"{name}: says why", (p.text(".assistant .error") or "").startswith(want), p.text(".assistant"))
            check(f"{name}: what came stays", p.js("return turns[1].text") == {"busy": "", "event": "begun", "cut": "half"}[name])
            p.clear()
        p.ask("script: ignored", 2)
        check("ignored fields are named", "The server ignored: verbosity" in p.text(".assistant"))
        p.ask("script: pieces", 4)
        check("a stream in pieces of a byte", p.js("return turns[3].text") == "a\U0001f339bc", p.js("return turns[3]"))
        p.clear()
        p.ask("script: think", 2)
        check("reasoning is folded", p.js("const d = document.querySelector('.reasoning'); return !d.open && d.checkVisibility()") and
              p.text(".reasoning p") == "First this." and p.text(".assistant .body") == "Then that.")
        p.js("document.querySelector('.reasoning summary').focus()")
        p.keys(Keys.ENTER)
        check("and opens by key", p.js("return document.querySelector('.reasoning').open"))
        p.clear()
        p.ask("script: tools", 2)
        check("a call is JSON", json.loads(p.text(".calls pre")) == {"name": "weather", "arguments": {"city": "Rome"}}, p.text(".calls"))
        p.js("document.querySelector('.calls textarea').focus()")
        p.keys("script: ignored", Keys.TAB, Keys.ENTER)
        p.idle(4)
        sent = relay.bodies[-1]["messages"]
        check("its result is sent", sent[1:] == [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {
                "name": "weather", "arguments": '{"city": "Rome"}'}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "script: ignored"}], sent)
        p.sound("replies", (429,))


def test_raw(relay):
    with Page(relay) as p:
        p.ready()
        p.js("document.getElementById('tab-chat').focus()")
        p.keys(Keys.ARROW_LEFT)
        check("arrow keys change the view", p.active() == "tab-raw" and p.shown("raw-none") and not p.shown("chat"))
        p.keys(Keys.ARROW_RIGHT)
        p.set(max_tokens="8", temperature="0", key="secret")
        p.ask("It's a \"test\" $HOME `x` \\ end", 2)
        p.js("show('raw', false)")
        request, response = p.text("#raw-request"), p.text("#raw-response")
        head, body = request.split("\n\n", 1)
        check("request: path, headers without the key, the body as sent", head.split("\n")[0] == "POST /v1/chat/completions" and
              "secret" not in request and "Authorization: Bearer (hidden)" in head and json.loads(body) == relay.bodies[-1], request)
        head, body = response.split("\n\n", 1)
        check("response: status, headers, all events", head.startswith("200 OK\n") and "content-type: text/event-stream" in head and
              body.startswith("data: {") and body.endswith("data: [DONE]\n\n"), response)
        p.d.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
        for how in ("the clipboard", "a browser without it"):
            p.js("navigator.clipboard.writeText('other')")
            if how != "the clipboard":
                p.js("Object.defineProperty(navigator.clipboard, 'writeText', {value: () => Promise.reject(new Error())})")
            p.js("document.getElementById('copy-response').focus()")
            p.keys(Keys.ENTER)
            p.wait("document.getElementById('copy-response').textContent === 'Copied'", "the copy")
            got = p.d.execute_async_script("const done = arguments[0]; navigator.clipboard.readText().then(done, e => done(String(e)));")
            check(f"copy with {how}", got == body, got)
        line = p.js("return curl()")
        check("curl: the key is a variable", "secret" not in line and "$ROSEINFER_API_KEY" in line, line)
        said = subprocess.run(["sh", "-c", line + " -s"], capture_output=True, timeout=WAIT_S, check=False,
                              env={**os.environ, "ROSEINFER_API_KEY": "secret"}).stdout.decode()

        def contents(text):
            return [json.loads(x)["choices"][0]["delta"].get("content") for x in re.findall(r"data: (\{.*choices\":\[\{.*)", text)]
        check("curl: gives the same reply", said and contents(said) == contents(body), said)
        p.sound("raw")


def test_server_view(s, relay):
    with Page(relay) as p:
        p.ready()
        check("no poll while the view is hidden", "/metrics" not in relay.paths, relay.paths)
        p.js("document.getElementById('tab-server').click()")
        p.wait("samples.length >= 2", "two samples")
        for _ in range(3):
            s.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 30, "ignore_eos": True})
        p.wait("['ttft', 'itl', 'gen', 'prompt'].every(id => /^[0-9]/.test(document.getElementById('value-' + id).textContent))", "values")
        check("charts have lines", p.js("return ['ttft0', 'ttft1', 'itl0', 'gen0', 'running0', 'kv0'].every(id => document.getElementById('line-' + id).getAttribute('d').startsWith('M'))"))
        facts = p.text("#facts")
        check("facts", NAME in facts and "512 tokens" in facts and "length" in facts, facts)
        p.js("document.getElementById('tab-chat').click()")
        n = relay.paths.count("/metrics")
        time.sleep(2.5)
        check("the poll stops with the view", relay.paths.count("/metrics") <= n + 1)
        # the figures against figures of our own
        q = "return quantile({}, [[1, 10], [2, 30], [4, 40], [Infinity, 40]], [[1, 10], [2, 10], [4, 10], [Infinity, 10]])"
        check("quantiles by difference", [round(p.js(q.format(x)), 6) for x in (0.5, 0.99)] == [1.75, 3.94], [p.js(q.format(x)) for x in (0.5, 0.99)])
        kept = p.js("""const s = samples[samples.length - 1], n = [];
            for (const [start, gen] of [[0, 0], [0.01, 0], [-0.01, 0], [9, 0], [9, -1]]) {
                add({...s, t: s.t + n.length / 100, start: s.start + start, gen: s.gen + gen});
                n.push(samples.length);
            }
            return n;""")
        check("samples of one process are kept, those of another start anew", kept[0] > 2 and kept[1:] == [kept[0] + 1, kept[0] + 2, 1, 1], kept)
        check("no observation: no quantile", p.js("return quantile(0.5, [[1, 4], [Infinity, 4]], [[1, 4], [Infinity, 4]])") is None)
        text = httpx.get(s.url + "/metrics", timeout=60).text
        mine = sum(float(x) for x in re.findall(r"^vllm:time_to_first_token_seconds_bucket\{[^}]*le=\"\+Inf\"[^}]*\} (\S+)", text, re.M))
        its = p.js("const b = sampleOf(arguments[0]).ttft; return [b.length, b[b.length - 1][1]]", text)
        check("the histogram is read whole", its == [len(set(re.findall(r"^vllm:time_to_first_token_seconds_bucket\{.*le=\"([^\"]+)\"", text, re.M))), mine], its)
        p.sound("server view")


def test_away(s):
    """The server goes and comes back."""
    relay = Relay(s.port)
    with Page(relay) as p:
        p.ready()
        relay.away = True
        p.ask("hello", 2)
        check("away: the answer says so", "cannot be reached" in (p.text(".error") or ""), p.text(".assistant"))
        p.wait("document.getElementById('dot').className === 'down'", "the state of a server that is away")
        relay.away = False
        p.ready()
        check("back: the name is shown again", p.text("#model-name") == NAME)
    relay.shutdown()


def test_key(relay):
    relay.key = "k-1"
    with Page(relay) as p:
        p.wait("document.getElementById('notice-key') !== null", "the notice")
        check("a key is asked for", "asks for an API key" in p.text("#notice-key") and "--api-key-file" in p.text("#notice-key") and
              p.text("#model-name") == "the API key is missing", p.text("#notice-key"))
        p.js("document.querySelector('#notice-key button').focus()")
        p.keys(Keys.ENTER)
        check("the button leads to the field", p.active() == "key")
        p.keys("k-2", Keys.TAB)
        p.wait("document.getElementById('model-name').textContent === 'the API key is wrong'", "the refusal of a wrong key")
        check("a wrong key: said, and where a right one is", "refuses this API key" in p.text("#notice-key") and "--api-key-file" in p.text("#notice-key"))
        p.press("Enter the key")
        p.keys("k-1", Keys.TAB)
        p.ready()
        check("the notice goes", p.text("#notice-key") is None)
        p.set(max_tokens="4")
        p.ask("hello", 2)
        check("the key is sent", p.text(".assistant .error") is None and p.js("return turns[1].done"), p.text(".assistant"))
        check("it is kept for this tab alone", "k-1" not in p.js("return JSON.stringify(localStorage)") and p.js("return document.cookie") == "")
        p.sound("key", (401,))
    relay.key = None


CONTRAST = """const probe = document.body.appendChild(document.createElement("div"));
const light = name => {
    probe.style.color = `var(${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
};
return arguments[0].map(([a, b]) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); });"""
PAIRS = [(a, b) for a in ("--text", "--dim") for b in ("--bg", "--panel", "--sunk", "--tint")] + [
    ("--accent", "--panel"), ("--accent", "--tint"), ("--accent", "--bg"), ("--on-accent", "--accent"), ("--bad", "--bg")]


def test_looks(s, relay):
    for name, kw in (("light", {}), ("dark", {"dark": True}), ("phone", {"width": 360, "height": 740, "still": True})):
        with Page(relay, **kw) as p:
            p.ready()
            p.shot(name + "-empty")
            ratios = p.js(CONTRAST, PAIRS)
            check(f"{name}: contrast of text is at least 4.5", min(ratios) >= 4.5, list(zip(PAIRS, ratios)))
            p.set(max_tokens="90", seed="7", system="You are a story teller.")
            p.ask("Once upon a time there was a little", 2)
            p.ask("And then? Tell me more about the old clock in the hall, and how it ticked all night.", 4)
            p.shot(name + "-chat")
            p.js("[...document.querySelectorAll('.assistant > div > details')].pop().open = true; toEnd()")
            p.shot(name + "-times")
            p.ask("script: long", 6)
            p.ask("script: evil", 8)
            p.js("document.querySelectorAll('.reasoning')[3].open = true; toEnd()")
            p.shot(name + "-parts")
            for view in ("chat", "server", "raw"):
                p.js(f"document.getElementById('tab-{view}').click()")
                if view == "server":
                    p.wait("samples.length >= 2", "two samples")
                    s.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 200, "n": 3})
                    p.wait("samples.length >= 5", "five samples")
                wide = p.js("return [...document.querySelectorAll('body, header, main > section, #log, .turn, .tile')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => [e.id, e.className, e.clientWidth, e.scrollWidth, e.textContent.slice(-300)])")
                check(f"{name}: the view {view} is not wider than its window", not wide, wide)
                p.shot(f"{name}-{view}" if view != "chat" else name + "-end")
            p.js("document.getElementById('tab-chat').click(); showSettings(true)")
            p.shot(name + "-settings")
            if name == "phone":
                check("phone: the settings fill the window", p.js("return document.getElementById('settings').getBoundingClientRect().width") == 360)
                check("reduced motion: nothing moves", p.js("document.querySelector('.turn.assistant').classList.add('busy');"
                      "return getComputedStyle(document.querySelector('.busy .body'), '::after').animationName") == "none")
            p.sound(name)


def main():
    if webdriver is None or not CHROMIUM or not DRIVER:
        print("no Chromium here: `sh tools/deps page` installs it; skipped")
        sys.exit(77)
    with Server() as s:
        relay = Relay(s.port)
        for test, args in ((test_chat, (s, relay)), (test_text, (s, relay)), (test_template, (s,)), (test_length, (relay,)), (test_settings, (relay,)), (test_stop, (relay,)),
                           (test_evil, (relay,)), (test_markdown, (relay,)), (test_conversations, (relay,)), (test_replies, (relay,)), (test_raw, (relay,)), (test_away, (s,)), (test_key, (relay,)),
                           (test_looks, (s, relay)), (test_server_view, (s, Relay(s.port)))):  # it has counted nothing yet
            if os.environ.get("ONLY") and test.__name__ not in os.environ["ONLY"].split(","):
                continue
            try:
                test(*args)
            except Exception as e:  # pylint: disable=broad-except
                check(test.__name__, False, f"{type(e).__name__}: {e}")
        relay.shutdown()
        s.settle()
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
