#!/usr/bin/env python3
"""Writes the Python wheel: `tools/wheel.py VERSION PROGRAM LIBRARY FOLDER`; prints the path of the wheel.

The wheel is a zip file that this script writes itself, so no build back end is needed. It holds the program as a script, the
C library, and the module python/roseinfer. Its tag is read from the two ELF files: manylinux_2_X says that both run
with glibc 2.X and need no other library. The same input gives the same bytes."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
# Parts of glibc, which every manylinux platform has (PEP 600).
ALLOWED = re.compile(r"lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-x86-64\.so\.2")
# Debian's packages whose code is in the program or the library.
LINKED = ["libevent-dev", "libhttp-parser-dev", "libpcre2-dev", "libutf8proc-dev", "libyaml-dev", "libedit-dev",
          "libbsd-dev", "libmd-dev", "libncurses-dev"]
SUMMARY = "An LLM inference engine and server in C11 and CUDA C, with a small Python module"
# Zip files cannot hold earlier times.
FIRST_TIME = 315532800


def die(text):
    print(f"wheel.py: {text}", file=sys.stderr)
    sys.exit(1)


def tool(*command):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()
    except (OSError, subprocess.CalledProcessError) as e:
        die(f"{' '.join(command)}: {e}")


def glibc_of(path):
    """The minor version of the oldest glibc 2 with all symbols that the ELF file needs."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", path))
    others = [name for name in needed if not ALLOWED.fullmatch(name)]
    if others or not needed:
        die(f"{path} needs {' '.join(others) or 'no library at all'}; a wheel may need the libraries of glibc only")
    versions = re.findall(r"Name: (GLIBC_\S+)", tool("readelf", "-V", path))
    odd = [v for v in versions if not re.fullmatch(r"GLIBC_2(\.\d+)+", v)]
    if odd or not versions:
        die(f"{path}: the symbol versions {odd} name no release of glibc; say here which release has them")
    return max(int(v.split(".")[1]) for v in versions)


def stripped(path):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        tool("strip", "--strip-unneeded", "-o", out, path)
        with open(out, "rb") as f:
            return f.read()


def licences():
    """Path in dist-info and content: ours, and those of the code that is linked in."""
    with open(os.path.join(ROOT, "LICENSE"), "rb") as f:
        yield "licenses/LICENSE", f.read()
    for package in LINKED:
        path = f"/usr/share/doc/{package}/copyright"
        if not os.path.exists(path):
            die(f"{path} is missing; the wheel must hold the licence of what is linked in: install {package}")
        with open(path, "rb") as f:
            yield f"licenses/{package}.txt", f.read()


def module():
    folder = os.path.join(ROOT, "python")
    for name in sorted(os.listdir(os.path.join(folder, "roseinfer"))):
        if name.endswith((".py", ".typed")):
            with open(os.path.join(folder, "roseinfer", name), "rb") as f:
                yield f"roseinfer/{name}", f.read()


def metadata(version):
    with open(os.path.join(ROOT, "python", "README.md"), encoding="utf-8") as f:
        about = f.read()
    lines = ["Metadata-Version: 2.1", "Name: roseinfer", f"Version: {version}", f"Summary: {SUMMARY}", "License: MIT",
             "Requires-Python: >=3.9", "Classifier: License :: OSI Approved :: MIT License",
             "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: Python :: 3",
             "Classifier: Typing :: Typed", "Description-Content-Type: text/markdown"]
    return ("\n".join(lines) + "\n\n" + about).encode()


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def write_zip(path, files):
    """files: (name, content, executable). A build that was cut leaves no wheel."""
    when = time.gmtime(max(FIRST_TIME, int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_TIME))))[:6]
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as z:
        for name, content, executable in files:
            info = zipfile.ZipInfo(name, when)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            z.writestr(info, content)
    os.replace(path + ".part", path)


def main(version, program, library, folder):
    tag = f"py3-none-manylinux_2_{max(glibc_of(program), glibc_of(library))}_x86_64"
    info = f"roseinfer-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: roseinfer {version}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files = [(name, content, False) for name, content in module()]
    files.append(("roseinfer/libroseinfer.so", stripped(library), True))
    files.append((f"roseinfer-{version}.data/scripts/roseinfer", stripped(program), True))
    files += [(f"{info}/{name}", content, False) for name, content in licences()]
    files += [(f"{info}/METADATA", metadata(version), False), (f"{info}/WHEEL", wheel, False)]
    record = "".join(record_line(name, content) for name, content, _ in files) + f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), False))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"roseinfer-{version}-{tag}.whl")
    write_zip(path, files)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        die("usage: tools/wheel.py VERSION PROGRAM LIBRARY FOLDER")
    if os.uname().machine != "x86_64":
        die(f"this machine is {os.uname().machine}; wheels are made for x86_64 only")
    main(*sys.argv[1:])
