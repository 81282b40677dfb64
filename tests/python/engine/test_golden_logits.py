"""The engine gives the logits of Hugging Face transformers: tests/data/golden, float32, simulated quantization off."""

from __future__ import annotations

import ds4
import numpy as np
import pytest
from numpy.typing import NDArray
from support.compare import compare_logits, compare_prompt
from support.golden import Golden, load_golden

LENGTHS = (1, 3, 4, 5, 127, 128, 129, 300, 700)
PLAIN = {"qat": False, "rows": "f32"}


@pytest.fixture(scope="module")
def golden(variant: str) -> Golden:
    return load_golden(variant)


def whole(model: ds4.Model, tokens: NDArray[np.int32], **options: object) -> NDArray[np.float32]:
    with model.session(n_ctx=1024, **{**PLAIN, **options}) as session:
        return session.eval_logits(tokens)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers(model: ds4.Model, golden: Golden, length: int) -> None:
    """Every kept row and column within 1e-4: at 1e-3 a wrong order of the Sinkhorn steps would pass."""
    compare_prompt(whole(model, golden.prompts[length].tokens), golden.prompts[length])


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_continuation_equals_transformers(model: ds4.Model, golden: Golden, length: int) -> None:
    """Decode, one token at a time, on the cache that prefill left."""
    prompt = golden.prompts[length]
    with model.session(n_ctx=1024, **PLAIN) as session:
        session.sync(prompt.tokens)
        rows, tokens = [], []
        for _ in prompt.greedy:
            rows.append(session.logits())
            tokens.append(int(rows[-1].argmax()))
            session.eval(tokens[-1])
    assert tokens == prompt.greedy.tolist()
    compare_logits(np.stack(rows)[prompt.greedy_steps], prompt.greedy_logits, what="greedy logits")


@pytest.mark.parametrize("length", [129, 300, 700])
def test_prefill_is_independent_of_chunk_size(model: ds4.Model, golden: Golden, length: int) -> None:
    """Stronger than the 1e-5 that is promised: every operation treats a token alike in any batch, so bits agree."""
    tokens = golden.prompts[length].tokens
    reference = whole(model, tokens, chunk=1024)
    sizes = (1, 3, 7, 128, 256) if length < 700 else (7, 128, 256)
    for chunk in sizes:
        np.testing.assert_array_equal(whole(model, tokens, chunk=chunk), reference, err_msg=f"chunk {chunk}")


def test_threads_do_not_change_a_bit(model: ds4.Model, golden: Golden) -> None:
    tokens = golden.prompts[300].tokens
    one = whole(model, tokens, threads=1)
    for threads in (2, 3):
        np.testing.assert_array_equal(whole(model, tokens, threads=threads), one)
    np.testing.assert_array_equal(whole(model, tokens[:130], threads=2, chunk=1), one[:130])


def test_instruction_sets_do_not_change_a_bit(model: ds4.Model, golden: Golden) -> None:
    tokens = golden.prompts[129].tokens
    reference, seen = whole(model, tokens), []
    try:
        for isa in ("base", "avx2", "avx512", "avx512vnni"):
            try:
                ds4.set_cpu_isa(isa)
            except ds4.BackendUnavailableError:
                continue
            seen.append(ds4.cpu_isa())
            np.testing.assert_array_equal(whole(model, tokens), reference, err_msg=isa)
    finally:
        ds4.set_cpu_isa("auto")
    assert seen[0] == "base"


@pytest.mark.parametrize("length", LENGTHS)
def test_streams_equal_transformers(model: ds4.Model, golden: Golden, length: int) -> None:
    """The residual streams of the last position before some layers, and before the head."""
    prompt = golden.prompts[length]
    last: dict[int, NDArray[np.float32]] = {}

    def tap(stage: str, layer: int, pos: int, values: NDArray[np.float32]) -> None:
        assert stage == "streams"
        last[layer] = values[-1].copy()

    with model.session(n_ctx=1024, **PLAIN) as session:
        session.set_tap(tap)
        session.eval(prompt.tokens)
    for layer, expected in zip(prompt.hc_layers, prompt.hc, strict=True):
        compare_logits(last[int(layer)].reshape(expected.shape), expected, 1e-4, what=f"streams before layer {layer}")


@pytest.mark.parametrize("length", [n for n in LENGTHS if n > 1])
def test_mtp_block_equals_its_definition(model: ds4.Model, golden: Golden, length: int) -> None:
    """Row p: streams of p and token p + 1. The block's own window is fed by prefill in chunks and token by token."""
    prompt = golden.prompts[length]
    with model.session(n_ctx=1024, mtp=True, chunk=33, **PLAIN) as session:
        for position, expected in zip(prompt.mtp_positions, prompt.mtp_logits, strict=True):
            session.sync(prompt.tokens[: position + 1])
            ours = session.mtp_logits(int(prompt.tokens[position + 1]))
            compare_logits(ours, expected, positions=[position], what="MTP logits")


@pytest.mark.parametrize("length", [n for n in LENGTHS if n > 1])
def test_mtp_block_after_one_prefill(model: ds4.Model, golden: Golden, length: int) -> None:
    """The same after a prefill from nothing, whose first chunk completes pairs of its own."""
    prompt = golden.prompts[length]
    position = int(prompt.mtp_positions[-1])
    with model.session(n_ctx=1024, mtp=True, chunk=64, **PLAIN) as session:
        session.sync(prompt.tokens[: position + 1])
        ours = session.mtp_logits(int(prompt.tokens[position + 1]))
    compare_logits(ours, prompt.mtp_logits[-1], positions=[position], what="MTP logits")


def test_mtp_does_not_move_the_session(model: ds4.Model, golden: Golden) -> None:
    """A draft leaves no trace: neither in the logits that follow nor in later drafts."""
    tokens = golden.prompts[129].tokens
    with model.session(n_ctx=256, mtp=True, **PLAIN) as a, model.session(n_ctx=256, mtp=True, **PLAIN) as b:
        for session in (a, b):
            session.eval(tokens[:60])
        for wrong in (0, 5, 500):
            a.mtp_logits(wrong)
        for session in (a, b):
            session.eval(tokens[60:])
        np.testing.assert_array_equal(a.logits(), b.logits())
        np.testing.assert_array_equal(a.mtp_logits(7), b.mtp_logits(7))
