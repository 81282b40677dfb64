"""Plain English text: passages of 60 to about 1200 tokens, without any chat template.

usage: python -m data.english --packages DIR --out DIR

--packages is a folder with the unpacked Debian packages bible-kjv, bible-kjv-text, python3.11-doc and
wordnet-base (`apt-get download`, then `dpkg-deb -x FILE DIR`); --out gets one text file per source: a paragraph a
line, an empty line between documents.  The generators find that folder in the environment variable DS4_ENGLISH;
without it there is no English text, and everything else works.

Every document is cut once and for all into passages of consecutive paragraphs; one passage in twenty is held out,
by its hash.
"""

import argparse
import functools
import math
import os
import pathlib
import random
import re
import subprocess

from .common import held

SHARES = {"bible": 0.4, "python": 0.4, "wordnet": 0.2}
SHORTEST, LONGEST = 160, 2900  # characters; about 2.4 of them make a token
WEIGHT = 0.3  # of a token in the loss: much of it is beyond a small model, and it must not drown the rest


def available():
    return bool(os.environ.get("DS4_ENGLISH"))


def cut(document, rng):
    """Passages of consecutive paragraphs, each with a length drawn from SHORTEST to LONGEST."""

    def length():
        return math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST)))

    part, want = [], length()
    for paragraph in document:
        part.append(paragraph)
        if sum(map(len, part)) + len(part) >= want:
            yield "\n".join(part)[: LONGEST + 300]
            part, want = [], length()


@functools.cache
def passages(source, train):
    """All passages of a source that belong to the training or to the held-out set."""
    path = pathlib.Path(os.environ["DS4_ENGLISH"]) / f"{source}.txt"
    rng = random.Random(f"english-{source}")
    out = []
    for document in path.read_text(encoding="utf-8").split("\n\n"):
        out += [p for p in cut(document.splitlines(), rng) if held(f"english {p}") != train]
    return out


def passage(rng, train):
    source = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return rng.choice(passages(source, train))


def make(rng, train, mode=None):
    text = passage(rng, train)
    return dict(text=text, mode="text", key=text, weight=WEIGHT)


# ----------------------------------------------------------------------------------------- the text files
def bible(root):
    """Chapters of verses, as the package's own program prints them."""
    data = next(root.rglob("bible.data")).parent
    run = [str(next(root.rglob("bin/bible"))), "-p", str(data), "-f", "Gen1:1-Rev22:21"]
    text = subprocess.run(run, capture_output=True, check=True, text=True).stdout
    chapter, out = None, []
    for line in text.splitlines():
        where, _, verse = line.partition(" ")
        if where.partition(":")[0] != chapter:
            chapter = where.partition(":")[0]
            out.append([])
        out[-1].append(verse.strip())
    return out


def prose(text):
    """The paragraphs of a reStructuredText page that are plain sentences."""
    text = re.sub(r":[\w:+-]+:`[!~]?([^`<]*?)(?: <[^`]*>)?`", r"\1", text)
    text = re.sub(r"``?([^`]*)``?_*", r"\1", text)
    text = (
        re.sub(r"(?<!\w)\*{1,2}([^*\n]+)\*{1,2}(?!\w)", r"\1", text).replace("\\ ", "").replace("::\n", ":\n")
    )
    for paragraph in re.split(r"\n\s*\n", text):
        first = paragraph.lstrip("\n")[:1]
        flat = " ".join(paragraph.split())
        plain = all(32 <= ord(c) < 127 for c in flat) and not re.search(r"[|`{}<>]|\.\. |[=~^-]{3}|_ ", flat)
        if first.isalpha() and first.isupper() and len(flat) > 80 and flat[-1] in ".:!?" and plain:
            yield flat


def python(root):
    pages = sorted(root.rglob("_sources/**/*.rst.txt"))
    skip = ("whatsnew", "license", "copyright", "c-api")
    pages = [p for p in pages if not any(s in str(p) for s in skip)]
    return [list(prose(p.read_text(encoding="utf-8"))) for p in pages]


def wordnet(root):
    """Entries 'word: definition', a hundred in a document."""
    lines = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in next(root.rglob(f"wordnet/data.{part}")).read_text(encoding="ascii").splitlines():
            if not line.startswith(" "):
                fields, _, gloss = line.partition(" | ")
                word = re.sub(r"\(\w+\)", "", fields.split()[4]).replace("_", " ")
                lines.append(f"{word}: {gloss.strip()}")
    return [lines[i : i + 100] for i in range(0, len(lines), 100)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--packages", required=True, type=pathlib.Path)
    ap.add_argument("--out", required=True, type=pathlib.Path)
    a = ap.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for read in (bible, python, wordnet):
        documents = ["\n".join(d) for d in read(a.packages) if d]
        text = "\n\n".join(documents)
        (a.out / f"{read.__name__}.txt").write_text(text + "\n", encoding="utf-8")
        print(f"{read.__name__}: {len(documents)} documents, {len(text)} characters")


if __name__ == "__main__":
    main()
