"""Tokens, logits, log-probabilities and perplexity as data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ds4 as package
import numpy as np
import pytest
from ds4.sampling import log_softmax

TOKEN_KEYS = {"id", "text", "bytes"}


def test_tokens_as_text_and_json(ds4: Any, model_path: Path) -> None:
    text = "the tools <think>é\n"
    plain = ds4("tokens", "-m", model_path, text)
    assert plain.returncode == 0, plain.stderr
    content = json.loads(ds4("tokens", "-m", model_path, "--json", text).stdout)
    ids = [t["id"] for t in content["tokens"]]
    assert [int(line.split()[0]) for line in plain.stdout.splitlines()] == ids
    assert content["n_tokens"] == len(ids)
    assert b"".join(bytes(t["bytes"]) for t in content["tokens"]).decode() == text
    assert "<think>" in [t["text"] for t in content["tokens"]]
    dumped = ds4("-m", model_path, "--dump-tokens", "-p", text)
    assert dumped.stdout == plain.stdout


def test_halves_of_characters_keep_their_bytes(ds4: Any, model_path: Path) -> None:
    content = json.loads(ds4("tokens", "-m", model_path, "--json", "ü").stdout)
    assert [t["bytes"] for t in content["tokens"]] == [[0xC3], [0xBC]]


def test_logits_are_those_of_the_engine(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "logits.json"
    done = ds4("-m", model_path, "-p", "hi", "--nothink", "--dump-logits", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    content = json.loads(out.read_text())
    assert {"source", "model", "backend", "quant_bits", "prompt_tokens", "ctx", "vocab"} <= set(content)
    assert set(content["argmax_token"]) == TOKEN_KEYS
    assert content["vocab"] == len(content["logits"]) == 512
    with package.Model.open(model_path) as model, model.session(n_ctx=64) as session:
        session.sync(
            model.tokenizer.encode("<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>", specials=True)
        )
        expected = session.logits()
    np.testing.assert_array_equal(np.array(content["logits"], np.float32), expected)
    assert content["argmax_token"]["id"] == int(expected.argmax())
    assert content["argmax_logit"] == pytest.approx(float(expected.max()), rel=1e-8)


def test_logprobs_schema(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    done = ds4("-m", model_path, "-p", "hi", "--nothink", "--dump-logprobs", out, "-n", 5, "--logprobs-top-k", 4)
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["top_k"] == 4 and content["prompt_tokens"] == 6
    assert 1 <= len(content["steps"]) <= 5
    for i, step in enumerate(content["steps"]):
        assert set(step) == {"step", "selected", "top_logprobs"}
        assert step["step"] == i
        assert set(step["selected"]) == TOKEN_KEYS
        assert len(step["top_logprobs"]) == 4
        assert step["top_logprobs"][0]["token"] == step["selected"]
        values = [t["logprob"] for t in step["top_logprobs"]]
        assert values == sorted(values, reverse=True) and values[0] <= 0
        for alternative in step["top_logprobs"]:
            assert set(alternative) == {"token", "logit", "logprob"}
    answer = ds4("-m", model_path, "-p", "hi", "--nothink", "-n", 5, "--temp", 0)
    chosen = b"".join(bytes(s["selected"]["bytes"]) for s in content["steps"] if s["selected"]["id"] != 1)
    assert answer.stdout == chosen.decode("utf-8", "replace") + ("" if chosen.endswith(b"\n") else "\n")


def test_default_number_of_alternatives(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    assert ds4("-m", model_path, "-p", "hi", "--dump-logprobs", out, "-n", 1).returncode == 0
    content = json.loads(out.read_text())
    assert content["top_k"] == 20 == len(content["steps"][0]["top_logprobs"])


@pytest.mark.parametrize("n_scored", [1, 40, 100])
def test_perplexity_equals_a_direct_computation(ds4: Any, model_path: Path, tmp_path: Path, n_scored: int) -> None:
    path = tmp_path / "text.txt"
    text = "In the tool calls there is one and another; the rest is on the street. " * 12
    path.write_text(text)
    done = ds4("-m", model_path, "--perplexity-file", path, "-n", n_scored, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with package.Model.open(model_path) as model, model.session(n_ctx=512) as session:
        ids = model.tokenizer.encode(text)[: 32 + n_scored]
        logprobs = log_softmax(session.eval_logits(ids))
    expected = -sum(float(logprobs[i - 1, ids[i]]) for i in range(32, len(ids)))
    assert found["scored"] == n_scored and found["tokens"] == 32 + n_scored
    assert found["nll"] == pytest.approx(expected, rel=1e-5)
    assert found["ppl"] == pytest.approx(math.exp(expected / n_scored), rel=1e-4)
    printed = ds4("-m", model_path, "--perplexity-file", path, "-n", n_scored).stdout
    assert printed.split()[0] == f"tokens={32 + n_scored}"


def test_perplexity_of_too_short_a_text(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("too short")
    done = ds4("-m", model_path, "--perplexity-file", path)
    assert done.returncode == 1
    assert str(path) in done.stderr and "32" in done.stderr


def test_perplexity_of_too_long_a_text(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    """The message speaks of the text; there is no prompt and no reply."""
    path = tmp_path / "long.txt"
    path.write_text("one and two " * 100)
    n_tokens = int(ds4("tokens", "-m", model_path, "--prompt-file", path).stderr.split()[1])
    done = ds4("-m", model_path, "--perplexity-file", path, "-c", n_tokens - 1)
    assert done.returncode == 1
    assert f"{n_tokens} tokens of the text" in done.stderr and f"-c {n_tokens} or more" in done.stderr
    assert "prompt" not in done.stderr and "reply" not in done.stderr
    assert ds4("-m", model_path, "--perplexity-file", path, "-c", n_tokens).returncode == 0


@pytest.mark.parametrize("option", ["--dump-logits", "--dump-logprobs"])
def test_output_is_checked_before_the_work(ds4: Any, tmp_path: Path, option: str) -> None:
    """The note about the model of the package comes when that is opened: never, here."""
    (tmp_path / "text").write_text("old")
    for out, words in (
        (tmp_path / "missing" / "x.json", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "text" / "x.json", "Not a directory"),
        (tmp_path / ("x" * 300), "name too long"),
    ):
        done = ds4("-p", "hi", option, out)
        assert done.returncode == 1
        assert done.stderr.splitlines()[0].startswith(f"ds4: {out}: ") and words in done.stderr


def test_output_appears_when_it_is_complete(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "real.json").write_text("old")
    (folder / "real.json").chmod(0o640)
    (folder / "link.json").symlink_to("real.json")
    failed = ds4("-m", model_path, "-p", "hi", "-c", 2, "--dump-logits", folder / "link.json")
    assert failed.returncode == 1
    assert (folder / "real.json").read_text() == "old"
    done = ds4("-m", model_path, "-p", "hi", "--dump-logits", folder / "link.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "real.json").read_text())["vocab"] == 512
    assert (folder / "real.json").stat().st_mode & 0o777 == 0o640
    assert (folder / "link.json").is_symlink()
    assert sorted(p.name for p in folder.iterdir()) == ["link.json", "real.json"]


def test_output_to_devices(ds4: Any, model_path: Path) -> None:
    for option, key in (("--dump-logits", "logits"), ("--dump-logprobs", "steps")):
        common = ["-m", model_path, "-p", "hi", *(["-n", 1] if key == "steps" else []), option]
        full = ds4(*common, "/dev/full")
        assert full.returncode == 1
        assert "ds4: /dev/full: No space left on device" in full.stderr
        for name in ("-", "/dev/stdout"):
            done = ds4(*common, name)
            assert done.returncode == 0, done.stderr
            assert key in json.loads(done.stdout)
        assert "wrote /dev/stdout" in done.stderr


def test_unwritable_output_is_a_message(ds4: Any, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "missing" / "logits.json"
    done = ds4("-m", model_path, "-p", "hi", "--dump-logits", out)
    assert done.returncode == 1
    assert str(out) in done.stderr
