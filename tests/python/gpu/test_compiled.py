"""Back ends compiled for real devices (scripts/gpu-compile), where there is no device: they load and say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = os.environ.get("DS4_GPU_COMPILED", "")

SHOW = """
import ds4, sys
ds4.load_backend(sys.argv[1])
name = sys.argv[2]
try:
    ds4.Model.open_embedded(backend=name)
except ds4.BackendUnavailableError as error:
    (found,) = [b for b in ds4.backends() if b.name == name]
    assert not found.available and found.reason == str(error), found
    print(error)
else:
    print("it works")
"""


@pytest.mark.skipif(not FOLDER, reason="DS4_GPU_COMPILED does not say where they are")
@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        ("libds4_cuda.so", "cuda", "no NVIDIA driver is installed"),
        ("libds4_hip_gfx942.so", "hip", "no AMD GPU"),
        ("libds4_hip_gfx1151.so", "hip", "no AMD GPU"),
    ],
)
def test_no_device_is_told(file: str, name: str, words: str) -> None:
    path = Path(FOLDER) / file
    if not path.exists():
        pytest.skip(f"no {file} in {FOLDER}")
    done = subprocess.run([sys.executable, "-c", SHOW, path, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "it works" in done.stdout:
        pytest.skip("there is a device")
    assert done.stdout.startswith(f"backend '{name}': no device can be used: ") and words in done.stdout, done.stdout
