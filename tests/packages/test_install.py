#!/usr/bin/env python3
"""`make install` and `make uninstall` into a folder: what is there, that the program runs, that the examples compile against
the library and give the program's text, and that nothing stays. `make serve` and `make chat` on a terminal: Ctrl-C ends them
without a word of make. Run in the root of the source tree; closes with `N passed, N failed`."""
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from checks import check, results

PREFIX = "/opt/rose"
MODEL = "models/rose-tiny"
PROMPT, OTHER = "Once upon a time", "The king"
WANTED = ["bin/roseinfer", "bin/roseinfer-bench", "include/roseinfer.h", "lib/libroseinfer.a", "lib/libroseinfer.so",
          "lib/pkgconfig/roseinfer.pc", "share/man/man1/roseinfer.1", "share/man/man1/roseinfer-bench.1",
          "share/bash-completion/completions/roseinfer", "share/zsh/site-functions/_roseinfer",
          "share/roseinfer/drivers/driver.py", "share/roseinfer/drivers/vllm.py"]
C = ["gcc", "-Wall", "-Wextra", "-Werror", "-std=c11"]
CXX = ["g++", "-Wall", "-Wextra", "-Werror", "-std=c++17"]


def make(target, dest):
    return subprocess.run(["make", "--no-print-directory", target, f"DESTDIR={dest}", f"PREFIX={PREFIX}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def tree(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder)
                  for at, folders, files in os.walk(folder) for name in folders + files)


def output(name, *command, **env):
    """What the command prints; a check fails if it does."""
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **env))
    check(name, p.returncode == 0, (command, p.stdout[-2000:], p.stderr[-2000:]))
    return p.stdout.decode("utf-8", "replace").rstrip("\n")


def pkg_config(root, *options):
    """The file's prefix is where the library will be; for this test it is where the library is."""
    text = output("pkg-config " + " ".join(options), "pkg-config", f"--define-variable=prefix={root}", *options, "roseinfer",
                  PKG_CONFIG_PATH=root + "/lib/pkgconfig")
    return shlex.split(text)


def test_library(root, tmp):
    """The library as a user gets it."""
    flags, lib = pkg_config(root, "--cflags", "--libs"), {"LD_LIBRARY_PATH": root + "/lib"}
    want = output("the installed program generates", root + "/bin/roseinfer", "generate", MODEL, "-p", PROMPT, "--max-tokens", "32",
                  "--temperature", "0", "--no-echo")
    check("it writes something", want)

    output("the example compiles", *C, "examples/generate.c", "-o", tmp + "/shared", *flags)
    check("the shared library's text", output("the example runs", tmp + "/shared", MODEL, PROMPT, **lib) == want)
    check("the example needs the shared library", "libroseinfer.so.1" in output("ldd", "ldd", tmp + "/shared"))

    static = [f for f in pkg_config(root, "--static", "--libs") if f != "-lroseinfer"]
    output("the static example compiles", *C, "examples/generate.c", "-o", tmp + "/static", f"-I{root}/include",
           root + "/lib/libroseinfer.a", *static)
    check("the static library's text", output("the static example runs", tmp + "/static", MODEL, PROMPT) == want)

    output("the example in C++ compiles", *CXX, "examples/many.cc", "-o", tmp + "/many", *flags)
    many = output("the example in C++ runs", tmp + "/many", MODEL, PROMPT, OTHER, PROMPT, **lib)
    check("many requests in one poll loop", many.split("\n")[0] == want and many.split("\n")[2] == want, many)
    python = output("the example in Python runs", sys.executable, "examples/stream.py", MODEL, PROMPT, OTHER, PROMPT,
                    ROSEINFER_LIBRARY=root + "/lib/libroseinfer.so.1")
    check("asyncio on the wake-up descriptor", python == many, python)

    names = [line.split()[2] for line in output("nm", "nm", "-D", "--defined-only", root + "/lib/libroseinfer.so").split("\n")]
    check("only rose_lib_* is exported", names and all(x.startswith("rose_lib_") for x in names), names)


class Terminal:
    """make on a pseudo-terminal, whose Ctrl-C reaches make, its shell and the program."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for name in ("MAKELEVEL", "MFLAGS"):  # a person's make has no make above it
                os.environ.pop(name, None)
            variables = os.environ.pop("MAKEFLAGS", "").partition(" -- ")[2].split()
            os.execvp("make", ["make", *variables, *args])
        self.out, self.seen = "", 0

    def wait(self, text, timeout=120):
        """False, with the end of the output seen, if the text does not come."""
        end = time.monotonic() + timeout
        while (at := self.out.find(text, self.seen)) < 0 and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    self.out += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        self.seen = at + len(text) if at >= 0 else self.seen
        return at >= 0

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        """Whether make ended without an error of its own. It ends by the signal that it got, too."""
        self.wait("\0", 60)
        os.close(self.fd)  # a hangup for a make that still runs
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return code in (0, -signal.SIGINT) and "***" not in self.out


def test_serve_and_chat():
    t = Terminal("serve", "PORT=0")
    check("make serve listens", t.wait("listening on http"), t.out)
    check("a program that is there is not spoken of", "up to date" not in t.out and "make" not in t.out, t.out)
    t.type(b"\x03")
    check("Ctrl-C drains the server", t.wait("draining") and t.wait("stopped"), t.out)
    check("and make reports no error", t.end(), t.out)

    template = "--isa scalar --threads 1 --temperature 1 --chat-template \"{{ messages[0].content }}\""
    t = Terminal("chat", f"MODEL={MODEL}", f"CHAT_ARGS={template}")
    check("make chat begins", t.wait("commands.") and t.wait("> "), t.out)
    for i in range(2):
        t.type(b"Once upon a time\n")
        check(f"reply {i} begins", t.wait("time\r\n") and t.wait(" "), t.out)
        t.type(b"\x03")
        check(f"Ctrl-C stops reply {i}", t.wait("[stopped") and t.wait("> "), t.out)
    t.type(b"\x04")
    check("Ctrl-D after Ctrl-C ends make chat without an error", t.end(), t.out)


with tempfile.TemporaryDirectory() as dest, tempfile.TemporaryDirectory() as work:
    p = make("install", dest)
    check("make install", p.returncode == 0, p.stdout.decode()[-2000:])
    inside = dest + PREFIX
    for path in WANTED:
        check(f"installed: {path}", os.path.exists(f"{inside}/{path}") and os.path.getsize(f"{inside}/{path}") > 0, tree(dest))
    p = subprocess.run([inside + "/bin/roseinfer", "--version"], stdout=subprocess.PIPE)
    check("the installed program runs", p.returncode == 0 and p.stdout.startswith(b"roseinfer "), p)
    with open(inside + "/lib/pkgconfig/roseinfer.pc") as f:
        check("roseinfer.pc has the prefix and not DESTDIR", f"prefix={PREFIX}\n" in f.read())
    test_library(inside, work)
    others = inside + "/bin/another-program"
    with open(others, "w"):
        pass
    p = make("uninstall", dest)
    check("make uninstall", p.returncode == 0, p.stdout.decode()[-2000:])
    check("only what others installed stays", tree(inside) == ["bin", "bin/another-program"], tree(inside))
    os.remove(others)
    make("install", dest)
    make("uninstall", dest)
    check("nothing stays", tree(inside) == [], tree(inside))
test_serve_and_chat()
sys.exit(results())
