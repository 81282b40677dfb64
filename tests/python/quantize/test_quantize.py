"""Quantization through a plan: every tensor holds what its rows, its importance and its type give, and no other."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds4
import numpy as np
import pytest
from ds4 import gguf
from ds4.imatrix import Entry, Imatrix, ImatrixError
from ds4.quantize import PlanError, Policy, compare, plan_conversion, plan_quantization, plan_splice, quantize, splice
from ds4.quantize.recipes import role_of
from oracle import tiny_shapes
from support.gguf_write import GGMLType, make_tensor
from support.tiny_gguf import RECIPES, tiny_tensors, write_tiny_gguf

GATE, UP, DOWN = (f"blk.4.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
MIXED = Policy(
    "q2",
    tensor_types=tuple(
        (f"{b}.ffn_{p}_exps", "Q8_0") for b in ("blk.0", "blk.1", "blk.2", "blk.3") for p in ("gate", "up", "down")
    ),
)
"""The recipe q2 in the last layer only: IQ2_XXS takes time."""


def _run(source: Path, out: Path, types: str | Policy | None = None, *, threads: int = 2, **options: Any) -> list[str]:
    policy = types if isinstance(types, Policy) else Policy(types)
    with plan_quantization(source, out, policy=policy, **options) as plan:
        quantize(plan, threads=threads)
    return list(plan.notes)


def _tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    with ds4.GGUFFile(path) as file:
        return {t.name: (t.type, bytes(t.data())) for t in file.tensors.values()}


def _values(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with ds4.GGUFFile(path) as file:
        return {t.name: np.array(t.numpy()) for t in file.tensors.values()}


def _expected(name: str, kind: str, values: Any, imatrix: Imatrix | None) -> bytes:
    """What a tensor should hold, one matrix after the other."""
    out = []
    for e, rows in enumerate(values.reshape(-1, *values.shape[-2:])):
        n = 1 if values.ndim < 3 else len(values)
        weights = None if imatrix is None else imatrix.lookup(name, rows.shape[-1], n, e)
        if weights is None and kind == "IQ2_XXS":
            weights = np.zeros(rows.shape[-1], np.float32)
            for row in rows:
                weights += row * row
        out.append(gguf.quantize(kind, rows, weights))
    return b"".join(out)


@pytest.mark.parametrize("policy", [MIXED, Policy("q4"), Policy("mxfp4")], ids=["q2", "q4", "mxfp4"])
@pytest.mark.parametrize("weighted", [True, False])
def test_every_tensor_is_its_rows_in_its_type(
    flash_bf16: Path, imatrix: Imatrix, tmp_path: Path, policy: Policy, weighted: bool
) -> None:
    out = tmp_path / "out.gguf"
    used = imatrix if weighted else None
    _run(flash_bf16, out, policy, imatrix=used)
    source = _values(flash_bf16)
    found = _tensors(out)
    assert list(found) == list(source)
    for name, (kind, raw) in found.items():
        values = source[name]
        assert kind == policy.type_of(name, values.shape[::-1], "I32" if values.dtype == np.int32 else "BF16", 5)
        wanted = values.tobytes() if kind == "I32" else _expected(name, kind, values.astype(np.float32), used)
        assert raw == wanted, name
    with ds4.Model.open(out) as model, model.session(n_ctx=160) as session:
        assert model.has_mtp and model.warnings == ()
        session.sync(tiny_shapes.make_prompt(tiny_shapes.VARIANTS["flash"], 129).tolist())
        assert np.isfinite(session.logits()).all()


def test_types_of_the_mixed_recipe(flash_bf16: Path, tmp_path: Path) -> None:
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q2-q4") as plan:
        kinds = {t.name: t.type for t in plan.tensors if role_of(t.name) == "experts"}
    four = {n for n, k in kinds.items() if k == "Q4_K"}
    assert four == {f"{b}.ffn_{p}_exps.weight" for b in ("blk.3", "blk.4", "mtp.0") for p in ("gate", "up", "down")}
    policy = Policy("q2-q4", q4_layers=frozenset({0}))
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", policy=policy) as plan:
        assert {t.name for t in plan.tensors if t.type == "Q4_K" and t.name.startswith("blk")} == {
            f"blk.0.ffn_{p}_exps.weight" for p in ("gate", "up", "down")
        }


def test_checkpoint_and_gguf_of_the_same_weights_give_the_same_tensors(
    flash_checkpoint: Path, flash_bf16: Path, imatrix: Imatrix, tmp_path: Path
) -> None:
    for source, out in ((flash_checkpoint, "a.gguf"), (flash_bf16, "b.gguf")):
        _run(source, tmp_path / out, MIXED, imatrix=imatrix)
    with plan_conversion(flash_checkpoint, tmp_path / "c.gguf", policy=MIXED, imatrix=imatrix) as plan:
        quantize(plan, threads=1)
    assert _tensors(tmp_path / "a.gguf") == _tensors(tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()


def test_threads_do_not_change_a_byte(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    for n in (1, 5):
        _run(flash_bf16, tmp_path / f"{n}.gguf", MIXED, imatrix=imatrix, threads=n)
    assert len({(tmp_path / f"{n}.gguf").read_bytes() for n in (1, 5)}) == 1


def test_chunks_do_not_change_a_byte(
    flash_bf16: Path, imatrix: Imatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come in pieces; sums of squares go over all of them."""
    _run(flash_bf16, tmp_path / "a.gguf", MIXED)
    monkeypatch.setattr("ds4.quantize.encode.CHUNK_VALUES", 256 * 37)
    _run(flash_bf16, tmp_path / "b.gguf", MIXED)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_tensors_of_their_type_are_copied(flash_bf16: Path, tmp_path: Path) -> None:
    """Even bytes that no encoder writes (NaN with a payload) arrive."""
    source = tmp_path / "odd.gguf"
    tensors = tiny_tensors("flash", types=RECIPES["bf16"])
    at = next(i for i, t in enumerate(tensors) if t.name == "output.weight")
    odd = bytearray(tensors[at].data)
    odd[:2] = b"\xa5\x7f"
    tensors[at] = replace(tensors[at], data=bytes(odd))
    write_tiny_gguf(source, "flash", tensors=tensors)
    _run(source, tmp_path / "out.gguf", Policy(routed_w2="Q8_0"))
    before, after = _tensors(source), _tensors(tmp_path / "out.gguf")
    changed = {n for n in before if before[n] != after[n]}
    assert changed == {f"blk.{i}.ffn_down_exps.weight" for i in range(5)}
    assert after["output.weight"][1][:2] == b"\xa5\x7f"


