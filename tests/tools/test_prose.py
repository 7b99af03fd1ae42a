#!/usr/bin/env python3
"""tools/prose_check and tools/prose_sample: each marker is found, plain sentences are not, a seed gives one sample.

Closes with `N passed, N failed`. Needs Python's standard library alone.
"""
import os
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
results = {"passed": 0, "failed": 0}

MARKED = ["Of these rows one is read twice.", "Those come later.", "Such a row is zero.", "Likewise for the head.",
          "The copy comes behind the kernel.", "The wait comes in front of the load.", "Blocks take tiles by turns.",
          "A warp reads up to so many rows.", "The head is read, too.", "This row was for nothing.", "The time from the begin of a step.",
          "The halves run abreast.", "It asks for all first-level memory.", "The copy engine adds."]
PLAIN = ["Of course the row is read.", "A proxy stands in front of the server.", "The server runs behind a reverse proxy.",
         "There are so many tiles that every SM has one.", "Nothing is left behind.", "The row is too long.", "The field asks for nothing.",
         "The option `so many` is quoted, and so is 'a word'."]
CODE = 'const char *s = "/* Of a string, no comment. */";\n/* A plain comment\n * of two lines. */\nint x; // Of one line.\n'


def check(name, ok, detail=""):
    results["passed" if ok else "failed"] += 1
    print(f"[{'       OK' if ok else '  FAILED '} ] {name}" + ("" if ok else f"\n    {detail}"), flush=True)


def run(tool, *args):
    p = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tools", tool), *args], stdout=subprocess.PIPE, text=True)
    return p.returncode, p.stdout


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


with tempfile.TemporaryDirectory() as folder:
    for kind, form in (("c", "/* First sentence. {} */\n"), ("md", "First sentence. {}\n")):
        rc, out = run("prose_check", write(folder, "x." + kind, "".join(form.format(s) for s in MARKED)))
        found = out.splitlines()
        check(f"{kind}: each marker is found once", rc == 1 and len(found) == len(MARKED), out)
        for i, sentence in enumerate(MARKED):
            check(f"{kind}: {sentence}", any(f":{i + 1}: " in f and f.endswith(": " + sentence) for f in found), out)
        rc, out = run("prose_check", write(folder, "x." + kind, "".join(form.format(s) for s in PLAIN)))
        check(f"{kind}: plain sentences pass", rc == 0, out)
    rc, out = run("prose_check", write(folder, "x.c", CODE))
    check("strings are no comments; the line is right", rc == 1 and out.count("\n") == 1 and "x.c:4: " in out, out)
    table = "| Of a table |\n|---|\n\n```\nOf code\n```\n\n# Of a heading\n" + "|" + 200 * "x" + "|\n"
    rc, out = run("prose_check", write(folder, "x.md", table))
    check("tables, code and headings are not checked", rc == 0, out)
    rc, out = run("prose_check", write(folder, "x.md", "Word " * 40 + "\n"))
    check("long lines are found", rc == 1 and "columns" in out, out)
    rc, out = run("prose_check", "--long", "25", write(folder, "x.md", "word\n" * 26))
    check("--long", rc == 1 and "26 words" in out, out)

first = run("prose_sample", "--seed", "5", "--comments", "7", "--sentences", "3")
again = run("prose_sample", "--seed", "5", "--comments", "7", "--sentences", "3")
other = run("prose_sample", "--seed", "6", "--comments", "7", "--sentences", "3")
check("prose_sample: a seed draws one sample", first[0] == 0 and first == again and first != other, (first, again))
check("prose_sample: as many as asked for", "\n10. " in first[1] and "\n11. " not in first[1], first[1])
check("prose_sample: CUDA kernels too", "src/backend/cuda/gemm_tiles.cu" in run("prose_sample", "--seed", "1", "--comments", "9999")[1])
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(1 if results["failed"] else 0)
