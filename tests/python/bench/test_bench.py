"""Speed tests: names, runs, the bytes of a token, the picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4.bench import Measurement, Workload, parse_workloads, plot_profiles, run_bench, token_bytes, touch_weights
from ds4.bench.floor import cache_bytes


@pytest.fixture(scope="module")
def path(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", part="main", recipe="bf16")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[ds4.Model]:
    with ds4.Model.open(path) as model:
        yield model


def test_names_of_tests() -> None:
    found = parse_workloads("pp512, tg32,tg32@16384,pp1@7")
    assert found == [Workload("pp", 512), Workload("tg", 32), Workload("tg", 32, 16384), Workload("pp", 1, 7)]
    assert [w.name for w in found] == ["pp512", "tg32", "tg32@16384", "pp1@7"]
    assert [w.n_ctx for w in found] == [512, 32, 16416, 8]
    assert [w.is_decode for w in found] == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no test"),
        ("pp", "is no test"),
        ("pp512,", "is no test"),
        ("pg12", "'pg12' is no test"),
        ("pp-1", "is no test"),
        ("tg4@", "is no test"),
        ("pp１2", "is no test"),
        ("pp0", "no tokens"),
        ("tg1@1048576", "1048577 positions"),
        ("pp4,tg1,pp4", "pp4 is named twice"),
    ],
)
def test_wrong_names_of_tests(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_workloads(text)


def test_every_test_is_run_as_often_as_asked(model: ds4.Model) -> None:
    workloads = parse_workloads("pp20,tg3,tg2@40,pp5@40")
    told: list[tuple[int, int, str]] = []
    samples: list[tuple[str, float]] = []
    with model.session(n_ctx=45, chunk=9, threads=1) as session:
        found = list(
            run_bench(
                session, workloads, reps=2, profile=True,
                progress=lambda *x: told.append(x), sample=lambda w, s, c: samples.append((w.name, s)),
            )
        )  # fmt: skip
    assert [m.workload for m in found] == workloads
    assert [t[0] for t in told] == list(range(1, 17)) and {t[1] for t in told} == {16}
    assert [s[0] for s in samples] == [w.name for w in workloads for _ in range(2)]
    for m in found:
        assert m.seconds == tuple(s for name, s in samples if name == m.workload.name)
        assert min(m.samples) <= m.tps <= max(m.samples)
        assert m.profile is not None and m.profile.tokens == m.workload.n
        assert m.as_json()["profile"]["tokens"] == m.workload.n


def test_touching_weights(path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    with ds4.GGUFFile(path) as file:
        total = touch_weights(file, progress=lambda *x: told.append(x))
        assert total == sum(t.n_bytes for t in file.tensors.values())
    assert told[-1][:2] == (total, total)


def test_median_and_extremes() -> None:
    m = Measurement(Workload("pp", 100), (1.0, 2.0, 10.0), (2.0, 3.0, 19.0))
    assert m.cpus == 1.9
    assert (m.tps, m.as_json()["tps_min"], m.as_json()["tps_max"]) == (50.0, 10.0, 100.0)


@pytest.mark.parametrize(
    ("tests", "reps", "message"), [("pp4", 0, "reps"), ("tg3@30", 1, "needs 33 positions"), (None, 1, "no tests")]
)
def test_nothing_runs_when_something_is_wrong(model: ds4.Model, tests: str | None, reps: int, message: str) -> None:
    with model.session(n_ctx=32) as session, pytest.raises(ValueError, match=message):
        run_bench(session, parse_workloads(tests) if tests else [], reps=reps)


def test_bytes_of_a_token(path: Path, model: ds4.Model) -> None:
    """Against a count by hand over the directory of the file."""
    shape, expected, whole = model.shape, 0.0, 0
    with ds4.GGUFFile(path) as file:
        need = token_bytes(file, shape)
        for tensor in file.tensors.values():
            whole += tensor.n_bytes
            share = 1.0
            if "_exps" in tensor.name:
                share = shape.n_expert_used / shape.n_expert
            elif tensor.name == "token_embd.weight" or "tid2eid" in tensor.name:
                share = 1 / tensor.ne[1]
            expected += tensor.n_bytes * share
        deep = token_bytes(file, shape, depth=1000)
    assert need.total == pytest.approx(expected, abs=100) and need.total < whole
    assert need.floor(1e9) == pytest.approx(1e9 / need.total)
    assert sum(need.layers) + need.groups["head"] <= need.total and len(need.layers) == shape.n_layer
    assert {"routed experts", "attention", "head", "shared expert", "compressor and indexer"} <= set(need.groups)
    assert deep.total - need.total == deep.groups["cache"] == cache_bytes(shape, 1000)


def test_bytes_of_the_cache(model: ds4.Model) -> None:
    """At most the window, the chosen rows and the rows of the indexer; all of the rows of ratio 128."""
    s = model.shape
    dense = sum(min(50, s.window) * 2 * s.head_dim for _ in range(s.n_layer))
    assert cache_bytes(s, 50) >= dense
    assert cache_bytes(s, 50, rows="f32") == 2 * cache_bytes(s, 50)
    far, farther = cache_bytes(s, 100_000), cache_bytes(s, 200_000)
    fours = s.compress_ratio.count(4)
    growth = 25_000 * 2 * s.index_dim * fours + sum(100_000 // r * 2 * s.head_dim for r in s.compress_ratio if r > 4)
    assert farther - far == pytest.approx(growth, rel=1e-3)


def test_plot(model: ds4.Model, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with model.session(n_ctx=32) as session:
        found = list(run_bench(session, parse_workloads("pp8,tg2"), reps=1, profile=True))
        plain = list(run_bench(session, parse_workloads("pp8"), reps=1))
    out = tmp_path / "parts.svg"
    plot_profiles(found, out, title="a title")
    assert b"<svg" in out.read_bytes()
    with pytest.raises(ValueError, match="no profile to draw"):
        plot_profiles(plain, out)
    with pytest.raises(ValueError, match=r"svg or \.png"):
        plot_profiles(found, tmp_path / "parts.gif")


def test_every_part_has_a_colour(model: ds4.Model) -> None:
    from ds4.bench.plot import COLOURS

    with model.session(n_ctx=8) as session, session.profile() as profile:
        assert set(COLOURS) == set(profile.prefill.parts)
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert np.isfinite(profile.prefill.seconds).all()
