"""``ds4 quantize`` and ``ds4 convert``: options, reports, and what a wrong command line gives."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ds4 as package
import numpy as np
import pytest
from ds4.imatrix import Entry, Imatrix


@pytest.fixture
def source(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", part="main", recipe="bf16")


def _types(path: Path) -> dict[str, str]:
    with package.GGUFFile(path) as file:
        return {t.name: t.type for t in file.tensors.values()}


def test_a_file_and_its_report(ds4: Any, source: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    done = ds4("quantize", source, out, "--recipe", "q8_0", "-t", 2, "--json", report, "--compare-tensor", "output.")
    assert done.returncode == 0, done.stderr
    assert f"wrote {out}: 150 tensors" in done.stderr and "MiB" in done.stderr
    facts = json.loads(report.read_text())
    assert facts["recipe"] == "q8_0" and facts["files"][0]["bytes"] == out.stat().st_size
    kinds = {t["name"]: t["type"] for t in facts["files"][0]["tensors"]}
    assert kinds == _types(out)
    assert facts["seconds"] > 0 and facts["compare"][0]["name"] == "output.weight"
    assert 0 < facts["compare"][0]["relative_rmse"] < 0.01
    assert done.stdout.splitlines()[1].startswith("output.weight")
    assert ds4("inspect", out).returncode == 0


def test_dry_run_prints_the_plan_in_both_units(ds4: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = ds4("quantize", source, out, "--recipe", "q2", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{out}: 150 tensors, ") and "MB" in lines[0] and "MiB" in lines[0]
    table = {tuple(line.rsplit("bytes", 1)[0].rsplit(None, 4)[-4:-2]): line for line in lines[1:]}
    assert table["IQ2_XXS", "10"].strip().startswith("routed experts") and "from BF16" in table["IQ2_XXS", "10"]
    assert "no imatrix is given: IQ2_XXS by the sums of squares of its own columns; Q2_K without weights" in done.stderr
    assert list(tmp_path.glob("out*")) == []
    report = ds4("quantize", source, out, "--recipe", "q2", "--dry-run", "--json", "-")
    facts = json.loads(report.stdout)
    gate = next(t for t in facts["files"][0]["tensors"] if t["name"] == "blk.0.ffn_gate_exps.weight")
    assert (gate["type"], gate["from"], gate["importance"]) == ("IQ2_XXS", "BF16", "synthetic")


def test_options_override_the_recipe_and_the_later_one_wins(ds4: Any, source: Path, tmp_path: Path) -> None:
    def plan(*options: str) -> dict[str, str]:
        done = ds4("quantize", source, tmp_path / "out.gguf", *options, "--dry-run", "--json", "-")
        assert done.returncode == 0, done.stderr
        return {t["name"]: t["type"] for t in json.loads(done.stdout)["files"][0]["tensors"]}

    down = "blk.1.ffn_down_exps.weight"
    assert plan("--recipe", "q2", "--experts", "q4-k", "--routed-w2", "Q2K")[down] == "Q2_K"
    assert plan("--recipe", "q2", "--routed-down", "Q2K", "--routed", "q4_k")[down] == "Q4_K"
    # one that is repeated counts where it stands
    again = ("--routed-w2", "q8_0", "--experts", "q4_k", "--routed-down", "q2_k")
    assert plan("--recipe", "q2", *again)[down] == "Q2_K"
    again = ("--experts", "q8_0", "--routed-w2", "q2_k", "--routed=q4_k")
    assert plan("--recipe", "q2", *again)[down] == "Q4_K"
    assert plan("--recipe", "q2", "--output", "q4_k", "--output", "f16")["output.weight"] == "F16"
    names = ("--tensor-type", f"{down}=q8_0", "--experts", "q4_k", "--tensor-type", "blk.1.ffn_=f16")
    found = plan("--recipe", "q2", *names)
    assert [found[n] for n in (down, "blk.1.ffn_up_exps.weight", "blk.2.ffn_up_exps.weight")] == ["Q8_0", "F16", "Q4_K"]
    assert plan("--recipe", "q2-q4", "--q4-layers", "1")[down] == "Q4_K"
    found = plan("--recipe", "q2", "--tensor-type", "blk.1.=q8_0", "--experts", "q4_k", "--output", "f16")
    assert (found[down], found["blk.2.ffn_down_exps.weight"], found["output.weight"]) == ("Q8_0", "Q4_K", "F16")
    assert plan()[down] == "BF16"


def test_template(ds4: Any, source: Path, tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    template = tiny_gguf("flash", part="main", recipe="q8")
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    options = ("--template", template, "--recipe", "bf16", "--experts", "template", "--json", report)
    done = ds4("quantize", source, out, *options)
    assert done.returncode == 0, done.stderr
    kinds, like = _types(out), _types(template)
    assert list(kinds) == list(like)
    assert kinds["blk.1.ffn_down_exps.weight"] == "Q8_0" and kinds["output.weight"] == "BF16"
    assert json.loads(report.read_text())["template"] == str(template)
    done = ds4("quantize", source, out, "--template", template, "--force")
    assert done.returncode == 0 and _types(out) == like
    other = tiny_gguf("pro", part="main", recipe="bf16")
    done = ds4("quantize", source, tmp_path / "none.gguf", "--template", other)
    assert done.returncode == 1 and not (tmp_path / "none.gguf").exists()
    assert f"the template {other} and {source} do not go together" in done.stderr
    done = ds4("convert", tmp_path, tmp_path / "none.gguf")
    assert done.returncode == 2 and "--recipe NAME, or --template FILE" in done.stderr


def test_gaps_of_an_imatrix_are_told_first(ds4: Any, source: Path, tmp_path: Path) -> None:
    entries = {}
    for layer in range(5):
        for part in ("gate", "up", "down"):
            counts = np.ones(16)
            counts[layer] = 0
            entries[f"blk.{layer}.ffn_{part}_exps.weight"] = Entry(np.full((16, 256), 2.0), counts)
    del entries["blk.0.ffn_up_exps.weight"]
    data = tmp_path / "some.gguf"
    Imatrix(entries, n_chunks=1).write(data)
    arguments = ("quantize", source, tmp_path / "out.gguf", "--recipe", "q4", "--imatrix", data)
    done = ds4(*arguments, "--dry-run")
    assert done.returncode == 0
    assert "blk.0.ffn_up_exps.weight of all experts: no entry in the imatrix; Q4_K without weights" in done.stderr
    assert "blk.3.ffn_down_exps.weight of experts 3: never observed; Q4_K without weights" in done.stderr
    done = ds4(*arguments, "--imatrix-strict")
    assert done.returncode == 1 and "blk.3.ffn_down_exps.weight of experts 3" in done.stderr
    assert not list(tmp_path.glob("out*"))
    (tmp_path / "cut.gguf").write_bytes(data.read_bytes()[:1000])
    done = ds4(*arguments[:-1], tmp_path / "cut.gguf")
    assert done.returncode == 1 and "cut.gguf" in done.stderr


def test_compare_writes_nothing(ds4: Any, source: Path, tmp_path: Path, tiny_gguf: Callable[..., Path]) -> None:
    done = ds4("quantize", source, "--recipe", "q4", "--compare-tensor", "blk.1.ffn_down", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [r[:3] for r in rows] == [
        ["blk.1.ffn_down_exps.weight", "BF16", "Q4_K"],
        ["blk.1.ffn_down_shexp.weight", "BF16", "Q8_0"],
    ]
    other = tiny_gguf("flash", recipe="ds4-q2")
    done = ds4(
        "quantize",
        source,
        "--compare-tensor",
        "blk.1.ffn_gate_exps",
        "--compare-gguf",
        other,
        "--json",
        "-",
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["compare"][0]["type"] == "IQ2_XXS"
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["SOURCE"], "OUT is missing"),
        (["SOURCE", "--compare-tensor", "a", "--dry-run"], "OUT"),
        (["SOURCE", "OUT", "--compare-gguf", "SOURCE"], "needs --compare-tensor"),
        (["SOURCE", "OUT", "--compare-gguf", "SOURCE", "--compare-tensor", "a"], "leave OUT away"),
        (["SOURCE", "OUT", "--recipe", "q5"], "q2-q4"),
        (["SOURCE", "OUT", "--experts", "q3_k"], "Q8_0, MXFP4"),
        (["SOURCE", "OUT", "--tensor-type", "blk.0"], "NAME=TYPE"),
        (["SOURCE", "OUT", "--tensor-type", "blk.0=q9"], "'q9'"),
        (["SOURCE", "OUT", "--recipe", "q2-q4", "--q4-layers", "x"], "list of layers"),
        (["SOURCE", "OUT", "--recipe", "q2", "--q4-layers", "1"], "belongs to the recipe q2-q4"),
        (["SOURCE", "OUT", "--threads", "0"], "at least 1"),
        (["SOURCE", "SOURCE", "--recipe", "q4", "--force"], "is read by this command"),
        (["SOURCE", "OUT", "--template", "OUT"], "is read by this command"),
    ],
)
def test_a_wrong_command_line(ds4: Any, source: Path, tmp_path: Path, arguments: list[str], text: str) -> None:
    names = {"SOURCE": source, "OUT": tmp_path / "out.gguf"}
    done = ds4("quantize", *(names.get(a, a) for a in arguments))
    assert done.returncode == 2, done.stderr
    assert text in done.stderr and "ds4 quantize -h" in done.stderr
    assert not list(tmp_path.glob("out*"))


def test_work_that_cannot_be_done(ds4: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    for arguments, text in (
        ((tmp_path / "none.gguf", out, "--recipe", "q4"), "none.gguf"),
        ((tmp_path, out, "--recipe", "q4"), "config.json"),
        ((tmp_path, out), "name a recipe"),
        ((source, out, "--recipe", "q2", "--imatrix", tmp_path / "no.dat"), "no.dat"),
        ((source, tmp_path / "no" / "out.gguf", "--recipe", "q4"), "no such directory"),
        ((source, out, "--recipe", "q2", "--attention-proj", "q4_k"), "blk.0.attn_q_b.weight: rows of 128 values"),
        ((source, out, "--mtp-out", tmp_path / "mtp.gguf"), "no MTP block"),
        ((source, out, "--recipe", "q8_0", "--json", tmp_path / "no" / "report"), "report"),
    ):
        done: subprocess.CompletedProcess[str] = ds4("quantize", *arguments)
        assert done.returncode == 1, (arguments, done.stderr)
        assert text in done.stderr
    assert not list(tmp_path.glob("out*"))
