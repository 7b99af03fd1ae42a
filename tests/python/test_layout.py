#!/usr/bin/env python3
"""The structs and functions that the Python module declares against include/roseinfer.h: `test_layout.py ROOT`; closes with
`N passed, N failed`. A C program prints the size of each struct and the offset of each member."""
import ctypes
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(sys.argv[1])
sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "packages")]
# The package itself loads the library, which this test does not need.
sys.modules["roseinfer"] = type(sys)("roseinfer")
sys.modules["roseinfer"].__path__ = [os.path.join(ROOT, "python", "roseinfer")]
from checks import check, results  # noqa: E402
from roseinfer import _native as n  # noqa: E402

with open(os.path.join(ROOT, "include", "roseinfer.h"), encoding="utf-8") as f:
    HEADER = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)


def layout_in_c(names):
    lines = [f'printf("{struct} %zu\\n", sizeof(struct {struct}));' for struct in names]
    lines += [f'printf("{s}.{m} %zu\\n", offsetof(struct {s}, {m}));' for s in names for m in names[s]]
    lines += [f'printf("{c} %d\\n", (int){c});' for c in ENUMS.values()]
    source = "#include <roseinfer.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "layout")
        subprocess.run(["gcc", "-std=c11", "-I", os.path.join(ROOT, "include"), "-x", "c", "-", "-o", program],
                       input=source.encode(), check=True)
        out = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout.decode()
    return dict(line.split() for line in out.splitlines())


ENUMS = {name: "ROSE_LIB_" + name for name in ("FREE", "JSON_OBJECT", "JSON_SCHEMA", "REGEX", "CHOICE", "GRAMMAR", "TAG",
                                               "RUNNING", "STOP", "LENGTH", "CANCELLED", "FAILED", "STOP_NONE",
                                               "STOP_EOS", "STOP_ID", "STOP_STRING")}
# The members of each struct as the header has them, so that one that is missing in Python is found.
MEMBERS = {}
for struct in n.STRUCTS:
    body = re.search(r"typedef struct " + struct + r" \{(.*?)\}", HEADER, re.S).group(1)
    MEMBERS[struct] = re.findall(r"(\w+);", body)
there = layout_in_c(MEMBERS)
for struct, ours in n.STRUCTS.items():
    names = [name for name, _ in ours._fields_]
    check(f"{struct}: members", names == MEMBERS[struct], (names, MEMBERS[struct]))
    check(f"{struct}: size", ctypes.sizeof(ours) == int(there[struct]), (ctypes.sizeof(ours), there[struct]))
    for name in names:
        offset = getattr(ours, name).offset
        check(f"{struct}.{name}: offset", offset == int(there[f"{struct}.{name}"]), (offset, there[f"{struct}.{name}"]))
for name, constant in ENUMS.items():
    check(f"{constant}", getattr(n, name) == int(there[constant]), (getattr(n, name), there[constant]))
errors = {int(v) for v in re.findall(r"ROSE_LIB_E_\w+ = (-\d+)", HEADER)}
check("each error of the header has an exception", errors == set(n._ERRORS), (errors, set(n._ERRORS)))
check("the version of the API", f"ROSE_LIB_VERSION_MAJOR {n.API_MAJOR}" in re.sub(r" +", " ", HEADER))
check("the size of an error", f"ROSE_LIB_ERR {n.ERR_BYTES}" in re.sub(r" +", " ", HEADER))
for name, (_, arguments) in n._FUNCTIONS.items():
    m = re.search(r"\brose_lib_" + name + r"\((.*?)\);", HEADER, re.S)
    count = 0 if m is None or m.group(1) == "void" else m.group(1).count(",") + 1
    check(f"rose_lib_{name}: arguments", m is not None and count == len(arguments), (count, len(arguments)))
sys.exit(results())
