"""Back ends as shared objects: found, listed, loaded, and refused with a reason."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import ds4
import pytest
from support import gpu


def test_the_list_says_why_a_back_end_is_not_there() -> None:
    found = {b.name: b for b in ds4.backends()}
    assert list(found)[:4] == ["cpu", "cuda", "hip", "metal"]
    assert found["cpu"].available and found["cpu"].device == "CPU" and not found["cpu"].reason
    for name in ("cuda", "hip", "metal"):
        backend = found[name]
        if not backend.available:
            assert name in backend.reason
            with pytest.raises(ds4.BackendUnavailableError, match=re.escape(backend.reason[:60])):
                ds4.Model.open_embedded(backend=name)


def test_a_loaded_back_end_is_listed_with_its_device() -> None:
    library = gpu.host_library("cuda_host")
    assert ds4.load_backend(library) == "cuda-host"
    assert ds4.load_backend(library) == "cuda-host"  # again is no fault
    (found,) = [b for b in ds4.backends() if b.name == "cuda-host"]
    assert found.available and found.device == "host executor, warps of 32" and found.arch == "simt32"
    assert 0 < found.free_bytes <= found.total_bytes and not found.unified


def test_a_second_library_of_the_same_name_is_refused(tmp_path: Path) -> None:
    library = gpu.host_library("cuda_host")
    ds4.load_backend(library)
    copy = tmp_path / "other.so"
    shutil.copy(library, copy)
    with pytest.raises(ds4.StateError, match=r"backend 'cuda-host' is loaded already, from .*libds4_cuda_host\.so"):
        ds4.load_backend(copy)


def test_files_that_are_no_back_ends(tmp_path: Path) -> None:
    with pytest.raises(ds4.BackendUnavailableError, match=r"nowhere\.so: No such file"):
        ds4.load_backend(tmp_path / "nowhere.so")
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(ds4.BackendUnavailableError, match=r"text\.so cannot be loaded: .*"):
        ds4.load_backend(text)
    with pytest.raises(ValueError, match="no path"):
        ds4.load_backend("")
    with pytest.raises(ValueError, match="NUL"):
        ds4.load_backend("a\0b")
    with pytest.raises(ValueError, match="unknown backend 'tpu'"):
        ds4.Model.open_embedded(backend="tpu")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_libraries_of_another_version(tmp_path: Path) -> None:
    def build(name: str, source: str) -> Path:
        (tmp_path / f"{name}.c").write_text(source)
        made = tmp_path / f"{name}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, tmp_path / f"{name}.c"], check=True)
        return made

    with pytest.raises(ds4.BackendUnavailableError, match="is no backend of ds4: it has no ds4_backend_entry"):
        ds4.load_backend(build("empty", "int nothing;"))
    old = build("old", "unsigned t[64] = {3, 8}; const void *ds4_backend_entry(void) { return t; }")
    with pytest.raises(
        ds4.BackendUnavailableError, match=r"speaks version 3 of the interface \(8 bytes\), this ds4 version"
    ):
        ds4.load_backend(old)
