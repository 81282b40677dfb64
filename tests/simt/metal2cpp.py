"""Turns the Metal kernels into C++ for the host executor.

    metal2cpp.py --cxx COMPILER [-I DIR ...] SOURCE.metal OUT.cpp

The source goes through the compiler's preprocessor with `__METAL_VERSION__` defined, so that errors of the C++ name
lines of the .metal files. Then address spaces are taken away, `threadgroup` arrays become the executor's checked ones,
and each kernel gets a launcher that fills its parameters from the attributes. What this reading does not know stops the
build: other attributes, `double`, `threadgroup` arrays outside of kernels or with more than 32 KiB in a kernel.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

THREADGROUP_LIMIT = 32768

# Attribute of a parameter -> its type and what it is to the executor.
PARAMETERS = {
    "threadgroup_position_in_grid": (
        "uint3",
        "uint3{simt::current->index.x, simt::current->index.y, simt::current->index.z}",
    ),
    "thread_index_in_threadgroup": ("uint", "simt::self().thread"),
    "thread_index_in_simdgroup": ("uint", "simt::self().lane"),
    "simdgroup_index_in_threadgroup": ("uint", "simt::self().thread / 32"),
    "simdgroups_per_threadgroup": ("uint", "simt::current->n_threads / 32"),
}

KERNEL = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(([^{]*)\)\s*\{")
ARRAY = re.compile(r"\bthreadgroup\s+(\w+)\s+(\w+)\s*\[([^\]]*)\]\s*;")
POINTER = re.compile(r"\b(?:const\s+threadgroup|threadgroup\s+const|threadgroup)\s+(\w+)\s*\*")


def fail(message: str) -> NoReturn:
    raise SystemExit(f"metal2cpp: {message}")


def preprocess(source: Path, cxx: str, includes: list[str]) -> str:
    """The source with its own includes and macros expanded, and line markers."""
    own = Path(__file__).resolve().parent / "metal_only"
    command = [cxx, "-E", "-x", "c++", "-std=c++20", "-nostdinc", "-D__METAL_VERSION__=310"]
    command += [f"-I{d}" for d in [*includes, str(own)]] + [str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        fail(done.stderr.strip())
    return done.stdout


def end_of_block(text: str, begin: int, name: str) -> int:
    """Position after the brace that closes the one before `begin`."""
    depth = 1
    for m in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if m.group() == "{" else -1
        if depth == 0:
            return m.end()
    fail(f"{name}: the body has no end")


def launcher(name: str, parameters: str) -> tuple[str, str, str]:
    """Parameters without attributes, the record's type, and the arguments of the call."""
    plain, arguments, record = [], [], ""
    for text in re.split(r",(?![^\[]*\]\])", parameters):
        m = re.fullmatch(r"\s*(.*?)\s*(\w+)\s*\[\[\s*(\w+)\s*(?:\(\s*(\w+)\s*\))?\s*\]\]\s*", text, re.S)
        if not m:
            fail(f"kernel {name}: parameter '{' '.join(text.split())}' has no attribute")
        kind, variable, attribute, number = m.groups()
        kind = " ".join(kind.split())
        if attribute == "buffer":
            r = re.fullmatch(r"constant (\w+) &", kind)
            if not r or number != "0" or record:
                fail(f"kernel {name}: the one buffer is a record: constant T &name [[buffer(0)]], got '{kind}'")
            record = r.group(1)
            plain.append(f"const {record} &{variable}")
            arguments.append(f"*static_cast<const {record} *>(record)")
        elif attribute in PARAMETERS:
            expected, value = PARAMETERS[attribute]
            if kind != expected:
                fail(f"kernel {name}: {attribute} is {expected} here, got {kind}")
            plain.append(f"[[maybe_unused]] {kind} {variable}")
            arguments.append(value)
        else:
            fail(f"kernel {name}: attribute {attribute} is not known; known are buffer, {', '.join(PARAMETERS)}")
    if not record:
        fail(f"kernel {name}: no record [[buffer(0)]]")
    return ", ".join(plain), record, ", ".join(arguments)


def translate(text: str) -> str:
    """The C++ of preprocessed Metal source."""
    code = re.sub(r"^#.*$", "", text, flags=re.M)  # line markers
    for word in ("double", "atomic_uint", "goto"):
        if re.search(rf"\b{word}\b", code):
            fail(f"'{word}' is not for these kernels")
    out, table, names, at = [], [], set(), 0
    for m in KERNEL.finditer(text):
        name = m.group(1)
        if name in names:
            fail(f"two kernels are called {name}")
        names.add(name)
        end = end_of_block(text, m.end(), name)
        plain, record, arguments = launcher(name, m.group(2))
        body = text[m.end() : end]
        arrays = ARRAY.findall(body)
        body = ARRAY.sub(r"DS4_THREADGROUP(\1, \2, (\3));", body)
        total = " + ".join(f"ds4_msl::threadgroup_bytes<{kind}>({n})" for kind, _, n in arrays) or "0"
        out += [text[at : m.start()], f"static void {name}({plain}) {{", body]
        # On the line of the closing brace, so that the lines after it keep their numbers.
        out.append(
            f' static_assert({total} <= {THREADGROUP_LIMIT}, "kernel {name}: more than 32 KiB of shared arrays");'
        )
        entry = f"using namespace ds4_msl; {name}({arguments});"
        table.append(f'    {{"{name}", sizeof(ds4_msl::{record}), [](const void *record) {{ {entry} }}}},')
        at = end
    if not names:
        fail("no kernel in the source")
    out.append(text[at:])
    code = "".join(out)
    code = POINTER.sub(r"simt::Array<\1> ", code)
    left = re.search(r"\bthreadgroup\b[^;{]*", code)
    if left:
        fail(f"'{' '.join(left.group().split())}': threadgroup memory is declared in kernels, and passed as a pointer")
    left = re.search(r"\[\[(?!maybe_unused)[^\]]*\]\]", code)
    if left:
        fail(f"attribute {left.group()} is not known")
    code = re.sub(r"\b(device|thread)\b ?", "", code)
    code = re.sub(r"\bconstant\b", "const", code)
    return "\n".join(
        [
            "// Made by tests/simt/metal2cpp.py.",
            '#include "metal_stdlib"',
            '#include "metal_kernels.h"',
            "namespace ds4_msl {",
            "using namespace metal;",
            code,
            "}  // namespace ds4_msl",
            "const ds4_metal_kernel ds4_metal_kernels[] = {",
            *table,
            "};",
            f"const unsigned ds4_metal_n_kernels = {len(table)};",
            "",
        ]
    )


def main() -> None:
    p = argparse.ArgumentParser(description="Metal kernels as C++ for the host executor")
    p.add_argument("--cxx", required=True, help="compiler whose preprocessor is used")
    p.add_argument("-I", dest="includes", action="append", default=[], help="folder of headers")
    p.add_argument("source", type=Path)
    p.add_argument("out", type=Path)
    a = p.parse_args()
    if not a.source.is_file():
        fail(f"{a.source}: no such file")
    a.out.write_text(translate(preprocess(a.source, a.cxx, a.includes)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
