"""``ds4 bench``: sweeps, what they write, and their comparison."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.markdown import has_embedded_model

SMALL = ("--ctx-start", "20", "--ctx-max", "60", "--step-incr", "20", "--gen-tokens", "3", "-t", "1")
MANY = ("--ctx-start", "3", "--ctx-max", "60", "--step-incr", "3", "--gen-tokens", "3", "-t", "1")


def table(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return comments and rows."""
    lines = text.splitlines()
    facts = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    return facts, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_the_table(ds4: Any, model_path: Path) -> None:
    done = ds4("bench", "-m", model_path, *SMALL, "--repeats", "2")
    assert done.returncode == 0, done.stderr
    facts, rows = table(done.stdout)
    assert [(r["ctx_tokens"], r["prefill_tokens"], r["gen_tokens"]) for r in rows] == [
        ("20", "20", "3"), ("40", "20", "3"), ("60", "20", "3"),
    ]  # fmt: skip
    assert list(rows[0])[:9] == [
        "ctx_tokens", "prefill_tokens", "prefill_tps", "gen_tokens", "gen_tps", "gen_first_ms", "gen_steady_tokens",
        "gen_steady_tps", "kvcache_bytes",
    ]  # fmt: skip
    for row in rows:
        assert len(row["prefill_tps"].split(".")[1]) == len(row["gen_steady_tps"].split(".")[1]) == 2
        assert row["repeats"] == "2" and len(row["prefill_runs"].split()) == len(row["gen_runs"].split()) == 2
        assert float(row["prefill_tps_min"]) <= float(row["prefill_tps"]) <= float(row["prefill_tps_max"])
        assert float(row["gen_tps_min"]) <= float(row["gen_tps"]) <= float(row["gen_tps_max"])
        assert int(row["kvcache_bytes"]) > 0 and row["gen_steady_tokens"] == "2"
    expected = {"backend": "cpu", "threads": "1", "ctx": "64", "prompt": "generated text", "repeats": "2"}
    assert expected.items() <= facts.items() and facts["ended"] == "complete"
    assert len(facts["fingerprint"]) == 32 and facts["version"] and facts["machine"] and facts["cpu_isa"]
    assert int(facts["peak_rss_bytes"]) > 1_000_000 and float(facts["load"]) >= 0
    assert facts["start"].startswith("warm")


