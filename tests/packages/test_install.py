#!/usr/bin/env python3
"""`make install` and `make uninstall` into a folder: what is there, that it runs, and that nothing stays. Run in the root of
the source tree; closes with `N passed, N failed`."""
import os
import subprocess
import sys
import tempfile

from checks import check, results

PREFIX = "/opt/rose"
WANTED = ["bin/roseinfer", "bin/roseinfer-bench", "include/roseinfer.h", "lib/libroseinfer.a", "lib/libroseinfer.so",
          "lib/pkgconfig/roseinfer.pc", "share/man/man1/roseinfer.1", "share/bash-completion/completions/roseinfer",
          "share/zsh/site-functions/_roseinfer"]


def make(target, dest):
    return subprocess.run(["make", "--no-print-directory", target, f"DESTDIR={dest}", f"PREFIX={PREFIX}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def tree(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder)
                  for at, folders, files in os.walk(folder) for name in folders + files)


with tempfile.TemporaryDirectory() as dest:
    p = make("install", dest)
    check("make install", p.returncode == 0, p.stdout.decode()[-2000:])
    for path in WANTED:
        check(f"installed: {path}", os.path.exists(dest + PREFIX + "/" + path), tree(dest))
    p = subprocess.run([dest + PREFIX + "/bin/roseinfer", "--version"], stdout=subprocess.PIPE)
    check("the installed program runs", p.returncode == 0 and p.stdout.startswith(b"roseinfer "), p)
    with open(dest + PREFIX + "/lib/pkgconfig/roseinfer.pc") as f:
        check("roseinfer.pc has the prefix and not DESTDIR", f"prefix={PREFIX}\n" in f.read())
    others = dest + PREFIX + "/bin/another-program"
    with open(others, "w"):
        pass
    p = make("uninstall", dest)
    check("make uninstall", p.returncode == 0, p.stdout.decode()[-2000:])
    inside = dest + PREFIX
    check("only what others installed stays", tree(inside) == ["bin", "bin/another-program"], tree(inside))
    os.remove(others)
    make("install", dest)
    make("uninstall", dest)
    check("nothing stays", tree(inside) == [], tree(inside))
sys.exit(results())
