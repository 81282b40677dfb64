"""No output of a command replaces a file that it reads, or another output, under whatever name."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from ds4.cli.output import OutputFile, keep_apart
from ds4.plotting import save_figure


@pytest.mark.parametrize("name", ["in", "./in", "link", "hard", "folder/../in"])
def test_an_input_is_found_under_every_name(tmp_path: Path, name: str) -> None:
    read = tmp_path / "in"
    read.write_text("x")
    (tmp_path / "link").symlink_to(read)
    os.link(read, tmp_path / "hard")
    (tmp_path / "folder").mkdir()
    with pytest.raises(click.UsageError, match="is read by this command"):
        keep_apart([None, tmp_path / "free", tmp_path / name], [None, read])


def test_outputs_need_names_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="name of two outputs"):
        keep_apart([tmp_path / "a", tmp_path / "b" / ".." / "a"], [])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    keep_apart([Path("-"), Path("-"), pipe, pipe, tmp_path / "a"], [tmp_path / "missing"])


def test_files_of_a_checkpoint_are_inputs(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json", "report.json"):
        (tmp_path / name).write_text("x")
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
        with pytest.raises(click.UsageError, match="is read by this command"):
            keep_apart([tmp_path / name], [tmp_path])
    keep_apart([tmp_path / "report.json", tmp_path / "out.gguf", tmp_path / "tokenizer.json"], [tmp_path])


Files = Callable[[str], Path]


@pytest.fixture
def named(tmp_path: Path, model_path: Path) -> Files:
    """Files of a user: text, cases and a model, by suffix."""
    content = {
        "text.txt": b"Some plain text.\n",
        "cases.jsonl": b'{"prompt": "a", "continuation": "b"}\n',
        "old.tsv": b"old\n",
        "chart.svg": b"<svg/>\n",
        "a.dat": b"importance\n",
        "model.gguf": model_path.read_bytes(),
    }
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    return lambda name: tmp_path / name


@pytest.mark.parametrize(
    "line",
    [
        "convert . out.gguf --recipe q2 --json config.json",
        "quantize model.gguf out.gguf --recipe q2 --json model.gguf",
        "quantize model.gguf a.dat --recipe q2 --imatrix a.dat --force",
        "quantize model.gguf --compare-tensor output. --compare-gguf out.gguf --json out.gguf",
        "splice model.gguf old.tsv old.tsv --layers 0 --force",
        "splice model.gguf out.gguf --layout adjacent --json model.gguf",
        "imatrix corpus text.txt -o text.txt --force",
        "imatrix collect -m model.gguf text.txt -o model.gguf --force",
        "imatrix collect -m model.gguf text.txt -o out.dat --json text.txt",
        "imatrix show a.dat --json a.dat",
        "imatrix merge a.dat old.tsv -o a.dat --force",
        "imatrix convert a.dat a.dat --force",
        "score text -m model.gguf text.txt --json text.txt",
        "score cases -m model.gguf cases.jsonl -o cases.jsonl",
        "score cases -m model.gguf cases.jsonl --json model.gguf",
        "score against -m model.gguf --parent old.tsv text.txt --json old.tsv",
        "score compare old.tsv a.dat --json old.tsv",
        "score compare chart.svg a.dat --plot chart.svg",
        "score vectors -m model.gguf text.txt --record text.txt",
    ],
)
def test_no_command_replaces_what_it_reads(ds4: Any, named: Files, tmp_path: Path, line: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "out.gguf").write_bytes(b"GGUF")
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    done: subprocess.CompletedProcess[str] = ds4(*line.split(), cwd=tmp_path)
    assert done.returncode == 2 and "would be replaced" in done.stderr, (done.returncode, done.stderr)
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_a_report_about_names_that_are_not_utf8(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    with OutputFile(out) as file:
        file.write(json.dumps({"file": os.fsdecode(b"a\xff.gguf")}, ensure_ascii=False))
    assert os.fsencode(json.loads(out.read_text(encoding="utf-8"))["file"]) == b"a\xff.gguf"


def test_a_plot_that_finds_no_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def savefig(self, draft: Path, **options: Any) -> None:
            draft.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    pytest.importorskip("matplotlib")
    with pytest.raises(OSError, match="No space left") as caught:
        save_figure(Full(), tmp_path / "a.svg")
    assert caught.value.filename == str(tmp_path / "a.svg") and list(tmp_path.iterdir()) == []
