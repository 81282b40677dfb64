"""Expert streaming is a cache: no result depends on it, and what cannot be read is an error that names its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.experts import ExpertUse, ReadOptions
from ds4.model import measure_reads
from numpy.typing import NDArray
from support.golden import load_golden
from support.rewrite import rewrite
from support.tiny_gguf import RECIPES, leaf_of, write_tiny_gguf

OPTIONS: dict[str, Any] = {"n_ctx": 512}
THREADS = ReadOptions(io="threads", depth=3, piece_bytes=8192)
RECIPE = "ds4-q2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("streaming")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def standard(folder: Path) -> Path:
    return write_tiny_gguf(folder / "standard.gguf", "flash", types=RECIPES[RECIPE])


@pytest.fixture(scope="module")
def adjacent(standard: Path) -> Path:
    return rewrite(standard, standard.with_name("adjacent.gguf"))


@pytest.fixture(scope="module", params=["standard", "adjacent"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def tokens() -> NDArray[np.int32]:
    return load_golden("flash").prompts[129].tokens


@pytest.fixture(scope="module")
def expected(standard: Path, tokens: NDArray[np.int32]) -> dict[str, NDArray[np.float32]]:
    """Of the mapped file: logits of the whole prompt, and of the MTP block after it."""
    with ds4.Model.open(standard) as model, model.session(mtp=True, **OPTIONS) as session:
        assert not model.streams
        assert session.expert_use() == ExpertUse(0, 0, 0, 0, 0, 0)
        return {"all": session.eval_logits(tokens), "mtp": session.mtp_logits(7)}


def slot_bytes(path: Path) -> int:
    with ds4.Model.open(path, expert_cache=1 << 40) as model:
        stats = model.expert_stats()
        assert stats.n_slots == stats.n_experts
        return stats.slot_bytes


def streamed(path: Path, slots: int, **options: Any) -> ds4.Model:
    return ds4.Model.open(path, expert_cache=slots * slot_bytes(path), **options)


@pytest.mark.parametrize("slots", [1, 2, 5, 6, 7, 16, 33, 1000])
def test_logits_do_not_depend_on_the_number_of_slots(
    path: Path, slots: int, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    """Prefill in chunks of several lengths, then one token at a time, then the MTP block, on a cold cache."""
    with streamed(path, slots) as model, model.session(mtp=True, chunk=50, threads=2, **OPTIONS) as session:
        assert model.streams
        stats = model.expert_stats()
        assert stats.n_slots == min(slots, stats.n_experts)
        logits = [session.eval_logits(tokens[:101]), session.eval_logits(tokens[101:105])]
        logits += [session.eval_logits(tokens[i : i + 1]) for i in range(105, len(tokens))]
        np.testing.assert_array_equal(np.concatenate(logits), expected["all"])
        np.testing.assert_array_equal(session.mtp_logits(7), expected["mtp"])
        stats = model.expert_stats()
        use = session.expert_use()
    assert use.asked == stats.total("asked") == stats.total("hits") + stats.total("late") + stats.total("misses")
    assert use.misses == stats.total("misses") > 0
    assert use.hits + use.late > 0 or slots == 1
    assert stats.failed_reads == 0
    if slots == 1:
        assert stats.total("evicted") > 900
    if slots == 1000:
        assert stats.total("evicted") == 0
        assert stats.total("misses") + stats.total("prefetched") <= stats.n_experts


@pytest.mark.parametrize(
    "reads",
    [
        ReadOptions(io="threads", depth=1),
        ReadOptions(io="threads", depth=9, piece_bytes=4096),
        ReadOptions(depth=1, piece_bytes=4096),
        ReadOptions(depth=64, piece_bytes=16384),
        ReadOptions(cached=True),
        ReadOptions(guess=False),
        ReadOptions(io="threads", cached=True),
    ],
    ids=lambda r: f"{r.io}-{r.depth}-{r.piece_bytes}-{r.cached}-{r.guess}",
)
def test_logits_do_not_depend_on_the_way_of_reading(
    path: Path, reads: ReadOptions, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    with streamed(path, 9, reads=reads) as model, model.session(chunk=30, **OPTIONS) as session:
        np.testing.assert_array_equal(session.eval_logits(tokens), expected["all"])
        assert model.expert_stats().read_depth == reads.depth
        if reads.io == "threads":
            assert model.expert_stats().read_io == "threads"


@pytest.mark.parametrize("options", [{"activations": "float32"}, {"qat": False}, {"chunk": 1}, {"chunk": 512}])
@pytest.mark.parametrize("slots", [1, 12])
def test_logits_do_not_depend_on_streaming_with_any_setting(
    adjacent: Path, options: dict[str, Any], slots: int, tokens: NDArray[np.int32]
) -> None:
    tokens = tokens[:40]
    with ds4.Model.open(adjacent) as model, model.session(**OPTIONS, **options) as session:
        expected = session.eval_logits(tokens)
    with streamed(adjacent, slots) as model, model.session(**OPTIONS, **options) as session:
        np.testing.assert_array_equal(session.eval_logits(tokens), expected)


def test_any_cut_of_a_prompt_through_any_cache(
    path: Path, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    """Random cuts, slots, depths and threads over one random walk; rewinds and copies on the way."""
    rng = np.random.default_rng(11)
    for _ in range(8):
        slots = int(rng.integers(1, 60))
        reads = ReadOptions(io=("auto", "threads")[int(rng.integers(2))], depth=int(rng.integers(1, 9)))
        cuts = sorted({0, *(int(c) for c in rng.integers(1, len(tokens), 9)), len(tokens)})
        with (
            streamed(path, slots, reads=reads) as model,
            model.session(threads=int(rng.integers(1, 4)), checkpoint_every=16, **OPTIONS) as session,
        ):
            for first, last in pairwise(cuts):
                found = session.eval_logits(tokens[first:last])
                np.testing.assert_array_equal(found, expected["all"][first:last], err_msg=f"{slots=} {first=} {last=}")
            back = session.rewind(len(tokens) // 2)
            np.testing.assert_array_equal(session.eval_logits(tokens[back:]), expected["all"][back:])


def test_types_that_change_from_layer_to_layer_share_the_slots(folder: Path, tokens: NDArray[np.int32]) -> None:
    """Slots hold the largest expert; layers of smaller ones are cached like the others (L089)."""

    def mixed(name: str) -> Any:
        kind = {"blk.1.": "q8", "blk.2.": "f16", "blk.3.": "ds4-q2"}.get(name[:6], "ds4-q4")
        experts = leaf_of(name) in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        return RECIPES[kind if experts else "ds4-q4"](name)

    plain = write_tiny_gguf(folder / "mixed.gguf", "flash", types=mixed)
    with ds4.Model.open(plain) as model, model.session(mtp=True, **OPTIONS) as session:
        expected = session.eval_logits(tokens[:60])
        mtp = session.mtp_logits(3)
    for path in (plain, rewrite(plain, folder / "mixed-adjacent.gguf")):
        for slots in (1, 20):
            with streamed(path, slots) as model, model.session(mtp=True, chunk=25, **OPTIONS) as session:
                np.testing.assert_array_equal(session.eval_logits(tokens[:60]), expected)
                np.testing.assert_array_equal(session.mtp_logits(3), mtp)
                stats = model.expert_stats()
                assert len({block.expert_bytes for block in stats.blocks}) > 3
                assert all(block.asked for block in stats.blocks)
                assert stats.slot_bytes >= max(block.expert_bytes for block in stats.blocks)


def test_a_separate_mtp_file_streams_too(folder: Path, tokens: NDArray[np.int32]) -> None:
    parts = {
        part: write_tiny_gguf(
            folder / f"{part}.gguf", "flash", dialect="llama.cpp", part=part, types=RECIPES["llama-mxfp4"]
        )
        for part in ("main", "mtp")
    }
    found = []
    for cache in (None, 300_000, 2_000_000):
        with (
            ds4.Model.open(parts["main"], mtp=parts["mtp"], expert_cache=cache) as model,
            model.session(mtp=True, **OPTIONS) as session,
        ):
            found.append((session.eval_logits(tokens[:20]), session.mtp_logits(9)))
            if cache:
                assert model.expert_stats().blocks[-1].misses > 0
    for logits, mtp in found[1:]:
        np.testing.assert_array_equal(logits, found[0][0])
        np.testing.assert_array_equal(mtp, found[0][1])


@pytest.mark.parametrize("slots", [1, 7, 40])
def test_sessions_side_by_side(
    path: Path, slots: int, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    """With fewer slots than they need together they take turns; nobody waits for ever and no bit changes."""
    wrong: list[str] = []

    def work(model: ds4.Model, chunk: int) -> None:
        with model.session(chunk=chunk, threads=1, **OPTIONS) as session:
            if not np.array_equal(session.eval_logits(tokens), expected["all"]):
                wrong.append(f"chunk {chunk}")

    with streamed(path, slots, reads=THREADS) as model:
        workers = [threading.Thread(target=work, args=(model, chunk)) for chunk in (1, 3, 40, 200)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
            assert not worker.is_alive()
    assert not wrong


def test_importances_and_times_of_a_streamed_model(path: Path, tokens: NDArray[np.int32]) -> None:
    """The same sums to the last bit; waiting for reads is a part of the profile."""
    sums = []
    for model in (ds4.Model.open(path), streamed(path, 3)):
        with model, model.session(mtp=True, chunk=20, **OPTIONS) as session:
            with session.collect_importance() as importance, session.profile() as profile:
                session.eval(tokens[:50])
                layers = [importance.layer(i) for i in range(importance.n_layer + importance.mtp)]
                prefill = profile.prefill
            sums.append(layers)
            assert (prefill.by_part()["expert_wait"] > 0) == model.streams
            assert prefill.by_part()["experts_gate_up"] > 0
    for ours, theirs in zip(*sums, strict=True):
        np.testing.assert_array_equal(ours.sum_in, theirs.sum_in)
        np.testing.assert_array_equal(ours.sum_mid, theirs.sum_mid)
        np.testing.assert_array_equal(ours.counts, theirs.counts)


def test_states_go_from_a_mapped_to_a_streamed_model(
    path: Path, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    with ds4.Model.open(path) as model, model.session(**OPTIONS) as session:
        session.eval(tokens[:90])
        saved, fingerprint = session.snapshot(), model.fingerprint
    with streamed(path, 4) as model, model.session(**OPTIONS) as session:
        assert model.fingerprint == fingerprint
        session.restore(saved)
        np.testing.assert_array_equal(session.eval_logits(tokens[90:]), expected["all"][90:])
        with session.fork() as copy:
            assert copy.expert_use().asked == 0


# What goes wrong


def test_a_budget_below_one_slot_names_the_smallest(path: Path) -> None:
    smallest = slot_bytes(path)
    for size in (1, 4096, smallest - 1):
        with pytest.raises(ValueError, match=f"the smallest possible one has {smallest} bytes"):
            ds4.Model.open(path, expert_cache=size)
    with ds4.Model.open(path, expert_cache=smallest) as model:
        assert model.expert_stats().n_slots == 1
    for bad in (0, -1, 1 << 64):
        with pytest.raises(ValueError, match="expert_cache"):
            ds4.Model.open(path, expert_cache=bad)
    with pytest.raises(TypeError, match="expert_cache"):
        ds4.Model.open(path, expert_cache=1e9)  # type: ignore[arg-type]
    with ds4.Model.open(path) as model, pytest.raises(ds4.StateError, match="without an expert cache"):
        model.expert_stats()


@pytest.mark.parametrize(
    "bad", [{"io": "aio"}, {"depth": 0}, {"depth": 2000}, {"piece_bytes": 0}, {"piece_bytes": 5000}]
)
def test_read_options_out_of_range(path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"io|depth|piece"):
        ds4.Model.open(path, expert_cache=1 << 30, reads=ReadOptions(**bad))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"x" * 100)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize("change", [cut, overwrite, replace, Path.unlink])
@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_file_that_changes_while_it_is_used(
    path: Path, tmp_path: Path, tokens: NDArray[np.int32], change: Callable[[Path], None], io: Any
) -> None:
    """An error names layer, expert, part and offset. The session stays where it was, and goes on with the file."""
    used = shutil.copy(path, tmp_path / "used.gguf")
    before = used.stat()
    with (
        streamed(used, 3, reads=ReadOptions(io=io)) as model,
        model.session(mtp=True, **OPTIONS) as session,
        model.session(**OPTIONS) as other,
    ):
        session.eval(tokens[:30])
        kept = other.eval_logits(tokens[:30])
        change(used)
        pattern = r"cannot read layer \d+, expert \d+ \((gate|up|down)\), \d+ bytes at offset \d+ of \".*used.gguf\""
        for _ in range(2):
            with pytest.raises(OSError, match=pattern + ": the file was cut, written to, replaced or removed"):
                session.eval(tokens[30:60])
            with pytest.raises(OSError, match="cannot read layer"):
                session.eval(tokens[30:31])
            with pytest.raises(OSError, match="cannot read the MTP block, expert"):
                session.mtp_logits(5)
        assert session.pos == 30
        if change in (replace, Path.unlink):
            return  # that file is gone
        with open(path, "rb") as good, open(used, "r+b") as bad:
            shutil.copyfileobj(good, bad)
        os.utime(used, ns=(before.st_atime_ns, before.st_mtime_ns))
        found = session.eval_logits(tokens[30:60])
        other.reset()
        np.testing.assert_array_equal(other.eval_logits(tokens[:30]), kept)
        np.testing.assert_array_equal(other.eval_logits(tokens[30:60]), found)


def test_a_file_that_changed_before_it_was_read(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ds4.Model.open(tmp_path / "none.gguf", expert_cache=1 << 30)


@pytest.mark.parametrize("where", ["first", "middle"])
def test_a_stop_while_experts_are_read(
    path: Path, where: str, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    """Exceptions of a progress function, such as Ctrl-C, end the call; the session goes on from its last chunk."""

    class Stop(BaseException):
        pass

    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > (where == "middle") * 2:
            raise Stop

    with streamed(path, 1, reads=THREADS) as model, model.session(chunk=40, threads=1, **OPTIONS) as session:
        with pytest.raises(Stop):
            for _ in range(50):
                session.reset()
                session.sync(tokens, progress=progress)
        pos = session.pos
        assert pos < len(tokens)
        np.testing.assert_array_equal(session.eval_logits(tokens[pos:]), expected["all"][pos:])


def test_a_cancel_from_another_thread(
    path: Path, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]
) -> None:
    with streamed(path, 2) as model, model.session(chunk=10, threads=1, **OPTIONS) as session:
        ended = threading.Event()

        def cancel() -> None:
            while not ended.wait(0.003):
                session.cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        stopped = 0
        for _ in range(20):
            try:
                session.sync(tokens)
            except ds4.Cancelled:
                stopped += 1
        ended.set()
        canceller.join()
        session.sync(tokens)
        np.testing.assert_array_equal(session.logits(), expected["all"][-1])
    assert stopped


# Looking inside


def test_the_speed_of_the_disk(path: Path) -> None:
    for reads in (None, THREADS, ReadOptions(cached=True)):
        assert measure_reads(path, 30_000, 40, reads=reads, seed=3) > 1e6
    with pytest.raises(ValueError, match="cannot read 1 times"):
        measure_reads(path, path.stat().st_size + 1, 1)
    with pytest.raises(ValueError, match="count"):
        measure_reads(path, 10, 0)
    with pytest.raises(FileNotFoundError):
        measure_reads(path.with_name("none"), 10, 1)


def test_a_trace_holds_what_the_routers_chose(path: Path, tokens: NDArray[np.int32]) -> None:
    """Rows of layer and ids, the same for any cache; what does not fit is counted."""
    rows = []
    for slots in (1, 50):
        with streamed(path, slots) as model, model.session(mtp=True, chunk=16, **OPTIONS) as session:
            native = model._native
            assert native is not None
            native.expert_trace_start(10_000)
            session.eval(tokens[:40])
            session.mtp_logits(3)
            native.expert_trace_stop()
            session.eval(tokens[40:50])
            data, n, length, lost = native.expert_trace()
            shape = model.shape
            assert (length, lost) == (1 + shape.n_expert_used, 0)
            assert n == 40 * shape.n_layer + 1
            rows.append(np.frombuffer(data, np.int32).reshape(n, length))
            native.expert_trace_start(7)
            session.eval(tokens[50:51])
            assert native.expert_trace()[1::2] == (min(7, shape.n_layer), max(shape.n_layer - 7, 0))
    np.testing.assert_array_equal(*rows)
    assert (np.bincount(rows[0][:, 0]) == [40] * (len(set(rows[0][:, 0])) - 1) + [1]).all()
    assert rows[0][:, 1:].min() >= 0
    assert rows[0][:, 1:].max() < shape.n_expert


def test_heat_map_and_preload(path: Path, tokens: NDArray[np.int32], expected: dict[str, NDArray[np.float32]]) -> None:
    """What was learned by one model fills the cache of the next one."""
    with streamed(path, 20) as model, model.session(**OPTIONS) as session:
        native = model._native
        assert native is not None
        n = model.expert_stats().n_experts
        heat, states = np.zeros(n, np.float32), np.zeros(n, np.uint8)
        session.eval(tokens)
        native.expert_heat(heat)
        native.expert_map(states)
        lasting = (1 - 2 ** (-len(tokens) / 128)) / (1 - 2 ** (-1 / 128))  # tokens that still count, of those before
        assert heat.sum() == pytest.approx(lasting * model.shape.n_layer * model.shape.n_expert_used, rel=1e-4)
        assert 0 < (states == 2).sum() <= 20
        with pytest.raises(ValueError, match="values were given"):
            native.expert_heat(heat[:-1])
    for learned in (True, False):
        with streamed(path, 20) as model, model.session(chunk=1, **OPTIONS) as session:
            native = model._native
            assert native is not None
            native.expert_set_heat(heat if learned else -heat)
            seen: list[tuple[int, int]] = []
            native.expert_preload(0, lambda done, total, seen=seen: seen.append((done, total)))
            assert all(0 <= done <= total == 20 for done, total in seen)
            native.expert_map(states)
            assert (states == 2).sum() == 20
            if learned:
                assert heat[states == 2].min() >= heat[states == 0].max()
            np.testing.assert_array_equal(session.eval_logits(tokens[:30]), expected["all"][:30])
            assert session.expert_use().hits > 0


def test_a_child_process_leaves_the_cache_alone(path: Path) -> None:
    """After a fork the threads that read are not there: errors, not waits, and closing does not hang."""
    code = f"""