def test_a_file_without_changes_is_the_same_file(flash_bf16: Path, tmp_path: Path) -> None:
    _run(flash_bf16, tmp_path / "out.gguf")
    assert _tensors(tmp_path / "out.gguf") == _tensors(flash_bf16)
    with ds4.GGUFFile(flash_bf16) as a, ds4.GGUFFile(tmp_path / "out.gguf") as b:
        assert dict(a.metadata) == dict(b.metadata)


def test_embedded_model_as_a_source(tmp_path: Path) -> None:
    source = Path(ds4.__file__).parent / "models" / "ds4-tiny.gguf"
    notes = _run(source, tmp_path / "out.gguf", "q2-q4", allow_requantize=True)
    with ds4.Model.open(tmp_path / "out.gguf") as model:
        assert model.shape.name == "ds4-tiny" and model.has_mtp
    assert any("are Q4_K" in note and "add up" in note for note in notes), notes


def test_adjacent_experts_as_a_source(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    """The layout of the source leaves no trace, in what is copied and in what is encoded."""
    adjacent = tmp_path / "adjacent.gguf"
    splice(plan_splice(flash_bf16, None, adjacent, layout="adjacent"))
    policy = Policy("bf16", routed_w2="Q4_K")
    _run(flash_bf16, tmp_path / "a.gguf", policy, imatrix=imatrix)
    _run(adjacent, tmp_path / "b.gguf", policy, imatrix=imatrix)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_plan_for_comparing_writes_nothing(flash_bf16: Path) -> None:
    with plan_quantization(flash_bf16, None, recipe="q4") as plan, pytest.raises(PlanError, match="no file to write"):
        quantize(plan)


# Metadata


def test_where_the_importance_came_from_is_recorded(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    file = tmp_path / "flash.imatrix.gguf"
    imatrix.write(file)
    _run(flash_bf16, tmp_path / "a.gguf", MIXED, imatrix=file)
    with ds4.GGUFFile(tmp_path / "a.gguf") as out:
        kept = out.metadata
        assert kept["quantize.imatrix.file"] == str(file)
        assert kept["quantize.imatrix.dataset"] == "chats.txt"
        assert (kept["quantize.imatrix.entries_count"], kept["quantize.imatrix.chunks_count"]) == (15, 12)
        assert kept.kind("quantize.imatrix.entries_count") == kept.kind("quantize.imatrix.chunks_count") == "u64"
        assert kept["general.file_type"] == 19
    with plan_quantization(
        flash_bf16, tmp_path / "c.gguf", policy=MIXED, imatrix=file, mtp_out=tmp_path / "d.gguf"
    ) as plan:
        told = [any(kv.key.startswith("quantize.") for kv in f.kvs) for f in plan.files]
    assert told == [True, False], "the block's file owes nothing to it"
    # An earlier one is no longer true
    _run(tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0", allow_requantize=True)
    with ds4.GGUFFile(tmp_path / "b.gguf") as out:
        assert not [k for k in out.metadata if k.startswith("quantize.")]
        assert out.metadata["general.file_type"] == 7


def test_name_and_mtp_file(flash_bf16: Path, tmp_path: Path) -> None:
    out, mtp = tmp_path / "out.gguf", tmp_path / "mtp.gguf"
    _run(flash_bf16, out, "q4", mtp_out=mtp, name="Mine")
    main, block = _tensors(out), _tensors(mtp)
    assert not [n for n in main if n.startswith("mtp.")] and all(n.startswith("mtp.") for n in block)
    assert len(main) + len(block) == len(_tensors(flash_bf16))
    assert {k for n, (k, _) in block.items() if "_exps" in n} == {"Q4_K"}
    with ds4.GGUFFile(mtp) as file:
        assert file.metadata["general.name"] == "Mine MTP"
        assert not [k for k in file.metadata if k.startswith("tokenizer.")]
    with ds4.Model.open(out, mtp=mtp) as model, model.session(n_ctx=32, mtp=True) as session:
        assert model.metadata["general.name"] == "Mine"
        session.sync([1, 2, 3])
        assert np.isfinite(session.mtp_logits(4)).all()
    # the block's file is a source by itself
    _run(mtp, tmp_path / "mtp8.gguf", "q8_0")
    assert {k for n, (k, _) in _tensors(tmp_path / "mtp8.gguf").items() if "_exps" in n} == {"Q8_0"}
    with pytest.raises(PlanError, match="no MTP block"):
        plan_quantization(out, tmp_path / "x.gguf", recipe="q8_0", mtp_out=tmp_path / "y.gguf")


def test_file_of_llama_cpp_as_a_source(tiny_gguf: Callable[..., Path], imatrix: Imatrix, tmp_path: Path) -> None:
    """Experts in MXFP4: kept by the recipe of that name, quantized by the others."""
    source = tiny_gguf("flash", dialect="llama.cpp", recipe="llama-mxfp4")
    _run(source, tmp_path / "a.gguf", "mxfp4")
    notes = _run(source, tmp_path / "b.gguf", MIXED, imatrix=imatrix)
    before, same, two = _tensors(source), _tensors(tmp_path / "a.gguf"), _tensors(tmp_path / "b.gguf")
    assert same[DOWN] == before[DOWN] and same["output.weight"][0] == "Q8_0"
    assert two[DOWN][1] == _expected(DOWN, "Q2_K", _values(source)[DOWN], imatrix)
    assert any("MXFP4" in note for note in notes)
    # its MTP file: one more layer, whose experts follow the recipe's choice for that block
    block = tiny_gguf("flash", dialect="llama.cpp", part="mtp", recipe="llama-mxfp4")
    _run(block, tmp_path / "c.gguf", "q2")
    assert _tensors(tmp_path / "c.gguf")["blk.5.ffn_down_exps.weight"][0] == "Q4_K"


# Importance that is missing (known fault L023): told before anything is written, with what is done instead


def _without(imatrix: Imatrix, **changes: Any) -> Imatrix:
    entries = dict(imatrix.entries)
    for name, change in changes.items():
        key = name.replace("__", ".")
        if change is None:
            del entries[key]
        else:
            entries[key] = change(entries[key])
    return Imatrix(entries, source="some.dat")


def _unobserve(*experts: int) -> Callable[[Entry], Entry]:
    def change(entry: Entry) -> Entry:
        counts = entry.counts.copy()
        counts[list(experts)] = 0
        return Entry(entry.sums, counts)

    return change


def test_missing_importance_is_listed_with_its_fallback(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    lacking = _without(
        imatrix,
        blk__4__ffn_down_exps__weight=None,
        blk__4__ffn_gate_exps__weight=_unobserve(3, 4, 5, 9),
    )
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", policy=MIXED, imatrix=lacking) as plan:
        notes = list(plan.notes)
        assert list(tmp_path.iterdir()) == []
        quantize(plan, threads=2)
    assert f"{DOWN} of all experts: no entry in the imatrix; Q2_K without weights" in notes
    wanted = f"{GATE} of experts 3-5,9: never observed; IQ2_XXS by the sums of squares of its own columns"
    assert wanted in notes
    assert not [n for n in notes if UP in n]
    found, source = _tensors(tmp_path / "out.gguf"), _values(flash_bf16)
    assert found[DOWN][1] == _expected(DOWN, "Q2_K", source[DOWN].astype(np.float32), None)
    n = len(found[GATE][1]) // 16
    with_data = _expected(GATE, "IQ2_XXS", source[GATE].astype(np.float32), imatrix)
    synthetic = _expected(GATE, "IQ2_XXS", source[GATE].astype(np.float32), None)
    for e in range(16):
        expected = synthetic if e in (3, 4, 5, 9) else with_data
        assert found[GATE][1][e * n :][:n] == expected[e * n :][:n], e
    assert synthetic != with_data


def test_strict_refuses_what_lacks_data_but_not_the_mtp_block(
    flash_bf16: Path, imatrix: Imatrix, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    plan = plan_quantization(flash_bf16, out, recipe="q2", imatrix=imatrix, imatrix_strict=True)
    plan.close()
    assert [n for n in plan.notes if n.startswith("mtp.0.ffn_down_exps.weight of all experts: no entry")]
    lacking = _without(imatrix, blk__4__ffn_down_exps__weight=_unobserve(7))
    with pytest.raises(
        ImatrixError, match=r"some.dat(?s:.*)blk\.4\.ffn_down_exps\.weight of experts 7: never observed"
    ):
        plan_quantization(flash_bf16, out, recipe="q2", imatrix=lacking, imatrix_strict=True)
    assert list(tmp_path.iterdir()) == []


def test_importance_of_another_model(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    other = Imatrix({DOWN: Entry(np.ones((16, 512)), np.ones(16))}, source="other.dat")
    with pytest.raises(ImatrixError, match=r"other\.dat.*blk\.4\.ffn_down_exps\.weight.*another\s+model"):
        plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q2", imatrix=other)
    unknown = Imatrix({"blk.99.ffn_down_exps.weight": Entry(np.ones((16, 256)), np.ones(16))}, source="other.dat")
    with pytest.raises(ImatrixError, match="no data for any"):
        plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q2", imatrix=unknown)


def test_inputs_that_were_always_zero_are_told(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    def silence(entry: Entry) -> Entry:
        sums = np.array(entry.sums)
        sums[2] = 0
        return Entry(sums, entry.counts)

    data = _without(imatrix, blk__4__ffn_down_exps__weight=silence)
    notes = _run(flash_bf16, tmp_path / "out.gguf", MIXED, imatrix=data)
    assert any(n.startswith(f"{DOWN}, experts 2: importance is 0") for n in notes)
    found = _values(tmp_path / "out.gguf")[DOWN][2]
    source = _values(flash_bf16)[DOWN][2]
    assert np.abs(found - source).max() < np.abs(source).max(), "not a matrix of zeros"


def test_importance_without_use_is_told(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    notes = _run(flash_bf16, tmp_path / "out.gguf", "q8_0", imatrix=imatrix)
    assert any("no effect" in n for n in notes)
    with ds4.GGUFFile(tmp_path / "out.gguf") as file:
        assert not [k for k in file.metadata if k.startswith("quantize.")]


# What is refused


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            Policy("q2", attention_proj="Q4_K"),
            "blk.0.attn_q_b.weight: rows of 128 values do not fill Q4_K blocks of 256",
        ),
        (Policy("q2", routed_w1="Q4_K"), "gate and up of a layer need one type"),
        (Policy("q2", tensor_types=(("blk.77.", "Q8_0"),)), "no tensor has a name that begins with 'blk.77.'"),
        (Policy("q2", tensor_types=(("blk.0.ffn_gate_tid2eid.weight", "Q8_0"),)), "a table of expert ids is I32"),
    ],
)
def test_types_that_do_not_fit(flash_bf16: Path, tmp_path: Path, policy: Policy, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_quantization(flash_bf16, tmp_path / "out.gguf", policy=policy)
    assert words in str(caught.value)


def test_types_that_the_engine_does_not_run(flash_bf16: Path, tmp_path: Path) -> None:
    policy = Policy("q2", tensor_types=(("blk.0.attn_norm.weight", "F16"),))
    refused = pytest.raises(ds4.UnsupportedModelError, match=r"would not run(?s:.*)blk\.0\.attn_norm\.weight")
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", policy=policy) as plan, refused:
        quantize(plan)
    assert list(tmp_path.iterdir()) == []


def test_two_bits_are_no_source(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_gguf("flash", recipe="ds4-q2")
    with pytest.raises(PlanError, match="2 bits"):
        plan_quantization(source, tmp_path / "out.gguf", recipe="q4")
    _run(source, tmp_path / "same.gguf", "q2")  # nothing is quantized again
    assert _tensors(source)[GATE] == _tensors(tmp_path / "same.gguf")[GATE]
    notes = _run(source, tmp_path / "out.gguf", "q4", allow_requantize=True)
    assert any("IQ2_XXS in the source and become Q4_K" in n for n in notes)


@pytest.mark.parametrize("kind", ["Q4_K", "IQ2_XXS"])  # the latter sums squares first
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tmp_path: Path, bad: float, kind: str) -> None:
    source = tmp_path / "bad.gguf"
    tensors = tiny_tensors("flash", types=RECIPES["bf16"])
    at = next(i for i, t in enumerate(tensors) if t.name == DOWN)
    raw = np.frombuffer(tensors[at].data, "<u2").reshape(16, 256, 256).copy()
    raw[11, 40, 3] = np.float32(bad).view(np.uint32) >> 16
    tensors[at] = make_tensor(DOWN, GGMLType.BF16, raw.shape, raw.tobytes())
    write_tiny_gguf(source, "flash", tensors=tensors)
    with pytest.raises(ds4.ModelFileError, match=rf"bad\.gguf.*{DOWN}, expert 11, row 40, column 3"):
        _run(source, tmp_path / "out.gguf", Policy("q4", tensor_types=((DOWN, kind),)))
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]
    with (
        plan_quantization(source, tmp_path / "out.gguf", policy=Policy("q4")) as plan,
        pytest.raises(ds4.ModelFileError, match=rf"bad\.gguf.*{DOWN}, expert 11, row 40, column 3"),
    ):
        compare(plan, [DOWN], file=source)


def test_values_too_large_to_weight_by_are_named(tmp_path: Path) -> None:
    source = tmp_path / "big.gguf"
    tensors = tiny_tensors("flash", types=RECIPES["bf16"])
    at = next(i for i, t in enumerate(tensors) if t.name == DOWN)
    raw = np.frombuffer(tensors[at].data, "<u2").reshape(16, 256, 256).copy()
    raw[2, 7, 9] = np.float32(1e12).view(np.uint32) >> 16
    tensors[at] = make_tensor(DOWN, GGMLType.BF16, raw.shape, raw.tobytes())
    write_tiny_gguf(source, "flash", tensors=tensors)
    with pytest.raises(ds4.ModelFileError, match=rf"big\.gguf.*{DOWN}, expert 2, column 9: its values are too large"):
        _run(source, tmp_path / "out.gguf", Policy("q4", tensor_types=((DOWN, "IQ2_XXS"),)))


def test_importance_beyond_all_use_is_refused(flash_bf16: Path, imatrix: Imatrix, tmp_path: Path) -> None:
    entries = dict(imatrix.entries)
    sums = entries[DOWN].sums.astype(np.float64)
    sums[3, 5] = 1e30 * entries[DOWN].counts[3]
    entries[DOWN] = Entry(sums, entries[DOWN].counts)
    with pytest.raises(ds4.ModelFileError, match=rf"{DOWN}: matrix 3, column 5: a mean square of 1\.0"):
        plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q2", imatrix=Imatrix(entries))


def test_one_vector_for_all_experts(flash_bf16: Path, tmp_path: Path) -> None:
    """A .dat does not say how it is divided: 256 values are one vector, not 16 parts of one."""
    vector = np.arange(1, 257, dtype=np.float32)
    Imatrix({DOWN: Entry(vector[None, :], np.ones(1))}).write(tmp_path / "one.dat")
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q4", imatrix=tmp_path / "one.dat") as plan:
        for expert in (0, 15):
            assert np.array_equal(plan.importance.vector(DOWN, 256, 16, expert), vector)


def test_a_read_error_names_the_source(flash_bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4.quantize import sources

    def broken(fd: int, n: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q8_0") as plan:
        monkeypatch.setattr(sources.os, "pread", broken)
        with pytest.raises(OSError, match="Input/output error") as caught:
            compare(plan, [DOWN])
    assert caught.value.filename == str(flash_bf16)


def test_files_that_are_no_source(flash_bf16: Path, tmp_path: Path, tiny_gguf: Callable[..., Path]) -> None:
    from support.gguf_write import string, u16

    out = tmp_path / "out.gguf"
    some = tiny_tensors("flash", types=RECIPES["bf16"])[:3]
    write_tiny_gguf(tmp_path / "llama.gguf", "flash", changes={"general.architecture": string("llama")}, tensors=some)
    with pytest.raises(ds4.UnsupportedModelError, match=r"llama\.gguf.*'llama'"):
        plan_quantization(tmp_path / "llama.gguf", out, recipe="q8_0")
    write_tiny_gguf(tmp_path / "part.gguf", "flash", changes={"split.count": u16(3)}, tensors=some)
    with pytest.raises(ds4.UnsupportedModelError, match="one of 3 parts"):
        plan_quantization(tmp_path / "part.gguf", out, recipe="q8_0")
    write_tiny_gguf(tmp_path / "layers.gguf", "flash", changes={"deepseek4.block_count": None}, tensors=some)
    with pytest.raises(ds4.UnsupportedModelError, match="block_count says 0 layers"):
        plan_quantization(tmp_path / "layers.gguf", out, recipe="q8_0")
    (tmp_path / "cut.gguf").write_bytes(flash_bf16.read_bytes()[:-100_000])
    with pytest.raises(ds4.ModelFileError):
        plan_quantization(tmp_path / "cut.gguf", out, recipe="q8_0")
    with pytest.raises(FileNotFoundError):
        plan_quantization(tmp_path / "none.gguf", out, recipe="q8_0")
    with pytest.raises(PlanError, match="the source itself"):
        plan_quantization(flash_bf16, flash_bf16, recipe="q8_0")


def test_a_source_that_shrinks_is_a_message(flash_bf16: Path, tmp_path: Path) -> None:
    source = tmp_path / "shrinks.gguf"
    source.write_bytes(flash_bf16.read_bytes())
    with plan_quantization(source, tmp_path / "out.gguf", recipe="q8_0") as plan:
        with source.open("r+b") as f:
            f.truncate(30_000_000)
        with pytest.raises(ds4.ModelFileError, match=r"shrinks\.gguf.*shortened"):
            quantize(plan)
    assert not (tmp_path / "out.gguf").exists()


def test_progress_counts_every_byte(flash_bf16: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    with plan_quantization(flash_bf16, tmp_path / "out.gguf", recipe="q8_0") as plan:
        quantize(plan, progress=lambda *a: seen.append(a))
        assert [d for d, _, _ in seen] == sorted(d for d, _, _ in seen)
        assert seen[-1][0] == seen[-1][1] == plan.files[0].tensor_bytes
    assert {name for _, _, name in seen} == set(_tensors(flash_bf16))
