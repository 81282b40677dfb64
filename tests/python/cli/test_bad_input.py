"""What a user can get wrong ends in one clear message and an exit code, and changes nothing on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.cli.main import main
from oracle import tiny_shapes
from support.gguf_write import GGMLType, make_tensor, string, u32, write_gguf
from support.tiny_gguf import RECIPES, write_tiny_gguf


def _state(folder: Path) -> dict[str, str]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def refused(ds4: Any, tmp_path: Path) -> Any:
    """Run ds4, expect a failure with words in its message, and unchanged files."""

    def run(*args: Any, code: int = 1, words: tuple[str, ...] = (), stdin: str = "") -> str:
        before = _state(tmp_path)
        done = ds4(*args, stdin=stdin)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        for word in words:
            assert word in done.stderr, done.stderr
        assert _state(tmp_path) == before
        return str(done.stderr)

    return run


def test_missing_file(refused: Any) -> None:
    refused("-m", "/nowhere/model.gguf", "-p", "x", words=("/nowhere/model.gguf", "No such file"))


def test_directory(refused: Any, tmp_path: Path) -> None:
    refused("-m", tmp_path, "-p", "x", words=(str(tmp_path), "directory"))


@pytest.mark.parametrize("content", [b"", b"GG", b"This is not a model.\n" * 100, b"GGUF" + bytes(16)])
def test_not_a_model_file(refused: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing.gguf"
    path.write_bytes(content)
    for command in (["-m", path, "-p", "x"], ["inspect", path], ["tokens", "-m", path, "x"]):
        refused(*command, words=(str(path),))


def test_truncated_model(refused: Any, tmp_path: Path, model_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_path.read_bytes()[:-4096])
    refused("-m", path, "-p", "x", words=(str(path), "truncated"))


def test_unknown_shape_lists_the_differences(refused: Any, tmp_path: Path) -> None:
    path = tmp_path / "shape.gguf"
    changes = {"deepseek4.attention.sliding_window": u32(64), "deepseek4.hash_layer_count": u32(2)}
    write_tiny_gguf(path, "flash", types=RECIPES["bf16"], changes=changes)
    message = refused("-m", path, "-p", "x", words=(str(path), "sliding_window", "hash_layer_count"))
    assert message.count("\n") < 40


@pytest.mark.parametrize("architecture", ["deepseek_v41", "deepseek2", "llama"])
def test_other_architectures_are_named(refused: Any, tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "other.gguf"
    tensor = make_tensor("token_embd.weight", GGMLType.F32, (2, 32), np.zeros((2, 32), np.float32))
    write_gguf(path, {"general.architecture": string(architecture)}, [tensor])
    refused("-m", path, "-p", "x", words=(str(path), architecture))


def test_prompt_longer_than_context(refused: Any, model_path: Path) -> None:
    refused("-m", model_path, "-c", 8, "-p", "one two three four five six", words=("tokens", "8", "-c"))


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_empty_prompt(refused: Any, model_path: Path, tmp_path: Path, text: str) -> None:
    refused("-m", model_path, "-p", text, words=("prompt is empty",))
    path = tmp_path / "prompt.txt"
    path.write_text(text)
    refused("-m", model_path, "--prompt-file", path, words=("prompt is empty", str(path)))


def test_prompt_file_that_is_no_text(refused: Any, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.bin"
    path.write_bytes(b"abc\xff\xfe")
    refused("-m", model_path, "--prompt-file", path, words=(str(path), "UTF-8", "byte 3"))
    refused("-m", model_path, "--prompt-file", tmp_path / "none", words=("none", "No such file"))


def test_check_finds_nan(refused: Any, tmp_path: Path) -> None:
    weights = dict(tiny_shapes.make_weights(tiny_shapes.VARIANTS["flash"]))
    bad = weights["layers.2.attn.wq_a.weight"].copy()
    bad[3, 5] = np.nan
    weights["layers.2.attn.wq_a.weight"] = bad
    path = write_tiny_gguf(tmp_path / "nan.gguf", "flash", weights=weights)
    message = refused("-m", path, "--check", "-p", "x", words=("blk.2.attn_q_a.weight",))
    assert "names them" not in message
    refused("-m", path, "-p", "x", words=("weights look damaged", "(ds4 --check names them)"))


def test_unknown_backend_says_why(refused: Any, model_path: Path) -> None:
    refused("-m", model_path, "--backend", "cuda", "-p", "x", words=("cuda",))
    refused("-m", model_path, "--backend", "abacus", "-p", "x", words=("abacus",))


def test_long_lists_of_differences_are_cut(refused: Any, mtp_path: Path) -> None:
    """The file of an MTP block is a model without most of its tensors."""
    message = refused("-m", mtp_path, "-p", "x", words=("more; ds4 inspect lists all",))
    assert message.count("\n") < 30


def test_mtp_file_of_another_model(refused: Any, tiny_gguf: Any, model_path: Path) -> None:
    """A drafter of another shape is refused, by its name and with what differs (L085)."""
    other = tiny_gguf("pro", part="mtp", recipe="bf16")
    refused("-m", model_path, "--mtp", other, "-p", "x", words=(str(other), "attn_q_b"))


def test_text_that_is_no_utf8(refused: Any, model_path: Path) -> None:
    words = ("not valid UTF-8 text (at character 1)",)
    refused("-m", model_path, "-p", "a\udcff", words=("the prompt is", *words))
    refused("-m", model_path, "-p", "a", "-sys", "a\udcff", words=("the system text is", *words))
    refused("-m", model_path, "-sys", "a\udcff", words=("the system text is", *words))
    refused("-m", model_path, "-p", "a", "--backend", "a\udcff", words=("the name of the backend is", *words))
    refused("tokens", "-m", model_path, "a\udcff", words=("the text is", *words))
    refused("convert", "a", "b", "--type", "f16", "--name", "a\udcff", words=("the name is", *words))


def test_mtp_file_that_is_none(refused: Any, model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("x" * 100)
    refused("-m", model_path, "--mtp", path, "-p", "x", words=(str(path),))
    refused("-m", model_path, "--mtp", tmp_path / "none", "-p", "x", words=("none",))


@pytest.mark.parametrize(
    "args",
    [
        ["--bogus"],
        ["-n", "0"],
        ["-n", "many"],
        ["-c", "0"],
        ["-c", "1048577"],
        ["-t", "0"],
        ["--temp", "-1"],
        ["--temp", "nan"],
        ["--top-p", "0"],
        ["--min-p", "2"],
        ["--seed", "-1"],
        ["--activations", "int4"],
        ["--simulate-memory", "lots"],
        ["-p"],
        ["-p", "x", "--think", "--nothink"],
        ["-p", "x", "--prompt-file", "y"],
        ["-p", "x", "--cpu", "--backend", "cuda"],
        ["-p", "x", "--logprobs-top-k", "5"],
        ["-p", "x", "--dump-tokens", "--temp", "0"],
        ["--dump-logits", "out.json"],
        ["--json"],
        ["word"],
        ["-m", "x.gguf", "inspect"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["tokens"],
        ["convert", "a"],
        ["convert", "a", "b"],
        ["convert", "a", "b", "--type", "q3_k"],
    ],
)
def test_wrong_command_lines_are_usage_errors(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    """Run in this process: there are many, and none gets as far as a model."""
    assert main(args) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ds4: ")
    assert "-h lists the options" in printed.err


def test_usage_errors_of_the_program(refused: Any) -> None:
    """The hint repeats what was typed."""
    for typed in ("ds4", "ds4 chat", "ds4 inspect"):
        message = refused(*typed.split()[1:], "--bogus", code=2, words=("ds4: ", "--bogus"))
        assert message.splitlines()[-1] == f"{typed} -h lists the options"
    assert refused("-n", 0, code=2).splitlines()[-1] == "ds4 -h lists the options"
    assert refused("-p", "x", "--think", "--nothink", code=2).splitlines()[-1] == "ds4 -h lists the options"


def test_a_closed_output_is_no_traceback(ds4: Any, model_path: Path, environment: dict[str, str]) -> None:
    import subprocess

    from .conftest import program

    command = [*program(), "-m", str(model_path), "-p", "x", "-n", "200", "--nothink"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    message = child.stderr.read()
    child.stderr.close()
    child.wait(timeout=120)
    assert b"Traceback" not in message and b"Exception" not in message, message
