"""Whether a separate file with an MTP block was made for a model: what the heads of both files tell."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from .errors import UnsupportedModelError
from .gguf import GGUFFile

__all__ = ["check_pair"]

# Values that describe the file rather than the block.
_OF_THE_FILE = ("block_count", "nextn_predict_layers", "context_length")
# Names by which a file tells what it was made from.
_NAMES = ("general.basename", "general.version", "general.finetune", "general.base_model.0.name")


def check_pair(model: Mapping[str, Any], path: str, mtp: str | os.PathLike[str]) -> tuple[str, ...]:
    """Compare the metadata of a model with those of its MTP file.

    Two trainings of one architecture have heads of the same numbers; only names, if the files have some, tell them
    apart.

    Parameters
    ----------
    model : mapping
        Metadata of the model.
    path, mtp : path-like
        Of both files.

    Returns
    -------
    tuple of str
        Warnings: names that differ.

    Raises
    ------
    UnsupportedModelError
        The file says other numbers of the architecture than the model; the text has both.
    """
    shown = os.fsdecode(mtp)
    with GGUFFile(mtp) as file:
        block = file.metadata
        start = f"{model['general.architecture']}."
        wrong = [
            f"  {key} is {_short(block[key])}, in the model {_short(model[key])}"
            for key in block
            if key.startswith(start)
            and key.removeprefix(start) not in _OF_THE_FILE
            and key in model
            and not _same(block[key], model[key])
        ]
        if wrong:
            raise UnsupportedModelError(
                f"{shown} holds the MTP block of another model than {path}:\n" + "\n".join(wrong), path=shown
            )
        return tuple(
            f"{shown}: {key} is {_short(block[key])}, in {path} it is {_short(model[key])}; drafts of a block "
            "of another model are seldom right"
            for key in _NAMES
            if key in block and key in model and block[key] != model[key]
        )


def _same(a: Any, b: Any) -> bool:
    """Whether two values say the same; lists, which may be of the layers that a file has, are not compared."""
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return math.isclose(a, b, rel_tol=1e-6) if numbers else not isinstance(a, str) or a == b


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
