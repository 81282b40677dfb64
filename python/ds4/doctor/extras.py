"""Optional parts of the package, and whether what they need is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

_FOR_DEVELOPERS = ("bench", "dev", "test", "train")


def extras(package: str = "ds4") -> dict[str, dict[str, str | None]]:
    """Return extra -> {needed package: its version, None if it is missing}, by the package's own metadata."""
    out: dict[str, dict[str, str | None]] = {}
    try:
        lines = requires(package) or []
    except PackageNotFoundError:
        return {}
    for line in lines:
        found = re.fullmatch(r"\s*([\w.-]+)[^;]*;.*extra\s*==\s*[\"'](\w+)[\"'].*", line)
        if found is None or found[2] in _FOR_DEVELOPERS or found[1] == package:
            continue
        try:
            installed: str | None = version(found[1])
        except PackageNotFoundError:
            installed = None
        out.setdefault(found[2], {})[found[1]] = installed
    return out
