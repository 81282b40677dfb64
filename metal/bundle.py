"""Puts the Metal kernels into one text, since Metal compiles at run time from a string without folders of headers.

bundle.py [-I DIR ...] SOURCE.metal OUT.metal       the text
bundle.py [-I DIR ...] SOURCE.metal OUT.cpp         the text as ds4::metal::kSource
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

INCLUDE = re.compile(r'^\s*#include "([^"]+)"\s*$')


def expand(path: Path, folders: list[Path], seen: set[Path]) -> list[str]:
    """Lines of a file, with its own includes in their place; files with `#pragma once` or guards once."""
    path = path.resolve()
    if path in seen:
        return []
    if path.suffix != ".inc":  # data may stand in several places
        seen.add(path)
    lines: list[str] = []
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        found = INCLUDE.match(line)
        if line.strip() == "#pragma once":
            continue
        if not found:
            lines.append(line)
            continue
        for folder in [path.parent, *folders]:
            if (folder / found[1]).is_file():
                lines += expand(folder / found[1], folders, seen)
                break
        else:
            # A header of the other languages is behind a conditional; Metal's own stand in angle brackets.
            raise SystemExit(f"bundle: {path.name}:{number}: no file {found[1]} in the folders of -I")
    return lines


def main() -> None:
    p = argparse.ArgumentParser(description="Metal kernels as one text")
    p.add_argument("-I", dest="folders", action="append", default=[], type=Path, help="folder of headers")
    p.add_argument("source", type=Path)
    p.add_argument("out", type=Path)
    a = p.parse_args()
    text = "\n".join(expand(a.source, a.folders, set())) + "\n"
    if a.out.suffix == ".cpp":
        if ")ds4msl" in text:
            raise SystemExit("bundle: the kernels contain the end mark of the string")
        head = '// Made by metal/bundle.py.\n#include "source.h"\n\n'
        text = f'{head}const char *const ds4::metal::kSource = R"ds4msl(\n{text})ds4msl";\n'
    a.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
