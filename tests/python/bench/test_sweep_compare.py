"""Two builds against each other: differences of pairs, and how far they can be believed."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from ds4.bench import Sweep, compare_sweeps, plot_comparison
from ds4.bench.sweep_compare import Paired
from ds4.bench.sweep_table import SweepRow

FACTS = {"fingerprint": "aa", "prompt_sha256": "bb", "version": "1", "ended": "complete"}


def sweep(name: str, *rows: tuple[int, tuple[float, ...], tuple[float, ...]], **facts: str) -> Sweep:
    median = statistics.median
    return Sweep(name, {**FACTS, **facts}, tuple(SweepRow(c, p, g, median(p), median(g)) for c, p, g in rows))


def test_ratios_at_every_frontier() -> None:
    a = sweep("a", (10, (100.0,), (20.0,)), (20, (80.0,), (10.0,)))
    b = sweep("b", (10, (110.0,), (10.0,)), (20, (88.0,), (10.0,)), (30, (1.0,), (1.0,)))
    found = compare_sweeps([(a, b)])
    assert (found.a, found.b) == ("a", "b")
    assert [(r.ctx_tokens, r.a_tps, r.b_tps) for r in found.rows["prefill"]] == [(10, 100, 110), (20, 80, 88)]
    assert [r.ratio for r in found.rows["gen"]] == [0.5, 1.0]
    assert found.paired["prefill"].unit == "frontiers" and found.paired["prefill"].mean == pytest.approx(0.1)
    assert any("only the 2 frontiers" in w for w in found.warnings)
    assert any("one run a side" in w for w in found.warnings)


def test_repeats_are_paired_in_their_order() -> None:
    a = sweep("a", (10, (100.0, 50.0), (1.0, 1.0)), (20, (100.0, 50.0), (1.0, 1.0)))
    b = sweep("b", (10, (110.0, 55.0), (1.0, 2.0)), (20, (110.0, 55.0), (1.0, 2.0)))
    found = compare_sweeps([(a, b)])
    paired = found.paired["prefill"]
    assert paired.unit == "repeats" and paired.differences == pytest.approx((0.1, 0.1))
    assert paired.spread == pytest.approx(0) and paired.faster is True
    assert found.paired["gen"].differences == pytest.approx((0, 1))
    assert found.warnings == ()


def test_pairs_in_alternating_order_take_out_the_drift() -> None:
    """A machine that slows down by a third during the runs hides a gain of 3 % from means, not from pairs."""
    rng = random.Random(4)
    pairs = []
    for i in range(5):
        drift = 100.0 - 8 * i
        one, two = (
            sweep("x", *((c, (s * drift * rng.uniform(0.998, 1.002),), (s * drift,)) for c in (10, 20)))
            for s in (1.0, 1.03)
        )
        pairs.append((one, two))
    paired = compare_sweeps(pairs).paired["prefill"]
    assert paired.unit == "pairs of files" and len(paired.differences) == 5
    assert paired.mean == pytest.approx(0.03, abs=0.003) and paired.faster is True
    assert paired.spread is not None and paired.spread < 0.004


def test_a_claim_that_is_noise() -> None:
    """Five pairs that scatter by a fifth prove no gain of a few percent."""
    gains = (1.2, 0.85, 1.15, 0.9, 1.1)
    pairs = [(sweep("a", (10, (100.0,), (1.0,))), sweep("b", (10, (100.0 * g,), (1.0,)))) for g in gains]
    paired = compare_sweeps(pairs).paired["prefill"]
    assert paired.mean == pytest.approx(0.04) and paired.faster is None
    assert paired.interval is not None and paired.interval[0] < 0 < paired.interval[1]
    assert paired.spread == pytest.approx(statistics.stdev(g - 1 for g in gains))


def test_the_interval_is_students() -> None:
    paired = Paired((1.0, 2.0, 3.0), "repeats")
    assert paired.interval == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    many = Paired(tuple(float(i % 2) for i in range(100)), "repeats")
    assert many.interval is not None and many.spread is not None
    assert many.interval[1] - many.mean == pytest.approx(1.96 * many.spread / 10)
    alone = Paired((0.5,), "pairs of files")
    assert alone.spread is None and alone.interval is None and alone.faster is None
    assert Paired((-0.2, -0.21), "repeats").faster is False


def test_a_phase_that_one_side_lacks_is_left_out() -> None:
    found = compare_sweeps([(sweep("a", (10, (1.0,), (0.0,))), sweep("b", (10, (2.0,), (3.0,))))])
    assert set(found.rows) == set(found.paired) == {"prefill"}


def test_unequal_repeats_are_compared_by_their_medians() -> None:
    found = compare_sweeps([(sweep("a", (10, (1.0, 2.0, 9.0), (1.0, 1.0, 1.0))), sweep("b", (10, (4.0,), (1.0,))))])
    assert found.rows["prefill"][0].ratios == (2.0,)


def test_nothing_in_common() -> None:
    with pytest.raises(ValueError, match=r"x\.csv and y\.csv have no frontier in common"):
        compare_sweeps([(sweep("x.csv", (10, (1.0,), (1.0,))), sweep("y.csv", (11, (1.0,), (1.0,))))])
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_sweeps([])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"fingerprint": "cc"}, "fingerprint not the same work: aa and cc"),
        ({"prompt_sha256": "cc"}, "prompt_sha256 not the same work: bb and cc"),
        ({"version": "2"}, "version differs: 1 and 2"),
        ({"ended": "interrupted after 1 of 2 frontiers"}, "b is not complete (interrupted after 1 of 2 frontiers)"),
    ],
)
def test_warnings(facts: dict[str, str], message: str) -> None:
    row = (10, (1.0, 1.0), (1.0, 1.0))
    assert compare_sweeps([(sweep("a", row), sweep("b", row, **facts))]).warnings == (message,)


def test_plain_values_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = (10, (1.0, 2.0), (1.0, 1.0))
    found = compare_sweeps([(sweep("a", row), sweep("b", row))])
    content = found.as_json()
    assert content["phases"]["gen"]["paired"]["interval"] == [0, 0]
    assert content["phases"]["prefill"]["frontiers"][0]["ratios"] == [1, 1]
    plot_comparison(found, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert "<svg" in text
