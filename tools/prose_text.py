"""Finds the prose of the tree: comments of C sources, and sentences of Markdown files. For prose_sample and prose_check."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".c", ".h", ".cu", ".cuh")
# Strings come first, so that a comment sign inside a string is no comment.
TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)
ABBREVIATIONS = re.compile(r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|No|St|p|pp|[A-Z])\.$")


def tracked():
    """Paths of all tracked files, and of new files that git does not ignore. Without git: of all files in the folders that we check."""
    try:
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = [p for f in ("src", "bench", "include", "tests", "fuzz", "docs") for p in (ROOT / f).rglob("*")]
        names = [p.relative_to(ROOT).as_posix() for p in found] + ["README.md"]
    return sorted(n for n in set(names) if (ROOT / n).is_file())


def source_files(folders):
    return [n for n in tracked() if n.startswith(tuple(f + "/" for f in folders)) and n.endswith(SOURCES)]


def doc_files():
    return [n for n in tracked() if n == "README.md" or re.fullmatch(r"docs/[^/]+\.md", n)]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def comments(name):
    """(line, text) of each comment. Neighbouring // lines are one comment."""
    source, found, last = read(name), [], None
    for m in TOKENS.finditer(source):
        raw = m.group(0)
        if raw[0] != "/":
            continue
        line = source.count("\n", 0, m.start()) + 1
        if raw.startswith("//"):
            alone = source[source.rfind("\n", 0, m.start()) + 1:m.start()].strip() == ""
            if alone and last == line - 1:
                found[-1][1].append(raw[2:].strip())
            else:
                found.append((line, [raw[2:].strip()]))
            last = line if alone else None
        else:
            found.append((line, [x.strip().lstrip("*").strip() for x in raw[2:-2].splitlines()]))
            last = None
    return [(line, "\n".join(lines).strip("\n")) for line, lines in found]


def paragraphs(name):
    """(line, [lines]) of each paragraph or list item of a Markdown file, without headings, tables and code."""
    found, fence, current = [], False, None
    for n, text in enumerate(read(name).splitlines(), 1):
        s = text.strip()
        if s.startswith("```"):
            fence, current = not fence, None
            continue
        item = re.match(r"(?:[-*+]|\d{1,2}\.)\s+", s)
        if fence or not s or s.startswith(("|", "#", "<", ">")):
            current = None
            continue
        if item or current is None:
            current = (n, [])
            found.append(current)
        current[1].append(s[item.end():] if item else s)
    return found


def sentences(line, lines):
    """(line, sentence) of a paragraph that begins at `line`."""
    text, at = "", []
    for i, part in enumerate(lines):
        text += (" " if text else "") + part
        at += [line + i] * (len(text) - len(at))
    found, begin = [], 0
    for m in re.finditer(r"[.!?:]?[.!?][)\"'*`]*(?=\s+[A-Z`\"'(\[*0-9])", text):
        if ABBREVIATIONS.search(text[begin:m.end()]):
            continue
        found.append((at[begin], text[begin:m.end()].strip()))
        begin = m.end() + len(text[m.end():]) - len(text[m.end():].lstrip())
    if text[begin:].strip():
        found.append((at[begin], text[begin:].strip()))
    return found


def doc_sentences(name):
    return [s for line, lines in paragraphs(name) for s in sentences(line, lines)]


def comment_sentences(name):
    found = []
    for line, text in comments(name):
        block, start = [], line
        for i, part in enumerate(text.split("\n") + [""]):
            if part:
                start = start if block else line + i
                block.append(part)
            elif block:
                found += sentences(start, block)
                block = []
    return found
