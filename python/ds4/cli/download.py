"""``ds4 download``: model files from the hub; and ``ds4 default``: the model that is meant when none is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ds4.download import DownloadError, RemoteFile, Transfer, look_up, read_from
from ds4.download.transfer import has_content, other_parts
from ds4.published import PUBLISHED, REPOSITORY

from .completion import complete_model
from .facts import ARCHITECTURE
from .gguf_head import head_facts
from .memory import show_size
from .terminal import ProgressLine, note
from .user import TINY, default_model, models_directory, set_default_model, user_directory

_HELP = f"""\b
Examples:
  ds4 download --list                      what is published, and what is here already
  ds4 download q2                          DeepSeek V4 Flash in 2 bits, 80.8 GiB
  ds4 download q2 --dir /models --set-default
  ds4 download mtp                         the block that guesses tokens (--mtp)
  ds4 download OWNER/REPOSITORY/FILE.gguf  any other file of the hub

TARGET is a name of the list, whose files are in {REPOSITORY}, or the full name of a file. It goes to
~/.ds4/models, or --dir. The first model becomes the one that ds4 opens without -m; --set-default makes a later one so,
and ds4 default changes it.

Before anything is read the room on the disk is checked, and after the first 16 MiB whether ds4 runs such a model at
all. A file has its final name when it is complete and its SHA-256 is that of the hub. What an interruption, a broken
connection or a full disk leaves is in FILE.TAG.part, and the same command goes on from there.

