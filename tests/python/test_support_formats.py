"""The test files are right: decoders, encoders, the GGUF writer and the tiny models, against the `gguf` package."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from oracle import tiny_shapes
from support import tiny_gguf as tiny
from support.dequant import DECODERS, decode, iq2_xxs_grid, random_blocks
from support.gguf_write import (
    BLOCKS,
    GGMLType,
    Raw,
    ValueType,
    array,
    build_gguf,
    f64,
    pack_string,
    string,
    tensor_f32,
    u16,
    u32,
    with_fields,
    write_shards,
)
from support.quant_encode import ENCODERS, encode

gguf = pytest.importorskip("gguf")

LAYOUTS = [("ds4", "all"), ("ds4", "main"), ("ds4", "mtp"), ("llama.cpp", "main"), ("llama.cpp", "mtp")]


@pytest.mark.parametrize("type_", DECODERS, ids=lambda t: t.name)
def test_decoder_equals_gguf_bit_for_bit(type_: GGMLType) -> None:
    theirs = gguf.GGMLQuantizationType(int(type_))
    assert tuple(gguf.GGML_QUANT_SIZES[theirs]) == BLOCKS[type_]
    raw = random_blocks(np.random.default_rng(int(type_)), type_, 512)
    with np.errstate(all="ignore"):
        ours = DECODERS[type_](raw)
        expected = gguf.quants.dequantize(raw.reshape(1, -1), theirs).reshape(ours.shape)
    assert (ours.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("type_", "error"),
    [
        (GGMLType.F32, 0),
        (GGMLType.F16, 3e-4),
        (GGMLType.BF16, 2e-3),
        (GGMLType.Q8_0, 6e-3),
        (GGMLType.Q4_K, 0.09),
        (GGMLType.MXFP4, 0.13),
        (GGMLType.Q2_K, 0.36),
        (GGMLType.IQ2_XXS, 0.45),
    ],
    ids=lambda v: v.name if isinstance(v, GGMLType) else "",
)
def test_encoder_round_trip_error(type_: GGMLType, error: float) -> None:
    """Relative RMS error on normal data; zeros stay zero and encoding a decoded block changes little."""
    x = (np.random.default_rng(7).standard_normal((32, 512)) * 0.06).astype(np.float32)
    x[3] = 0
    y = decode(type_, encode(type_, x), x.shape)
    assert np.sqrt(((x - y) ** 2).mean() / (x**2).mean()) <= error
    assert (y[3] == 0).all() and np.isfinite(y).all()


def test_every_encoder_is_covered() -> None:
    assert set(ENCODERS) <= set(DECODERS)


def test_iq2_xxs_grid_is_the_published_one() -> None:
    grid = iq2_xxs_grid()
    keys = (np.searchsorted([8, 25, 43], grid).astype(np.uint32) << (2 * np.arange(8, dtype=np.uint32))).sum(1)
    assert set(np.unique(grid)) == {8, 25, 43} and (np.diff(keys.astype(np.int64)) > 0).all() and keys[-1] == 43268


@pytest.mark.parametrize("variant", tiny_shapes.VARIANTS)
@pytest.mark.parametrize(("dialect", "part"), LAYOUTS)
def test_tiny_file_reads_back(variant: str, dialect: str, part: str, tiny_gguf: Callable[..., Path]) -> None:
    """Names, shapes, order and values, as an independent reader sees them."""
    config, weights = tiny_shapes.VARIANTS[variant], tiny_shapes.weights_of(variant)
    reader = gguf.GGUFReader(tiny_gguf(variant, dialect=dialect, part=part))
    found = {t.name: t for t in reader.tensors}
    used = set()
    for official, values in weights.items():
        if part != "all" and official.startswith("mtp.") != (part == "mtp"):
            continue
        name = tiny.gguf_name(official, config, dialect)
        used.add(name)
        data = found[name].data
        if ".experts." in official:
            data = data[int(official.split(".experts.")[1].split(".")[0])]
        elif name.endswith("eh_proj.weight"):
            half = config["hidden_size"]
            data = data[:, :half] if official.endswith("e_proj.weight") else data[:, half:]
        assert data.shape == values.shape and (data == values).all(), official
    assert used == set(found)
    fields = reader.fields
    assert fields["deepseek4.block_count"].contents() == 5 + ((dialect, part) == ("llama.cpp", "mtp"))
    assert fields["deepseek4.attention.compress_ratios"].contents() == config["compress_ratios"]
    assert len(fields["tokenizer.ggml.tokens"].contents()) == config["vocab_size"]


@pytest.mark.parametrize("recipe", sorted(tiny.RECIPES))
def test_effective_weights_are_what_a_reader_decodes(recipe: str, tiny_gguf: Callable[..., Path]) -> None:
    dialect = "llama.cpp" if recipe == "llama-mxfp4" else "ds4"
    config = tiny_shapes.VARIANTS["flash"]
    effective = tiny.effective_weights("flash", tiny.RECIPES[recipe], dialect=dialect)
    reader = gguf.GGUFReader(tiny_gguf("flash", dialect=dialect, part="main", recipe=recipe))
    found = {t.name: t for t in reader.tensors}
    for official in ("embed.weight", "layers.2.attn.wq_b.weight", "layers.3.attn.compressor.ape", "norm.weight"):
        t = found[tiny.gguf_name(official, config, dialect)]
        assert t.tensor_type.name == tiny.RECIPES[recipe](t.name).name
        values = gguf.quants.dequantize(t.data, t.tensor_type).reshape(effective[official].shape)
        assert (values == effective[official]).all(), official
    for which in ("w1", "w2"):
        t = found[tiny.gguf_name(f"layers.4.ffn.experts.11.{which}.weight", config, dialect)]
        values = gguf.quants.dequantize(t.data, t.tensor_type)[11]
        assert (values == effective[f"layers.4.ffn.experts.11.{which}.weight"]).all()


def test_vocabulary_has_the_structure_of_the_real_one() -> None:
    tokens, types, merges = tiny.vocabulary()
    assert len(tokens) == len(types) == len(set(tokens)) == 512
    assert tuple(tokens[-len(tiny.PROTOCOL_TOKENS) :]) == tiny.PROTOCOL_TOKENS
    assert sorted(tiny.byte_order()) == list(range(256)) and len(set(tiny.byte_alphabet())) == 256
    learned = set(tokens[3 : tiny.FIRST_MERGE + len(merges)])
    for k, merge in enumerate(merges):
        token = tokens[tiny.FIRST_MERGE + k]
        assert token == merge.replace(" ", "")
        splits = [i for i in range(1, len(token)) if token[:i] in learned and token[i:] in learned]
        assert len(splits) == 1, f"{token} can be made in two ways"


def test_writer_can_break_every_part() -> None:
    """Overrides land where they should; what a reader makes of it is the business of the loader's tests."""
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensors = [tensor_f32("a", values), tensor_f32("b", values)]
    keys = {"general.architecture": string("x"), "k": array(ValueType.F64, [1.5])}
    good = build_gguf(keys, tensors)
    assert len(good) % 32 == 0 and good[-32:] == values.tobytes()
    assert struct.unpack_from("<IQQ", good, 4) == (3, 2, 2)
    bad = build_gguf(keys, tensors, magic=b"FUGG", version=2, n_tensors=1 << 60, n_kv=7)
    assert bad[:4] == b"FUGG" and struct.unpack_from("<IQQ", bad, 4) == (2, 1 << 60, 7) and bad[24:] == good[24:]
    raw = build_gguf([("k", Raw(99, b"zz")), ("k", f64(1.0))], [])
    assert raw[24:].startswith(pack_string("k") + struct.pack("<I", 99) + b"zz" + pack_string("k"))
    moved = build_gguf(keys, with_fields(tensors, "b", offset=7, n_dims=9, type=255))
    assert struct.pack("<IQQIQ", 9, 4, 2, 255, 7) in moved
    wide = build_gguf({**keys, "general.alignment": u32(128)}, tensors)
    assert len(wide) % 128 == 0 and wide[-128:-96] == values.tobytes()


def test_shards_cover_all_tensors(tmp_path: Path) -> None:
    tensors = [tensor_f32(f"t{i}", np.full((2, 2), i, np.float32)) for i in range(5)]
    paths = write_shards(tmp_path, "m", {"a": u32(1)}, tensors, 3, changes={1: {"split.no": u16(9)}})
    assert [p.name for p in paths] == [f"m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    readers = [gguf.GGUFReader(p) for p in paths]
    assert [t.name for r in readers for t in r.tensors] == [t.name for t in tensors]
    assert [r.fields["split.no"].contents() for r in readers] == [0, 9, 2]
