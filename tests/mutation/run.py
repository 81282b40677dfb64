"""Breaks one mechanism of the native core at a time and shows that the tests notice.

usage: python tests/mutation/run.py [--only TEXT,...] [--jobs N]

Needs the installed package with its test extra, g++, and a build with some tests for each of about two hundred mutants
(ccache, if it is there, makes a second run short); not part of CI. Each mutant is a copy of the core with one text
replaced (mutants.py); the sources that hold or include the changed file are compiled again and the mutated library
stands in for the installed one under the tests that the mutant names, which must fail, or else under those of STAGES,
the last of which are all of tests/python/engine. A mutant that names tests of tests/python/native gets the module
ds4_kernels of the mutated core too. Exit status 1 when a mutant survives that should not, or when the unchanged core
fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ds4

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", '-DDS4_VERSION_TEXT="mutant"']
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"]
# Flags of the files whose names end so, as src/ds4core/CMakeLists.txt has them.
ISA = {
    "x86_64": {
        "_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
        "_avx512.cpp": AVX512,
        "_vnni.cpp": [*AVX512, "-mavx512vnni", "-mavx512vbmi"],
    },
    "aarch64": {
        "_dotprod.cpp": ["-march=armv8.2-a+dotprod"],
        "_i8mm.cpp": ["-march=armv8.2-a+dotprod+i8mm"],
    },
}.get(platform.machine(), {})
# Quick and telling tests first: most mutants die in seconds.
STAGES = (
    ["tests/python/engine/test_golden_logits.py", "-k", "logits_equal and (129 or 5) or mtp and 129"],
    ["tests/python/engine/test_weight_types.py"],
    ["tests/python/engine/test_qat.py", "tests/python/engine/test_snapshot.py"],
    ["tests/python/engine/test_portable.py", "tests/python/engine/test_state_arrays.py"],
    ["tests/python/engine/test_rewind.py"],
    ["tests/python/engine"],
)


NATIVE = ROOT / "tests" / "native"
CCACHE = ["ccache"] if shutil.which("ccache") else []
MOST_SECONDS = 1800  # a mutant that waits for ever is noticed


def compile_file(tree: Path, source: Path, out: Path) -> None:
    flags = [*FLAGS, *(flag for end, more in ISA.items() if source.name.endswith(end) for flag in more)]
    # Names relative to the tree: copies of it are the same to ccache.
    command = [*CCACHE, "g++", *flags, "-I", ".", "-I", "include", "-c", str(source.relative_to(tree)), "-o", str(out)]
    subprocess.run(command, cwd=tree, check=True)


def compile_kernels(tree: Path, folder: Path) -> list[Path]:
    """The objects of ds4_kernels without those of the core."""
    import pybind11

    include = ["-I", str(tree), "-I", str(tree / "include"), "-I", pybind11.get_include()]
    include += ["-I", sysconfig.get_paths()["include"]]
    objects = []
    for source in sorted(NATIVE.glob("kernels_*.cpp")):
        objects.append(folder / f"{source.stem}.o")
        flags = [*FLAGS, "-O0", "-fvisibility=hidden"]
        subprocess.run([*CCACHE, "g++", *flags, *include, "-c", str(source), "-o", str(objects[-1])], check=True)
    return objects


def link_kernels(objects: list[Path], folder: Path) -> None:
    out = folder / f"ds4_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["g++", "-shared", "-o", str(out), *map(str, objects), "-lpthread"], check=True)


def sources_with(tree: Path, changed: Path) -> list[Path]:
    """The .cpp files that are `changed` or include it, however indirectly."""
    includes = {
        p: re.findall(r'#include "(.+)"', p.read_text(encoding="utf-8")) for p in tree.rglob("*") if p.is_file()
    }
    found, new = {changed}, [changed]
    while new:
        name = str(new.pop().relative_to(tree))
        more = [p for p, names in includes.items() if name in names and p not in found]
        found.update(more)
        new += more
    return sorted(p for p in found if p.suffix == ".cpp")


def object_name(tree: Path, source: Path) -> str:
    return str(source.relative_to(tree)).replace("/", "_") + ".o"


def link(objects: list[Path], out: Path) -> None:
    command = ["g++", "-shared", "-Wl,-soname,libds4core.so", "-o", str(out), *map(str, objects), "-lpthread"]
    subprocess.run(command, check=True)


def passes(library: Path, stages: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Whether the tests pass with this library; the name of the test that failed."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "HYPOTHESIS_STORAGE_DIRECTORY": str(library.parent)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(library.parent), os.environ.get("PYTHONPATH", "")]))
    for stage in stages:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *stage]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
            )
        except subprocess.TimeoutExpired:
            return False, f"no end after {MOST_SECONDS} s"
        if done.returncode == 1:
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return False, failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else "a test failed"
        if done.returncode < 0 or done.returncode >= 128:
            return False, f"the process died ({done.returncode})"
        if done.returncode != 0:
            raise SystemExit(f"pytest itself failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return True, ""


def in_kernels(mutant: Mutant) -> bool:
    return any(test.startswith("tests/python/native") for test in mutant.tests)


def run_mutant(
    mutant: Mutant, tree: Path, base: dict[str, Path], kernels: list[Path], folder: Path
) -> tuple[Mutant, bool, str, float]:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as tmp:
        copy = Path(tmp) / "src"
        shutil.copytree(tree, copy)
        source = copy / mutant.file
        text = source.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(f"mutant {mutant.name!r}: its text occurs {text.count(mutant.old)} times in {mutant.file}")
        source.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        objects = dict(base)
        for again in sources_with(copy, source):
            name = object_name(copy, again)
            objects[name] = Path(tmp) / name
            compile_file(copy, again, objects[name])
        library = Path(tmp) / "libds4core.so"
        link(list(objects.values()), library)
        if in_kernels(mutant):
            link_kernels([*kernels, *objects.values()], library.parent)
        survived, killer = passes(library, [mutant.tests] if mutant.tests else STAGES)
    return mutant, survived, killer, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name contains one of these texts (comma between)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    tree = ROOT / "src" / "ds4core"
    chosen = [m for m in MUTANTS if any(text in m.name for text in args.only.split(","))]
    for m in chosen:
        found = (tree / m.file).read_text(encoding="utf-8").count(m.old)
        if found != 1:
            raise SystemExit(f"mutant {m.name!r}: its text occurs {found} times in {m.file}; update mutants.py")
    skipped = [m for m in chosen if m.levels and ds4.cpu_isa() not in m.levels]
    for m in skipped:
        print(f"skipped   {m.name:55} needs {' or '.join(m.levels)}", flush=True)
    chosen = [m for m in chosen if m not in skipped]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="ds4-mutation-") as tmp, ThreadPoolExecutor(args.jobs) as pool:
        folder = Path(tmp)
        sources = sorted(p for p in tree.rglob("*.cpp"))
        base = {object_name(tree, s): folder / object_name(tree, s) for s in sources}
        list(pool.map(lambda s: compile_file(tree, s, base[object_name(tree, s)]), sources))
        clean = folder / "libds4core.so"
        link(list(base.values()), clean)
        kernels = compile_kernels(tree, folder) if any(map(in_kernels, chosen)) else []
        if kernels:
            link_kernels([*kernels, *base.values()], folder)
        named = sorted({test for m in chosen for test in m.tests})
        stages = [*([named] if named else []), *(STAGES if any(not m.tests for m in chosen) else [])]
        ok, killer = passes(clean, stages)
        if not ok:
            raise SystemExit(f"the unchanged core fails {killer}")
        print(f"unchanged core: all tests pass; {len(chosen)} mutants follow", flush=True)
        for mutant, survived, killer, seconds in pool.map(lambda m: run_mutant(m, tree, base, kernels, folder), chosen):
            verdict = "SURVIVED" if survived else "caught"
            if survived == mutant.expected:
                wrong.append(mutant.name)
            note = "" if mutant.expected else " (not visible in the tiny models)"
            print(f"{verdict:9} {mutant.name:55} {seconds:5.0f} s  {killer}{note}", flush=True)
    caught = len(chosen) - len([m for m in chosen if not m.expected])
    print(f"{len(chosen)} mutants, {caught} expected to be caught; wrong: {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
