"""Experts are read alike from either layout, and damaged records are refused with every fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds4.errors import ModelFileError
from ds4.gguf import GGUFFile, type_info
from ds4.gguf_experts import (
    ALIGNMENT_KEY,
    LAYOUT_KEY,
    ORDER_KEY,
    PARTS,
    TYPE_KEYS,
    expert_layout,
    expert_name,
    expert_record,
    standard_alignment,
    standard_tensors,
)
from ds4.gguf_writer import KV, records_of
from support.rewrite import changed, renamed, rewrite, without


@pytest.fixture(scope="module")
def standard(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf("flash", recipe="ds4-q2")


@pytest.fixture(scope="module")
def adjacent(standard: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rewrite(standard, tmp_path_factory.mktemp("adjacent") / "adjacent.gguf")


def test_a_record_is_laid_out_by_rule() -> None:
    record = expert_record([100, 64, 3])
    assert record.offsets == (0, 128, 192)
    assert record.n_bytes == 4096
    assert expert_record([4096, 4096, 1]).n_bytes == 3 * 4096


@pytest.mark.parametrize(
    ("n_embd", "n_ff", "types", "n_bytes"),
    [
        (4096, 2048, ("IQ2_XXS", "IQ2_XXS", "Q2_K"), 7_077_888),
        (4096, 2048, ("Q4_K", "Q4_K", "Q4_K"), 14_155_776),
        (4096, 2048, ("MXFP4", "MXFP4", "MXFP4"), 13_369_344),
        (7168, 3072, ("IQ2_XXS", "IQ2_XXS", "Q2_K"), 18_579_456),
        (7168, 3072, ("Q4_K", "Q4_K", "Q4_K"), 37_158_912),
    ],
)
def test_records_of_the_published_sizes_have_no_padding(
    n_embd: int, n_ff: int, types: tuple[str, ...], n_bytes: int
) -> None:
    sizes = [type_info(kind).n_bytes(n_embd * n_ff) for kind in types]
    record = expert_record(sizes)
    assert record.n_bytes == sum(sizes) == n_bytes
    assert record.offsets == (0, sizes[0], sizes[0] + sizes[1])


def test_both_layouts_hold_the_same_tensors(standard: Path, adjacent: Path) -> None:
    with GGUFFile(standard) as a, GGUFFile(adjacent) as b:
        assert (expert_layout(a), expert_layout(b)) == ("standard", "adjacent")
        assert (standard_alignment(a), standard_alignment(b)) == (None, None)
        assert b.alignment == 4096
        assert len(b.tensors) == len(a.tensors) - 2 * 6
        ours, theirs = standard_tensors(a), standard_tensors(b)
        assert list(ours) == list(theirs) == list(a.tensors)
        raw = adjacent.read_bytes()
        for name, view in theirs.items():
            stored = bytes(a.tensors[name].data())
            assert (view.type, view.ne, view.n_bytes) == (ours[name].type, ours[name].ne, len(stored))
            assert b"".join(view.pieces()) == b"".join(ours[name].pieces()) == stored
            assert b"".join(raw[offset : offset + n] for offset, n in view.ranges()) == stored


def test_one_read_holds_a_whole_expert(standard: Path, adjacent: Path) -> None:
    with GGUFFile(standard) as a, GGUFFile(adjacent) as b:
        parts = [standard_tensors(b)[expert_name("blk.3.", part)] for part in PARTS]
        holder = parts[0].holder
        assert holder.name == "blk.3.ffn_exps.weight"
        assert (holder.type, holder.offset % 4096, parts[0].stride % 4096) == ("I8", 0, 0)
        start = holder.offset + 5 * parts[0].stride
        record = adjacent.read_bytes()[start : start + parts[0].stride]
        for part in parts:
            data = bytes(a.tensors[part.name].data())
            n = len(data) // 16
            assert record[part.first : part.first + n] == data[5 * n : 6 * n]


@pytest.mark.parametrize("which", ["standard", "adjacent"])
def test_experts_and_rows(which: str, standard: Path, adjacent: Path) -> None:
    path = {"standard": standard, "adjacent": adjacent}[which]
    name = "blk.1.ffn_down_exps.weight"
    with GGUFFile(standard) as a, GGUFFile(path) as file:
        data, view = bytes(a.tensors[name].data()), standard_tensors(file)[name]
        n = view.matrix_bytes
        assert (view.n_matrices, view.size, n * 16) == (16, 256 * 256 * 16, len(data))
        assert view.matrix(15) == data[15 * n :]
        assert view.rows(2, 3, 4) == data[2 * n + 3 * view.row_bytes : 2 * n + 7 * view.row_bytes]
        for bad in (lambda: view.matrix(16), lambda: view.matrix(-1), lambda: view.rows(0, 255, 2)):
            with pytest.raises(IndexError, match="ffn_down_exps"):
                bad()


def test_numbers_of_another_width_are_read(standard: Path, tmp_path: Path) -> None:
    path = rewrite(standard, tmp_path / "a.gguf", edit=changed("deepseek4.expert_count", 16.0, "f32"))
    with GGUFFile(path) as file:
        assert standard_tensors(file)["blk.0.ffn_up_exps.weight"].ne == (256, 256, 16)


def test_the_alignment_of_the_standard_form_is_known(standard: Path, tmp_path: Path) -> None:
    add = KV("general.alignment", "u32", 64)
    aligned = rewrite(standard, tmp_path / "a.gguf", "standard", edit=lambda kvs: [*kvs[:3], add, *kvs[3:]])
    path = rewrite(aligned, tmp_path / "b.gguf")
    with GGUFFile(path) as file:
        assert (file.alignment, standard_alignment(file)) == (4096, 64)
        assert records_of(file)[3].key == "general.alignment"
    assert rewrite(path, tmp_path / "c.gguf", "standard").read_bytes() == aligned.read_bytes()


DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    "no types": ({"edit": without(TYPE_KEYS[1])}, f"{TYPE_KEYS[1]} is missing"),
    "no order": ({"edit": without(ORDER_KEY)}, f"{ORDER_KEY} is missing"),
    "no alignment": ({"edit": without("general.alignment")}, "general.alignment is 32; records need 4096"),
    "short types": ({"edit": changed(TYPE_KEYS[0], [16] * 5)}, "not an array of 6 numbers"),
    "types are text": ({"edit": changed(TYPE_KEYS[0], ["a"] * 6, "[string]")}, "not an array of 6 numbers"),
    "types are one number": ({"edit": changed(TYPE_KEYS[0], 16, "u32")}, "not an array of 6 numbers"),
    "another type": ({"edit": changed(TYPE_KEYS[2], [10, 12, 10, 10, 10, 12])}, "blk.1.ffn_exps.weight: I8 .*, wanted"),
    "no such type": ({"edit": changed(TYPE_KEYS[2], [10, 4, 10, 10, 10, 12])}, "unknown tensor type 4"),
    "order twice": ({"edit": changed(ORDER_KEY, [7] * 18)}, "does not name 18 places"),
    "order outside": ({"edit": changed(ORDER_KEY, [1000, *range(17)])}, "does not name 18 places among 182"),
    "no width": ({"edit": without("deepseek4.expert_feed_forward_length")}, "expert_feed_forward_length is missing"),
    "another width": ({"edit": changed("deepseek4.expert_count", 15)}, "wanted I8"),
    "shape": ({"rename": renamed("blk.2.ffn_exps.weight", ne=(4096 * 14 * 16,))}, "blk.2.ffn_exps.weight: I8"),
    "both forms": ({"rename": renamed("blk.2.attn_norm.weight", name="blk.2.ffn_up_exps.weight")}, "stands beside"),
    "no record": ({"rename": renamed("mtp.0.ffn_exps.weight", name="x")}, "not an array of 5 numbers"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_records_are_refused(standard: Path, tmp_path: Path, what: str) -> None:
    options, text = DAMAGES[what]
    path = rewrite(standard, tmp_path / "a.gguf", **options)
    with GGUFFile(path) as file, pytest.raises(ModelFileError, match=text) as caught:
        standard_tensors(file)
    assert str(path) in str(caught.value)


def test_all_faults_come_at_once(standard: Path, tmp_path: Path) -> None:
    edit = changed(TYPE_KEYS[2], [10, 12, 10, 4, 10, 12])
    path = rewrite(standard, tmp_path / "a.gguf", edit=lambda kvs: without("general.alignment")(edit(kvs)))
    with GGUFFile(path) as file, pytest.raises(ModelFileError) as caught:
        standard_tensors(file)
    text = str(caught.value)
    assert all(part in text for part in ("general.alignment", "blk.1.", "blk.3."))


@pytest.mark.parametrize("value", ["Adjacent", "", 7])
def test_another_layout_is_named(standard: Path, tmp_path: Path, value: Any) -> None:
    kind = "string" if isinstance(value, str) else "u32"
    path = rewrite(standard, tmp_path / "a.gguf", edit=changed(LAYOUT_KEY, value, kind))
    with GGUFFile(path) as file, pytest.raises(ModelFileError, match=r"ds4 knows standard and adjacent"):
        expert_layout(file)


@pytest.mark.parametrize("value", [3, 4, 1 << 21])
def test_a_wrong_standard_alignment(standard: Path, tmp_path: Path, value: int) -> None:
    path = rewrite(standard, tmp_path / "a.gguf", edit=changed(ALIGNMENT_KEY, value))
    with GGUFFile(path) as file, pytest.raises(ModelFileError, match=f"{ALIGNMENT_KEY} is {value}"):
        standard_alignment(file)


def test_a_tensor_named_like_the_prefix_of_a_block_is_no_record(standard: Path, tmp_path: Path) -> None:
    path = rewrite(standard, tmp_path / "a.gguf", rename=renamed("output_norm.weight", name="blk.2."))
    with GGUFFile(path) as file:
        assert "blk.2." in standard_tensors(file)
