"""The native library as a whole."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ._native import _core

__all__ = ["Backend", "backends", "cpu_isa", "load_backend", "native_version", "set_cpu_isa"]


@dataclass(frozen=True, slots=True)
class Backend:
    """What can compute, or why it cannot.

    Attributes
    ----------
    name : str
        For `ds4.Model.open`.
    available : bool
        Whether it has a device here.
    reason : str
        Why not; empty when it has one.
    device, arch : str
        The device and its architecture.
    total_bytes, free_bytes : int
        Memory of the device now; 0 where it is the host's.
    unified : bool
        The device computes in the host's memory.
    """

    name: str
    available: bool
    reason: str
    device: str
    arch: str
    total_bytes: int
    free_bytes: int
    unified: bool


def backends() -> list[Backend]:
    """Return the backends that this installation knows; those for GPUs are opened to see whether they have a device."""
    return [Backend(**found) for found in _core.backends()]


def load_backend(path: str | os.PathLike[str]) -> str:
    """Open the shared object of another backend, built for this version of ds4.

    Parameters
    ----------
    path : path-like
        The shared object. It is code, and runs in this process: load only what you trust.

    Returns
    -------
    str
        Its name, which `ds4.Model.open` takes as `backend` from now on.

    Raises
    ------
    BackendUnavailableError
        It is missing, cannot be loaded, or was built for another version; the text says which.
    StateError
        A backend of that name is loaded from another file.
    """
    return _core.load_backend(os.fsencode(path))


def native_version() -> str:
    """Return the version of the native library; it equals `ds4.__version__` in a sound installation."""
    return _core.version()


def cpu_isa() -> str:
    """Return the CPU kernel variant in use: "base", "avx2", "avx512", "avx512vnni"; on arm64 "dotprod", "i8mm"."""
    return _core.cpu_isa()


def set_cpu_isa(name: str) -> None:
    """Use at most a given CPU kernel variant in sessions made, and in values encoded, from now on.

    Parameters
    ----------
    name : str
        "base", "avx2", "avx512" or "avx512vnni", on arm64 "base", "dotprod" or "i8mm"; "auto" chooses the best again.

    Raises
    ------
    ValueError
        The name is unknown.
    BackendUnavailableError
        This machine lacks the variant.
    """
    _core.set_cpu_isa(name)
