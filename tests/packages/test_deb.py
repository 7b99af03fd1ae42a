#!/usr/bin/env python3
"""The Debian package: its content, its units, and its life in a bare Debian. Run in the root of the source tree after
`make deb`: `test_deb.py PACKAGE`; closes with `N passed, N failed`."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from bare import BareRoot
from checks import check, results, skip

DEB = sys.argv[1]
INSIDE = ["dpkg -i", "roseinfer --version", "two conffiles", "the server is ready", "a streamed answer",
          "SIGTERM ends it with 0", "a program with the library", "a removal keeps the changed configuration",
          "a purge leaves nothing"]
UNITS = ["roseinfer.service", "roseinfer.socket"]


def output(*command):
    p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return p.returncode, p.stdout.decode("utf-8", "replace")


def test_content(tree):
    rc, text = output("dpkg-deb", "-x", DEB, tree)
    check("the package unpacks", rc == 0, text)
    for path in ["usr/bin/roseinfer", "usr/bin/roseinfer-bench", "usr/include/roseinfer.h",
                 "usr/share/man/man1/roseinfer.1.gz", "usr/share/bash-completion/completions/roseinfer",
                 "usr/share/zsh/vendor-completions/_roseinfer", "usr/share/doc/roseinfer/copyright", "etc/default/roseinfer",
                 "etc/roseinfer/config.yaml"] + ["lib/systemd/system/" + unit for unit in UNITS]:
        check(f"in the package: {path}", os.path.isfile(os.path.join(tree, path)))
    mode = os.stat(os.path.join(tree, "etc/default/roseinfer")).st_mode & 0o777
    check("only root reads the file of keys", mode == 0o600, oct(mode))
    with open(os.path.join(tree, "etc/roseinfer/config.yaml"), encoding="utf-8") as f:
        text = f.read()
    # Every commented line of the example is an option that serve takes.
    with open(os.path.join(tree, "config.yaml"), "w", encoding="utf-8") as f:
        f.write(re.sub(r"^# ([a-z-]+: )", r"\1", text, flags=re.M).replace("Qwen/Qwen3-0.6B", "/nowhere"))
    rc, said = output(os.path.join(tree, "usr/bin/roseinfer"), "serve", "--config", f.name)
    check("the example is read up to its model", rc == 1 and "/nowhere" in said, (rc, said))
    rc, said = output(os.path.join(tree, "usr/bin/roseinfer"), "serve", "--config", os.path.join(tree, "etc/roseinfer/config.yaml"))
    check("without a model the service ends with 2", rc == 2 and "MODEL is missing" in said, (rc, said))


def test_units(tree):
    if shutil.which("systemd-analyze") is None:
        skip("systemd-analyze verify", "it is not installed (Debian: systemd)")
        return
    copies = []
    for unit in UNITS:
        copies.append(os.path.join(tree, unit))
        with open(os.path.join(tree, "lib/systemd/system", unit), encoding="utf-8") as f, \
                open(copies[-1], "w", encoding="utf-8") as copy:
            copy.write(f.read().replace("/usr/bin/", os.path.join(tree, "usr/bin/")))
    rc, text = output("systemd-analyze", "--man=no", "verify", *copies)
    check("systemd-analyze verify", rc == 0 and not re.search(r"roseinfer\.(service|socket)", text), text)
    rc, text = output("systemd-analyze", "security", "--offline=true", "--threshold=30", copies[0])
    check("systemd-analyze security: 3.0 or less", rc == 0, text[-300:])


def test_lintian():
    if shutil.which("lintian") is None:
        skip("lintian", "it is not installed")
        return
    rc, text = output("lintian", "--fail-on", "error", "--allow-root", DEB)
    check("lintian finds no error", rc == 0, text)


def test_bare_root():
    with open("tests/packages/deb_inside.sh", encoding="utf-8") as f:
        script = f.read()
    with open(DEB, "rb") as f, BareRoot("deb") as root:
        p = root.run(["sh", "-c", script], stdin=f.read())
    if p is None:
        return
    text = p.stdout.decode("utf-8", "replace")
    if p.returncode == 77:
        skip("the package in a bare Debian", text.strip().splitlines()[-1])
        return
    for name in INSIDE:
        check(f"bare Debian: {name}", f"ok {name}\n" in text, text[-3000:])
    check("bare Debian: exit code 0", p.returncode == 0, text[-3000:])
    if os.environ.get("ROSE_SHOW"):
        print(text)


with tempfile.TemporaryDirectory() as tmp:
    test_content(tmp)
    test_units(tmp)
test_lintian()
test_bare_root()
sys.exit(results())
