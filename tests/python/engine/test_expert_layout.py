"""Both expert layouts compute the same bits, and a file with damaged records is refused with every fault."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4.gguf import GGUFFile
from ds4.gguf_experts import ALIGNMENT_KEY, LAYOUT_KEY, ORDER_KEY, TYPE_KEYS
from ds4.gguf_writer import KV
from support.gguf_write import GGMLType
from support.golden import load_golden
from support.rewrite import changed, renamed, rewrite, without
from support.tiny_gguf import RECIPES, leaf_of, write_tiny_gguf

PLAIN = {"qat": False, "n_ctx": 512}
MIXED = {
    "blk.0.": (GGMLType.Q8_0, GGMLType.Q2_K),
    "blk.1.": (GGMLType.IQ2_XXS, GGMLType.Q2_K),
    "blk.2.": (GGMLType.Q4_K, GGMLType.Q4_K),
    "blk.3.": (GGMLType.MXFP4, GGMLType.F16),
    "blk.4.": (GGMLType.F16, GGMLType.MXFP4),
    "mtp.0.": (GGMLType.BF16, GGMLType.Q8_0),
}


def mixed(name: str) -> GGMLType:
    """Types that change from layer to layer, so that a wrong record size or offset cannot go unseen."""
    kinds = MIXED.get(name[:6])
    if kinds and leaf_of(name) in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
        return kinds[leaf_of(name) == "ffn_down_exps"]
    return RECIPES["ds4-q4"](name)


def results(path: Path, tokens: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray | None, bytes]:
    with ds4.Model.open(path) as model:
        model.check()
        with model.session(**{**PLAIN, "mtp": model.has_mtp, **options}) as session:
            logits = session.eval_logits(tokens)
            mtp = session.mtp_logits(7) if model.has_mtp else None
        return logits, mtp, model.fingerprint


@pytest.mark.parametrize(
    ("variant", "recipe"), [("flash", "mixed"), ("pro", "mixed"), ("flash", "f16"), ("flash", "q8")]
)
def test_both_layouts_give_the_same_bits(tmp_path: Path, variant: str, recipe: str) -> None:
    rule = mixed if recipe == "mixed" else RECIPES[recipe]
    standard = write_tiny_gguf(tmp_path / "standard.gguf", variant, types=rule)
    adjacent = rewrite(standard, tmp_path / "adjacent.gguf")
    tokens = load_golden(variant).prompts[129].tokens[:80]
    for options in ({}, {"activations": "quantized", "chunk": 7}):
        ours, ours_mtp, ours_print = results(adjacent, tokens, **options)
        theirs, theirs_mtp, theirs_print = results(standard, tokens, **options)
        np.testing.assert_array_equal(ours, theirs)
        assert ours_mtp is not None
        np.testing.assert_array_equal(ours_mtp, theirs_mtp)
        assert ours_print == theirs_print


def test_llama_cpp_names_and_a_separate_mtp_file(tmp_path: Path) -> None:
    tokens = load_golden("flash").prompts[5].tokens
    found = []
    for layout in ("standard", "adjacent"):
        parts = {}
        for part in ("main", "mtp"):
            plain = write_tiny_gguf(
                tmp_path / f"{part}.gguf", "flash", dialect="llama.cpp", part=part, types=RECIPES["llama-mxfp4"]
            )
            parts[part] = rewrite(plain, tmp_path / f"{part}-{layout}.gguf", layout)
        with ds4.Model.open(parts["main"], mtp=parts["mtp"]) as model:
            model.check()
            assert not model.warnings
            with model.session(mtp=True, **PLAIN) as session:
                found.append((session.eval_logits(tokens), session.mtp_logits(9), model.fingerprint))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


def test_a_snapshot_goes_from_one_layout_to_the_other(tmp_path: Path) -> None:
    standard = write_tiny_gguf(tmp_path / "standard.gguf", "flash", types=RECIPES["ds4-q2"])
    adjacent = rewrite(standard, tmp_path / "adjacent.gguf")
    tokens = load_golden("flash").prompts[5].tokens
    with ds4.Model.open(standard) as model, model.session(**PLAIN) as session:
        session.eval(tokens)
        saved, expected = session.snapshot(), session.eval_logits([7, 8])
    with ds4.Model.open(adjacent) as model, model.session(**PLAIN) as session:
        session.restore(saved)
        np.testing.assert_array_equal(session.eval_logits([7, 8]), expected)


def test_the_fingerprint_still_sees_other_weights_and_alignments(tmp_path: Path) -> None:
    plain = write_tiny_gguf(tmp_path / "plain.gguf", "flash", part="main", types=RECIPES["ds4-q2"])
    prints = set()
    for name, edit in (("a", lambda kvs: kvs), ("b", lambda kvs: [*kvs, KV("general.alignment", "u32", 64)])):
        standard = rewrite(plain, tmp_path / f"{name}.gguf", "standard", edit=edit)
        adjacent = rewrite(standard, tmp_path / f"{name}-adjacent.gguf")
        ours = [fingerprint(path) for path in (standard, adjacent)]
        assert ours[0] == ours[1]
        prints.add(ours[0])
    damaged = tmp_path / "a-adjacent.gguf"
    with GGUFFile(damaged) as file:
        offset = file.tensors["blk.4.ffn_exps.weight"].offset + 5
    with open(damaged, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1]))
    assert len({*prints, fingerprint(damaged)}) == 3


def fingerprint(path: Path) -> bytes:
    with ds4.Model.open(path) as model:
        return model.fingerprint


@pytest.fixture(scope="module")
def q2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    return write_tiny_gguf(folder / "q2.gguf", "flash", types=RECIPES["ds4-q2"])


@pytest.mark.parametrize(
    ("block", "part", "expert", "where"),
    [("blk.0.", 0, 0, 0), ("blk.3.", 1, 15, 255), ("blk.4.", 2, 7, 100), ("mtp.0.", 2, 15, 255)],
)
def test_the_check_finds_a_bad_scale_in_a_record(
    q2: Path, tmp_path: Path, block: str, part: int, expert: int, where: int
) -> None:
    path = rewrite(q2, tmp_path / "a.gguf")
    kinds = ("Q4_K", "Q4_K", "Q4_K") if block == "mtp.0." else ("IQ2_XXS", "IQ2_XXS", "Q2_K")
    row = {"Q4_K": 144, "IQ2_XXS": 66, "Q2_K": 84}
    start, end = [], 0
    for kind in kinds:
        start.append(-(-end // 64) * 64)
        end = start[-1] + 256 * row[kind]
    scale = {"Q4_K": 0, "IQ2_XXS": 0, "Q2_K": 80}[kinds[part]]
    with GGUFFile(path) as file:
        record = file.tensors[block + "ffn_exps.weight"]
    assert record.ne == (-(-end // 4096) * 4096, 16)
    with open(path, "r+b") as f:
        f.seek(record.offset + expert * record.ne[0] + start[part] + where * row[kinds[part]] + scale)
        f.write(b"\x00\x7c")
    name = ("gate", "up", "down")[part]
    text = rf"{re.escape(block)}ffn_exps\.weight \({name}\): \d+ value\(s\) .* first at row {expert * 256 + where}, "
    with ds4.Model.open(path) as model, pytest.raises(ds4.WeightDataError, match=text):
        model.check()


def test_padding_of_records_is_not_looked_at(q2: Path, tmp_path: Path) -> None:
    path = rewrite(q2, tmp_path / "a.gguf")
    with GGUFFile(path) as file:
        record = file.tensors["blk.0.ffn_exps.weight"]
    with open(path, "r+b") as f:
        f.seek(record.offset + record.ne[0] - 2)
        f.write(b"\xff\xff")
    done = []
    with ds4.Model.open(path) as model:
        model.check(progress=lambda d, total: done.append((d, total)))
    assert done[-1][0] == done[-1][1] == sum(d.n_bytes for d in GGUFFile(path).tensors.values())


RECORD = 14 * 4096
DAMAGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no key": (
        {"edit": without(LAYOUT_KEY)},
        ("blk.{0-4}.ffn_exps.weight needs metadata", "ffn_gate_exps.weight is missing"),
    ),
    "another key": ({"edit": changed(LAYOUT_KEY, "adjoining")}, ("is 'adjoining', ds4 knows standard and adjacent",)),
    "no text": ({"edit": changed(LAYOUT_KEY, 1, "u32")}, ("expert_layout is 'no text'",)),
    "standard": ({"edit": changed(LAYOUT_KEY, "standard")}, ("ffn_exps.weight needs metadata",)),
    "no gate types": ({"edit": without(TYPE_KEYS[0])}, (f"{TYPE_KEYS[0]} is missing",)),
    "no down types": ({"edit": without(TYPE_KEYS[2])}, (f"{TYPE_KEYS[2]} is missing",)),
    "types without MTP": ({"edit": changed(TYPE_KEYS[1], [16] * 5)}, (f"{TYPE_KEYS[1]} is not an array of 6",)),
    "too many types": ({"edit": changed(TYPE_KEYS[1], [16] * 7)}, (f"{TYPE_KEYS[1]} is not an array of 6",)),
    "negative": ({"edit": changed(TYPE_KEYS[1], [-1] * 6, "[i32]")}, (f"{TYPE_KEYS[1]} is not an array of 6",)),
    "huge": ({"edit": changed(TYPE_KEYS[2], [2**63] * 6, "[u64]")}, ("down_type[0] is type 9223372036854775808",)),
    "wraps": ({"edit": changed(TYPE_KEYS[2], [2**32 + 10] * 6, "[u64]")}, ("down_type[0] is type 4294967306",)),
    "fraction": ({"edit": changed(TYPE_KEYS[2], [10.5] * 6, "[f32]")}, ("down_type is not an array",)),
    "scalar": ({"edit": changed(TYPE_KEYS[0], 16, "u32")}, (f"{TYPE_KEYS[0]} is not an array",)),
    "texts": ({"edit": changed(TYPE_KEYS[0], ["IQ2_XXS"] * 6, "[string]")}, (f"{TYPE_KEYS[0]} is not an array",)),
    "no kernels": (
        {"edit": changed(TYPE_KEYS[2], [10, 14, 10, 10, 10, 12])},
        ("down_type[1] is Q6_K, wanted F32, F16, BF16, Q8_0",),
    ),
    "bytes": ({"edit": changed(TYPE_KEYS[2], [24] * 6)}, ("down_type[0] is I8",)),
    "gate and up": (
        {"edit": changed(TYPE_KEYS[1], [16, 16, 10, 16, 16, 12])},
        ("up_type[2] is Q2_K and the gate is IQ2_XXS: they must share a type", "blk.2.ffn_exps.weight has shape"),
    ),
    "other type": ({"edit": changed(TYPE_KEYS[2], [10, 12, 10, 10, 10, 12])}, ("blk.1.ffn_exps.weight has shape",)),
    "no alignment": ({"edit": without("general.alignment")}, ("general.alignment is 32, adjacent experts need 4096",)),
    "less alignment": ({"edit": changed("general.alignment", 2048)}, ("general.alignment is 2048",)),
    "no standard alignment": ({"edit": without(ALIGNMENT_KEY)}, (f"{ALIGNMENT_KEY} is missing",)),
    "odd standard alignment": ({"edit": changed(ALIGNMENT_KEY, 48)}, (f"{ALIGNMENT_KEY} is 48, no alignment",)),
    "no order": ({"edit": without(ORDER_KEY)}, (f"{ORDER_KEY} is missing",)),
    "short order": ({"edit": changed(ORDER_KEY, list(range(17)))}, (f"{ORDER_KEY} is not an array of 18",)),
    "order twice": ({"edit": changed(ORDER_KEY, [3] * 18)}, ("does not name 18 places among 182",)),
    "order outside": ({"edit": changed(ORDER_KEY, [*range(17), 182])}, ("does not name 18 places among 182",)),
    "record type": (
        {"rename": renamed("blk.2.ffn_exps.weight", type="F32", ne=(RECORD // 4, 16))},
        ("blk.2.ffn_exps.weight is F32, wanted I8", f"[{RECORD // 4}, 16], wanted [{RECORD}, 16]"),
    ),
    "one dimension": (
        {"rename": renamed("blk.2.ffn_exps.weight", ne=(RECORD * 16,))},
        (f"blk.2.ffn_exps.weight has shape [{RECORD * 16}], wanted [{RECORD}, 16]",),
    ),
    "fewer experts": (
        {"rename": renamed("blk.2.ffn_exps.weight", ne=(RECORD * 2, 8))},
        (f"[{RECORD * 2}, 8], wanted [{RECORD}, 16]",),
    ),
    "no record": ({"rename": renamed("blk.2.ffn_exps.weight", name="x")}, ("blk.2.ffn_exps.weight is missing",)),
    "no record of the MTP block": (
        {"rename": renamed("mtp.0.ffn_exps.weight", name="x")},
        ("mtp.0.ffn_exps.weight is missing",),
    ),
    "both forms": (
        {"rename": renamed("blk.2.attn_norm.weight", name="blk.2.ffn_up_exps.weight")},
        ("blk.2.ffn_up_exps.weight stands beside records of its block",),
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_records_are_refused(q2: Path, tmp_path: Path, what: str) -> None:
    options, texts = DAMAGES[what]
    with pytest.raises(ds4.UnsupportedModelError) as caught:
        ds4.Model.open(rewrite(q2, tmp_path / "a.gguf", **options))
    for text in texts:
        assert text in str(caught.value), str(caught.value)


def test_a_record_that_is_cut_off(q2: Path, tmp_path: Path) -> None:
    path = rewrite(q2, tmp_path / "a.gguf")
    with GGUFFile(path) as file:
        last = max(file.tensors.values(), key=lambda t: t.offset)
        end = last.offset + last.n_bytes
    with open(path, "r+b") as f:
        f.truncate(end - 1)
    with pytest.raises(ds4.ModelFileError, match=r"cut short|truncated|should end"):
        ds4.Model.open(path)


def test_all_faults_come_at_once(q2: Path, tmp_path: Path) -> None:
    types = changed(TYPE_KEYS[2], [10, 12, 10, 14, 10, 12])
    path = rewrite(q2, tmp_path / "a.gguf", edit=lambda kvs: without(ORDER_KEY)(types(kvs)))
    with pytest.raises(ds4.UnsupportedModelError, match="3 difference") as caught:
        ds4.Model.open(path)
    text = str(caught.value)
    assert all(part in text for part in (ORDER_KEY, "blk.1.ffn_exps.weight has shape", "down_type[3] is Q6_K"))


def test_any_changed_byte_of_the_layout_keys_is_refused_or_harmless(q2: Path, tmp_path: Path) -> None:
    """A file that still opens computes the same: the keys cannot be a little wrong."""
    tokens = load_golden("flash").prompts[5].tokens
    path = rewrite(q2, tmp_path / "a.gguf")
    with GGUFFile(path) as file:
        good = path.read_bytes()
        keys = [key for key in file.metadata if key.startswith(LAYOUT_KEY)]
        places = [(good.index(file.metadata.record(key)), len(file.metadata.record(key))) for key in keys]
    expected = results(path, tokens)[0]
    opened = 0
    with open(path, "r+b", buffering=0) as f:
        for start, length in places:
            for at in range(start, start + length, 3):
                for value in (good[at] ^ 1, good[at] ^ 0x80, 0xFF):
                    os.pwrite(f.fileno(), bytes([value]), at)
                    try:
                        with ds4.Model.open(path) as model, model.session(**PLAIN) as session:
                            np.testing.assert_array_equal(session.eval_logits(tokens), expected)
                            opened += 1
                    except (ds4.ModelFileError, ds4.UnsupportedModelError):
                        pass
                    os.pwrite(f.fileno(), bytes([good[at]]), at)
    assert 0 < opened < 250, opened
