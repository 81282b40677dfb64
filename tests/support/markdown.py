"""Python examples of the documents: finding them and running them as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ds4 import Model


def python_blocks(path: Path) -> list[str]:
    """The Python code blocks of a Markdown file, in order."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def has_embedded_model() -> bool:
    try:
        return Model.embedded_path().is_file()
    except FileNotFoundError:
        return False


def check_runs(code: str, folder: Path) -> None:
    """Assert that the code runs in that folder without a warning and prints something."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-W", "error", "-c", code],
        capture_output=True,
        encoding="utf-8",
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
