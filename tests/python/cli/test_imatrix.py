"""``ds4 imatrix``: the commands as a user types them."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ds4.imatrix import Imatrix, coverage

from .conftest import program

CHATS = [
    {"messages": [{"role": "user", "content": "hello there"}]},
    {"messages": [{"role": "user", "content": "what is one and one?"}, {"role": "assistant", "content": "two"}]},
]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(json.dumps(c) for c in CHATS), encoding="utf-8")
    return path


@pytest.fixture
def collected(ds4: Any, tmp_path: Path, chats: Path, model_path: Path) -> Path:
    out = tmp_path / "a.gguf"
    done = ds4("imatrix", "collect", chats, "-m", model_path, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def test_from_chats_to_a_file(ds4: Any, tmp_path: Path, chats: Path, model_path: Path) -> None:
    """The corpus in a file of its own gives the same importance as the chats."""
    done = ds4("imatrix", "corpus", chats, "-o", tmp_path / "corpus.txt")
    assert done.returncode == 0 and "2 prompts" in done.stderr
    for name, source in (("a.gguf", chats), ("b.gguf", tmp_path / "corpus.txt")):
        done = ds4(
            "imatrix", "collect", source, "-m", model_path, "-o", tmp_path / name,
            "--plot", tmp_path / "a.svg", "--json", tmp_path / "a.json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "blk.0" in done.stdout and "experts" in done.stdout
    facts = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert facts["chunks"] == 2 and facts["counted"] and len(facts["layers"]) == 5
    assert sum(facts["layers"][0]["counts"]) > 0 and facts["datasets"] == ["corpus.txt"]
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    a, b = Imatrix.read(tmp_path / "a.gguf"), Imatrix.read(tmp_path / "b.gguf")
    for name, entry in a.entries.items():
        assert (entry.sums == b.entries[name].sums).all() and (entry.counts == b.entries[name].counts).all()


def test_the_tiny_model_of_the_package_and_limits(ds4: Any, tmp_path: Path, chats: Path) -> None:
    done = ds4("imatrix", "collect", chats, "-o", tmp_path / "a.dat", "--max-tokens", 5, "--ctx", 4, "--json", "-")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert sum(facts["layers"][0]["counts"]) % 5 == 0 and facts["layers"][-1]["name"] == "mtp.0"
    assert not Imatrix.read(tmp_path / "a.dat").counted


def test_without_files_it_says_how_to_get_some(ds4: Any, tmp_path: Path) -> None:
    done = ds4("imatrix", "collect", "-o", tmp_path / "a.gguf")
    assert done.returncode == 2
    assert "ds4 imatrix corpus" in done.stderr and '"messages"' in done.stderr


def test_show_merge_and_convert(ds4: Any, tmp_path: Path, collected: Path, model_path: Path) -> None:
    shown = ds4("imatrix", "show", collected, "-m", model_path)
    assert shown.returncode == 0 and "sums and counts" in shown.stdout and "never chosen" in shown.stdout
    assert ds4("imatrix", "merge", collected, collected, "-o", tmp_path / "two.gguf").returncode == 0
    one, two = (coverage(Imatrix.read(p)).layers[0].counts for p in (collected, tmp_path / "two.gguf"))
    assert (two == 2 * one).all()
    assert ds4("imatrix", "convert", collected, tmp_path / "a.dat").returncode == 0
    unknown = ds4("imatrix", "show", tmp_path / "a.dat")
    assert unknown.returncode == 0 and "--experts" in unknown.stdout
    n = len(one)
    for options in (("--experts", n), ("-m", model_path)):
        told = json.loads(ds4("imatrix", "show", tmp_path / "a.dat", *options, "--json", "-").stdout)
        assert told["counted"] is False
        assert [layer["never"] for layer in told["layers"]] == [
            layer.never for layer in coverage(Imatrix.read(collected)).layers
        ]
    back = ds4("imatrix", "convert", tmp_path / "a.dat", tmp_path / "back.gguf", "--experts", n)
    assert back.returncode == 0, back.stderr
    mixed = ds4("imatrix", "merge", collected, tmp_path / "a.dat", "-o", tmp_path / "x.gguf")
    assert mixed.returncode == 1 and "without token counts" in mixed.stderr and not (tmp_path / "x.gguf").exists()


def test_missing_entries_are_listed(ds4: Any, tmp_path: Path, collected: Path, model_path: Path) -> None:
    """L023, by hand: an entry removed."""
    entries = dict(Imatrix.read(collected).entries)
    del entries["blk.3.ffn_up_exps.weight"]
    Imatrix(entries).write(tmp_path / "holes.gguf")
    done = ds4("imatrix", "show", tmp_path / "holes.gguf", "-m", model_path)
    assert done.returncode == 1 and "missing  blk.3.ffn_up_exps.weight" in done.stdout


def test_a_file_of_another_model_is_refused(ds4: Any, collected: Path) -> None:
    import ds4 as package

    done = ds4("imatrix", "show", collected, "-m", package.Model.embedded_path())
    assert done.returncode == 1 and "another model" in done.stderr and str(collected) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("collect", "{chats}", "-o", "{dir}/a.bin"), 2, "named .dat or .gguf"),
        (("collect", "{chats}", "-o", "{dir}/none/a.gguf"), 1, "no such directory"),
        (("collect", "{chats}", "-o", "{chats}"), 2, "named .dat or .gguf"),
        (("collect", "{dir}/missing.txt", "-o", "{dir}/a.gguf"), 1, "missing.txt: No such file"),
        (("collect", "{chats}", "-o", "{dir}/a.gguf", "--plot", "{dir}/a.pdf"), 1, ".svg or .png"),
        (("collect", "{chats}", "-o", "{dir}/a.gguf", "--simulate-memory", "1M"), 1, "not enough memory"),
        (("collect", "{chats}", "-o", "{dir}/a.gguf", "--skip", "2"), 1, "no prompts"),
        (("merge", "{chats}", "-o", "{dir}/a.gguf"), 2, "two files"),
        (("show", "{chats}"), 1, "neither GGUF nor .dat"),
        (("corpus", "-o", "{dir}/c.txt"), 2, "give files"),
        (("corpus", "{chats}", "-o", "{chats}"), 2, "would be replaced"),
        (("convert", "{chats}", "{dir}/a.gguf"), 1, "neither GGUF nor .dat"),
    ],
)
def test_bad_input_is_one_message(
    ds4: Any, tmp_path: Path, chats: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    done = ds4("imatrix", *(a.format(dir=tmp_path, chats=chats) for a in arguments))
    assert done.returncode == code and text in done.stderr, done.stderr
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["chats.jsonl"]


@pytest.mark.parametrize("save", [False, True])
def test_ctrl_c_leaves_only_what_was_asked_for(
    tmp_path: Path, environment: dict[str, str], model_path: Path, save: bool
) -> None:
    chat = {"messages": [{"role": "user", "content": "some words " * 8}]}
    (tmp_path / "chats.jsonl").write_text("\n".join([json.dumps(chat)] * 2000), encoding="utf-8")
    out = tmp_path / "a.gguf"
    command = [*program(), "imatrix", "collect", str(tmp_path / "chats.jsonl"), "-m", str(model_path), "-o", str(out)]
    if save:
        command += ["--save-every", "2"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()  # progress, or that something was kept
    while save and line and "holds the first" not in line:
        line = process.stderr.readline()
    assert line.startswith("ds4:"), line
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, line + rest
    left = {p.name for p in tmp_path.iterdir()} - {"home", "chats.jsonl"}
    assert left == ({"a.partial.gguf"} if save else set())
    if save:
        assert Imatrix.read(tmp_path / "a.partial.gguf").n_chunks % 2 == 0
    assert "Traceback" not in rest
