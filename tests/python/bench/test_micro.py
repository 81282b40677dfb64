"""Kernels one by one: what is counted, what is timed, and the variant that comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ds4
import pytest
from ds4.bench import token_bytes
from ds4.bench.micro import PartTime, PartWork, available_variants, part_work, run_micro


@pytest.fixture(scope="module")
def path(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", recipe="bf16")  # with its MTP block, which does not count


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(path) as model:
        yield model


@pytest.fixture(scope="module")
def work(path: Path, model: ds4.Model) -> dict[str, PartWork]:
    with ds4.GGUFFile(path) as file:
        return part_work(file, model.shape)


def test_work_is_that_of_the_shape(path: Path, model: ds4.Model, work: dict[str, PartWork]) -> None:
    s = model.shape
    expert = s.n_embd * s.n_ff
    assert work["head"].macs == s.n_embd * s.n_vocab
    assert work["router"].macs == s.n_layer * s.n_embd * s.n_expert
    assert work["experts_gate_up"].macs == 2 * s.n_layer * s.n_expert_used * expert
    assert work["experts_down"].macs == s.n_layer * s.n_expert_used * expert
    assert work["shared"].macs == 3 * s.n_layer * s.n_expert_shared * expert
    projections = s.n_embd * s.q_lora + s.q_lora * s.n_head * s.head_dim + s.n_embd * s.head_dim
    projections += s.n_head * s.head_dim * s.o_lora + s.o_groups * s.o_lora * s.n_embd
    assert work["projections"].macs == s.n_layer * projections
    assert set(work) == {
        "head", "router", "experts_gate_up", "experts_down", "shared", "projections", "compressor",
    }  # fmt: skip
    with ds4.GGUFFile(path) as file:
        groups = token_bytes(file, s).groups
    assert work["experts_gate_up"].n_bytes + work["experts_down"].n_bytes == groups["routed experts"]
    assert work["shared"].n_bytes == groups["shared expert"]
    assert "BF16" in work["shared"].types


def test_every_part_is_timed(model: ds4.Model, work: dict[str, PartWork]) -> None:
    told: list[tuple[int, int, str]] = []
    variants, before = available_variants(), ds4.cpu_isa()
    assert variants[0] == "base" and before in variants
    found = list(
        run_micro(
            lambda: model.session(n_ctx=60, threads=1), work, variants=variants[:2], batches=(1, 5), depth=40, reps=2,
            progress=lambda *x: told.append(x),
        )
    )  # fmt: skip
    assert {t.variant for t in found} == set(variants[:2]) and {t.batch for t in found} == {1, 5}
    for variant in variants[:2]:
        for batch in (1, 5):
            parts = {t.part: t for t in found if (t.variant, t.batch) == (variant, batch)}
            assert set(work) < set(parts) and {"attention", "indexer", "hyper", "rows", "total"} < set(parts)
            assert all(len(t.seconds) == 2 for t in parts.values())
            sums = [sum(t.seconds[i] for p, t in parts.items() if p != "total") for i in range(2)]
            assert parts["total"].seconds == pytest.approx(sums)
    assert told[-1][:2] == (12, 12) and ds4.cpu_isa() == before


def test_rates() -> None:
    work = PartWork(("Q8_0",), 1000, 500)
    one = PartTime("base", 1, "shared", (0.1, 0.2, 0.4), work)
    assert one.median == 0.2 and one.macs_per_second == 5000 and one.bytes_per_second == 2500
    many = PartTime("base", 8, "shared", (0.2,), work)
    assert many.macs_per_second == 40000 and many.bytes_per_second is None
    assert PartTime("base", 8, "head", (0.2,), work).macs_per_second == 5000, "the head computes the last token alone"
    free = PartTime("base", 1, "attention", (0.2,), None)
    assert free.macs_per_second is None and free.bytes_per_second is None and free.as_json()["types"] is None


def test_the_variant_comes_back_after_a_fault(model: ds4.Model) -> None:
    before = ds4.cpu_isa()

    def fail() -> ds4.Session:
        raise RuntimeError("no session")

    with pytest.raises(RuntimeError, match="no session"):
        list(run_micro(fail, {}, variants=["base"]))
    assert ds4.cpu_isa() == before
    for wrong in ({"reps": 0}, {"depth": -1}, {"batches": ()}, {"batches": (0,)}):
        with pytest.raises(ValueError, match="1 or more"):
            list(run_micro(fail, {}, variants=["base"], **wrong))  # type: ignore[arg-type]
