#!/usr/bin/env python3
"""The page at / as bytes: `test_page.py BINARY MODEL`; closes with `N passed, N failed`. test_page_browser.py uses it."""
import base64
import hashlib
import html.parser
import os
import re
import sys

from test_openai import Server, check, httpx, results

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/api/page.html")
MOST_BYTES = 80000
EXACT = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache",
         "content-type": "text/html; charset=utf-8"}
POLICY = {"default-src": "'none'", "img-src": "data:", "connect-src": "'self'", "base-uri": "'none'",
          "frame-ancestors": "'none'", "form-action": "'none'", "require-trusted-types-for": "'script'",
          "trusted-types": "'none'"}


def joined():
    """The page as tools/page makes it of its sources."""
    def part(m):
        with open(os.path.join(os.path.dirname(SOURCE), m[1]), encoding="utf-8") as f:
            lines = [line.lstrip(" ") for line in f]
        return "".join(x for x in lines if not re.fullmatch(r"/\*.*\*/\n", x))
    with open(SOURCE, encoding="utf-8") as f:
        return re.sub(r"^%include (.*)\n", part, f.read(), flags=re.M).encode()


class Parts(html.parser.HTMLParser):
    """The text of each script and style, all attributes, and the ids and labels of the fields."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.inline, self.attributes, self.open = {"script": [], "style": []}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag in self.inline:
            self.open = tag
            self.inline[tag].append("")

    def handle_endtag(self, tag):
        if tag == self.open:
            self.open = None

    def handle_data(self, data):
        if self.open:
            self.inline[self.open][-1] += data


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy_of(response):
    parts = [p.strip().split(" ", 1) for p in response.headers["content-security-policy"].split(";")]
    return {p[0]: p[1] for p in parts}


def test_headers(s):
    r = s.get("/")
    check("the page is its sources, joined", r.status_code == 200 and r.content == joined(), r)
    check("it is small", len(r.content) <= MOST_BYTES, len(r.content))
    for name, value in EXACT.items():
        check(f"header {name}", r.headers.get(name) == value, r.headers)
    parts, policy = Parts(r.text), policy_of(r)
    for tag in ("script", "style"):
        check(f"one inline {tag}", len(parts.inline[tag]) == 1, parts.inline)
        check(f"{tag}-src is its hash and nothing else", policy.pop(f"{tag}-src") == hash_of(parts.inline[tag][0]), policy)
    check("all else is off", policy == POLICY, policy)
    h = s.get("/", method="HEAD")
    same = {k: v for k, v in r.headers.items() if k != "date"} == {k: v for k, v in h.headers.items() if k != "date"}
    check("HEAD has the same headers and no body", h.status_code == 200 and same and h.content == b"", h.headers)


def test_cache(s):
    tag = s.get("/").headers["etag"]

    def ask(value):
        return httpx.get(s.url + "/", headers={"If-None-Match": value}, timeout=60)

    for value in (tag, "W/" + tag, f'"other", {tag}', "*"):
        r = ask(value)
        check(f"If-None-Match {value[:12]}: 304 without a body", r.status_code == 304 and r.content == b"" and
              r.headers["etag"] == tag and "content-security-policy" in r.headers, (r, r.headers))
    for value in ('"other"', tag[:-2] + '"'):
        check(f"If-None-Match {value[:12]}: 200", ask(value).status_code == 200)
    check("the ETag is a hash of the page", tag == f'"{hashlib.sha256(s.get("/").content).hexdigest()}"', tag)


def test_paths(s):
    for path in ("/?x=1", "//"):
        check(f"{path} is the page", s.get(path).content == s.get("/").content)
    r = s.post("/", {})
    check("POST: 405", r.status_code == 405 and r.headers["allow"] == "GET, HEAD" and "takes GET" in r.text, r.text)
    for path in ("/index.html", "/page.html", "/x", "/v1", "/v1/"):
        r = s.get(path)
        check(f"{path}: 404", r.status_code == 404 and "the OpenAI API is at /v1" in r.text, r.text)
    text = s.get("/metrics").text
    check("the metrics count it", re.search(r'http_requests_total\{handler="/",method="GET",status="304"\} [1-9]', text), text)


def test_content(s):
    text = s.get("/").text
    parts = Parts(text)
    loads = [a for a in parts.attributes if a[1] in ("src", "href", "action", "style") or a[1].startswith("on")]
    check("nothing is loaded from elsewhere; no handlers or styles in attributes",
          len(loads) == 1 and loads[0][:2] == ("link", "href") and loads[0][2].startswith("data:image/svg+xml,"), loads)
    script = parts.inline["script"][0]
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "setHTML"):
        check(f"the script has no {sink}", sink not in script)
    where = re.findall(r"https?://[^\"' ]+", text)
    check("no address of another host", set(where) <= {"http://www.w3.org/2000/svg"}, where)
    ids = [v for _, k, v in parts.attributes if k == "id"]
    check("ids are unique", len(ids) == len(set(ids)), ids)
    missing = {i for i in re.findall(r'\$\("([a-z-]+)"\)', script) if i not in ids}
    check("the script asks for no id that is not there", not missing, missing)
    labels = {v for _, k, v in parts.attributes if k == "for"}
    check("labels belong to fields", labels <= set(ids) and len(labels) >= 5, labels)


def test_off():
    with Server("--no-web") as s:
        for method in ("GET", "HEAD", "POST"):
            r = s.get("/", method=method)
            check(f"--no-web: {method} / gets 404", r.status_code == 404, r)
        r = s.get("/")
        check("--no-web: the usual hint", "there is nothing at '/'; the OpenAI API is at /v1" in r.text, r.text)
        check("--no-web: the API is there", s.get("/v1/models").status_code == 200)


def test_root_path():
    with Server("--root-path", "/a/llm/", "--api-key", "k-1") as s:
        page = s.get("/").content
        for path, status in (("/a/llm", 200), ("/a/llm/", 200), ("/a/llm/?x=1", 200), ("/a/llm/ready", 200), ("/a/llm/v1/models", 401), ("/v1/models", 401),
                             ("/a/llm/metrics", 401), ("/a/llmx/ready", 404), ("/a/llm/a/llm/ready", 404), ("/a", 404), ("/llm/ready", 404)):
            r = httpx.get(s.url + path, headers={"Authorization": "Bearer k-1"} if status == 404 else {}, timeout=60)
            check(f"--root-path: {path} is {status}", r.status_code == status and (path[-5:] not in ("a/llm", "/llm/") or r.content == page), r)
        r = s.post("/a/llm/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"Authorization": "Bearer k-1"})
        check("--root-path: a completion", r.status_code == 200, r.text)


def test_key():
    with Server("--api-key", "k-1") as s:
        got = {p: s.get(p).status_code for p in ("/", "/ready", "/metrics", "/v1/models")}
        check("with a key: the page and /ready need none", got == {"/": 200, "/ready": 200, "/metrics": 401, "/v1/models": 401}, got)
        # what a browser adds to the requests of the page
        headers = {"Authorization": "Bearer k-1", "Origin": s.url, "Sec-Fetch-Site": "same-origin"}
        r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=headers)
        check("with a key: a request of the page is answered", r.status_code == 200, r.text)


def main():
    with Server() as s:
        for test in (test_headers, test_cache, test_paths, test_content):
            test(s)
    test_off()
    test_key()
    test_root_path()
    print(f"{results['passed']} passed, {results['failed']} failed")
    sys.exit(1 if results["failed"] else 0)


if __name__ == "__main__":
    main()
