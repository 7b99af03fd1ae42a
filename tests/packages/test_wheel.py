#!/usr/bin/env python3
"""`make wheel`, and the wheel where a user would install it: `test_wheel.py MODEL`, in the root of the source tree; closes
with `N passed, N failed`.

pip installs the wheel without network into fresh environments of each Python that is there, and, as root, into a bare
Debian: there the installed program serves a stream. Removed, the wheel leaves nothing."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from bare import BareRoot
from checks import check, results, skip

MODEL = os.path.abspath(sys.argv[1])
PROMPT = "Once upon a time"
GENERATE = f"""
import json, os, sys, roseinfer
from roseinfer import LLM, SamplingParams
with LLM(sys.argv[1], device="cpu") as llm:
    r = llm.generate({PROMPT!r}, SamplingParams(temperature=0, max_tokens=32))[0]
print(json.dumps([os.path.dirname(roseinfer.__file__), r.outputs[0].text]))
"""


def run(*command, **kw):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ROSE_LIBRARY", "VIRTUAL_ENV"))}
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, **kw)


def build():
    """Path and bytes of the wheel."""
    p = run("make", "--no-print-directory", "wheel")
    found = glob.glob("build/wheel/*.whl")
    check("make wheel", p.returncode == 0 and len(found) == 1, p.stdout.decode()[-2000:])
    with open(found[0], "rb") as f:
        return os.path.abspath(found[0]), f.read()


def glibc_symbols(path):
    out = subprocess.run(["objdump", "-T", path], stdout=subprocess.PIPE, check=True).stdout.decode()
    return [int(v) for v in re.findall(r"GLIBC_2\.(\d+)", out)]


def test_file(path):
    tag = re.search(r"-manylinux_2_(\d+)_x86_64\.whl$", path)
    check("the wheel has a manylinux tag", tag, path)
    with zipfile.ZipFile(path) as z, tempfile.TemporaryDirectory() as folder:
        z.extractall(folder)
        elf = glob.glob(folder + "/roseinfer/*.so") + glob.glob(folder + "/*.data/scripts/*")
        check("a library and a program", len(elf) == 2, z.namelist())
        needed = max(v for e in elf for v in glibc_symbols(e))
        check("the tag is the newest symbol of glibc", tag and needed == int(tag.group(1)), (needed, path))
        out = subprocess.run(["nm", "-D", "--defined-only", elf[0]], stdout=subprocess.PIPE, check=True).stdout.decode()
        names = [line.split()[2] for line in out.splitlines()]
        check("the library exports rose_lib_* only", "rose_lib_open" in names and
              all(x.startswith("rose_lib_") for x in names), names)
        licences = [x for x in z.namelist() if "/licenses/" in x]
        check("the licences of what is linked in", len(licences) == 10, licences)


def test_foreign_library():
    """The library of `make install` needs libraries of Debian, which a wheel must not."""
    if not os.path.exists("build/libroseinfer.so"):
        skip("a library that needs others", "`make all` has not built build/libroseinfer.so")
        return
    with tempfile.TemporaryDirectory() as folder:
        p = run(sys.executable, "tools/wheel.py", "0.0.0", "build/roseinfer", "build/libroseinfer.so", folder)
        check("a library that needs others is refused", p.returncode == 1 and b"libpcre2" in p.stdout and
              not os.listdir(folder), p.stdout)


def tree(folder):
    return {os.path.relpath(os.path.join(at, f), folder) for at, _, files in os.walk(folder) for f in files
            if "__pycache__" not in at or "roseinfer" in at}


def test_environment(wheel, python):
    """pip installs, the module generates, the program answers, pip removes."""
    version = run(python, "-c", "import sys; print(sys.version.split()[0])").stdout.decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        p = run(python, "-m", "venv", folder)
        if p.returncode != 0:
            skip(f"the wheel under Python {version}", p.stdout.decode().strip().splitlines()[-1])
            return
        before = tree(folder)
        p = run(folder + "/bin/pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
        check(f"{version}: pip install", p.returncode == 0, p.stdout.decode())
        p = run(folder + "/bin/roseinfer", "--version")
        check(f"{version}: the program", p.returncode == 0 and p.stdout.startswith(b"roseinfer "), p)
        p = run(folder + "/bin/python", "-W", "error", "-c", GENERATE, MODEL, cwd=folder)
        program = run(folder + "/bin/roseinfer", "generate", MODEL, "--device", "cpu", "-p", PROMPT, "--max-tokens", "32",
                      "--temperature", "0", "--no-echo")
        try:
            where, text = json.loads(p.stdout)
        except ValueError:
            where, text = "", p.stdout.decode()
        check(f"{version}: the module of the wheel", where.startswith(folder), where)
        check(f"{version}: the text of the program", text == program.stdout.decode().rstrip("\n") and text,
              (text, program.stdout))
        p = run(folder + "/bin/pip", "check", "--disable-pip-version-check")
        check(f"{version}: pip check", p.returncode == 0, p.stdout.decode())
        p = run(folder + "/bin/pip", "uninstall", "-y", "--disable-pip-version-check", "roseinfer")
        check(f"{version}: pip uninstall", p.returncode == 0, p.stdout.decode())
        check(f"{version}: nothing is left", tree(folder) == before, tree(folder) ^ before)


# In the bare root, with the wheel as standard input.
BARE = r"""
set -eux
cat > /tmp/WHEEL
apt-get update -q > /dev/null
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3 python3-venv > /dev/null
if dpkg -l | grep -E 'libpcre2-dev|libutf8proc|libevent|libyaml'; then exit 1; fi
python3 -m venv /opt/rose
/opt/rose/bin/pip install --no-index --no-deps --disable-pip-version-check /tmp/WHEEL
/opt/rose/bin/roseinfer --version
/opt/rose/bin/roseinfer serve models/rose-tiny --device cpu --port 0 2> /tmp/serve.log &
for i in $(seq 600); do
    url=$(sed -n 's|.*listening on \(http://[^ ]*\).*|\1|p' /tmp/serve.log | head -1)
    [ -n "$url" ] && /opt/rose/bin/roseinfer health "$url/ready" && break
    sleep 0.1
