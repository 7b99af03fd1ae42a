#!/usr/bin/env python3
"""The library's binary interface against the recorded one, tests/lib/abi.txt: `test_abi.py [--record]`.

What is recorded: the soname, the prototypes of the functions in include/roseinfer.h, the offset and size of each member of
its structs, and the values of its constants. The exported symbols of build/libroseinfer.so must be those functions.
--record writes the file, after a change on purpose."""
import difflib
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
HEADER, RECORD = (os.path.join(ROOT, p) for p in ("include/roseinfer.h", "tests/lib/abi.txt"))


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def read_header():
    """Prototypes, structs with their members, constants."""
    with open(HEADER, encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    functions = [" ".join(p.split()) for p in re.findall(r"^ROSE_LIB_API\s(.*?);", text, re.S | re.M)]
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.S):
        structs[name] = [" ".join(m.split()) for m in body.split(";") if m.strip()]
    enums = re.findall(r"enum(?: \w+)? \{(.*?)\}", text, re.S)
    constants = [re.split(r"\s|=", m.strip())[0] for body in enums for m in body.split(",") if m.strip()]
    return functions, structs, constants + ["ROSE_LIB_ERR", "ROSE_LIB_VERSION_MAJOR"]


def layout(structs, constants):
    """What the compiler makes of them, by a program that prints it."""
    lines = []
    for name, members in structs.items():
        lines.append(f'printf("struct %s, %zu bytes\\n", "{name}", sizeof({name}));')
        for member in members:
            field = re.search(r"(\w+)$", member).group(1)
            lines.append(f'printf("    %zu, %zu bytes: %s\\n", offsetof({name}, {field}), '
                         f'sizeof((({name} *)0)->{field}), "{member}");')
    lines += [f'printf("constant {name} = %d\\n", (int)({name}));' for name in constants]
    with tempfile.TemporaryDirectory() as tmp:
        source, program = os.path.join(tmp, "layout.c"), os.path.join(tmp, "layout")
        with open(source, "w", encoding="utf-8") as f:
            f.write("#include <stdio.h>\n#include <roseinfer.h>\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        run("gcc", "-std=c11", "-Wall", "-Werror", "-Iinclude", "-o", program, source)  # the functions are not called
        return run(program).splitlines()


def main():
    run("make", "-s", "--no-print-directory", "-j2", "build/libroseinfer.so")
    functions, structs, constants = read_header()
    soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", "build/libroseinfer.so")).group(1)
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", "build/libroseinfer.so").splitlines()]
    names = sorted(re.search(r"(\w+)\(", f).group(1) for f in functions)
    failed = 0
    if sorted(exported) != names:
        failed += 1
        print(f"FAILED: the library exports {sorted(set(exported) - set(names))} beside the header, and lacks "
              f"{sorted(set(names) - set(exported))} of it")
    found = [f"soname {soname}"] + [f"function {f}" for f in sorted(functions, key=lambda f: re.search(r"\w+\(", f).group(0))]
    found += layout(structs, constants)
    if sys.argv[1:] == ["--record"]:
        with open(RECORD, "w", encoding="utf-8") as f:
            f.write("\n".join(found) + "\n")
    with open(RECORD, encoding="utf-8") as f:
        recorded = f.read().splitlines()
    if found != recorded:
        failed += 1
        print("\n".join(difflib.unified_diff(recorded, found, "tests/lib/abi.txt", "include/roseinfer.h", lineterm="")))
        print("FAILED: the binary interface differs from the recorded one. New functions, and new members at the end of a struct "
              "with `size`, need a higher ROSE_LIB_VERSION_MINOR. Any other change breaks programs: it needs a higher "
              "ROSE_LIB_VERSION_MAJOR, here and in the soname. Then run python3 tests/lib/test_abi.py --record.")
    print(f"{2 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
