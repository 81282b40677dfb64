"""The proof data proves what it should: reference, golden files, comparisons and decoders agree with each other.

Nothing here touches the engine. The reference is run on short prompts only; `make_golden.py` compares all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from oracle import reference as ref
from oracle import tiny_shapes
from oracle.reference import PLAIN, TRAINED, Model, Session, Switches
from support.compare import (
    TOLERANCE,
    check_layers,
    check_natural_distance,
    compare_logits,
    compare_prompt,
    describe_margins,
    layer_distances,
    reference_margins,
)
from support.golden import VARIANTS, Golden

STRICT = Switches(qat_kv=True, qat_index=True)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def exact(variant: str) -> Model:
    return Model(tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant))


@pytest.fixture(scope="module")
def single(variant: str) -> Model:
    return Model(tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant), np.float32)


def feed(model: Model, tokens: Any, size: int, switches: Switches = PLAIN) -> np.ndarray:
    session = Session(model, switches)
    tokens = np.asarray(tokens, np.int64)
    return np.concatenate([session.feed(tokens[p : p + size])[0] for p in range(0, len(tokens), size)])


def test_weights_and_prompts_are_those_of_the_golden_data(variant: str, golden: Mapping[str, Golden]) -> None:
    """numpy may change its generators: then everything else here would fail for a reason hard to see."""
    assert tiny_shapes.weights_digest(tiny_shapes.weights_of(variant)) == golden[variant].weights_sha256
    for n, prompt in golden[variant].prompts.items():
        assert (tiny_shapes.make_prompt(tiny_shapes.VARIANTS[variant], n) == prompt.tokens).all()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 129])
def test_reference_reproduces_transformers(
    variant: str, exact: Model, golden: Mapping[str, Golden], length: int
) -> None:
    """Logits, streams, MTP block and greedy continuation, within the tolerance asked of the engine."""
    prompt = golden[variant].prompts[length]
    tokens = prompt.tokens.astype(np.int64)
    session, trace = Session(exact), []
    logits, streams = session.feed(tokens, trace)
    compare_prompt(logits, prompt)
    for layer, expected in zip(prompt.hc_layers, prompt.hc, strict=True):
        assert np.abs(trace[layer][-1] - expected).max() < TOLERANCE
    if length > 1:
        mtp, _ = session.feed_mtp(streams[:-1], tokens[1:], 0)
        compare_logits(mtp[prompt.mtp_positions], prompt.mtp_logits, positions=prompt.mtp_positions, what="MTP")
    rows = [logits[-1]]
    for token in prompt.greedy[:-1]:
        assert rows[-1].argmax() == prompt.greedy[len(rows) - 1]
        rows.append(session.feed(np.array([token], np.int64))[0][-1])
    compare_logits(np.stack(rows)[prompt.greedy_steps], prompt.greedy_logits, positions=prompt.greedy_steps)


@pytest.mark.parametrize("switches", [PLAIN, TRAINED], ids=["plain", "trained"])
def test_reference_does_not_depend_on_chunks_or_snapshots(variant: str, exact: Model, switches: Switches) -> None:
    """The session's state is complete: it is what a snapshot of the engine has to hold."""
    tokens = tiny_shapes.make_prompt(tiny_shapes.VARIANTS[variant], 129)
    whole = feed(exact, tokens, len(tokens), switches)
    assert np.abs(feed(exact, tokens, 7, switches) - whole).max() < 1e-10
    cut = 126
    session = Session(exact, switches)
    session.feed(tokens[:cut])
    state = session.snapshot()
    session.feed(tokens[:5])
    resumed = Session.restore(exact, state).feed(tokens[cut:])[0]
    assert np.abs(resumed - whole[cut:]).max() < 1e-10


def test_stored_margins_are_those_of_the_reference(variant: str, golden: Mapping[str, Golden]) -> None:
    prompt = golden[variant].prompts[129]
    found = reference_margins(variant, prompt.tokens)
    for name in ("router", "indexer"):
        expected = getattr(prompt.margins, name)
        close = np.isclose(getattr(found, name), expected, rtol=1e-3, atol=1e-9)
        assert (close | (np.isinf(expected) & np.isinf(getattr(found, name)))).all()
    assert "not a near tie" in describe_margins(prompt.margins, 128)


def test_qat_golden_rows_are_reproduced(variant: str, exact: Model, golden: Mapping[str, Golden]) -> None:
    """Both are float64 numpy: only the order of sums in the linear algebra library can differ."""
    data = golden[variant]
    for prompt, switches in [(data.qat[5], TRAINED)] + [(p, STRICT) for p in data.qat_strict.values()]:
        compare_logits(feed(exact, prompt.tokens, 100, switches)[prompt.positions], prompt.logits, 1e-5)


def test_float32_agrees_on_strict_qat_prompts(variant: str, single: Model, golden: Mapping[str, Golden]) -> None:
    """They were searched for having no close decision; here in chunk sizes that the search did not use."""
    for prompt in golden[variant].qat_strict.values():
        for size in (2, 4, 16):
            compare_logits(feed(single, prompt.tokens, size, STRICT), prompt.logits, margins=prompt.margins)


