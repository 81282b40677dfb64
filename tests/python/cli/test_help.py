"""Help that teaches: examples first in every command, one page about all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from ds4.cli.help import GROUPS
from ds4.cli.program import program


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands(program))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_examples_come_first(path: tuple[str, ...]) -> None:
    command = ALL[path]
    text = (command.help or "").lstrip("\b\n ")
    assert text.startswith("Examples:\n"), text[:80]
    assert command.short_help and command.short_help.endswith((".", ").")), command.short_help
    examples = text.partition("\n\n")[0].splitlines()[1:]
    assert any("ds4" in line for line in examples)
    for line in examples:
        assert line.startswith("  ") and len(line) <= 110
    # Every option has its help, and arguments are named in capitals.
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, param.opts


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_options_of_examples_exist(path: tuple[str, ...]) -> None:
    for line in (ALL[path].help or "").partition("\n\n")[0].splitlines():
        for shown in re.findall(r"ds4 [^|)]*", line.split("  #")[0]):
            words = re.sub(r"\"[^\"]*\"", "TEXT", re.split(r"\s{3,}", shown)[0]).split()[1:]
            command: click.Command = program
            while words and isinstance(command, click.Group) and words[0] in command.commands:
                command = command.commands[words.pop(0)]
            if command is program:
                command = program.commands["chat"]
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help", "--version"}
            named = {w.split("=")[0] for w in words if re.match(r"--?[a-zA-Z]", w)}
            assert named <= known, (line, named - known)


def test_the_page_about_all_of_it(ds4: Any) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(program.commands)
    done = ds4("help")
    assert done.returncode == 0 and done.stderr == ""
    for path in ALL:
        assert re.search(rf"^ +{' '.join(path)} ", done.stdout, re.MULTILINE), path
    for words in ("~/.ds4/settings.json", "HF_TOKEN", "130"):
        assert words in done.stdout
    assert ds4("help", "kv", "export").stdout == ds4("kv", "export", "-h").stdout
    unknown = ds4("help", "kv", "nothing")
    assert unknown.returncode == 2 and "there is no command ds4 kv nothing" in unknown.stderr
