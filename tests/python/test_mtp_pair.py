"""A separate MTP file and its model: what their heads tell of each other (L085)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ds4
import pytest
from support.gguf_write import Raw, Value, f32, string, u32
from support.tiny_gguf import RECIPES, write_tiny_gguf


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """``pair(changes of the model, changes of the MTP file)`` -> paths."""

    def make(main: dict[str, Value | Raw | None], mtp: dict[str, Value | Raw | None]) -> tuple[Path, Path]:
        types = RECIPES["q8"]
        return (
            write_tiny_gguf(tmp_path / "main.gguf", "flash", types=types, part="main", changes=main),
            write_tiny_gguf(tmp_path / "mtp.gguf", "flash", types=types, part="mtp", changes=mtp),
        )

    return make


def test_a_pair_has_no_warnings(pair: Callable[..., tuple[Path, Path]]) -> None:
    names = {"general.basename": string("DeepSeek-V4"), "general.version": string("v1")}
    main, mtp = pair(names, names)
    with ds4.Model.open(main, mtp=mtp) as model:
        assert model.has_mtp
        assert model.warnings == ()


def test_one_without_what_the_other_says_is_taken(pair: Callable[..., tuple[Path, Path]]) -> None:
    main, mtp = pair({"general.basename": string("DeepSeek-V4")}, {"deepseek4.rope.freq_base": None})
    with ds4.Model.open(main, mtp=mtp) as model:
        assert model.warnings == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope.freq_base", f32(12345.0)), ("expert_used_count", u32(1)), ("attention.sliding_window", u32(64))],
)
def test_other_numbers_are_refused_with_both(pair: Callable[..., tuple[Path, Path]], key: str, value: Value) -> None:
    """Numbers that no tensor shows."""
    main, mtp = pair({}, {f"deepseek4.{key}": value})
    with pytest.raises(ds4.UnsupportedModelError, match=rf"deepseek4\.{key} is .*, in the model ") as caught:
        ds4.Model.open(main, mtp=mtp)
    assert str(mtp) in str(caught.value) and str(main) in str(caught.value)


def test_another_name_is_a_warning_with_both(pair: Callable[..., tuple[Path, Path]]) -> None:
    """Another date of the same model: it loads, and drafts badly."""
    main, mtp = pair({"general.version": string("2026-04")}, {"general.version": string("2026-01")})
    with ds4.Model.open(main, mtp=mtp) as model:
        (warning,) = model.warnings
        assert "general.version is '2026-01'" in warning and "'2026-04'" in warning
        assert str(mtp) in warning and str(main) in warning
