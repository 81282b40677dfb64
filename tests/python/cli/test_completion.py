"""Completion, in real shells on a pseudo terminal and word by word."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import get_completion_class
from ds4.cli.completion import SCRIPTS
from ds4.cli.program import program as cli

from .conftest import _take_terminal, program

Offer = Callable[..., list[tuple[str, str]]]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Return what is offered for the last of some words, as (kind, value)."""

    def call(*words: str) -> list[tuple[str, str]]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(["ds4", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        kind = get_completion_class("bash")
        assert kind is not None
        lines = kind(cli, {}, "ds4", "_DS4_COMPLETE").complete().splitlines()
        assert all(line.count("\t") == 2 for line in lines)
        return [(line.split("\t")[0], line.split("\t")[1]) for line in lines]

    return call


def test_what_is_offered(offer: Offer) -> None:
    assert offer("ins") == [("plain", "inspect")]
    assert {value for _, value in offer("")} == set(cli.commands)
    assert ("plain", "--temp") in offer("--te") and offer("--vers") == [("plain", "--version")]
    assert offer("-m", "a.gguf", "--dump-t") == [("plain", "--dump-tokens")]
    assert offer("--activations", "q") == offer("--activations=q") == [("plain", "quantized")]
    assert offer("--activations", "=", "q") == [("plain", "quantized")]
    assert offer("-m", "so") == offer("--mtp", "so") == offer("inspect", "so") == [("model", "so")]
    assert offer("server", "-m", '"my mo') == [("model", "my mo")]
    assert offer("--prompt-file", "x") == [("file", "x")]
    assert offer("kv", "ex") == [("plain", "export")]
    assert [value for _, value in offer("download", "q2")] == ["q2", "q2-q4"]
    assert offer("completion", "z") == [("plain", "zsh")] and offer("nonsense", "x") == offer("-p", "te") == []


def test_an_existing_default_does_not_matter(offer: Offer, environment: dict[str, str], tmp_path: Path) -> None:
    """A damaged settings file breaks no completion."""
    (tmp_path / "home" / ".ds4").mkdir(parents=True)
    (tmp_path / "home" / ".ds4" / "settings.json").write_text("{")
    done = subprocess.run(
        program(), check=False, capture_output=True, text=True, timeout=60,
        env={**environment, "COMP_WORDS": "ds4\n-p\nhi\n--nothi", "COMP_CWORD": "3", "_DS4_COMPLETE": "bash_complete"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("plain\t--nothink\t") and done.stderr == ""


class Shell:
    """A shell on a pseudo terminal."""

    def __init__(self, args: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 200))
        self.child = subprocess.Popen(
            args,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, words: str, timeout: float = 60.0) -> None:
        """Read until words come; colours are left out."""
        end = time.monotonic() + timeout
        while words not in self.text:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.master], [], [], max(left, 0))
            assert ready, f"{words!r} did not come: {self.text[-2000:]!r}"
            data = os.read(self.master, 65536)
            if b"\x1b[6n" in data:
                os.write(self.master, b"\x1b[1;1R")
            if b"\x1b[c" in data or b"\x1b[0c" in data:
                os.write(self.master, b"\x1b[?62;c")  # a terminal that is asked what it is
            self.text += data.decode("utf-8", "replace")
            self.text = re.sub(
                r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[()][A-Z0-9]|[=>])|\x1b\][^\x07\x1b]*(\x07|\x1b\\)", "", self.text
            )
        self.text = self.text.partition(words)[2]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.master)


@pytest.fixture
def shell(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], Shell]]:
    """Open a shell whose `ds4` is this one, in a folder with files of several kinds."""
    folder, bin_ = tmp_path / "files", tmp_path / "bin"
    (folder / "some models").mkdir(parents=True)
    bin_.mkdir()
    for name in ("solo flash.gguf", "song.txt", "some models/inner.gguf"):
        (folder / name).write_text("")
    for name, words in (("ds4", []), ("ds4-bench", ["bench"])):
        (bin_ / name).write_text("#!/bin/sh\nexec " + " ".join(f"'{w}'" for w in [*program(), *words]) + ' "$@"\n')
        (bin_ / name).chmod(0o755)
    opened: list[Shell] = []

    def call(name: str) -> Shell:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        args = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"], "fish": ["fish", "--no-config", "-i"]}
        more = {"PATH": f"{bin_}:{os.environ['PATH']}", "PS1": "ready> ", "TERM": "xterm", "INPUTRC": "/dev/null"}
        opened.append(Shell(args[name], environment | more, folder))
        return opened[-1]

    yield call
    for one in opened:
        one.close()