import os, ds4
model = ds4.Model.open({str(path)!r}, expert_cache=1 << 20)
session = model.session(n_ctx=64)
session.eval([1, 2])
child = os.fork()
if not child:
    found = []
    for call in (lambda: session.eval([3]), model.expert_stats, lambda: model.session(n_ctx=64)):
        try:
            call()
        except ds4.StateError as error:
            found.append("fork" in str(error))
    session.close()
    model.close()
    del session, model
    os._exit(0 if found == [True] * 3 else 1)
assert os.waitpid(child, 0)[1] == 0
session.eval([3])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_long_run_does_not_slow_down(adjacent: Path) -> None:
    """Bookkeeping does not grow with the run (L088): the last tokens wait as the first ones do."""
    rng = np.random.default_rng(2)
    with streamed(adjacent, 40) as model, model.session(threads=1, **OPTIONS) as session:
        asked, read = [], []
        for _ in range(5):
            session.reset()
            before = session.expert_use()
            for token in rng.integers(0, model.shape.n_vocab, 100):
                session.eval([int(token)])
            use = session.expert_use().minus(before)
            asked.append(use.asked)
            read.append(use.read_bytes)
        assert asked == [100 * model.shape.n_layer * model.shape.n_expert_used] * 5
        assert max(read[1:]) < 1.3 * min(read[1:])
