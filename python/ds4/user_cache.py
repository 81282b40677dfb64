"""The user's cache directory: where it is, and how a file is put there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["user_cache", "write_private"]


def user_cache() -> Path:
    """Return the directory of this program in the user's cache (XDG_CACHE_HOME, else ~/.cache); it may not exist yet.

    Raises
    ------
    RuntimeError
        The user has no home directory.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored, says the specification of these directories.
    base = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
    return base / "ds4"


def write_private(path: Path, data: bytes) -> None:
    """Write a file, readable for its owner only; under its name there is always a whole one.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)  # mode 0600
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
