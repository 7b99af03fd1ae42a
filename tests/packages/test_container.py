#!/usr/bin/env python3
"""packaging/Dockerfile without docker: `test_container.py MODEL [--build] [ARG=VALUE...]`, in the root of the source tree after
`make`; closes with `N passed, N failed`.

The steps are read from the Dockerfile. Of the builder stage the last step runs here: it gathers the program that `make` has
built. With --build all its steps run in a bare Debian, which takes minutes. The final stage is a folder that holds the Debian
packages of the distroless base and what the stage copies; its command runs there by chroot as its user, is probed by the
stage's HEALTHCHECK, and serves a stream. Needs root and the network. --build CUDA=1 CUDA_ARCHS=90a builds the CUDA image,
which takes more minutes; it must serve without a GPU, too."""
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

from bare import BareRoot, may_mount
from checks import check, results, skip

MODEL = os.path.abspath(sys.argv[1])
DOCKERFILE = "packaging/Dockerfile"
# What gcr.io/distroless/base-debian12 is made of.
BASE_IMAGE, BASE_PACKAGES = "gcr.io/distroless/base-debian12:nonroot", \
    "base-files ca-certificates libc6 libssl3 netbase tzdata"
NONROOT = 65532


def instructions(path):
    """(word, rest) of each instruction; lines that end with a backslash are joined."""
    with open(path, encoding="utf-8") as f:
        lines = [line for line in f if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", "", "".join(lines))
    return [tuple(line.strip().split(None, 1)) for line in text.splitlines() if line.strip()]


def stages(path):
    """The ARGs before the first stage, and a list of (what FROM says, instructions)."""
    before, found = {}, []
    for word, rest in instructions(path):
        if word == "FROM":
            found.append((rest, []))
        elif found:
            found[-1][1].append((word, rest))
        else:
            assert word == "ARG", f"{word} before FROM"
            name, _, value = rest.partition("=")
            before[name] = value
    return before, found


def context():
    """What .dockerignore lets through: `*`, then `!NAME` for each file or folder."""
    with open(".dockerignore", encoding="utf-8") as f:
        lines = [line.strip() for line in f if line.strip() and not line.startswith("#")]
    assert lines[0] == "*" and all(re.fullmatch(r"![\w./-]+", line) for line in lines[1:]), lines
    return [line[1:] for line in lines[1:]]


def builder_script(steps, given):
    """A shell script of the builder stage; it fails with the first step that fails. given: --build-arg."""
    out = ["set -eu"]
    for word, rest in steps:
        if word == "ARG":
            name, _, value = rest.partition("=")
            out.append(f"export {name}={shlex.quote(given.get(name, shlex.split(value)[0]))}")
        elif word == "WORKDIR":
            out.append(f"mkdir -p {rest} && cd {rest}")
        elif word == "COPY":
            assert rest == ". .", rest
            out += [f"cp -a /roseinfer/{name} ." for name in context()]
        elif word == "RUN":
            out.append(f"echo {shlex.quote('RUN ' + rest)}; sh -c {shlex.quote(rest)}")
        else:
            raise ValueError(f"the test does not know {word} in the builder stage; teach it")
    return "\n".join(out + [base_script("/base")])


def base_script(folder):
    """A shell script that unpacks the packages of the distroless base into a new folder."""
    return f"""mkdir {folder} {folder}.debs && cd {folder}.debs
chmod 755 {folder} {folder}.debs
apt-get download -q {BASE_PACKAGES} >&2
for f in *.deb; do dpkg-deb -x "$f" {folder}; done"""


def gather_script(steps, out):
    """The last step of the builder stage, with a folder of ours in place of its /out; it runs in the source tree."""
    word, rest = steps[-1]
    assert word == "RUN" and rest.startswith("install ") and "/out/" in rest, rest
    return "set -eu\n" + rest.replace("/out/", out + "/")


def final_stage(steps):
    """The instructions by word."""
    known = {"COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    words = [word for word, _ in steps]
    assert set(words) <= known and len(set(words)) == len(words), f"the test does not know one of {words}; teach it"
    stage = dict(steps)
    stage["ENTRYPOINT"], stage["CMD"] = json.loads(stage["ENTRYPOINT"]), json.loads(stage["CMD"])
    options, _, probe = stage["HEALTHCHECK"].partition(" CMD ")
    check("the probe has its options", re.fullmatch(r"(--\w[\w-]*=\d+[sm] ?)+", options), options)
    stage["HEALTHCHECK"] = json.loads(probe)
    return stage


def files(folder):
    return {os.path.relpath(os.path.join(at, f), folder) for at, _, names in os.walk(folder) for f in names}


def mount(*args):
    subprocess.run(["mount", *args], check=True)


def own_network():
    """A process in a network of its own has a loopback device that is off."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def serve(image, stage):
    """In namespaces of its own: runs the container's command as a container engine does."""
    env = dict(x.split("=", 1) for x in stage["ENV"].split())
    uid, gid = (int(x) for x in stage["USER"].split(":"))
    mount("-t", "proc", "proc", image + "/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "dev", image + "/dev")
    for name, minor in (("null", 3), ("zero", 5), ("urandom", 9)):
        os.mknod(f"{image}/dev/{name}", 0o020666, os.makedev(1, minor))
        os.chmod(f"{image}/dev/{name}", 0o666)
    own_network()

    def enter():
        os.chroot(image)
        os.chdir("/")
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)

    def start(command, **kw):
        return subprocess.Popen(command, env=env, preexec_fn=enter, **kw)

    with open(image + ".log", "w+b") as log:
        p = start(stage["ENTRYPOINT"] + stage["CMD"], stderr=log)
        probes = []
        end = time.monotonic() + 120
        while (not probes or probes[-1] != 0) and time.monotonic() < end and p.poll() is None:
            probes.append(start(stage["HEALTHCHECK"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).wait())
            time.sleep(0.05)
        log.seek(0)
        if not check("the probe says that the server is well", probes[-1] == 0, (probes[-3:], log.read())):
            return
        with open(f"{image}/proc/{p.pid}/status", encoding="utf-8") as f:
            status = f.read()
        check("the server runs as the stage's user", f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status, status)
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "stream": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{stage['EXPOSE']}/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as r:
            events = [line[6:].strip() for line in r if line.startswith(b"data: ")]
        text = "".join(json.loads(e)["choices"][0]["text"] for e in events[:-1])
        print("streamed:", text)
        check("a streamed answer", events[-1] == b"[DONE]" and len(events) > 12 and len(text) > 30, events)
        p.send_signal(signal.Signals[stage["STOPSIGNAL"]])
        log.seek(0)
        check("the stop signal ends the server", p.wait(60) == 0, log.read())
        check("the probe of a server that is gone fails",
              start(stage["HEALTHCHECK"], stderr=subprocess.DEVNULL).wait() == 1)
    for shell in ("/bin/sh", "/usr/bin/sh", "/bin/bash"):
        check(f"the image has no {shell}", not os.path.lexists(image + shell))


def main():
    given = dict(a.split("=", 1) for a in sys.argv[2:] if a != "--build")
    before, (builder, last) = stages(DOCKERFILE)
    check("the builder is Debian 12", builder[0] == "debian:12-slim AS build", builder[0])
    check("the final stage is distroless", last[0] == "${BASE}" and before["BASE"] == BASE_IMAGE, (last[0], before))
    stage = final_stage(last[1])
    check("the user is that of the base", stage["USER"] == f"{NONROOT}:{NONROOT}", stage["USER"])
    source, target = re.fullmatch(r"--from=build (/\S+)/ (/)", stage["COPY"]).groups()
    return built(builder[1], given, source, target, stage) if "--build" in sys.argv else gathered(builder[1], target, stage)


def built(steps, given, source, target, stage):
    """All steps of the builder stage in a bare Debian, then the image of what they made."""
    with BareRoot("container") as root:
        p = root.run(["sh", "-c", builder_script(steps, given)])
        if p is None:
            return results()
        out = p.stdout.decode("utf-8", "replace")
        if check("the steps of the builder stage", p.returncode == 0, out[-3000:]):
            print("\n".join(re.findall(r"^RUN .*$", out, re.M)))
            try_image(root.path + "/base", root.path + source, target, stage)
    return results()


def gathered(steps, target, stage):
    """The image of the program that is built here."""
    with open("/etc/os-release", encoding="utf-8") as f:
        debian_12 = 'VERSION_ID="12"' in f.read().split("\n")
    if os.getuid() != 0 or not debian_12 or not may_mount():
        skip("the image", "it needs root, the right to mount, and Debian 12, whose packages it is made of")
        return results()
    with tempfile.TemporaryDirectory(prefix="rose-container-", dir="/var/tmp") as work:
        os.chmod(work, 0o755)
        p = subprocess.run(["sh", "-euc", base_script(work + "/base")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if p.returncode != 0:
            skip("the image", "apt-get download failed: " + p.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
            return results()
        p = subprocess.run(["sh", "-c", gather_script(steps, work + "/out")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check("the last step of the builder stage", p.returncode == 0, p.stdout.decode("utf-8", "replace")):
            try_image(work + "/base", work + "/out", target, stage)
    return results()


def try_image(image, copied, target, stage):
    """The files of the base in `image`, what the final stage copies in `copied`: puts them together and serves."""
    added = files(copied)
    check("the final stage copies the program and licences only",
          {f for f in added if not f.startswith("usr/share/doc/roseinfer/")} == {"usr/bin/roseinfer"}, added)
    shutil.copytree(copied, image + target, dirs_exist_ok=True, symlinks=True)
    shutil.copytree(MODEL, image + "/model")
    for folder in ("proc", "dev", "tmp"):
        os.makedirs(f"{image}/{folder}", exist_ok=True)
    # Mounts, processes and network end with this process.
    child = subprocess.run(["unshare", "--mount", "--propagation", "private", "--pid", "--net", "--fork", "--kill-child",
                            sys.executable, __file__, MODEL, "--serve", image], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
    said = child.stdout.decode("utf-8", "replace")
    print(said, end="")
    m = re.search(r"^(\d+) passed, (\d+) failed$", said, re.M)
    check("the container's command", child.returncode == 0 and m and int(m.group(1)) >= 8, said[-3000:])


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(sys.argv[3], final_stage(stages(DOCKERFILE)[1][1][1]))
        sys.exit(results())
    sys.exit(main())