def test_layers_of_a_float32_run_pass_and_single_mistakes_do_not(
    variant: str, exact: Model, single: Model, golden: Mapping[str, Golden]
) -> None:
    """The layer by layer comparison tells a correct float32 run from one with a part of quantization left out."""
    tokens = golden[variant].qat[129].tokens.astype(np.int64)
    streams: list[Any] = []
    Session(single, TRAINED).feed(tokens, streams)
    check_layers(layer_distances(exact, tokens, streams, TRAINED), f16_rows=True)
    for wrong in (PLAIN, Switches(False, True, True), Switches(True, False, True), Switches(True, True, False)):
        with pytest.raises(AssertionError, match="layer"):
            check_layers(layer_distances(exact, tokens, streams, wrong), f16_rows=True)


def test_layers_pass_with_float32_rows(variant: str, exact: Model, single: Model, golden: Mapping[str, Golden]) -> None:
    tokens = golden[variant].qat[300].tokens.astype(np.int64)
    streams: list[Any] = []
    Session(single, STRICT).feed(tokens, streams)
    check_layers(layer_distances(exact, tokens, streams, STRICT), f16_rows=False)


def test_a_whole_quantized_run_without_fp8_is_noticed(
    variant: str, exact: Model, single: Model, golden: Mapping[str, Golden]
) -> None:
    """Whole runs under quantization spread so far that only large mistakes show; this one does."""
    prompt = golden[variant].qat[129]
    at, natural = prompt.positions, prompt.natural[:, prompt.positions]
    check_natural_distance(feed(single, prompt.tokens, 50, TRAINED)[at], prompt.logits, natural)
    with pytest.raises(AssertionError, match="quantile"):
        check_natural_distance(feed(exact, prompt.tokens, 129)[at], prompt.logits, natural)


# ------------------------------------------------------------------------------------------------------- near ties


class FlippedSelection:
    """Takes the first row that was cut instead of the last that was kept, at one layer and position."""

    def __init__(self, layer: int, position: int) -> None:
        self.at = (layer, position)

    def row(self, layer: int, kind: str, number: int, exact: np.ndarray, rounded: np.ndarray) -> np.ndarray:
        return rounded

    def select(self, layer: int, position: int, scores: np.ndarray, order: np.ndarray, k: int) -> np.ndarray:
        return np.append(order[: k - 1], order[k]) if (layer, position) == self.at else order[:k]


def test_a_near_tie_is_reported_as_such() -> None:
    """One selection that float32 cannot decide moves 249 positions; the message must say so.

    Taking the selection the other way round in the float64 reference is what a float32 run may look like.
    """
    tie = tiny_shapes.NEAR_TIE
    config = tiny_shapes.VARIANTS[tie["variant"]]
    tokens = tiny_shapes.make_prompt(config, tie["length"], salt=tie["salt"])
    model = Model(config, tiny_shapes.weights_of(tie["variant"]))
    session = Session(model)
    logits, _ = session.feed(tokens)
    flipped, _ = Session(model, hooks=FlippedSelection(tie["layer"], tie["position"])).feed(tokens)
    with pytest.raises(AssertionError, match="CANNOT decide") as caught:
        compare_logits(flipped, logits, margins=session.margins())
    assert f"first at position {tie['position']}" in str(caught.value)
    assert f"at position {tie['position']}, layer {tie['layer']}" in str(caught.value)


def test_compare_logits_reports_the_first_bad_row_and_nan() -> None:
    good = np.zeros((3, 4), np.float32)
    assert compare_logits(good, good) == 0
    bad = good.copy()
    bad[1, 2], bad[2, 0] = 0.5, np.nan
    with pytest.raises(AssertionError, match=r"2 of 3 rows.*\n.*position 7, entry 2"):
        compare_logits(bad, good, positions=[3, 7, 9])


# --------------------------------------------------------------------------------------- simulated quantization


def test_code_tables_are_fp8_and_fp4() -> None:
    assert len(ref.E4M3) == 127 and ref.E4M3[-1] == 448 and ref.E4M3[1] == 2.0**-9 and ref.E4M3[8] == 2.0**-6
    assert (np.diff(ref.E4M3) > 0).all()
    halves = (ref.E2M1[:-1] + ref.E2M1[1:]) / 2
    assert ref.round_to_codes(halves, ref.E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4]
    halves = (ref.E4M3[:-1] + ref.E4M3[1:]) / 2
    codes = np.searchsorted(ref.E4M3, ref.round_to_codes(halves, ref.E4M3))
    assert (codes % 2 == 0).all(), "ties go to the even code"


def test_block_scale_is_the_smallest_power_of_two_that_fits() -> None:
    peak = np.array([[448.0], [np.nextafter(np.float32(448), np.float32(500))], [1.0], [1e-9]])
    assert ref.block_scale(peak, ref.E4M3, ref.FP8_FLOOR)[:, 0].tolist() == [1.0, 2.0, 2.0**-8, 2.0**-22]
    assert ref.block_scale(np.array([[6.0], [7.0]]), ref.E2M1, ref.FP4_FLOOR)[:, 0].tolist() == [1.0, 2.0]


def test_hadamard_is_the_orthogonal_sylvester_matrix() -> None:
    signs = np.array([[(-1) ** bin(i & j).count("1") for j in range(128)] for i in range(128)])
    x = np.random.default_rng(0).standard_normal((3, 128))
    assert np.allclose(ref.hadamard(x), x @ signs / 128**0.5, atol=1e-12)
    assert np.allclose(ref.hadamard(ref.hadamard(x)), x, atol=1e-12)
