"""The native library as a whole."""

from __future__ import annotations

from ._native import _core

__all__ = ["cpu_isa", "native_version", "set_cpu_isa"]


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
