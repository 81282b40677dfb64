"""Options: what the help shows is accepted, and nothing is accepted that has no effect."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ds4 as package
import pytest
from ds4.cli.main import main
from ds4.cli.options import OPTIONS

# A value for every option of the help, and the words around it that make it useful.
ONE_SHOT = ["-p", "hi", "-n", "1"]
VALUES: dict[str, tuple[list[str], list[str]]] = {
    "--model": (["MODEL"], ONE_SHOT),
    "--mtp": (["MTP"], ONE_SHOT),
    "--mtp-draft": (["2"], [*ONE_SHOT, "--mtp", "MTP"]),
    "--mtp-margin": (["1.5"], [*ONE_SHOT, "--mtp", "MTP"]),
    "--backend": (["cpu"], ONE_SHOT),
    "--cpu": ([], ONE_SHOT),
    "--threads": (["2"], ONE_SHOT),
    "--affinity": (["auto"], ONE_SHOT),
    "--numa": (["none"], ONE_SHOT),
    "--check": ([], ONE_SHOT),
    "--force-memory": ([], ONE_SHOT),
    "--simulate-memory": (["8GiB"], ONE_SHOT),
    "--expert-cache": (["1MiB"], ONE_SHOT),
    "--ssd-streaming": ([], ONE_SHOT),
    "--cold": ([], [*ONE_SHOT, "--ssd-streaming"]),
    "--read-depth": (["4"], [*ONE_SHOT, "--ssd-streaming"]),
    "--ctx": (["512"], ONE_SHOT),
    "--no-qat": ([], ONE_SHOT),
    "--activations": (["quantized"], ONE_SHOT),
    "--prompt": (["hi"], ["-n", "1"]),
    "--prompt-file": (["-"], ["-n", "1"]),
    "--system": (["Be brief."], ONE_SHOT),
    "--think": ([], ONE_SHOT),
    "--think-max": ([], ONE_SHOT),
    "--nothink": ([], ONE_SHOT),
    "--tokens": (["1"], ["-p", "hi"]),
    "--temp": (["0.5"], ONE_SHOT),
    "--top-k": (["5"], ONE_SHOT),
    "--top-p": (["0.9"], ONE_SHOT),
    "--min-p": (["0.1"], ONE_SHOT),
    "--seed": (["7"], ONE_SHOT),
    "--dir-steering-file": (["DIRECTIONS"], ONE_SHOT),
    "--dir-steering-ffn": (["0.5"], [*ONE_SHOT, "--dir-steering-file", "DIRECTIONS"]),
    "--dir-steering-attn": (["-0.5"], [*ONE_SHOT, "--dir-steering-file", "DIRECTIONS"]),
    "--power": (["90"], ONE_SHOT),
    "--json": ([], ONE_SHOT),
    "--dump-tokens": ([], ["-p", "hi"]),
    "--dump-logits": (["OUT"], ["-p", "hi"]),
    "--dump-logprobs": (["OUT"], ONE_SHOT),
    "--logprobs-top-k": (["3"], [*ONE_SHOT, "--dump-logprobs", "OUT"]),
    "--perplexity-file": (["TEXT"], ["-n", "4"]),
    "--help": ([], []),
    "--version": ([], []),
}


def _options_of(help_text: str) -> set[str]:
    return set(re.findall(r"^  (?:-\w+, )?(--[\w-]+)", help_text, re.MULTILINE))


def test_help_begins_with_examples_and_lists_every_option(ds4: Any) -> None:
    done = ds4("-h")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.index("Examples:") < done.stdout.index("Model:")
    assert _options_of(done.stdout) == set(VALUES)
    for command in ("chat", "inspect", "tokens", "convert"):
        text = ds4(command, "--help")
        assert text.returncode == 0
        assert "Examples:" in text.stdout


def test_every_option_in_the_help_is_accepted(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model_path: Path,
    mtp_path: Path,
    tmp_path: Path,
) -> None:
    """Help and parser cannot drift apart: every option that the help of ``ds4`` shows is run once (L091)."""
    text = tmp_path / "text.txt"
    text.write_text("one and two and three, " * 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directions = tmp_path / "directions.npz"
    with package.Model.open(model_path) as model:
        shape = model.shape.n_layer, model.shape.n_embd
    package.SteeringDirections([[1.0] * shape[1]] * shape[0]).save(directions)
    files = {"MODEL": model_path, "MTP": mtp_path, "OUT": tmp_path / "out.json", "TEXT": text}
    files["DIRECTIONS"] = directions
    for option, (values, others) in VALUES.items():
        words = [files.get(w, w) for w in [option, *values, *others]]
        if option not in ("--model", "--help", "--version"):
            words += ["-m", model_path]
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hi")))
        assert main([str(w) for w in words]) == 0, (option, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("tokens", ["--model", "MODEL", "--json", "hi"]),
        ("tokens", ["--model", "MODEL", "--prompt-file", "TEXT"]),
        ("inspect", ["MODEL", "--json"]),
        ("inspect", ["MODEL", "--ctx", "64"]),
        ("inspect", ["MODEL", "--simulate-memory", "1TiB"]),
    ],
)
def test_options_of_other_commands(ds4: Any, model_path: Path, tmp_path: Path, command: str, args: list[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello")
    done = ds4(command, *[{"MODEL": model_path, "TEXT": text}.get(a, a) for a in args])
    assert done.returncode == 0, done.stderr
    listed = _options_of(ds4(command, "-h").stdout)
    assert {a for a in args if a.startswith("--")} <= listed


def test_version_names_the_core(ds4: Any, environment: dict[str, str]) -> None:
    text = ds4("--version").stdout
    assert text == f"ds4 {package.__version__} (core {package.native_version()}, cpu variant {package.cpu_isa()})\n"
    as_module = [sys.executable, "-m", "ds4", "--version"]
    done = subprocess.run(as_module, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, text)


def test_convert_says_what_it_reads(ds4: Any) -> None:
    text = " ".join(ds4("convert", "-h").stdout.split())
    assert "as it is published, in FP8 and FP4, or one in BF16, F16 or F32" in text
    for recipe in ("q2-q4", "mxfp4"):
        assert f"{recipe} " in text


def test_table_and_help_have_the_same_options() -> None:
    flags = {next(d for d in declarations if d.startswith("--")) for declarations, _ in OPTIONS.values()}
    assert flags == set(VALUES) - {"--help", "--version"}


def test_system_text_reaches_the_prompt(ds4: Any, model_path: Path) -> None:
    """``-sys`` is one option, not ``-s -y -s``; an empty text is no text."""

    def n_prompt(*args: str) -> int:
        done = ds4("-m", model_path, "-p", "hi", "-n", 1, "--json", *args)
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["prompt_tokens"])

    plain = n_prompt()
    assert n_prompt("-sys", "Be brief.") == n_prompt("--system", "Be brief.") > plain
    assert n_prompt("-sys", "") == plain


def test_think_max_needs_room(ds4: Any, model_path: Path) -> None:
    done = ds4("-m", model_path, "-p", "hi", "-n", 1, "--think-max")
    assert done.returncode == 0
    assert "warning: --think-max needs a context of at least 393216" in done.stderr
    done = ds4("-m", model_path, "-p", "hi", "-n", 1, "--think-max", "-c", 393216, "--json")
    assert done.returncode == 0
    assert "warning" not in done.stderr
    assert json.loads(done.stdout)["prompt_tokens"] > 70


def test_memory_is_checked_before_the_work(ds4: Any, model_path: Path) -> None:
    """A model that does not fit is refused with an estimate and what would help (L100, L101)."""
    done = ds4("-m", model_path, "-p", "hi", "-n", 1, "--simulate-memory", "1MiB")
    assert done.returncode == 1
    assert "not enough memory" in done.stderr
    assert "MiB of weights" in done.stderr
    assert "--force-memory" in done.stderr
    forced = ds4("-m", model_path, "-p", "hi", "-n", 1, "--simulate-memory", "1MiB", "--force-memory")
    assert forced.returncode == 0, forced.stderr
