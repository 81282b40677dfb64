"""Guessing tokens on the command line: the same answer, and numbers about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ASK = ("-p", "What is 17 + 25?", "--json")


def answer(ds4: Any, *args: object) -> dict[str, Any]:
    done = ds4(*ASK, *args)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_answer_is_the_same(ds4: Any) -> None:
    plain = answer(ds4)
    assert "drafts" not in plain
    for draft in ("1", "3", "auto"):
        found = answer(ds4, "--mtp-draft", draft)
        assert (found["reasoning"], found["content"]) == (plain["reasoning"], plain["content"])
        drafts = found["drafts"]
        assert drafts["verifies"] + drafts["accepted"] + drafts["alone"] >= found["completion_tokens"]
        if draft != "auto":
            assert drafts["acceptance"] > 0.3
            assert len(drafts["by_depth"]) == int(draft)
    assert "drafts" not in answer(ds4, "--mtp-draft", "off")


def test_a_seed_gives_the_same_answer(ds4: Any) -> None:
    sampling = ("--seed", "7", "--temp", "1.2")
    assert answer(ds4, *sampling)["content"] == answer(ds4, *sampling, "--mtp-draft", "2")["content"]


def test_what_was_won_ends_the_answer(ds4: Any) -> None:
    done = ds4("-p", "What is 17 + 25?", "--mtp-draft", "1")
    assert "drafts accepted (" in done.stderr
    assert "tokens a verify" in done.stderr


def test_a_file_of_the_block_is_drafted_with(ds4: Any, model_path: Path, mtp_path: Path) -> None:
    done = ds4("-m", model_path, "--mtp", mtp_path, "-p", "hi", "-n", "12", "--json")
    assert done.returncode == 0, done.stderr
    assert "drafts" in json.loads(done.stdout)
    off = ds4("-m", model_path, "--mtp", mtp_path, "-p", "hi", "-n", "3", "--json", "--mtp-draft", "off")
    assert "drafts" not in json.loads(off.stdout)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-p", "x", "--mtp-draft", "6"], ("--mtp-draft", "'6' is neither off, auto nor a number from 1 to 5")),
        (["-p", "x", "--mtp-draft", "0"], ("--mtp-draft",)),
        (["-p", "x", "--mtp-draft", "1", "--mtp-margin", "nan"], ("--mtp-margin",)),
        (["-p", "x", "--mtp-margin", "2"], ("no effect without --mtp-draft",)),
        (["-p", "x", "--mtp-margin", "2", "--mtp-draft", "off"], ("no effect without --mtp-draft",)),
        (["-p", "x", "--dump-tokens", "--mtp-draft", "2"], ("no effect",)),
    ],
)
def test_what_has_no_effect_is_refused(ds4: Any, args: list[str], words: tuple[str, ...]) -> None:
    done = ds4(*args)
    assert (done.returncode, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr


def test_a_model_without_the_block_is_refused(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, "-p", "x", "--mtp-draft", "auto")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no MTP block to draft with: give its file with --mtp" in done.stderr


def test_bench_tells_what_guesses_cost(ds4: Any, model_path: Path, mtp_path: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = ds4("bench", "-m", model_path, "--mtp", mtp_path, "--drafts", "--reps", "2", "-t", "1", "--json", report)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()[1:]
    assert head.split()[0] == "guesses"
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    content = json.loads(report.read_text())
    assert content["format"] == "ds4-bench-drafts"
    assert len(content["batch_seconds"]) == len(content["bytes"]) == 6
    assert len(content["guess_seconds"]) == len(content["worth"]) == 5
    assert content["bytes"] == sorted(content["bytes"])
    without = ds4("bench", "-m", model_path, "--drafts", "--reps", "1", "-t", "1", "--chunk", "3", "--json", report)
    assert "no MTP block" in without.stderr
    content = json.loads(report.read_text())
    assert (len(content["batch_seconds"]), content["guess_seconds"]) == (3, [])
    assert ds4("bench", "-m", model_path, "--drafts", "--chunk", "1").returncode == 1
