"""Which experts of a model are selected often: a file for each model, which lets the next start begin warm.

A file is the magic, version, number of experts (uint32, little-endian), the fingerprint of the model, one float32 for
every expert (`Model.expert_heat`), and 16 bytes of BLAKE2b over all that.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .user_cache import user_cache, write_private

__all__ = ["hotness_file", "read_hotness", "write_hotness"]

_MAGIC = b"DS4 heat"
_VERSION = 1
_HEAD = struct.Struct("<8sII16s")
_CHECK = 16


def hotness_file(fingerprint: bytes) -> Path:
    """Return the name of the file of a model, in the user's cache directory (XDG_CACHE_HOME, else ~/.cache).

    Raises
    ------
    RuntimeError
        The user has no home directory.
    """
    return user_cache() / "experts" / f"{fingerprint.hex()}.heat"


def read_hotness(path: Path, fingerprint: bytes, n_experts: int) -> NDArray[np.float32]:
    """Return the values of a file.

    Raises
    ------
    OSError
        It cannot be read; FileNotFoundError when there is none.
    ValueError
        It is damaged, of another version or of another model; the text says which.
    """
    size = _HEAD.size + 4 * n_experts + _CHECK
    with path.open("rb") as file:
        data = file.read(size + 1)
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"{path}: no file of expert selections")
    _, version, n, owner = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"{path}: version {version}; this release reads {_VERSION}")
    if owner != fingerprint or n != n_experts:
        raise ValueError(f"{path}: of another model")
    body, check = data[:-_CHECK], data[-_CHECK:]
    if len(data) != size or hashlib.blake2b(body, digest_size=_CHECK).digest() != check:
        raise ValueError(f"{path}: damaged")
    values = np.frombuffer(body, "<f4", offset=_HEAD.size).astype(np.float32)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(f"{path}: damaged: a value is no count")
    return values


def write_hotness(path: Path, fingerprint: bytes, values: NDArray[np.float32]) -> None:
    """Write a file, readable for its owner only; under its name there is always a whole one.

    Raises
    ------
    OSError
        It cannot be written.
    """
    body = _HEAD.pack(_MAGIC, _VERSION, len(values), fingerprint) + np.asarray(values, "<f4").tobytes()
    write_private(path, body + hashlib.blake2b(body, digest_size=_CHECK).digest())
