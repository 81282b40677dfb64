"""Asking the engine whether a planned file would run, before hours are spent on writing it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ds4 import Model, UnsupportedModelError
from ds4.gguf_writer import KV, TensorInfo, make_layout, write_sparse


def check_runs(kvs: Sequence[KV], tensors: Sequence[TensorInfo], *, what: str = "converted") -> None:
    """Check a directory against the shapes and tensors that the engine accepts.

    The engine reads files, so it gets one: the directory, and the full size without payload, which takes no room
    on the disk. `what` names the file in the error.

    Raises
    ------
    UnsupportedModelError
        The shape is not registered or a tensor differs; every difference is listed.
    """
    layout = make_layout(kvs, tensors)
    with tempfile.TemporaryDirectory(prefix="ds4-convert-") as folder:
        path = Path(folder) / "plan.gguf"
        try:
            with open(path, "wb") as f:
                write_sparse(f, layout)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        try:
            Model.open(path).close()
        except UnsupportedModelError as error:
            text = str(error.args[0]).replace(f"{path}: ", "")
            raise UnsupportedModelError(f"the {what} file would not run: {text}") from None
