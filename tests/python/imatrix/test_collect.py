"""Measuring on prompts: what comes out, limits, saving, and the coverage report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.imatrix import CorpusPrompt, Entry, Imatrix, collect_imatrix, coverage
from ds4.imatrix.collect import importance_bytes, tokenize_prompts
from ds4.imatrix.plot import plot_coverage

from .files import GATE, N_EXPERT, counted_imatrix, good_dat, write_bytes

TEXTS = [
    "<｜User｜>hello world<｜Assistant｜><think>",
    "one two three",
    "a few more words for the third, longer",
]
PROMPTS = [CorpusPrompt(f"p-{i}", "chat", "chat", "test", text) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def model(flash_gguf: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(flash_gguf) as model:
        yield model


@pytest.fixture(scope="module")
def whole(model: ds4.Model) -> Imatrix:
    return collect_imatrix(model, PROMPTS, datasets=["set.txt"])


def assert_equal(a: Imatrix, b: Imatrix) -> None:
    assert list(a.entries) == list(b.entries)
    for name, entry in a.entries.items():
        np.testing.assert_array_equal(entry.counts, b.entries[name].counts, err_msg=name)
        np.testing.assert_array_equal(entry.sums, b.entries[name].sums, err_msg=name)


def test_every_prompt_starts_at_position_0(model: ds4.Model, whole: Imatrix) -> None:
    """The sums are those of each prompt in a session of its own; the entries are named as the tensors."""
    s = model.shape
    parts = ("gate", "up", "down")
    blocks = [*(f"blk.{i}" for i in range(s.n_layer)), "mtp.0"]
    assert list(whole.entries) == [f"{b}.ffn_{p}_exps.weight" for b in blocks for p in parts]
    assert (whole.n_chunks, whole.datasets, whole.counted) == (3, ("set.txt",), True)
    sum_in, sum_mid = np.zeros((s.n_expert, s.n_embd)), np.zeros((s.n_expert, s.n_ff))
    for text in TEXTS:
        with model.session(n_ctx=64) as session, session.collect_importance() as importance:
            session.sync(model.tokenizer.encode(text, specials=True))
            layer = importance.layer(2)
            sum_in += layer.sum_in
            sum_mid += layer.sum_mid
    np.testing.assert_allclose(whole.entries["blk.2.ffn_gate_exps.weight"].sums, sum_in, rtol=1e-12)
    np.testing.assert_allclose(whole.entries["blk.2.ffn_up_exps.weight"].sums, sum_in, rtol=1e-12)
    np.testing.assert_allclose(whole.entries["blk.2.ffn_down_exps.weight"].sums, sum_mid, rtol=1e-12)


def test_special_tokens_count(model: ds4.Model) -> None:
    (ids,) = tokenize_prompts(model, PROMPTS[:1], n_ctx=100)
    assert ids[0] == model.tokenizer.special("<｜User｜>") and ids[-1] == model.tokenizer.special("<think>")


def test_threads_and_chunks_do_not_change_a_bit(model: ds4.Model, whole: Imatrix) -> None:
    assert_equal(collect_imatrix(model, PROMPTS, threads=3, chunk=5), whole)


def test_parts_of_a_corpus_merge_to_the_whole(model: ds4.Model, whole: Imatrix, tmp_path: Path) -> None:
    collect_imatrix(model, PROMPTS, max_prompts=2).write(tmp_path / "a.gguf")
    collect_imatrix(model, PROMPTS, skip=2).write(tmp_path / "b.gguf")
    merged = Imatrix.read(tmp_path / "a.gguf").merge([Imatrix.read(tmp_path / "b.gguf")])
    assert merged.n_chunks == 3
    for name, entry in merged.entries.items():
        np.testing.assert_array_equal(entry.counts, whole.entries[name].counts)
        np.testing.assert_allclose(entry.sums, whole.entries[name].sums, rtol=1e-6)


@pytest.mark.parametrize(
    ("limits", "lengths"),
    [({"n_ctx": 4}, [4, 4, 4]), ({"max_tokens": 6, "n_ctx": 4}, [4, 2]), ({"max_prompts": 1, "n_ctx": 3}, [3])],
)
def test_limits(model: ds4.Model, limits: dict[str, int], lengths: list[int]) -> None:
    assert [len(ids) for ids in tokenize_prompts(model, PROMPTS, **limits)] == lengths


def test_nothing_to_measure_on_is_refused(model: ds4.Model) -> None:
    for prompts, options in ((PROMPTS, {"skip": 3}), ([], {})):
        with pytest.raises(ValueError, match="no prompts"):
            collect_imatrix(model, prompts, **options)
    with pytest.raises(ValueError, match="n_ctx must be 1"):
        collect_imatrix(model, PROMPTS, n_ctx=0)


def test_progress_and_saving(model: ds4.Model, whole: Imatrix) -> None:
    calls: list[tuple[int, int, str]] = []
    saved: list[Imatrix] = []
    collect_imatrix(model, PROMPTS, save_every=1, save=saved.append, progress=lambda *call: calls.append(call))
    total = sum(len(ids) for ids in tokenize_prompts(model, PROMPTS, n_ctx=100))
    assert calls[-1] == (total, total, "prompt 3 of 3")
    assert [c[0] for c in calls] == sorted(c[0] for c in calls)
    assert [s.n_chunks for s in saved] == [1, 2]
    assert_equal(saved[1], collect_imatrix(model, PROMPTS, max_prompts=2))


def test_an_exception_of_progress_stops(model: ds4.Model) -> None:
    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_imatrix(model, PROMPTS, progress=stop)


def test_the_mtp_block_can_be_left_out(model: ds4.Model, whole: Imatrix) -> None:
    without = collect_imatrix(model, PROMPTS, mtp=False)
    assert not any(name.startswith("mtp") for name in without.entries)
    for name, entry in without.entries.items():
        np.testing.assert_array_equal(entry.sums, whole.entries[name].sums)
    s = model.shape
    assert importance_bytes(model, mtp=True) == 2 * (s.n_layer + 1) * s.n_expert * (s.n_embd + s.n_ff + 1) * 8


# Coverage


def test_coverage_counts_tokens(whole: Imatrix, model: ds4.Model) -> None:
    found = coverage(whole)
    total = sum(len(ids) for ids in tokenize_prompts(model, PROMPTS, n_ctx=100))
    used = model.shape.n_expert_used
    assert found.counted and [layer.name for layer in found.layers] == [*(f"blk.{i}" for i in range(5)), "mtp.0"]
    assert all(layer.counts.sum() == total * used for layer in found.layers[:-1])
    assert found.layers[-1].counts.sum() == (total - 3) * used  # the last token of a prompt completes no pair


def test_coverage_of_files(tmp_path: Path) -> None:
    found = coverage(counted_imatrix())
    (layer,) = found.layers
    assert layer.never == [1] and found.n_never == 1 and found.n_experts == N_EXPERT
    assert layer.facts() == {
        "name": "blk.0", "experts": 4, "min": 0, "median": 3.0, "max": 12, "never": [1], "counts": [5, 0, 1, 12],
    }  # fmt: skip
    dat = write_bytes(tmp_path / "a.dat", good_dat(2))
    means = coverage(Imatrix.read(dat, n_experts=N_EXPERT))
    assert not means.counted and means.layers[0].counts.tolist() == [1, 1, 0, 1]
    unknown = coverage(Imatrix.read(dat))
    assert not unknown.layers and len(unknown.undivided) == 3
    entries = {"output.weight": Entry(np.ones((1, 4)), np.ones(1)), **counted_imatrix().entries}
    assert coverage(Imatrix(entries)).other == ("output.weight",)


def test_an_expert_that_one_matrix_never_saw_has_no_data() -> None:
    entries = dict(counted_imatrix().entries)
    gate = entries[GATE]
    entries[GATE] = Entry(gate.sums, np.array([5.0, 0, 0, 12]))
    assert coverage(Imatrix(entries)).layers[0].never == [1, 2]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_a_picture_and_the_same_each_time(tmp_path: Path, suffix: str) -> None:
    head = {"svg": b"<?xml", "png": b"\x89PNG"}[suffix]
    raws: list[Any] = []
    for imatrix in (counted_imatrix(), counted_imatrix(), counted_imatrix(counts=(0, 0, 0, 0))):
        plot_coverage(coverage(imatrix), tmp_path / f"a.{suffix}", title="set")
        raws.append((tmp_path / f"a.{suffix}").read_bytes())
    assert all(raw.startswith(head) and len(raw) > 1000 for raw in raws)
    assert raws[0] == raws[1] != raws[2]
    assert [p.name for p in tmp_path.iterdir()] == [f"a.{suffix}"]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        plot_coverage(coverage(counted_imatrix()), tmp_path / "a.pdf")
    with pytest.raises(FileNotFoundError):
        plot_coverage(coverage(counted_imatrix()), tmp_path / "missing" / "a.svg")
    with pytest.raises(ValueError, match="no layers"):
        plot_coverage(coverage(Imatrix({})), tmp_path / "a.svg")
