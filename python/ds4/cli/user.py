"""What ds4 keeps for a user: `~/.ds4`, and in it the settings that outlive a run.

`settings.json` holds one object. Only the default model is in it so far; what another release wrote stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds4.user_cache import write_private

_SETTINGS = "settings.json"
_DEFAULT = "default_model"
_MOST_BYTES = 1 << 20
_CHOSEN = "ds4.default_model"
TINY = "tiny"
"""What `-m` calls the tiny model of the package."""


class SettingsError(ValueError):
    """The settings of the user cannot be used."""


def user_directory() -> Path | None:
    """Return where the files of the user are; None for one without a home directory."""
    try:
        return Path.home() / ".ds4"
    except RuntimeError:
        return None


def models_directory() -> Path:
    """Return where downloads go.

    Raises
    ------
    SettingsError
        There is no home directory.
    """
    home = user_directory()
    if home is None:
        raise SettingsError("there is no home directory; name a folder with --dir")
    return home / "models"


def default_model() -> Path | None:
    """Return the model that is meant when none is named; None for the tiny one.

    Raises
    ------
    SettingsError
        The settings are damaged.
    """
    value = _read().get(_DEFAULT)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{_path()} is damaged: {_DEFAULT}; mend it or delete it")
    return Path(value)


def set_default_model(path: Path | None) -> None:
    """Remember a model as the default; None goes back to the tiny one.

    Raises
    ------
    SettingsError
        There is no home directory, or the settings are damaged.
    OSError
        They cannot be written; what was there stays.
    """
    file = _path()
    if file is None:
        raise SettingsError("there is no home directory to remember a default model in")
    facts = _read()
    facts.pop(_DEFAULT, None)
    if path is not None:
        facts[_DEFAULT] = str(path.absolute())
    content = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    write_private(file, content.encode("utf-8", "surrogateescape"))


def model_or_default(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Return the file that -m means: as given, None for the tiny model, or the default (a click callback).

    Raises
    ------
    SettingsError
        The default model is gone, or the settings are damaged.
    """
    if ctx.resilient_parsing:  # only completions are wanted
        return value
    if value is not None:
        return None if str(value) == TINY else value
    path = default_model()
    if path is not None and not path.is_file():
        raise SettingsError(
            f"{path}: the default model is not there; give another one (-m FILE), or ds4 default FILE to change it, "
            "ds4 default tiny to be without"
        )
    ctx.meta[_CHOSEN] = path
    return path


def default_in_use() -> Path | None:
    """Return the default model if the running command has it because none was named."""
    ctx = click.get_current_context(silent=True)
    path = None if ctx is None else ctx.meta.get(_CHOSEN)
    return path if isinstance(path, Path) else None


def _path() -> Path | None:
    home = user_directory()
    return None if home is None else home / _SETTINGS


def _read() -> dict[str, Any]:
    path = _path()
    if path is None:
        return {}
    try:
        with path.open("rb") as f:
            raw = f.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        facts = json.loads(raw.decode("utf-8", "surrogateescape")) if len(raw) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise SettingsError(f"{path} is damaged; mend it or delete it")
    return facts
