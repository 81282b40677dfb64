"""Comparing two runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ds4.errors import DS4Error
from ds4.plotting import PlotUnavailableError, check_plot
from ds4.score import CaseScore, Comparison, Run, compare_kinds, compare_runs
from ds4.score.plots import plot_comparison


def score(name: str, n: int, nll: float, lcp: int = 0, kind: str | None = None) -> CaseScore:
    return CaseScore(name, 5, n, nll, lcp > 0, lcp, kind)


@pytest.fixture
def runs() -> tuple[Run, Run]:
    old = Run((score("a", 10, 2.0, 3, "x"), score("b", 30, 6.0, 0, "y"), score("c", 4, 1.0), score("gone", 1, 9.0)))
    new = Run(
        (score("new", 1, 1.0), score("c", 4, 1.0 + 5e-10), score("b", 30, 3.0, 9, "y"), score("a", 10, 2.4, 3, "x"))
    )
    return old, new


def test_the_numbers(runs: tuple[Run, Run]) -> None:
    found = compare_runs(*runs)
    assert [c.id for c in found.cases] == ["a", "b", "c"]
    assert (found.wins, found.losses, found.ties) == (1, 1, 1)
    assert found.old.avg_nll == pytest.approx(9.0 / 44)
    assert found.new.avg_nll == pytest.approx(6.4 / 44)
    assert found.difference == pytest.approx(-2.6 / 44)
    assert found.relative == pytest.approx(-2.6 / 9.0)
    assert (found.old.first_matches, found.new.first_matches) == (1, 2)
    assert (found.old.mean_lcp, found.new.mean_lcp) == (1.0, 4.0)
    assert found.only_old == ("gone",) and found.only_new == ("new",)
    assert found.cases[0].delta == pytest.approx(0.04) and found.cases[1].delta == pytest.approx(-0.1)
    kinds = compare_kinds(*runs)
    assert list(kinds) == ["x", "y"] and kinds["y"].wins == 1 and kinds["x"].losses == 1
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert content["wins"] == 1 and content["only_new"] == ["new"] and len(content["cases"]) == 3


def test_a_run_equals_itself(runs: tuple[Run, Run]) -> None:
    found = compare_runs(runs[0], runs[0])
    assert (found.wins, found.losses, found.ties) == (0, 0, 4)
    assert found.difference == 0.0 and found.relative == 0.0 and not found.only_old and not found.only_new
    zero = Run((score("a", 1, 0.0, 1),))
    assert compare_runs(zero, zero).relative is None


def test_other_continuations_are_an_error(runs: tuple[Run, Run]) -> None:
    with pytest.raises(ValueError, match="case b: 30 tokens in one run, 31 in the other"):
        compare_runs(runs[0], Run((score("b", 31, 3.0),)))
    with pytest.raises(ValueError, match="no case in common"):
        compare_runs(runs[0], Run((score("z", 31, 3.0),)))


@pytest.fixture
def comparison(runs: tuple[Run, Run]) -> Comparison:
    return compare_runs(*runs)


@pytest.mark.parametrize(("name", "magic"), [("p.svg", b"<?xml"), ("p.PNG", b"\x89PNG")])
def test_plots(comparison: Comparison, tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    path.write_text("old")
    plot_comparison(comparison, path, old="q2", new="q2 with importance")
    data = path.read_bytes()
    assert data.startswith(magic) and len(data) > 4000
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_places_for_plots_are_checked(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        check_plot(tmp_path / "p.pdf")
    pytest.importorskip("matplotlib")
    with pytest.raises(FileNotFoundError):
        check_plot(tmp_path / "none" / "p.svg")
    (tmp_path / "d.svg").mkdir()
    with pytest.raises(IsADirectoryError):
        plot_comparison(comparison, tmp_path / "d.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["d.svg"]


def test_a_missing_matplotlib_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotUnavailableError, match=r"pip install 'ds4\[plot\]'") as caught:
        check_plot(tmp_path / "p.svg")
    assert isinstance(caught.value, DS4Error)


def test_matplotlib_is_loaded_for_plots_only() -> None:
    code = "import sys, ds4.score, ds4.cli.program; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
