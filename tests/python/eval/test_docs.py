"""docs/eval.md: its example runs, its cases are cases, and its numbers are those of the suites."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ds4.eval import open_suite
from ds4.eval.suite import KINDS, parse_case
from support.markdown import check_runs, has_embedded_model, python_blocks

PAGE = Path(__file__).parents[3] / "docs" / "eval.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not in a checkout")


@pytest.mark.skipif(not has_embedded_model(), reason="this installation has no embedded model")
def test_the_example_runs(tmp_path: Path) -> None:
    (code,) = python_blocks(PAGE)
    check_runs(code, tmp_path)


def test_cases_of_the_page_are_cases() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    kinds = [parse_case(line, "docs", "docs/eval.md").kind for line in block.splitlines()]
    assert kinds == [kind for kind in KINDS if kind != "call"]


def test_sizes_of_the_suites() -> None:
    sizes = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert sizes == {name: str(len(open_suite(name).cases)) for name in ("tiny", "general")}
