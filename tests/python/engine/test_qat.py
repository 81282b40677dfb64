"""Simulated quantization: the released model's FP8 and FP4 round trips and F16 rows, against the float64 reference.

Rounding is a discrete decision, so two correct float32 programs differ here by far more than without it. Three tests
of rising reach: prompts without any close decision must agree to 1e-4; every layer, fed with our own streams, must be
the reference's layer up to single flipped codes; whole runs must not be further from float64 than other float32 runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import ds4
import numpy as np
import pytest
from numpy.typing import NDArray
from oracle import tiny_shapes
from oracle.reference import Model as Reference
from oracle.reference import Switches
from support.compare import check_layers, check_natural_distance, compare_logits, layer_distances
from support.golden import Golden


def test_strict_prompts_agree(model: ds4.Model, variant: str, golden: Mapping[str, Golden]) -> None:
    assert golden[variant].qat_strict
    for prompt in golden[variant].qat_strict.values():
        for chunk in (256, 3):
            with model.session(n_ctx=64, rows="f32", chunk=chunk) as session:
                ours = session.eval_logits(prompt.tokens)
            compare_logits(
                ours[prompt.positions],
                prompt.logits,
                positions=prompt.positions,
                margins=prompt.margins,
                what=f"strict prompt of {prompt.length}",
            )


def streams_of(session: ds4.Session, tokens: NDArray[np.int32], shape: ds4.Shape) -> list[NDArray[np.float32]]:
    parts: dict[int, list[NDArray[np.float32]]] = {}

    def tap(stage: str, layer: int, pos: int, values: NDArray[np.float32]) -> None:
        parts.setdefault(layer, []).append(values)

    session.set_tap(tap)
    session.eval(tokens)
    session.set_tap(None)
    return [np.concatenate(parts[i]).reshape(-1, shape.n_hc, shape.n_embd) for i in sorted(parts)]


@pytest.mark.parametrize("rows", ["f16", "f32"])
def test_every_layer_is_the_references_layer(
    model: ds4.Model, variant: str, golden: Mapping[str, Golden], rows: str
) -> None:
    tokens = golden[variant].qat[300].tokens
    reference = Reference(tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant))
    with model.session(n_ctx=512, rows=rows, chunk=64) as session:
        streams = streams_of(session, tokens, model.shape)
    switches = Switches(qat_kv=True, qat_index=True, f16_rows=rows == "f16")
    check_layers(layer_distances(reference, tokens, streams, switches), f16_rows=rows == "f16", what=variant)


def test_whole_runs_are_as_near_as_float32_can_be(model: ds4.Model, variant: str, golden: Mapping[str, Golden]) -> None:
    for prompt in golden[variant].qat.values():
        with model.session(n_ctx=512) as session:
            ours = session.eval_logits(prompt.tokens)
        # One code flipped at an early position moves all later ones: the low quantiles say where the first flip fell
        # and nothing else, so only the upper ones are compared.
        natural = prompt.natural[:, prompt.positions]
        check_natural_distance(ours[prompt.positions], prompt.logits, natural, quantiles=(0.75, 0.9))


def test_off_is_transformers_and_on_is_not(model: ds4.Model, variant: str, golden: Mapping[str, Golden]) -> None:
    """The switch has an effect, and chunks do not change it."""
    tokens = golden[variant].prompts[129].tokens
    with model.session(n_ctx=256, qat=False, rows="f32") as off, model.session(n_ctx=256, rows="f32") as on:
        plain, rounded = off.eval_logits(tokens), on.eval_logits(tokens)
    assert np.abs(plain - rounded).max() > 1e-3
    with model.session(n_ctx=256, rows="f32", chunk=11) as session:
        np.testing.assert_array_equal(session.eval_logits(tokens), rounded)
