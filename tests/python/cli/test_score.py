"""``ds4 score`` as a program."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import program

TEXT = "In the tool calls there is one and another; the rest is on the street. "
COLUMNS = "id\tprompt_tokens\ttarget_tokens\tnll\tavg_nll\tfirst_match\tgreedy_lcp"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(TEXT * 3)
    (tmp_path / "b.txt").write_text(TEXT)
    (tmp_path / "m.tsv").write_text("# id\tprompt_file\tcontinuation_file\none\ta.txt\tb.txt\ntwo\tb.txt\ta.txt\n")
    rows = [
        {"id": f"c{i}", "prompt": "<｜User｜>" + "x" * i, "continuation": " the rest is" + "y" * i, "kind": "ab"[i % 2]}
        for i in range(4)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    return tmp_path


@pytest.fixture(scope="session")
def quantized(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", part="main", recipe="q8")


def test_texts(ds4: Any, model_path: Path, folder: Path) -> None:
    out = folder / "out.json"
    done = ds4("score", "text", "-m", model_path, folder / "a.txt", folder / "b.txt", "-c", 64, "--json", out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["text", str(folder / "a.txt"), str(folder / "b.txt"), "total"]
    content = json.loads(out.read_text())
    assert content["format"] == "ds4-score-text" and content["ctx"] == 64 and content["stride"] == 32
    assert content["model"] == model_path.name and len(content["fingerprint"]) == 32
    assert content["total"]["tokens"] == sum(t["tokens"] for t in content["texts"])
    assert f"{content['total']['avg_nll']:.6f}" in lines[-1]
    plain = ds4("score", "text", "-m", model_path, folder / "a.txt", "-c", 64, "--json", "-", "-t", 2)
    assert json.loads(plain.stdout)["texts"][0] == content["texts"][0]
    assert "perplexity" in plain.stderr


def test_cases_and_comparison(ds4: Any, model_path: Path, quantized: Path, folder: Path) -> None:
    for model, name in ((model_path, "old"), (quantized, "new")):
        out = folder / f"{name}.tsv"
        done = ds4("score", "cases", "-m", model, folder / "c.jsonl", "-o", out, "--json", folder / f"{name}.json")
        assert done.returncode == 0, done.stderr
        assert out.read_text().splitlines()[0] == COLUMNS + "\tkind"
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["kind", "a", "b", "all"]
    piped = ds4("score", "cases", "-m", model_path, folder / "c.jsonl")
    assert piped.stdout == (folder / "old.tsv").read_text() and "perplexity" in piped.stderr
    compare = ["score", "compare", folder / "old.tsv"]
    done = ds4(*compare, folder / "new.tsv", "--json", folder / "cmp.json")
    assert done.returncode == 0, done.stderr
    content = json.loads((folder / "cmp.json").read_text())
    assert content["wins"] + content["losses"] + content["ties"] == 4
    assert f"{content['difference']:+.6f}" in done.stdout
    assert set(content["kinds"]) == {"a", "b"}
    from_json = json.loads(ds4("score", "compare", folder / "old.json", folder / "new.json", "--json", "-").stdout)
    assert from_json["difference"] == pytest.approx(content["difference"], abs=1e-8)
    manifest = ds4("score", "cases", "-m", model_path, folder / "m.tsv")
    assert manifest.returncode == 0 and manifest.stdout.splitlines()[0] == COLUMNS
    assert [line.split("\t")[0] for line in manifest.stdout.splitlines()[1:]] == ["one", "two"]
    (folder / "other.tsv").write_text(manifest.stdout)
    strange = ds4(*compare, folder / "other.tsv")
    assert strange.returncode == 1 and "no case in common" in strange.stderr


def test_a_plot(ds4: Any, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    (folder / "run.tsv").write_text(f"{COLUMNS}\na\t3\t2\t1.500000000\t0.750000000\t1\t2\n")
    done = ds4("score", "compare", folder / "run.tsv", folder / "run.tsv", "--plot", folder / "p.svg")
    assert done.returncode == 0 and "1 better" not in done.stdout and f"wrote {folder / 'p.svg'}" in done.stderr
    assert (folder / "p.svg").read_bytes().startswith(b"<?xml")


def test_interruption(model_path: Path, folder: Path, environment: dict[str, str]) -> None:
    (folder / "long.txt").write_text(TEXT * 3000)
    before = sorted(p.name for p in folder.iterdir())
    command = [*program(), "score", "text", "-m", model_path, folder / "long.txt", "--json", folder / "out.json"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert child.stderr is not None
        assert "scoring" in child.stderr.readline()  # the first report of progress
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130 and out == "" and "Traceback" not in err
    assert sorted(p.name for p in folder.iterdir()) == before


def test_divergence(ds4: Any, model_path: Path, quantized: Path, folder: Path) -> None:
    against = ["score", "against", "-m", quantized, "--parent", model_path]
    done = ds4(*against, folder / "c.jsonl", folder / "b.txt", "--json", folder / "d.json")
    assert done.returncode == 0, done.stderr
    content = json.loads((folder / "d.json").read_text())
    assert content["model"]["quant_bits"] == 8 and content["parent"]["quant_bits"] == 16
    assert [c["id"] for c in content["cases"]] == ["c0", "c1", "c2", "c3", str(folder / "b.txt")]
    assert 0 < content["total"]["mean_kl"] < content["total"]["max_kl"]
    same = ds4("score", "against", "-m", model_path, "--parent", model_path, folder / "b.txt", "--json", "-")
    total = json.loads(same.stdout)["total"]
    assert total["max_kl"] == 0.0 and total["agreement"] == 1.0 and total["delta"] == 0.0
    strict = ds4(*against, folder / "b.txt", "--max-kl", 1e-9, "--min-agreement", 0)
    assert strict.returncode == 1 and "the mean divergence is" in strict.stderr
    assert ds4(*against, folder / "b.txt", "--max-kl", 10, "--min-agreement", 0).returncode == 0
    both = ds4(*against, folder / "b.txt", "--simulate-memory", "1M")
    assert both.returncode == 1 and "not enough memory" in both.stderr


def test_vectors(ds4: Any, model_path: Path, quantized: Path, folder: Path) -> None:
    vec = folder / "v.vec"
    done = ds4("score", "vectors", "-m", model_path, "--record", vec, "--steps", 6, folder / "a.txt", folder / "b.txt")
    assert done.returncode == 0, done.stderr
    text = vec.read_text()
    assert model_path.name in text.splitlines()[0] and "case a " in text and text.count("step ") == 12
    run = ds4("score", "vectors", "-m", model_path, vec, "--json", folder / "r.json")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped; 0 of 12 choices differ"
    assert json.loads((folder / "r.json").read_text())["passed"] is True
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("step 2 "))
    lines[at] = "step 2 7a7a7a 5"
    vec.write_text("\n".join(lines))
    failed = ds4("score", "vectors", "-m", model_path, vec)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[0].startswith("FAIL  a") and "step 2: the model's token is" in failed.stdout
    skipped = ds4("score", "vectors", "-m", model_path, vec, "--skip", "a")
    assert skipped.returncode == 0 and "SKIP  a" in skipped.stdout


def test_usage_errors(ds4: Any, model_path: Path, folder: Path) -> None:
    text, cases = folder / "a.txt", folder / "c.jsonl"
    for arguments, words in (
        (["text"], "Missing argument"),
        (["text", text, "--stride", 0], "at least 1"),
        (["cases", cases, "--cpu", "--backend", "cuda"], "contradict"),
        (["cases", cases, "-o", "x", "--json", "x"], "name of two outputs"),
        (["against", text, "-m", model_path], "--parent"),
        (["against", text, "--parent", model_path], "-m is needed"),
        (["against", cases, "-m", model_path, "--parent", model_path, "--stride", 3], "no effect on cases"),
        (["vectors", text, "--steps", 3], "belong to --record"),
        (["vectors", text, "--record", "x", "--skip", "a"], "no effect with --record"),
        (["nonsense"], "No such command"),
    ):
        done = ds4("score", *arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert words in done.stderr and done.stdout == ""


def test_failures_leave_nothing(ds4: Any, model_path: Path, folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "bad.jsonl").write_text('{"prompt": "a", "continuation": "b"}\n{"prompt": 3}\n')
    before = sorted(p.name for p in folder.iterdir())
    text, cases, common = folder / "a.txt", folder / "c.jsonl", ["-m", model_path]
    out = folder / "out"
    for arguments, words in (
        (["text", folder / "none.txt"], "none.txt: No such file"),
        (["text", folder / "empty.txt", "--json", out], "empty.txt: the text is empty"),
        (["text", folder / "latin.txt"], "latin.txt: not UTF-8 text (byte 3)"),
        (["text", text, "-c", 16, "--stride", 17, "--json", out], "--stride 17 is more than the context of 16"),
        (["cases", folder / "bad.jsonl", "-o", out], "bad.jsonl:2: "),
        (["cases", cases, "-c", 3, "-o", out], "case c0: "),
        (["cases", cases, "-o", folder / "none" / "x"], "No such file"),
        (["vectors", text], "a.txt:1: 'In' where a case should begin"),
    ):
        done = ds4("score", arguments[0], *common, *arguments[1:])
        assert done.returncode == 1, (arguments, done.stdout)
        assert words in done.stderr
        assert sorted(p.name for p in folder.iterdir()) == before
    done = ds4("score", "compare", text, text, "--plot", folder / "p.pdf")
    assert done.returncode == 1 and ".svg or .png" in done.stderr
    done = ds4("score", "compare", text, cases)
    assert done.returncode == 1 and "a.txt: not a table of scores" in done.stderr


def test_help_has_examples(ds4: Any) -> None:
    for name in ("text", "cases", "against", "compare", "vectors"):
        done = ds4("score", name, "-h")
        assert done.returncode == 0 and f"ds4 score {name}" in done.stdout
