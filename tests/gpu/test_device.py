"""A back end on its device: cases of conformance, golden logits, answers beside the CPU's (tests/gpu/run)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import ds4
import numpy as np
import pytest
from support import gpu
from support.compare import compare_logits, compare_prompt
from support.golden import VARIANTS, load_golden

LIBRARY = os.environ.get("DS4_GPU_LIBRARY", "")
PLAIN = {"qat": False, "rows": "f32"}

TinyGGUF = Callable[..., Path]

pytestmark = pytest.mark.skipif(not LIBRARY, reason="DS4_GPU_LIBRARY names no back end: see tests/gpu/run")


@pytest.fixture(scope="module")
def name() -> str:
    """The back end, whose device is there."""
    made = ds4.load_backend(LIBRARY)
    (found,) = [b for b in ds4.backends() if b.name == made]
    assert found.available, found.reason
    print(f"{found.name}: {found.device}, {found.arch}, {found.free_bytes >> 20} of {found.total_bytes >> 20} MiB free")
    return made


@pytest.fixture(scope="module")
def devices(name: str) -> tuple[gpu.Device, gpu.Device]:
    """The CPU and the device."""
    return gpu.Device(), gpu.Device(Path(LIBRARY))


def close(got: gpu.Array, want: gpu.Array, what: str) -> None:
    """Compare where the device's own sine, cosine and division come in.

    A last bit more or less in a rotation may move a value to the neighbouring code of FP8 or FP4; that is allowed for
    one in a hundred.
    """
    if got.dtype != np.float32:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want), err_msg=f"{what}: what is finite")
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max(initial=0.0))
    far = np.abs(got[finite] - want[finite]) > 1e-5 * scale
    assert far.mean() <= 0.01 if far.size else True, f"{what}: {far.sum()} of {far.size} values differ"
    np.testing.assert_allclose(got[finite], want[finite], rtol=0.5, atol=0.05 * scale, err_msg=what)


@pytest.mark.parametrize("case", gpu.all_cases(), ids=[c.name for c in gpu.all_cases()])
def test_case(case: gpu.Case, devices: tuple[gpu.Device, gpu.Device]) -> None:
    """Twice, with the same bits."""
    cpu, device = devices
    want, got, again = case.outputs(cpu), case.outputs(device), case.outputs(device)
    assert got.keys() == want.keys()
    for key, value in want.items():
        gpu.same_bits(again[key], got[key], f"{case.name}: {key}: a second time")
        if case.name.startswith(("rope", "compress")):
            close(got[key], value, f"{case.name}: {key}")
        else:
            tolerance = case.metal if "metal" in Path(LIBRARY).name else case.tolerance
            tolerance.check(got[key], value, f"{case.name}: {key}")


@pytest.mark.parametrize("length", [3, 129])
@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_logits(name: str, variant: str, length: int, tiny_gguf: TinyGGUF) -> None:
    """Prefill in chunks, then decode: within the tolerance that the CPU keeps."""
    prompt = load_golden(variant).prompts[length]
    with (
        ds4.Model.open(tiny_gguf(variant), backend=name) as model,
        model.session(n_ctx=256, chunk=64, **PLAIN) as session,
    ):
        compare_prompt(session.eval_logits(prompt.tokens), prompt)
        step = 0
        for token, row in zip(prompt.greedy_steps, prompt.greedy_logits, strict=True):
            while step < token:
                session.eval(int(prompt.greedy[step]))
                step += 1
            compare_logits(session.logits(), row, what="greedy logits")


def test_chunks_and_streaming_change_no_bit(name: str, tiny_gguf: TinyGGUF) -> None:
    path, tokens = tiny_gguf("flash"), list(range(3, 60))
    kept = []
    for chunk, cache in ((64, None), (7, None), (64, "2MiB")):
        with (
            ds4.Model.open(path, backend=name, expert_cache=cache) as model,
            model.session(n_ctx=128, chunk=chunk) as session,
        ):
            session.eval(tokens)
            session.eval(20)
            kept.append(session.logits().copy())
    for other in kept[1:]:
        np.testing.assert_array_equal(other, kept[0])


def test_answers_of_the_model_in_the_package(name: str) -> None:
    """Greedy answers are those of the CPU."""
    answers = []
    for backend in ("cpu", name):
        with ds4.Model.open_embedded(backend=backend) as model, model.session(n_ctx=512) as session:
            prompt = ds4.chat.render([{"role": "user", "content": "What is 347 + 285?"}], mode="chat")
            session.sync(prompt.encode(model.tokenizer))
            answers.append("".join(step.text for step in session.generate(max_tokens=64)))
    assert "632" in answers[0]
    assert answers[1] == answers[0]
