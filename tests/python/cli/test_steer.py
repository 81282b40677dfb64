"""``ds4 steer`` as a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.steering import SteeringDirections

DATA = Path(__file__).parents[2] / "data" / "steering"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """The first prompts of each file."""
    for name in ("verbose", "terse", "heldout"):
        lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
    return tmp_path


def test_build_show_and_sweep(ds4: Any, few: Path) -> None:
    out, table, plot = few / "dir with space" / "v.npz", few / "r.json", few / "r.svg"
    build = ["steer", "build", "--good", few / "verbose.jsonl", "--bad", few / "terse.jsonl", "-o", out]
    missing = ds4(*build)
    assert missing.returncode == 1 and "dir with space" in missing.stderr
    out.parent.mkdir()
    done = ds4(*build, "--component", "attn_out", "--at", "mean")
    assert done.returncode == 0, done.stderr
    assert "5 of 5 layers, from 3 and 3 prompts" in done.stderr
    directions = SteeringDirections.load(out, n_layer=5, n_embd=256)
    assert directions.notes["component"] == "attn_out" and directions.notes["good_file"] == "verbose.jsonl"
    again = ds4(*build)
    assert again.returncode == 2 and "--force" in again.stderr
    shown = ds4("steer", "show", out)
    assert shown.returncode == 0 and directions.fingerprint in shown.stdout and "attn_out" in shown.stdout
    done = ds4(
        "steer", "sweep", "--direction", out, "--prompts", few / "heldout.jsonl", "--scales", "0,2", "-n", "40",
        "--json", table, "--plot", plot,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads(table.read_text())
    assert [row["scale"] for row in content["rows"]] == [0, 2]
    assert content["directions"][0]["attn"] == 1 and content["directions"][0]["ffn"] == 0
    assert all(len(row["answers"]) == 3 and row["answers"][0]["text"] for row in content["rows"])
    assert done.stdout.splitlines()[0].split() == ["scale", "words", "tokens", "ended", "right"]
    assert plot.read_text().startswith("<?xml")


def test_pairs_of_unequal_files(ds4: Any, few: Path) -> None:
    (few / "bad.txt").write_text("One.\nTwo.\n")
    done = ds4(
        "steer", "build", "--good-file", few / "verbose.jsonl", "--bad-file", few / "bad.txt", "--pair-normalize",
        "--no-orthogonalise", "--system", "Be kind.", "-o", few / "d.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the first 2 of both are pairs" in done.stderr
    notes = json.loads((few / "d.json").read_text())
    assert notes["pair_normalize"] is True and notes["orthogonalise"] is False and notes["bad_prompts"] == 2
    assert (few / "d.f32").stat().st_size == 5 * 256 * 4


def test_what_is_refused(ds4: Any, few: Path) -> None:
    good = few / "verbose.jsonl"
    build = ["steer", "build", "--good", good, "--bad"]
    for code, text, *words in [
        (2, "written as .npz", *build, few / "terse.jsonl", "-o", few / "d.bin"),
        (
            2,
            "would be replaced",
            *build,
            few / "terse.jsonl",
            "-o",
            few / "verbose.json",
            "--good",
            few / "verbose.f32",
        ),
        (1, "look the same", *build, good, "-o", few / "d.npz"),
        (1, "none.txt", *build, few / "none.txt", "-o", few / "d.npz"),
        (1, "use -c", *build, few / "terse.jsonl", "-c", "4", "-o", few / "d.npz"),
        (2, "cannot be given together", *build, good, "--think", "--nothink", "-o", few / "d.npz"),
        (2, "--scales", "steer", "sweep", "--direction", good, "--prompts", good, "--scales", "1,x"),
        (1, "verbose", "steer", "sweep", "--direction", good, "--prompts", good),
        (1, "none.npz", "steer", "show", few / "none.npz"),
    ]:
        done = ds4(*words)
        assert done.returncode == code, (words, done.stderr)
        assert text in done.stderr, (text, done.stderr)
        assert "Traceback" not in done.stderr
    assert not (few / "d.npz").exists()


def test_directions_of_another_model(ds4: Any, few: Path) -> None:
    SteeringDirections([[1.0] * 8]).save(few / "d.npz")
    done = ds4("steer", "sweep", "--direction", few / "d.npz", "--prompts", few / "heldout.jsonl")
    assert done.returncode == 1
    assert "1 layers of 8, the model has 5 layers of 256" in done.stderr


def test_one_shot_and_conversation(ds4: Any, tmp_path: Path) -> None:
    """The same message under several factors: what the session holds stays, and the answers differ."""
    d = tmp_path / "d i r.npz"
    values = np.random.default_rng(0).standard_normal((5, 256))
    SteeringDirections(values, notes={"component": "attn_out"}).save(d)
    ask = ["--nothink", "-p", "What is a cat? Explain in detail.", "-n", "30"]
    plain = ds4(*ask)
    strong = ds4(*ask, "--dir-steering-file", d, "--dir-steering-ffn", "-9", "--dir-steering-attn=-9")
    off = ds4(*ask, "--dir-steering-file", d, "--dir-steering-ffn", "0")
    assert plain.returncode == strong.returncode == off.returncode == 0, strong.stderr
    assert plain.stdout == off.stdout != strong.stdout
    lines = [
        "/steer",
        "What is a cat?",
        "/steer -12",
        "What is a cat?",
        "/steer x",
        "/steer 1e9",
        "/ctx 700",
        "/steer 0",
    ]
    done = ds4("--nothink", "-n", "20", "--dir-steering-file", d, stdin="\n".join(lines) + "\n")
    assert done.returncode == 1  # two commands were wrong
    assert "FFN 0, attention 1" in done.stderr and "FFN -0, attention -12" in done.stderr
    assert "computed with other scales, and stay" in done.stderr
    assert "/steer needs a number" in done.stderr and "a scale lies in -100..100" in done.stderr
    assert "attention 0" in done.stderr
    none = ds4("--nothink", stdin="/steer 1\n")
    assert none.returncode == 1 and "--dir-steering-file" in none.stderr


def test_scales_without_or_beside_files(ds4: Any, tmp_path: Path) -> None:
    d = tmp_path / "d.npz"
    SteeringDirections([[1.0] * 256] * 5).save(d)
    for text, *words in [
        ("no effect without --dir-steering-file", "-p", "hi", "--dir-steering-ffn", "1"),
        ("is given 2 times for 3 files", "-p", "hi", *["--dir-steering-file", d] * 3, *["--dir-steering-ffn", "1"] * 2),
        ("at most 8", "-p", "hi", *["--dir-steering-file", d] * 9),
        ("at most 100", "-p", "hi", "--dir-steering-file", d, "--dir-steering-attn", "1e30"),
        ("has no effect", "-p", "hi", "--dump-tokens", "--dir-steering-file", d),
    ]:
        done = ds4(*words)
        assert done.returncode == 2, (words, done.stderr)
        assert text in done.stderr, done.stderr
