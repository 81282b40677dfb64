"""``ds4 splice``: the plan it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4.cli.splice import _write
from ds4.quantize import plan_splice
from support.gguf_write import ValueType, array
from support.rewrite import changed, rewrite
from support.tiny_gguf import RECIPES, write_tiny_gguf


@pytest.fixture(scope="module")
def base(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", recipe="ds4-q2")


@pytest.fixture(scope="module")
def donor(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", recipe="ds4-q4")


def test_a_dry_run_prints_the_plan_and_writes_nothing(ds4: Any, base: Path, donor: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = ds4("splice", base, donor, out, "--q4-layers", "3-4", "--dry-run")
    assert done.returncode == 0, done.stderr
    grown = 2 * 16 * 256 * (2 * (144 - 66) + 144 - 84)
    for text in (
        "experts of layers 3-4",
        f"+{grown} bytes",
        "gate IQ2_XXS -> Q4_K, 2 tensors",
        "down Q2_K -> Q4_K, 2 tensors",
        "182 tensors, standard layout",
    ):
        assert text in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_it_writes_what_it_planned(ds4: Any, base: Path, donor: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "plan.json"
    done = ds4("splice", base, donor, out, "--layers", "1", "--mtp", "--json", report, "--record")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "wrote" in done.stderr and "182 tensors" in done.stderr
    plan = json.loads(report.read_text())
    assert plan["out_bytes"] == out.stat().st_size == base.stat().st_size + plan["size_change"]
    assert (plan["layers"], plan["mtp"], plan["layout"]) == ([1], True, "standard")
    taken = {t["tensor"]: (t["from"], t["to"]) for t in plan["taken"]}
    assert len(taken) == 6
    assert taken["blk.1.ffn_down_exps.weight"] == ("Q2_K", "Q4_K")
    assert taken["mtp.0.ffn_up_exps.weight"] == ("Q4_K", "Q4_K")
    assert json.loads(ds4("inspect", out, "--json").stdout)["recipe"]["experts"] == "IQ2_XXS/Q4_K"
    again = ds4("splice", base, donor, out, "--layers", "1")
    assert again.returncode == 1
    assert "exists already; --force replaces it" in again.stderr


def test_the_layout_goes_there_and_back(ds4: Any, base: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "adjacent.gguf", tmp_path / "back.gguf"
    assert ds4("splice", base, there, "--layout", "adjacent").returncode == 0
    ours, theirs = (json.loads(ds4("inspect", path, "--json").stdout) for path in (there, base))
    assert (ours["expert_layout"], theirs["expert_layout"]) == ("adjacent", "standard")
    assert ours["n_tensors"] == theirs["n_tensors"] - 12
    for key in ("runs", "groups", "recipe", "n_parameters", "shape", "has_mtp", "fingerprint", "warnings"):
        assert ours[key] == theirs[key], key
    shown = ds4("inspect", there).stdout
    assert "experts        adjacent layout" in shown
    assert "adjacent" not in ds4("inspect", base).stdout
    assert ds4("splice", there, back, "--layout", "standard").returncode == 0
    assert back.read_bytes() == base.read_bytes()


def test_both_layouts_answer_alike(ds4: Any, base: Path, tmp_path: Path) -> None:
    there = tmp_path / "adjacent.gguf"
    assert ds4("splice", base, there, "--layout", "adjacent").returncode == 0
    options = ("-p", "1+1", "-n", "6", "--temp", "0", "-c", "512", "--nothink", "--check")
    answers = [ds4("-m", m, *options) for m in (base, there)]
    assert [a.returncode for a in answers] == [0, 0], answers[1].stderr
    assert answers[0].stdout == answers[1].stdout != ""


def test_an_unfinished_adjacent_file(ds4: Any, base: Path, tmp_path: Path) -> None:
    whole = rewrite(base, tmp_path / "whole.gguf")
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole.read_bytes()[:3_000_000])
    facts = json.loads(ds4("inspect", path, "--json").stdout)
    assert 0 <= whole.stat().st_size - facts["needed_bytes"] < 4096  # padding after the last tensor
    assert facts["n_parameters"] is None  # records are bytes; how many values they hold the head does not tell


def test_inspect_of_damaged_records(ds4: Any, base: Path, tmp_path: Path) -> None:
    key = "deepseek4.expert_layout.gate_type"
    path = rewrite(base, tmp_path / "a.gguf", edit=changed(key, [16] * 3))
    done = ds4("inspect", path)
    assert done.returncode == 1
    assert f"metadata {key} is not an array of 6 numbers" in done.stdout
    assert "experts        damaged layout" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["BASE"], "1 names were given"),
        (["BASE", "DONOR", "OUT", "OUT"], "4 names were given"),
        (["BASE", "DONOR", "OUT"], "say which layers"),
        (["BASE", "DONOR", "OUT", "--layers", "4-3"], "goes from the lower to the higher"),
        (["BASE", "DONOR", "OUT", "--layers", "all"], "'all' is no list of layers"),
        (["BASE", "OUT"], "give a donor and --layers, or a --layout"),
        (["BASE", "OUT", "--layers", "1"], "need a donor"),
        (["BASE", "OUT", "--layout", "adjacent", "--mtp"], "need a donor"),
        (["BASE", "OUT", "--layout", "sideways"], "sideways"),
    ],
)
def test_a_wrong_command_line(
    ds4: Any, base: Path, donor: Path, tmp_path: Path, arguments: list[str], text: str
) -> None:
    names = {"BASE": base, "DONOR": donor, "OUT": tmp_path / "out.gguf"}
    done = ds4("splice", *(names.get(a, a) for a in arguments))
    assert done.returncode == 2, done.stderr
    assert text in done.stderr, done.stderr


def test_files_that_do_not_go_together(ds4: Any, base: Path, tmp_path: Path) -> None:
    ratios = {"deepseek4.attention.compress_ratios": array(ValueType.U32, [0, 0, 4, 4, 4, 0])}
    other = write_tiny_gguf(tmp_path / "other.gguf", "flash", types=RECIPES["q8"], part="main", changes=ratios)
    done = ds4("splice", base, other, tmp_path / "out.gguf", "--layers", "3,9")
    assert done.returncode == 1
    for text in (
        "compress_ratios[3] is 128 in the base and 4 in the donor",
        "tensor mtp.0.attn_norm.weight is missing in the donor",
        "do not go together",
    ):
        assert text in done.stderr, done.stderr
    assert not (tmp_path / "out.gguf").exists()


def test_ctrl_c_says_what_is_kept(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.gguf"

    def stop(line: object, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("ds4.cli.splice.ProgressLine.__call__", stop)
    with plan_splice(base, None, out, layout="adjacent") as plan, pytest.raises(KeyboardInterrupt):
        _write(plan, False)
    assert f"{out}.part keeps the tensors that are complete" in capsys.readouterr().err
    assert not out.exists()
    monkeypatch.undo()
    with plan_splice(base, None, out, layout="adjacent") as plan:
        _write(plan, False)
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]
