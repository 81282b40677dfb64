"""Whole models on the GPU back ends, on the host executor: the golden logits, streaming, memory, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from support import gpu
from support.compare import compare_logits, compare_prompt
from support.golden import VARIANTS, load_golden

PLAIN = {"qat": False, "rows": "f32"}
NAMES = {"cuda_host": "cuda-host", "hip_host": "hip-host"}

TinyGGUF = Callable[..., Path]


class Controls(gpu.HostControls):
    """With the name of the back end."""

    name: str


@pytest.fixture(params=NAMES)
def controls(request: pytest.FixtureRequest) -> Iterator[Controls]:
    library = gpu.host_library(request.param)
    assert ds4.load_backend(library) == NAMES[request.param]
    made = Controls(library)
    made.name = NAMES[request.param]
    before = made.used()
    yield made
    made.order(0)
    made.lose(-1)
    made.unified(False)
    made.memory(16 << 30)
    assert made.used() == before, "memory of the card was not given back"


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_logits(controls: Controls, variant: str, tiny_gguf: TinyGGUF) -> None:
    """Prefill in chunks, then decode: within the tolerance that the CPU keeps."""
    golden = load_golden(variant)
    with ds4.Model.open(tiny_gguf(variant), backend=controls.name) as model:
        assert model.backend == controls.name
        for length in (3, 129):
            prompt = golden.prompts[length]
            with model.session(n_ctx=256, chunk=64, **PLAIN) as session:
                compare_prompt(session.eval_logits(prompt.tokens), prompt)
                step = 0
                for token, row in zip(prompt.greedy_steps, prompt.greedy_logits, strict=True):
                    while step < token and step < 6:
                        session.eval(int(prompt.greedy[step]))
                        step += 1
                    if step == token:
                        compare_logits(session.logits(), row, what="greedy logits")


def test_a_token_is_one_graph(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    """Decode submits all of its kernels at once, without a word from the host between layers."""
    with (
        ds4.Model.open(tiny_gguf("flash"), backend=controls.name) as model,
        model.session(n_ctx=64, **PLAIN) as session,
    ):
        session.eval([5, 6, 7])
        session.eval(8)  # work space has grown to what it needs
        graphs, launches = controls.graphs(), controls.launches()
        session.eval(9)
        assert controls.launches() - launches > 50
        assert controls.graphs() - graphs <= 2  # the token, and the margins for the next


def test_the_order_of_threads_does_not_change_a_bit(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    kept = []
    with ds4.Model.open(tiny_gguf("flash"), backend=controls.name) as model:
        for seed in (0, 1, 2):
            controls.order(seed)
            with model.session(n_ctx=64) as session:
                session.eval([5, 6, 7, 8, 9])
                session.eval(10)
                kept.append(session.logits().copy())
    for other in kept[1:]:
        np.testing.assert_array_equal(other, kept[0])


@pytest.mark.parametrize("unified", [False, True])
def test_streamed_experts_change_no_bit(controls: Controls, tiny_gguf: TinyGGUF, unified: bool) -> None:
    """Slots of the cache have their copies on the card, which follow what is read."""
    path, tokens = tiny_gguf("flash"), list(range(3, 15))
    logits = []
    controls.unified(unified)
    smallest = 64 << 10
    for size in (None, smallest):
        try:
            model = ds4.Model.open(path, backend=controls.name, expert_cache=size)
        except ValueError as error:  # names the smallest size that will do
            smallest = max(int(word) for word in str(error).replace(",", " ").split() if word.isdigit())
            model = ds4.Model.open(path, backend=controls.name, expert_cache=3 * smallest)
        with model, model.session(n_ctx=64, **PLAIN) as session:
            session.eval(tokens)
            session.eval(20)
            session.eval(21)
            logits.append(session.logits().copy())
    np.testing.assert_array_equal(logits[0], logits[1])


def test_weights_that_do_not_fit_are_refused_before_anything_is_allocated(
    controls: Controls, tiny_gguf: TinyGGUF
) -> None:
    path = tiny_gguf("flash")
    before = controls.used()
    controls.memory(path.stat().st_size // 2)
    with pytest.raises(
        ds4.DeviceMemoryError, match=r"the weights of .* do not fit .* which has .* free of .*expert_cache"
    ):
        ds4.Model.open(path, backend=controls.name)
    assert controls.used() == before


def test_two_models_on_one_device(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    """Both work while there is room for both; the second is refused by what the first has left."""
    first, second = tiny_gguf("flash"), tiny_gguf("pro")
    with ds4.Model.open(first, backend=controls.name) as a, ds4.Model.open(second, backend=controls.name) as b:
        for model in (a, b):
            with model.session(n_ctx=32, chunk=8) as session:
                session.eval([1, 2, 3])
                assert np.isfinite(session.logits()).all()
    with ds4.Model.open(first, backend=controls.name):
        controls.memory(controls.used() + second.stat().st_size // 2)
        with pytest.raises(ds4.DeviceMemoryError, match="close other models"):
            ds4.Model.open(second, backend=controls.name)


def test_a_session_that_does_not_fit_is_refused_with_its_plan(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    with ds4.Model.open(tiny_gguf("flash"), backend=controls.name) as model:
        controls.memory(controls.used() + (1 << 20))
        before = controls.used()
        with pytest.raises(ds4.DeviceMemoryError, match=r"a session of .* do not fit .* smaller n_ctx \(now 65536\)"):
            model.session(n_ctx=65536)
        assert controls.used() == before


def test_a_session_keeps_to_its_plan(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    with ds4.Model.open(tiny_gguf("flash"), backend=controls.name) as model:
        before = controls.used()
        with model.session(n_ctx=128, chunk=16) as session:
            session.eval(list(range(1, 40)))
            session.eval(7)
            assert controls.used() - before <= session.n_bytes


def test_a_lost_device_is_an_error_and_the_process_lives(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    with ds4.Model.open(tiny_gguf("flash"), backend=controls.name) as model, model.session(n_ctx=64) as session:
        session.eval([1, 2, 3])
        controls.lose(20)
        for _ in range(2):
            with pytest.raises(ds4.DeviceError, match="the device is lost"):
                session.eval(4)
        with pytest.raises(ds4.DeviceError, match="the device is lost"):
            model.session(n_ctx=32).eval(1)


def test_an_upload_tells_how_far_it_is_and_can_be_stopped(controls: Controls, tiny_gguf: TinyGGUF) -> None:
    seen: list[tuple[int, int]] = []
    path = tiny_gguf("flash")
    with ds4.Model.open(path, backend=controls.name, progress=lambda done, total: seen.append((done, total))):
        assert seen[-1] == (path.stat().st_size, path.stat().st_size)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ds4.Model.open(path, backend=controls.name, progress=stop)
    controls.unified(True)  # nothing is sent
    with ds4.Model.open(path, backend=controls.name, progress=stop):
        pass