def test_cold_chat_and_other_steps(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    prompt, out = tmp_path / "a prompt.txt", tmp_path / "table.csv"
    prompt.write_text("Über die Brücke gehen viele Leute. " * 40, encoding="utf-8")
    more = ["--chat-prompt-file", prompt, "-sys", "Be brief.", "--cold", "--warm-weights", "--csv", out]
    steps = ["--ctx-start", "10", "--ctx-max", "50", "--step-mul", "2", "--gen-tokens", "0", "--ctx-alloc", "70"]
    done = ds4("bench", "-m", model_path, *more, *steps, "-t", "1")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    facts, rows = table(out.read_text())
    assert [r["ctx_tokens"] for r in rows] == ["10", "20", "40", "50"]
    assert all(r["gen_tps"] == "0.00" and r["gen_tokens"] == "0" for r in rows)
    assert facts["prompt"] == "chat a prompt.txt" and facts["start"] == "cold, weights read before"
    assert facts["ctx"] == "70"
    # The same text without its frame is another prompt.
    done = ds4("bench", "-m", model_path, "--prompt-file", prompt, *steps, "-t", "1")
    assert table(done.stdout)[0]["prompt_sha256"] != facts["prompt_sha256"]


def test_report_picture_and_logits(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "logits"
    folder.mkdir()
    out, plot, report = tmp_path / "x.csv", tmp_path / "x.svg", tmp_path / "x.json"
    files = ["--csv", out, "--plot", plot, "--json", report, "--dump-frontier-logits-dir", folder]
    done = ds4("bench", "-m", model_path, *SMALL, *files, "--chunk", "8", "--isa", "base")
    assert done.returncode == 0, done.stderr
    assert "<svg" in plot.read_text()
    content = json.loads(report.read_text())
    assert content["format"] == "ds4-bench-sweep" and content["chunk"] == 8 and content["cpu_isa"] == "base"
    assert [f["ctx_tokens"] for f in content["frontiers"]] == [20, 40, 60] and content["peak_rss"] > 1_000_000
    assert len(content["frontiers"][0]["gen_seconds"][0]) == 3
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["frontier-0000020.json", "frontier-0000040.json", "frontier-0000060.json"]
    at = json.loads((folder / names[1]).read_text())
    assert list(at)[:2] == ["source", "model"] and at["frontier_tokens"] == 40 and at["prefill_tokens"] == 20
    assert at["quality"] is False and at["backend"] == "cpu" and at["ctx"] == 64
    assert len(at["logits"]) == at["vocab"] and at["logits"][at["argmax_id"]] == at["argmax_logit"] == max(at["logits"])


@pytest.mark.skipif(not has_embedded_model(), reason="this installation has no embedded model")
def test_no_arguments_at_all(environment: dict[str, str]) -> None:
    """Under its own name it sweeps the tiny model over a text of its own."""
    script = Path(sys.executable).with_name("ds4-bench")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "ds4.cli.main", "bench"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    facts, rows = table(done.stdout)
    assert [r["ctx_tokens"] for r in rows] == ["2048", "4096", "6144", "8192"]
    assert facts["shape"] == "ds4-tiny" and facts["ctx"] == str(8192 + 128 + 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ctx-start", "70"], "--ctx-start 70 is behind --ctx-max 60"),
        (
            ["--ctx-alloc", "63"],
            "--ctx-alloc 63 must be greater than --ctx-max and --gen-tokens together, which are 63",
        ),
        (["--ctx-max", "1048576"], "need 1048580 positions"),
        (["--ctx-max", "0"], "at least 1"),
        (["--step-incr", "0"], "at least 1"),
        (["--step-mul", "0.5"], "at least 1"),
        (["--step-mul", "nan"], "at least 1"),
        (["--gen-tokens", "-1"], "at least 0"),
        (["--repeats", "0"], "at least 1"),
        (["--prompt-file", "a", "--chat-prompt-file", "b"], "cannot be given together"),
        (["--system", "x"], "--system goes with --chat-prompt-file"),
        (["--prompt-file", "a", "--system", "x"], "--system goes with --chat-prompt-file"),
        (["--json", "-"], "both go to standard output"),
        (["--bandwidth", "30"], "--bandwidth has no effect in a sweep"),
        (["--jsonl"], "--jsonl has no effect in a sweep"),
        (["-c", "99"], "--ctx has no effect in a sweep"),
        (["--cpu", "--backend", "cuda"], "contradict"),
        (["--compare", "a.csv", "b.csv"], "has no effect with --compare"),
        (["--compare", "a.csv"], "requires 2 arguments"),
    ],
)
def test_wrong_command_lines(ds4: Any, model_path: Path, arguments: list[str], message: str) -> None:
    done = ds4("bench", "-m", model_path, *SMALL, *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and done.stdout == ""


def test_what_cannot_be_done(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    empty, short, binary = tmp_path / "empty.txt", tmp_path / "short.txt", tmp_path / "binary.txt"
    empty.write_text(" \n")
    short.write_text("a few words")
    binary.write_bytes(b"\xff\xfe\0")
    for arguments, message in (
        (["--prompt-file", tmp_path / "none.txt"], "none.txt: No such file"),
        (["--prompt-file", empty], "empty.txt: the prompt is empty"),
        (["--chat-prompt-file", empty], "empty.txt: the prompt is empty"),
        (["--prompt-file", short], "tokens, but the sweep goes to 60; give a longer text, or --ctx-max"),
        (["--chat-prompt-file", short], "tokens, but the sweep goes to 60"),
        (["--prompt-file", binary], "binary.txt: not UTF-8"),
        (["--dump-frontier-logits-dir", tmp_path / "none"], "needs a folder that exists"),
        (["--dump-frontier-logits-dir", short], "needs a folder that exists"),
        (["--csv", tmp_path / "none" / "x.csv"], "x.csv: No such file"),
        (["--csv", tmp_path], "Is a directory"),
        (["--plot", tmp_path / "x.gif"], ".svg or .png"),
        (["--simulate-memory", "1M"], "not enough memory"),
    ):
        done = ds4("bench", "-m", model_path, *SMALL, *arguments)
        assert done.returncode == 1 and message in done.stderr and done.stdout == "", (arguments, done.stderr)
    for name in ("-m", "--prompt-file"):
        done = ds4("bench", "-m", model_path, *SMALL, "--csv", model_path, name, model_path)
        assert done.returncode == 2 and "would be replaced" in done.stderr
    done = ds4("bench", "-m", model_path, *SMALL, "--csv", tmp_path / "x", "--json", tmp_path / "x")
    assert done.returncode == 2 and "two outputs" in done.stderr


def test_an_older_table_survives_a_run_that_never_begins(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    out.write_text("old\n" * 5000)
    short = tmp_path / "short.txt"
    short.write_text("few")
    assert ds4("bench", "-m", model_path, *SMALL, "--csv", out, "--prompt-file", short).returncode == 1
    assert out.read_text() == "old\n" * 5000
    assert ds4("bench", "-m", model_path, *SMALL, "--csv", tmp_path / "new.csv", "--prompt-file", short).returncode == 1
    assert not (tmp_path / "new.csv").exists()
    assert ds4("bench", "-m", model_path, *SMALL, "--csv", out).returncode == 0
    assert "old" not in out.read_text() and len(table(out.read_text())[1]) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(ds4: Any, model_path: Path) -> None:
    done = ds4("bench", "-m", model_path, *SMALL, "--csv", "/dev/full")
    assert done.returncode == 1 and "/dev/full: No space left on device" in done.stderr


def test_a_disk_that_becomes_full(model_path: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """What is in the table are whole rows, and the message names the file."""
    out = tmp_path / "x.csv"
    command = [sys.executable, "-m", "ds4.cli.main", "bench", "-m", str(model_path), *MANY, "--csv", str(out)]
    limit = 2500
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 1 and f"{out}: File too large" in done.stderr and "Traceback" not in done.stderr
    text = out.read_text()
    assert 0 < len(text) <= limit and text.endswith("\n") and "complete" not in text
    facts, rows = table(text)
    assert 1 <= len(rows) < 20 and all(r["gen_runs"] for r in rows) and facts["model"]


def test_ctrl_c_keeps_the_rows_so_far(model_path: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """Each row is in the file as soon as it is measured, and the end says how it came."""
    out, report = tmp_path / "x.csv", tmp_path / "x.json"
    command = [sys.executable, "-m", "ds4.cli.main", "bench", "-m", str(model_path), "--json", str(report)]
    command += ["--ctx-start", "20", "--ctx-max", "100000", "--step-incr", "20", "-t", "1", "--gen-tokens", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None and run.stderr is not None
        lines = []
        while not lines or not lines[-1].startswith("40,"):
            lines.append(run.stdout.readline())
            assert lines[-1], "".join(lines)
        os.kill(run.pid, signal.SIGINT)
        rest, errors = run.communicate(timeout=60)
    assert run.returncode == 130 and "interrupted" in errors and "Traceback" not in errors
    out.write_text("".join(lines) + rest)
    facts, rows = table(out.read_text())
    assert len(rows) >= 2 and all(r["gen_runs"] for r in rows)
    assert facts["ended"] == f"interrupted after {len(rows)} of 5000 frontiers"
    assert not report.exists() and not list(tmp_path.glob(".ds4-*"))


def write_table(path: Path, speeds: Sequence[Sequence[float]], **facts: str) -> Path:
    comments = "".join(f"# {k}: {v}\n" for k, v in {"ended": "complete", **facts}.items())
    rows = "".join(
        f"{c},{v[0]},{v[0]},{' '.join(map(str, v))},{' '.join(map(str, v))}\n" for c, v in enumerate(speeds, 1)
    )
    path.write_text(comments + "ctx_tokens,prefill_tps,gen_tps,prefill_runs,gen_runs\n" + rows)
    return path


def test_comparison(ds4: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    a = write_table(tmp_path / "a.csv", [[100, 102, 98], [50, 51, 49]], version="1")
    b = write_table(tmp_path / "b.csv", [[110, 112, 108], [55, 56, 54]], version="2")
    plot, report = tmp_path / "x.png", tmp_path / "x.json"
    done = ds4("bench", "--compare", a, b, "--plot", plot, "--json", report)
    assert done.returncode == 0, done.stderr
    assert "version differs: 1 and 2" in done.stderr and plot.read_bytes().startswith(b"\x89PNG")
    assert "       1     100.00     110.00     +10.00   1.100" in done.stdout
    assert "prefill: B - A +10.0" in done.stdout and "the mean of 3 repeats; standard deviation 0.20 %" in done.stdout
    assert "decode: B is faster" in done.stdout
    assert json.loads(report.read_text())["phases"]["gen"]["paired"]["faster"] is True
    done = ds4("bench", "--compare", a, b, "--json", "-")
    assert json.loads(done.stdout)["format"] == "ds4-bench-comparison"


def test_comparison_of_several_pairs(ds4: Any, tmp_path: Path) -> None:
    """Five pairs whose gains scatter: no claim is made."""
    arguments: list[Any] = []
    for i, gain in enumerate((1.2, 0.85, 1.15, 0.9, 1.1)):
        a = write_table(tmp_path / f"a{i}.csv", [[100 - 5 * i]])
        b = write_table(tmp_path / f"b{i}.csv", [[(100 - 5 * i) * gain]])
        arguments += ["--compare", a, b]
    done = ds4("bench", *arguments)
    assert done.returncode == 0, done.stderr
    assert "prefill: B - A +4.00 % of A, the mean of 5 pairs of files; standard deviation 15.57 %" in done.stdout
    assert "prefill: no difference can be told from the noise" in done.stdout and "B is" not in done.stdout


def test_a_comparison_without_repeats_makes_no_claim(ds4: Any, tmp_path: Path) -> None:
    a, b = write_table(tmp_path / "a.csv", [[100], [50]]), write_table(tmp_path / "b.csv", [[120], [60]])
    done = ds4("bench", "--compare", a, b)
    assert "says nothing about noise" in done.stdout and "B is" not in done.stdout
    assert "one run a side" in done.stderr


def test_comparison_of_what_is_no_table(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    a = write_table(tmp_path / "a.csv", [[100]])
    other, missing = tmp_path / "other.json", tmp_path / "missing.csv"
    other.write_text('{"tests": []}')
    missing.write_text("ctx_tokens,gen_tps\n1,2\n")
    for path, message in (
        (model_path, f"{model_path}: larger than 16 MiB"),
        (other, "other.json: no table of ds4-bench"),
        (missing, "missing.csv: no table of ds4-bench, its first row lacks prefill_tps"),
        (tmp_path / "none.csv", "none.csv: No such file"),
    ):
        done = ds4("bench", "--compare", a, path)
        assert done.returncode == 1 and str(message) in done.stderr and done.stdout == "", done.stderr
    done = ds4("bench", "--compare", a, a, "--json", a)
    assert done.returncode == 2 and "would be replaced" in done.stderr


def test_kernels(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    report = tmp_path / "x.json"
    done = ds4("bench", "-m", model_path, "--micro", "--isa", "base", "--reps", "1", "-t", "1", "--json", report)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    assert "base" in lines and lines["shared"][1] == "BF16" and len(lines["shared"]) == 2 + 3 + 2 + 2
    assert len(lines["attention"]) == 1 + 3 and "total" in lines
    content = json.loads(report.read_text())
    assert content["format"] == "ds4-bench-micro" and {p["variant"] for p in content["parts"]} == {"base"}
    assert {p["batch"] for p in content["parts"]} == {1, 12, 128}
    assert ds4("bench", "-m", model_path, "--micro", "--simulate-memory", "1M").returncode == 1
