"""``ds4 bench --tests``: tables, reports, wrong command lines."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TESTS = ("--tests", "pp8,tg2,tg2@20", "--reps", "2", "-t", "1")


def test_table(ds4: Any, model_path: Path) -> None:
    done = ds4("bench", "-m", model_path, *TESTS, "--bandwidth", "30", "--warm-weights")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^test +tokens/s +min +max +ms/token +cpus +GB/s +floor t/s +share$", done.stdout, re.MULTILINE)
    for name, n in (("pp8", 6), ("tg2", 9), ("tg2@20", 9)):
        line = next(x for x in done.stdout.splitlines() if x.split()[0] == name)
        assert len(line.split()) == n
    assert "1 thread(s)" in done.stdout and "tg2@20 reads" in done.stdout


def test_report_and_profile(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out.json", tmp_path / "parts.png"
    done = ds4("bench", "-m", model_path, *TESTS, "--json", out, "--plot", plot, "--chunk", "4", "--isa", "base")
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "experts_gate_up" in done.stdout
    report = json.loads(out.read_text())
    assert report["format"] == "ds4-bench" and report["chunk"] == 4 and report["threads"] == 1
    assert report["cpu_isa"] == "base" and report["ctx"] == 22 and report["peak_rss"] > 1_000_000
    assert [t["test"] for t in report["tests"]] == ["pp8", "tg2", "tg2@20"]
    for test in report["tests"]:
        assert test["tps_min"] <= test["tps"] <= test["tps_max"] and len(test["seconds"]) == 2
        profile = test["profile"]
        assert sum(profile["parts"].values()) == pytest.approx(profile["seconds"])
    assert report["tests"][1]["token_bytes"]["total"] > 0 and "floor_tps" not in report["tests"][1]


def test_json_on_standard_output_is_alone(ds4: Any, model_path: Path) -> None:
    done = ds4("bench", "-m", model_path, *TESTS, "--json", "-", "--bandwidth", "30")
    report = json.loads(done.stdout)
    assert report["bandwidth"] == 30e9
    assert report["tests"][1]["floor_tps"] == pytest.approx(30e9 / report["tests"][1]["token_bytes"]["total"])


def test_one_line_a_run(ds4: Any, model_path: Path) -> None:
    done = ds4("bench", "-m", model_path, *TESTS, "--jsonl")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [x["test"] for x in lines] == ["pp8", "pp8", "tg2", "tg2", "tg2@20", "tg2@20"]
    assert all(x["tps"] > 0 and x["seconds"] > 0 and x["cpu_seconds"] >= 0 for x in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tests", "pp"], "is no test"),
        (["--tests", "pp0"], "no tokens"),
        (["--tests", "pp64", "--ctx", "63"], "pp64 needs 64 positions, --ctx gives 63"),
        (["--reps", "0"], "at least 1"),
        (["--isa", "sse9"], "sse9"),
        (["--bandwidth", "0"], "above 0"),
        (["--bandwidth", "nan"], "above 0"),
        (["--cpu", "--backend", "cuda"], "contradict"),
        (["--tests", "tg1", "--jsonl", "--json", "-"], "standard output"),
        (["--tests", "tg1", "--csv", "x.csv"], "--csv has no effect with --tests"),
        (["--micro", "--tests", "tg1"], "--tests has no effect with --micro"),
        (["--micro", "--csv", "x.csv"], "--csv has no effect with --micro"),
        (["--micro", "--plot", "x.svg"], "--plot has no effect with --micro"),
        (["--micro", "--isa", "sse9"], "sse9"),
        (["--drafts", "--tests", "tg1"], "--tests has no effect with --drafts"),
        (["--drafts", "--micro"], "--micro has no effect with --drafts"),
        (["--drafts", "--plot", "x.svg"], "--plot has no effect with --drafts"),
        (["--mtp", "x.gguf"], "--mtp has no effect without --drafts"),
        (["--profile", "--gen-tokens", "4"], "--gen-tokens has no effect with --tests or --profile"),
        (["-t", "0"], "at least 1"),
        (["--chunk", "4097"], "at most 4096"),
    ],
)
def test_wrong_command_lines(ds4: Any, model_path: Path, arguments: list[str], message: str) -> None:
    done = ds4("bench", "-m", model_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and done.stdout == ""


def test_what_cannot_be_done(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["-m", tmp_path / "none.gguf"], "none.gguf"),
        (["-m", model_path, "--plot", tmp_path / "x.gif"], ".svg or .png"),
        (["-m", model_path, "--json", tmp_path / "no" / "x.json"], "x.json"),
        (["-m", model_path, "--simulate-memory", "1M"], "not enough memory"),
    ):
        done = ds4("bench", *TESTS, *arguments)
        assert done.returncode == 1 and message in done.stderr, done.stderr
    done = ds4("bench", *TESTS, "-m", model_path, "--json", model_path)
    assert done.returncode == 2 and "would be replaced" in done.stderr


def test_ctrl_c(model_path: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """The exit code says so, and no report appears."""
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "ds4.cli.main", "bench", "-m", model_path, "--tests", "tg2,tg50000", "--jsonl"]
    command += ["--json", out, "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None and run.stderr is not None
        assert '"tg2"' in run.stdout.readline()  # the work has begun
        time.sleep(0.2)
        os.kill(run.pid, signal.SIGINT)
        assert run.wait(60) == 130
        assert "interrupted" in run.stderr.read()
    assert not out.exists() and not list(tmp_path.glob(".ds4-*"))


def test_own_name(model_path: Path, environment: dict[str, str]) -> None:
    script = Path(sys.executable).with_name("ds4-bench")
    if not script.exists():
        pytest.skip("the scripts of the package are not installed beside this Python")
    command = [script, "-m", model_path, "--tests", "tg1", "--reps", "1", "-t", "1", "--jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["test"] == "tg1", done.stderr
