"""Whole models on the Metal back end, on the host executor: golden logits, the CPU's choices, streaming, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from support import gpu
from support.compare import compare_logits, compare_prompt
from support.golden import VARIANTS, load_golden
from support.tiny_gguf import RECIPES, write_tiny_gguf

PLAIN = {"qat": False, "rows": "f32"}
LIBRARY = gpu.host_library("metal_host")

TinyGGUF = Callable[..., Path]


@pytest.fixture
def controls() -> Iterator[gpu.HostControls]:
    assert ds4.load_backend(LIBRARY) == "metal-host"
    made = gpu.HostControls(LIBRARY)
    before = made.used()
    yield made
    made.order(0)
    made.lose(-1)
    made.memory(16 << 30)
    assert made.used() == before, "memory of the device was not given back"


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_logits(controls: gpu.HostControls, variant: str, tiny_gguf: TinyGGUF) -> None:
    """Prefill, then decode: within the tolerance that the CPU keeps."""
    golden = load_golden(variant)
    with ds4.Model.open(tiny_gguf(variant), backend="metal-host") as model:
        assert model.backend == "metal-host"
        prompt = golden.prompts[5]
        with model.session(n_ctx=256, **PLAIN) as session:
            compare_prompt(session.eval_logits(prompt.tokens), prompt)
            compare_logits(session.logits(), prompt.greedy_logits[0], what="greedy logits")


@pytest.mark.parametrize("recipe", ["ds4-q2", "llama-mxfp4"])
def test_quantized_models(controls: gpu.HostControls, recipe: str, tmp_path: Path) -> None:
    """In one chunk (simdgroup matrices) and in small ones: the same bits. Near the CPU where nothing is rounded."""
    path = write_tiny_gguf(tmp_path / "m.gguf", "flash", part="main", types=RECIPES[recipe])
    tokens = list(range(40, 58))
    with ds4.Model.open(path, backend="metal-host") as model, ds4.Model.open(path) as cpu:

        def logits(of: ds4.Model, chunk: int, activations: str, n: int = 18) -> np.ndarray:
            with of.session(n_ctx=64, chunk=chunk, activations=activations, **PLAIN) as session:
                return session.eval_logits(tokens[:n]).copy()

        np.testing.assert_array_equal(logits(model, 18, "quantized"), logits(model, 5, "quantized"))
        compare_logits(logits(model, 6, "float32", 6), logits(cpu, 6, "float32", 6), what="logits of the CPU")


def test_the_order_of_threads_does_not_change_a_bit(controls: gpu.HostControls, tiny_gguf: TinyGGUF) -> None:
    kept = []
    with ds4.Model.open(tiny_gguf("flash"), backend="metal-host") as model:
        for seed in (0, 1, 2):
            controls.order(seed)
            with model.session(n_ctx=64) as session:
                session.eval([5, 6, 7, 8, 9])
                session.eval(10)
                kept.append(session.logits().copy())
    for other in kept[1:]:
        np.testing.assert_array_equal(other, kept[0])


def test_a_token_is_encoded_without_waiting(controls: gpu.HostControls, tiny_gguf: TinyGGUF) -> None:
    with (
        ds4.Model.open(tiny_gguf("flash"), backend="metal-host") as model,
        model.session(n_ctx=64, **PLAIN) as session,
    ):
        session.eval([5, 6, 7])
        session.eval(8)
        batches, dispatches = controls.graphs(), controls.launches()
        session.eval(9)
        assert controls.launches() - dispatches > 50
        assert controls.graphs() - batches <= 2


def test_streamed_experts_change_no_bit(controls: gpu.HostControls, tiny_gguf: TinyGGUF) -> None:
    path, tokens, smallest, logits = tiny_gguf("flash"), list(range(3, 12)), 64 << 10, []
    for size in (None, smallest):
        try:
            model = ds4.Model.open(path, backend="metal-host", expert_cache=size)
        except ValueError as error:  # names the smallest size that will do
            smallest = max(int(word) for word in str(error).replace(",", " ").split() if word.isdigit())
            model = ds4.Model.open(path, backend="metal-host", expert_cache=3 * smallest)
        with model, model.session(n_ctx=64, **PLAIN) as session:
            session.eval(tokens)
            session.eval(20)
            logits.append(session.logits().copy())
    np.testing.assert_array_equal(logits[0], logits[1])


def test_weights_that_do_not_fit_are_refused(controls: gpu.HostControls, tiny_gguf: TinyGGUF) -> None:
    path = tiny_gguf("flash")
    controls.memory(path.stat().st_size // 2)
    with pytest.raises(MemoryError, match=r"of weights do not fit .* stream the experts .*, or use cpu"):
        ds4.Model.open(path, backend="metal-host")


def test_a_lost_device_is_an_error_and_the_process_lives(controls: gpu.HostControls, tiny_gguf: TinyGGUF) -> None:
    with ds4.Model.open(tiny_gguf("flash"), backend="metal-host") as model, model.session(n_ctx=64) as session:
        session.eval([1, 2, 3])
        controls.lose(20)
        for _ in range(2):
            with pytest.raises(ds4.DeviceError, match="the device is lost"):
                session.eval(4)