A token is needed for private and gated files only: --token, else HF_TOKEN, else the one that the library of the hub
has stored (hf auth login). HF_ENDPOINT names another hub. Needs the extra: pip install 'ds4[download]'."""

_FULL_NAME = re.compile(r"([\w.-]+/[\w.-]+)/(.+)", re.ASCII)


def _complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(p.target, help=p.text) for p in PUBLISHED if p.target.startswith(incomplete)]


@click.command("download", help=_HELP, short_help="Get a model file from the hub.")
@click.argument("target", required=False, shell_complete=_complete_target)
@click.option("--list", "list_targets", is_flag=True, help="List the published files and exit.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where the file goes.")
@click.option("--token", metavar="TOKEN", help="Access token of the hub.")
@click.option("--revision", default="main", show_default=True, metavar="REV", help="Branch, tag or commit.")
@click.option(
    "--set-default/--no-set-default",
    "as_default",
    default=None,
    help="Make it the model that is opened without -m, or leave that alone. Default: if there is none yet.",
)
@click.option("--force", is_flag=True, help="Replace a file of that name that has another content.")
@click.option("--any", "any_kind", is_flag=True, help="Also a file that ds4 does not run.")
def command(
    target: str | None,
    list_targets: bool,
    folder: Path | None,
    token: str | None,
    revision: str,
    as_default: bool | None,
    force: bool,
    any_kind: bool,
) -> int:
    """Run the command."""
    if list_targets:
        if target is not None:
            raise click.UsageError("--list takes no TARGET")
        _print_list(folder or _models_or_none())
        return 0
    if target is None:
        raise click.UsageError("name what to download; ds4 download --list shows what is published")
    repository, name = _place(target)
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise click.UsageError("--token is no token: it has signs that none has")
    folder = models_directory() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / Path(name).name
    remote = look_up(repository, name, revision=revision, token=token)
    note(f"{repository}/{name}: {show_size(remote.n_bytes)}, revision {remote.commit[:12]}")
    if remote.sha256 is None:
        note("warning: the hub gives no checksum of it; only its size can be checked")
    if _is_here(path, remote, force=force):
        note(f"{path} is here already, and complete")
    else:
        _fetch(remote, path, token=token, any_kind=any_kind)
        note(f"{path} is complete" + (", its checksum is right" if remote.sha256 is not None else ""))
    _choose_default(path, as_default)
    print(path)
    return 0


def _place(target: str) -> tuple[str, str]:
    """Return the repository and the file that a target means."""
    for published in PUBLISHED:
        if published.target == target.removesuffix("-imatrix"):  # all of them were made with one
            return REPOSITORY, published.file
    found = _FULL_NAME.fullmatch(target)
    parts = target.split("/")
    if found is None or any(part in ("", ".", "..") for part in parts) or not target.isprintable():
        names = ", ".join(p.target for p in PUBLISHED)
        raise click.UsageError(f"{target!r} is none of {names}, and no OWNER/REPOSITORY/FILE")
    return found[1], found[2]


def _models_or_none() -> Path | None:
    return None if user_directory() is None else models_directory()


def _print_list(folder: Path | None) -> None:
    for published in PUBLISHED:
        path = None if folder is None else folder / published.file
        here = "  (here)" if path is not None and path.is_file() else ""
        print(f"{published.target:7}  {show_size(published.n_bytes):>9}  {published.text}{here}")
        print(f"{'':20}{published.file}")
    print(f"in {REPOSITORY}")


def _is_here(path: Path, remote: RemoteFile, *, force: bool) -> bool:
    if not path.exists():
        return False
    if not path.is_file():
        raise click.UsageError(f"{path} exists and is no file")
    line = ProgressLine("checking the file that is here", "bytes")
    try:
        if has_content(path, remote, line):
            return True
    finally:
        line.finish()
    if not force:
        raise DownloadError(
            f"{path} exists and has another content than the hub's file ({show_size(path.stat().st_size)} against "
            f"{show_size(remote.n_bytes)}); --force replaces it when the new one is complete, --dir puts it elsewhere"
        )
    return False


def _fetch(remote: RemoteFile, path: Path, *, token: str | None, any_kind: bool) -> None:
    for other in other_parts(path, remote):
        note(f"{other} is the begin of another version of this file; it can be deleted")
    with Transfer(remote, path, partial(read_from, remote, token=token)) as transfer:
        transfer.check_room()
        if transfer.resumed:
            note(f"going on behind {show_size(transfer.resumed)} of an earlier run")
            with_line("reading those again", transfer.read_back)
        line = ProgressLine("downloading", "bytes")
        line.skip(transfer.resumed)
        try:
            transfer.run(line, partial(_check_head, remote, path, transfer, any_kind))
        except KeyboardInterrupt:
            line.finish()
            if transfer.n_bytes:
                note(
                    f"stopped after {show_size(transfer.n_bytes)} of {show_size(remote.n_bytes)}; the same command "
                    "goes on from there"
                )
            raise
        finally:
            line.finish()


def with_line(what: str, work: Callable[[ProgressLine], None]) -> None:
    """Show the progress of some work in bytes."""
    line = ProgressLine(what, "bytes")
    try:
        work(line)
    finally:
        line.finish()


def _check_head(remote: RemoteFile, path: Path, transfer: Transfer, any_kind: bool, part: Path) -> None:
    """Look at the begin of a model file: is it worth the rest?"""
    if any_kind or path.suffix != ".gguf":
        return
    with part.open("rb") as f:
        magic = f.read(4)
    facts = head_facts(part, whole=True)
    why = None
    if magic != b"GGUF":
        why = "it is no GGUF file"
    elif facts is not None and facts["architecture"] not in (ARCHITECTURE, "unknown"):
        why = f"it is a model of the architecture {facts['architecture']!r}, and ds4 runs {ARCHITECTURE!r}"
    elif facts is not None and facts["needed_bytes"] is not None and facts["needed_bytes"] > remote.n_bytes:
        why = f"by its head it has {facts['needed_bytes']} bytes, and the hub has {remote.n_bytes} of them"
    if why is not None:
        transfer.discard()
        raise DownloadError(
            f"{remote.name}: {why}; stopped after {show_size(transfer.n_bytes)} of {show_size(remote.n_bytes)} "
            "(--any gets it all the same)"
        )


def _choose_default(path: Path, as_default: bool | None) -> None:
    """Remember a model, if it is one and that is wanted."""
    model = path.suffix == ".gguf" and not any(p.file == path.name and p.experts is None for p in PUBLISHED)
    if as_default is None:
        as_default = model and default_model() is None and user_directory() is not None
    elif as_default and not model:
        raise DownloadError(f"{path} is no model that could be opened alone; the default stays as it was")
    if as_default:
        set_default_model(path)
        note(f"ds4 opens it from now on when no model is named (ds4 default {TINY} undoes that)")


_DEFAULT_HELP = f"""\b
Examples:
  ds4 default                              show it
  ds4 default /models/flash.gguf
  ds4 default {TINY}                         the tiny model of the package again

Without -m all commands open this model. It is kept in ~/.ds4/settings.json. -m {TINY} means the tiny model whatever
the default is."""


@click.command("default", help=_DEFAULT_HELP, short_help="Show or set the model that is opened without -m.")
@click.argument("model", required=False, type=click.Path(path_type=Path), shell_complete=complete_model)
def default_command(model: Path | None) -> int:
    """Run the command."""
    if model is None:
        print(default_model() or TINY)
        return 0
    if str(model) == TINY:
        set_default_model(None)
        return 0
    with model.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise click.ClickException(f"{model}: no GGUF file")
    set_default_model(model)
    return 0