def test_bash(shell: Callable[[str], Shell]) -> None:
    s = shell("bash")
    s.wait_for("ready> ")
    s.type('source <(ds4 completion bash); echo "do"ne\r')
    s.wait_for("done\r\n")
    s.wait_for("ready> ")
    s.type("ds4 insp\t")
    s.wait_for("ds4 inspect ")
    s.type("sol\t")
    s.wait_for("solo\\ flash.gguf ")  # the only model, its blank quoted
    s.type("\x15ds4 -m some\t")
    s.wait_for("some\\ models/")
    s.type("\t")
    s.wait_for("inner.gguf")
    s.type(" --activ\t")
    s.wait_for("--activations ")
    s.type("q\t")
    s.wait_for("quantized ")
    s.type("\x15ds4 --prompt-file son\t")
    s.wait_for("song.txt ")
    s.type("\x15ds4 --activations=fl\t")
    s.wait_for("=float32 ")
    s.type("\x15ds4-bench --step-m\t")
    s.wait_for("--step-mul ")


def test_zsh(shell: Callable[[str], Shell], tmp_path: Path) -> None:
    s = shell("zsh")
    s.type("PS1='rea''dy> '; unsetopt beep; ZDOTDIR=" + str(tmp_path) + "; source <(ds4 completion zsh)\r")
    s.wait_for("ready> ", timeout=90)
    s.type("ds4 insp\t")
    s.wait_for("ds4 inspect ")
    s.type("sol\t")
    s.wait_for("solo\\ flash.gguf")
    s.type("\x15ds4 --activ\t")
    s.wait_for("--activations ")
    s.type("q\t")
    s.wait_for("quantized")


def test_fish(shell: Callable[[str], Shell]) -> None:
    s = shell("fish")
    s.wait_for("files", timeout=90)  # the prompt
    s.type("ds4 completion fish | source; complete -C 'ds4 insp'; complete -C 'ds4 -m so'\r")
    s.wait_for("Show what a model file holds")
    s.wait_for("solo flash.gguf")
    s.type("complete -C 'ds4 -p hi --activ'; complete -C 'ds4 --activations q'; complete -C 'ds4-bench --step-m'\r")
    for words in ("Activations in products", "\nquantized", "--step-mul"):
        s.wait_for(words)


def test_the_scripts(ds4: Any, environment: dict[str, str]) -> None:
    for name, script in SCRIPTS.items():
        assert ds4("completion", name).stdout == script
        if shutil.which(name):
            done = subprocess.run([name, "-n"], input=script, text=True, capture_output=True, check=False)
            assert done.returncode == 0 and done.stderr == ""
    environment["SHELL"] = "/bin/tcsh"
    unknown = ds4("completion")
    assert unknown.returncode == 2 and "'/bin/tcsh'" in unknown.stderr


def test_installing(ds4: Any, environment: dict[str, str]) -> None:
    """A line is added once, behind what the file holds; the script is replaced."""
    home = Path(environment["HOME"])
    environment["SHELL"] = "/usr/bin/bash"
    (home / ".bashrc").write_bytes(b"alias x=y # \xff")
    for told in ("reads it from the next shell on", "reads it already"):
        done = ds4("completion", "--install")
        assert done.returncode == 0 and told in done.stderr and done.stdout == ""
    first, second = (home / ".bashrc").read_bytes().splitlines()
    assert first == b"alias x=y # \xff" and b".ds4/completion.bash" in second
    assert (home / ".ds4" / "completion.bash").read_text() == SCRIPTS["bash"]
    check = ["bash", "-c", f". {home}/.bashrc; complete -p ds4"]
    found = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert "_ds4_complete" in found.stdout, found.stderr
    assert ds4("completion", "zsh", "--install").returncode == 0 and (home / ".zshrc").is_file()
    environment.pop("XDG_CONFIG_HOME", None)
    assert ds4("completion", "fish", "--install").returncode == 0
    assert (home / ".config/fish/completions/ds4.fish").read_text() == SCRIPTS["fish"]