done
cat /tmp/serve.log
/opt/rose/bin/python - "$url" <<'P'
import json, sys, urllib.request
body = {"prompt": "PROMPT", "max_tokens": 32, "temperature": 0, "stream": True}
request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
for line in urllib.request.urlopen(request):
    line = line.strip()
    if line and line != b"data: [DONE]":
        print("streamed:", json.dumps(json.loads(line[6:])["choices"][0]["text"]))
P
kill %1
/opt/rose/bin/python - <<'P'
from roseinfer import LLM, SamplingParams
with LLM("models/rose-tiny", device="cpu") as llm:
    for piece in llm.stream("PROMPT", SamplingParams(temperature=0, max_tokens=32)):
        print("module:", __import__("json").dumps(piece.text))
P
/opt/rose/bin/pip uninstall -y roseinfer
test ! -e /opt/rose/bin/roseinfer
"""


def test_bare_root(path, content):
    script = BARE.replace("WHEEL", os.path.basename(path)).replace("PROMPT", PROMPT)
    with BareRoot("wheel") as root:
        p = root.run(["bash", "-c", script], content)
    if p is None:
        return
    out = p.stdout.decode("utf-8", "replace")
    if os.environ.get("ROSE_TRANSCRIPT"):
        with open(os.environ["ROSE_TRANSCRIPT"], "w", encoding="utf-8") as f:
            f.write(out)
    check("bare root: all steps", p.returncode == 0, out[-3000:])
    streamed, module = ([json.loads(x) for x in re.findall(rf"^{kind}: (.*)$", out, re.M)]
                        for kind in ("streamed", "module"))
    check("bare root: a stream over HTTP", len(streamed) > 16 and len("".join(streamed)) > 40, out[-3000:])
    check("bare root: the module gives the same text", "".join(streamed) == "".join(module), (streamed, module))


path, content = build()
check("a second build has the same bytes", build()[1] == content)
test_file(path)
test_foreign_library()
pythons = [sys.executable] + [p for p in map(shutil.which, ("python3.9", "python3.13")) if p]
for python in pythons:
    if run(python, "--version").returncode == 0:
        test_environment(path, python)
test_bare_root(path, content)
sys.exit(results())
