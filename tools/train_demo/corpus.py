"""The corpus of models/rose-tiny: cleaning, documents, and the split into training and held-out parts.

Input is one UTF-8 text file: books separated by a line "<|endoftext|>", paragraphs by a blank line.
Everything here is deterministic: same file, same documents, same split.
"""

import hashlib
import re

EOT = "<|endoftext|>"

HELD_OUT_EVERY = 4  # one book in four gives its last part to the held-out set ...
HELD_OUT_FIRST = 1  # ... starting with the second book
HELD_OUT_SHARE = 0.08  # of the characters of such a book: 2 % of the whole

# A heading that names its kind or number, one in capitals, or a short title without a full stop.
NUMBERED = re.compile(
    r"(CHAPTER|Chapter|STAVE|BOOK|Book|PART|Part|THE [A-Z]+ CHAPTER)\b.{0,90}"
    r"|[IVXL]+(\.| -|--)?( .{0,80})?"
    r"|[0-9]{1,2}\. .{0,60}"
)
TITLE = re.compile(r"[A-Z][^\"!?;:_*]{1,58}[A-Za-z]")


def is_heading(paragraph):
    p = paragraph.strip()
    if "\n" in p or not p or p[-1] in "\"',;":
        return False
    if NUMBERED.fullmatch(p) and not re.match(r"I [a-z]", p):
        return True
    if not TITLE.fullmatch(p.rstrip(".")):
        return False
    return p.upper() == p or (p[-1].isalpha() and len(p.split()) <= 9)


def clean(text):
    """Drop the zero-width characters of the source files and trailing blanks; nothing else."""
    text = text.replace("\u200b", "").replace("\u2060", "").replace("\u00a0", " ")
    return re.sub(r"[ \t]+\n", "\n", text)


def read_books(path):
    with open(path, "rb") as f:
        raw = f.read()
    books = [clean(b) for b in raw.decode("utf-8").split(EOT + "\n")]
    return books, hashlib.sha256(raw).hexdigest()


def chapters(book):
    """Split a book where a heading follows running text, so that the end of a text is a real event."""
    parts, current, after_heading = [], [], True
    for paragraph in re.split(r"\n\n+", book):
        if not paragraph.strip():
            continue
        heading = is_heading(paragraph)
        if heading and not after_heading and current:
            parts.append(current)
            current = []
        current.append(paragraph.rstrip())
        after_heading = heading
    if current:
        parts.append(current)
    return ["\n\n".join(p) + "\n" for p in parts]


def split(books):
    """(training documents, held-out documents): held out is the tail of every fourth book, from the
    first paragraph past the cut to the end of the book."""
    train, held = [], []
    for i, book in enumerate(books):
        if i % HELD_OUT_EVERY != HELD_OUT_FIRST:
            train += chapters(book)
            continue
        cut = book.find("\n\n", int(len(book) * (1.0 - HELD_OUT_SHARE))) + 2
        train += chapters(book[:cut])
        held += chapters(book[cut:])
    return train, held
