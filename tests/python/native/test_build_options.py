"""Build options: what is not known, or not built yet, stops the configuration and says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONS = Path(__file__).resolve().parents[3] / "cmake" / "Options.cmake"

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")


def configure(*defines):
    done = subprocess.run(
        ["cmake", *(f"-D{define}" for define in defines), "-P", OPTIONS], capture_output=True, text=True, check=False
    )
    return done.returncode, " ".join(done.stderr.split())  # cmake wraps its messages


def test_known_options_are_accepted():
    assert configure() == (0, "")
    assert configure("DS4_BUILD_TESTS=ON", "DS4_SANITIZE=address;undefined", "DS4_CUDA=OFF") == (0, "")


@pytest.mark.parametrize("name", ["DS4_CUDDA", "DS4_NATIVE", "DS4_SANITISE"])
def test_an_unknown_option_is_named(name):
    code, text = configure(f"{name}=ON")
    assert code != 0
    assert f"unknown build option {name}" in text
    assert "DS4_SANITIZE" in text


def test_architectures_are_checked():
    assert configure("DS4_CUDA=ON", "DS4_CUDA_ARCHITECTURES=80;90a;120") == (0, "")
    code, text = configure("DS4_CUDA_ARCHITECTURES=sm_80")
    assert code != 0 and "'sm_80' is no list of numbers" in text
    assert configure("DS4_HIP=ON", "DS4_HIP_ARCHITECTURES=gfx1100;gfx1151") == (0, "")
    code, text = configure("DS4_HIP_ARCHITECTURES=rdna3")
    assert code != 0 and "'rdna3' is no architecture" in text
    code, text = configure("DS4_HIP_ARCHITECTURES=gfx942;gfx1151")
    assert code != 0 and "build one library for each" in text


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Metal")
def test_metal_is_built_on_macos_only():
    code, text = configure("DS4_METAL=ON")
    assert code != 0
    assert "Metal is a part of macOS" in text


def test_an_unknown_sanitizer_is_named():
    code, text = configure("DS4_SANITIZE=bogus")
    assert code != 0
    assert "'bogus'" in text
