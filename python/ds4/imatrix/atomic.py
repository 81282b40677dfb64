"""A file that appears under its name when it is complete and on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ds4.gguf_writer import check_targets, sync_directory, umask


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    """Open a file to be written in a with block; nothing is left when the block raises.

    Raises
    ------
    OSError
        The file cannot be written, or exists and `force` is not set.
    """
    check_targets([(path, 0)], force=force)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
            os.fchmod(f.fileno(), 0o666 & ~umask())
        if path.exists() and not force:
            raise FileExistsError(errno.EEXIST, "appeared while writing", str(path))
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
        raise
    sync_directory(path.parent)
