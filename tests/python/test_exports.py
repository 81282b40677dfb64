"""The public names, the stubs of the native modules, and what importing costs."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import ds4
import pytest

PACKAGE = Path(ds4.__file__).parent
ROOT = Path(__file__).parents[2]


def test_all_equals_the_public_names() -> None:
    """Every name of `__all__` exists, and nothing else looks public."""
    for name in ds4.__all__:
        assert getattr(ds4, name) is not None
    assert len(set(ds4.__all__)) == len(ds4.__all__)
    submodules = {path.stem for path in PACKAGE.iterdir() if not path.stem.startswith("_")}
    helpers = {"annotations", "import_module", "TYPE_CHECKING", "Any"}
    public = {name for name in dir(ds4) if not name.startswith("_")}
    assert public - submodules - helpers == set(ds4.__all__) - {"__version__"}


def test_all_is_what_the_modules_of_the_floor_offer() -> None:
    """A public class of a module is a public class of the package, functions by choice."""
    for home in ("errors", "experts", "gguf", "library", "model", "sampling", "session", "shapes", "stops"):
        module = importlib.import_module(f"ds4.{home}")
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type) and name != "TypeInfo":
                assert getattr(ds4, name) is value, f"{home}.{name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Modell"):
        ds4.Modell  # type: ignore[attr-defined]  # noqa: B018


def test_versions_agree() -> None:
    """The package, its metadata and the native library inside it are one release."""
    assert ds4.__version__ == ds4.native_version()


def run(code: str, *path: str) -> str:
    environment = {"PYTHONPATH": ":".join(path)} if path else None
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    return (done.stdout + done.stderr).strip()


def test_importing_does_no_work() -> None:
    """Neither the native library nor numpy is loaded before a name asks for it."""
    code = "import sys, ds4; print(sorted({'numpy', 'tiktoken', 'ds4._native', 'ds4.session'} & set(sys.modules)))"
    assert run(code) == "[]"


def test_a_missing_native_library_is_told_in_a_sentence(tmp_path: Path) -> None:
    """As in a source tree that was never built: the text tools work, a model asks for the build."""
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("chat/*"), PACKAGE / "_native" / "__init__.py"]:
        if path.is_file():
            copy = tmp_path / "ds4" / path.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    # An editable install finds ds4 by an import hook; -S and an own path leave only the copy.
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in type(f).__module__]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
    )
    assert run(code + "import ds4.chat; print(ds4.chat.MODES[0])") == "chat"
    text = run(code + "import ds4; ds4.Model")
    assert re.search(r"ImportError: the native library of ds4 is not built: .*pip install", text), text


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_stubs_fit_the_native_modules() -> None:
    modules = ["_core", "_gguf", "_model", "_session"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy.stubtest",
            "--concise",
            "--allowlist",
            str(Path(__file__).with_name("stubtest_allowlist.txt")),
            *(f"ds4._native.{name}" for name in modules),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not (ROOT / "python" / "ds4").is_dir(), reason="not in a checkout")
def test_every_native_module_has_its_three_files() -> None:
    native = ROOT / "python" / "ds4" / "_native"
    modules = {path.stem for path in native.glob("_*.pyx")}
    for suffix in (".pxd", ".pyi"):
        assert {path.stem for path in native.glob(f"_*{suffix}")} - {"_capi"} == modules
