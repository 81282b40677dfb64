"""The reading of Metal sources: what it does not know stops the build; and the text that the library carries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRANSLATOR, BUNDLE = ROOT / "tests/simt/metal2cpp.py", ROOT / "metal/bundle.py"
FOLDERS = ("-I", str(ROOT / "metal"), "-I", str(ROOT / "src/ds4core"))
CXX = next((c for c in map(shutil.which, ("c++", "g++", "clang++")) if c), None)

KERNEL = """
#include <metal_stdlib>
using namespace metal;
struct args { uint n; };
kernel void good(constant args &a [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float line[LENGTH];
    line[tid] = float(a.n);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
""".replace("LENGTH", "8192")


def run(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True, check=False)


def translated(tmp_path: Path, source: str) -> tuple[str, str]:
    """The C++ and what was said."""
    if not CXX:
        pytest.skip("needs a C++ compiler for its preprocessor")
    (tmp_path / "k.metal").write_text(source)
    done = run(TRANSLATOR, "--cxx", CXX, str(tmp_path / "k.metal"), str(tmp_path / "k.cpp"))
    out = tmp_path / "k.cpp"
    return (out.read_text() if done.returncode == 0 else ""), done.stderr


def test_kernel_becomes_a_function_and_a_line_of_the_table(tmp_path: Path) -> None:
    code, said = translated(tmp_path, KERNEL)
    assert not said
    assert "DS4_THREADGROUP(float, line, (8192));" in code
    assert '{"good", sizeof(ds4_msl::args), ' in code
    assert "simt::self().thread" in code
    assert "[[buffer" not in code and "constant" not in code


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("thread_index_in_threadgroup", "thread_position_in_grid", "thread_position_in_grid is not known; known are"),
        ("uint tid [[", "ushort tid [[", "thread_index_in_threadgroup is uint here, got ushort"),
        ("buffer(0)", "buffer(1)", "the one buffer is a record"),
        ("constant args &a [[buffer(0)]], ", "", "no record"),
        ("uint tid [[thread_index_in_threadgroup]]", "uint tid", "parameter 'uint tid' has no attribute"),
        ("float(a.n)", "double(a.n)", "'double' is not for these kernels"),
        ("kernel void good", "threadgroup float b[4];\nkernel void good", "is declared in kernels, and passed"),
        ("struct args", "struct [[packed]] args", "attribute [[packed]] is not known"),
        ("kernel void good", "void good", "no kernel in the source"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in KERNEL
    code, said = translated(tmp_path, KERNEL.replace(old, new))
    assert not code and words in said


@pytest.mark.parametrize(("floats", "fits"), [(8192, True), (8193, False)])
def test_threadgroup_memory_has_its_limit(tmp_path: Path, floats: int, fits: bool) -> None:
    code, said = translated(tmp_path, KERNEL.replace("8192", str(floats)))
    assert code, said
    command = [str(CXX), "-std=c++20", "-fsyntax-only", f"-I{TRANSLATOR.parent}", str(tmp_path / "k.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == fits, done.stderr
    assert fits or "kernel good: more than 32 KiB of shared arrays" in done.stderr


def test_text_that_the_library_carries(tmp_path: Path) -> None:
    """One text without files beside it, with every kernel once."""
    done = run(BUNDLE, *FOLDERS, str(ROOT / "metal/ds4.metal"), str(tmp_path / "all.metal"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "all.metal").read_text()
    assert set(re.findall(r"#include\s+(\S+)", text)) == {"<metal_stdlib>", "<stdint.h>"}
    own = [p for p in sorted((ROOT / "metal").glob("*.metal")) if p.name != "ds4.metal"]
    named = {name for p in own for name in re.findall(r"^kernel void (\w+)\(", p.read_text(), flags=re.M)}
    assert len(named) > 15
    for name in named:
        assert len(re.findall(rf"\bkernel void {name}\(", text)) == 1, name
    assert CXX is not None
    done = run(TRANSLATOR, "--cxx", CXX, str(tmp_path / "all.metal"), str(tmp_path / "all.cpp"))
    assert done.returncode == 0, done.stderr


def test_text_as_a_string(tmp_path: Path) -> None:
    done = run(BUNDLE, *FOLDERS, str(ROOT / "metal/ds4.metal"), str(tmp_path / "source.cpp"))
    assert done.returncode == 0, done.stderr
    code = (tmp_path / "source.cpp").read_text()
    assert code.count("ds4msl") == 2 and 'kSource = R"ds4msl(' in code


def test_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "k.metal").write_text('#include "nowhere.metal"\n')
    done = run(BUNDLE, str(tmp_path / "k.metal"), str(tmp_path / "out.metal"))
    assert done.returncode == 1 and "k.metal:1: no file nowhere.metal" in done.stderr
