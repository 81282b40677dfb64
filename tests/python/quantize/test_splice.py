"""Splicing: every tensor is byte for byte that of its source, and files that do not go together are refused."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds4
import pytest
from ds4.gguf import GGUFFile
from ds4.gguf_experts import expert_part, standard_tensors
from ds4.gguf_partial import partial_path
from ds4.gguf_writer import KV
from ds4.quantize import SpliceError, format_layers, parse_layers, plan_splice, splice
from support.gguf_write import (
    GGMLType,
    ValueType,
    array,
    payload_bytes,
    string,
    u32,
    u64,
    with_fields,
    write_gguf,
)
from support.rewrite import rewrite
from support.tiny_gguf import RECIPES, tiny_metadata, tiny_tensors

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def base(tiny_gguf: Make) -> Path:
    return tiny_gguf("flash", recipe="ds4-q2")


@pytest.fixture(scope="module")
def donor(tiny_gguf: Make) -> Path:
    return tiny_gguf("flash", recipe="q8")


def run(base: Path, donor: Path | None, out: Path, *, force: bool = False, **options: Any) -> Path:
    with plan_splice(base, donor, out, **options) as plan:
        splice(plan, force=force)
        assert out.stat().st_size == plan.n_bytes == plan.base.file.file_bytes + plan.size_change
    return out


def digests(path: Path) -> dict[str, tuple[str, str]]:
    """Name in the standard layout -> type and SHA-256 of the payload."""
    out = {}
    with GGUFFile(path) as file:
        for name, view in standard_tensors(file).items():
            digest = hashlib.sha256()
            for piece in view.pieces():
                digest.update(piece)
            out[name] = (view.type, digest.hexdigest())
    return out


def metadata_bytes(path: Path) -> bytes:
    with GGUFFile(path) as file:
        return b"".join(file.metadata.record(key) for key in file.metadata)


def expected(base: Path, donor: Path, layers: set[int], *, mtp: bool = False) -> dict[str, tuple[str, str]]:
    out, theirs = digests(base), digests(donor)
    for name in out:
        block = expert_part(name)
        if block and (mtp if block[0] == "mtp.0." else int(block[0].split(".")[1]) in layers):
            out[name] = theirs[name]
    return out


@pytest.mark.parametrize(("layers", "mtp"), [((3, 4), False), ((0, 2), False), ((), True), ((0, 1, 2, 3, 4), True)])
def test_every_tensor_is_that_of_its_source(
    base: Path, donor: Path, tmp_path: Path, layers: tuple[int, ...], mtp: bool
) -> None:
    out = run(base, donor, tmp_path / "out.gguf", layers=layers, mtp=mtp)
    wanted = expected(base, donor, set(layers), mtp=mtp)
    assert digests(out) == wanted
    assert list(digests(out)) == list(wanted)
    assert {kind for name, (kind, _) in wanted.items() if expert_part(name)} >= {"Q8_0"}
    assert metadata_bytes(out) == metadata_bytes(base)
    with GGUFFile(out) as file:  # canonical: in directory order, without gaps
        position = file.data_offset
        for tensor in file.tensors.values():
            assert tensor.offset == position
            position = -(-(position + tensor.n_bytes) // 32) * 32
        assert position == file.file_bytes
    with ds4.Model.open(out) as model:
        assert not model.warnings
        model.check()


def test_an_empty_set_gives_the_base(base: Path, donor: Path, tmp_path: Path) -> None:
    out = run(base, donor, tmp_path / "out.gguf", layers=())
    assert out.read_bytes() == base.read_bytes()
    assert run(base, None, tmp_path / "alone.gguf", layout="standard").read_bytes() == base.read_bytes()


def test_a_base_with_gaps_becomes_canonical(base: Path, donor: Path, tmp_path: Path) -> None:
    raw = base.read_bytes()
    tensors = tiny_tensors("flash", types=RECIPES["ds4-q2"])
    gaps, offset = [], 0
    for t in tensors:
        gaps.append(with_fields([t], str(t.name), offset=offset)[0])
        offset += -(-len(t.data) // 32) * 32 + 64
    path = tmp_path / "gaps.gguf"
    write_gguf(path, tiny_metadata("flash"), gaps)
    with open(path, "r+b") as f, GGUFFile(base) as file:
        for t, moved in zip(tensors, gaps, strict=True):
            f.seek(file.data_offset + (moved.offset or 0))
            f.write(t.data)
        f.truncate(file.data_offset + offset)
    assert run(path, donor, tmp_path / "out.gguf").read_bytes() == raw


def test_the_donor_may_be_the_base(base: Path, tmp_path: Path) -> None:
    out = run(base, base, tmp_path / "out.gguf", layers=[1, 2], mtp=True)
    assert out.read_bytes() == base.read_bytes()


def test_odd_metadata_stays_byte_for_byte(tmp_path: Path) -> None:
    """Nested arrays, bytes that are no UTF-8, and a NaN with a payload survive; re-encoding would lose them."""
    nested = array(ValueType.ARRAY, [array(ValueType.U8, [1, 2]), array(ValueType.STRING, ["a", b"\xff\xfe"])])
    odd = {"x.nested": nested, "x.bytes": string(b"\xff\x00\xc3"), "x.big": u64(2**64 - 1)}
    metadata = {**tiny_metadata("flash", part="main"), **odd}
    base, donor = (
        write_gguf(tmp_path / f"{recipe}.gguf", metadata, tiny_tensors("flash", part="main", types=RECIPES[recipe]))
        for recipe in ("ds4-q2", "q8")
    )
    adjacent = run(base, None, tmp_path / "adjacent.gguf", layout="adjacent")
    assert metadata_bytes(adjacent).startswith(metadata_bytes(base))
    assert run(adjacent, None, tmp_path / "back.gguf", layout="standard").read_bytes() == base.read_bytes()
    assert metadata_bytes(run(base, donor, tmp_path / "out.gguf", layers=[2])) == metadata_bytes(base)


# -------------------------------------------------------------------------------------------------------- layouts


@pytest.fixture(scope="module")
def adjacent(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(base, None, tmp_path_factory.mktemp("splice") / "base-adjacent.gguf", layout="adjacent")


@pytest.fixture(scope="module")
def donor_adjacent(donor: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(donor, None, tmp_path_factory.mktemp("splice") / "donor-adjacent.gguf", layout="adjacent")


def test_the_way_back_gives_the_same_file(base: Path, adjacent: Path, tmp_path: Path) -> None:
    back = run(adjacent, None, tmp_path / "back.gguf", layout="standard")
    assert back.read_bytes() == base.read_bytes()
    assert run(back, None, tmp_path / "again.gguf", layout="adjacent").read_bytes() == adjacent.read_bytes()
    assert run(adjacent, None, tmp_path / "same.gguf", layout="adjacent").read_bytes() == adjacent.read_bytes()


@pytest.mark.parametrize("recipe", ["f16", "bf16", "llama-mxfp4"])
def test_other_types_and_names_go_both_ways(tiny_gguf: Make, tmp_path: Path, recipe: str) -> None:
    dialect = "llama.cpp" if recipe == "llama-mxfp4" else "ds4"
    for part in ("main", "mtp") if dialect == "llama.cpp" else ("all",):
        path = tiny_gguf("flash", dialect=dialect, part=part, recipe=recipe)
        there = run(path, None, tmp_path / "there.gguf", layout="adjacent", force=True)
        assert digests(there) == digests(path)
        assert run(there, None, tmp_path / "back.gguf", layout="standard", force=True).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("base_layout", ["standard", "adjacent"])
@pytest.mark.parametrize("donor_layout", ["standard", "adjacent"])
@pytest.mark.parametrize("layout", [None, "standard", "adjacent"])
def test_any_mixture_of_layouts(
    base: Path,
    donor: Path,
    adjacent: Path,
    donor_adjacent: Path,
    tmp_path: Path,
    base_layout: str,
    donor_layout: str,
    layout: str | None,
) -> None:
    ours = {"standard": base, "adjacent": adjacent}[base_layout]
    theirs = {"standard": donor, "adjacent": donor_adjacent}[donor_layout]
    out = run(ours, theirs, tmp_path / "out.gguf", layers=[1, 4], layout=layout)
    plain = run(base, donor, tmp_path / "plain.gguf", layers=[1, 4])
    assert digests(out) == digests(plain) == expected(base, donor, {1, 4})
    result = layout or base_layout
    want = plain if result == "standard" else run(plain, None, tmp_path / "want.gguf", layout="adjacent")
    assert out.read_bytes() == want.read_bytes()


def test_adjacent_needs_whole_blocks_and_their_numbers(base: Path, tmp_path: Path) -> None:
    tensors = [t for t in tiny_tensors("flash", types=RECIPES["q8"]) if t.name != "blk.2.ffn_up_exps.weight"]
    path = write_gguf(tmp_path / "a.gguf", tiny_metadata("flash"), tensors)
    with pytest.raises(ValueError, match=r"cannot lie adjacent without blk.2.ffn_up_exps.weight"):
        plan_splice(path, None, tmp_path / "out.gguf", layout="adjacent")
    for number, error in (
        (None, "expert_count is missing"),
        (u32(8), r"is \[256, 256, 16\]; by the metadata \[256, 256, 8\]"),
    ):
        metadata = {**tiny_metadata("flash"), "deepseek4.expert_count": number}
        metadata = {key: value for key, value in metadata.items() if value is not None}
        write_gguf(path, metadata, tiny_tensors("flash", types=RECIPES["q8"]))
        with pytest.raises(ValueError, match=error):
            plan_splice(path, None, tmp_path / "out.gguf", layout="adjacent")
    with pytest.raises(ValueError, match="unknown layout 'flat'"):
        plan_splice(base, None, tmp_path / "out.gguf", layout="flat")


# ------------------------------------------------------------------------------------------------------ provenance


def test_provenance_is_recorded_on_request_only(base: Path, donor: Path, tmp_path: Path) -> None:
    out = run(base, donor, tmp_path / "out.gguf", layers=[0, 3, 4], mtp=True, record=True)
    with GGUFFile(out) as file:
        keys = list(file.metadata)
        found = {key: file.metadata[key] for key in keys if key.startswith("quantize.")}
        assert metadata_bytes(out).startswith(metadata_bytes(base))
    assert found == {
        "quantize.splice.base": base.name,
        "quantize.splice.donor": donor.name,
        "quantize.splice.layers": "0,3-4",
        "quantize.splice.mtp": True,
    }
    again = run(out, donor, tmp_path / "again.gguf", layers=[1], record=True)
    with GGUFFile(again) as file:
        assert list(file.metadata) == keys
        assert file.metadata["quantize.splice.layers"] == "1"
        assert file.metadata["quantize.splice.base"] == "out.gguf"


# ---------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("text", "layers", "shown"),
    [
        ("37-42", (37, 38, 39, 40, 41, 42), "37-42"),
        ("0-2,40-42", (0, 1, 2, 40, 41, 42), "0-2,40-42"),
        (" 5 , 3 - 4, 4", (3, 4, 5), "3-5"),
        ("7", (7,), "7"),
        ("1,3", (1, 3), "1,3"),
    ],
)
def test_lists_of_layers(text: str, layers: tuple[int, ...], shown: str) -> None:
    assert parse_layers(text) == layers
    assert format_layers(layers) == shown
    assert format_layers(()) == ""


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-1", "3-", "1-2-3", "4-3", "1;2", "0-99999999", "1.5", "\u0663"])
def test_what_is_no_list_of_layers(text: str) -> None:
    with pytest.raises(ValueError, match=r"no list of layers|goes from the lower"):
        parse_layers(text)


# ----------------------------------------------------------------------------------------------------------- faults


def refused(base: Path, donor: Path | None, out: Path, **options: Any) -> str:
    with pytest.raises(SpliceError) as caught:
        plan_splice(base, donor, out, **options)
    assert list(out.parent.glob("out.gguf*")) == []
    return str(caught.value)


def test_layers_that_are_not_there(base: Path, donor: Path, tmp_path: Path) -> None:
    text = refused(base, donor, tmp_path / "out.gguf", layers=[4, 5, 6, 9])
    assert "layers 5-6,9 have no routed experts in the base; it has 0-4" in text
    main = write_gguf(
        tmp_path / "main.gguf",
        tiny_metadata("flash", part="main"),
        tiny_tensors("flash", part="main", types=RECIPES["q8"]),
    )
    assert "the base has no MTP block" in refused(main, main, tmp_path / "out.gguf", mtp=True)


def test_the_mtp_block_of_llama_cpp_is_no_layer(tiny_gguf: Make, tmp_path: Path) -> None:
    path = tiny_gguf("flash", dialect="llama.cpp", part="mtp", recipe="llama-mxfp4")
    assert "layers 5 have no routed experts in the base; it has none" in refused(
        path, path, tmp_path / "out.gguf", layers=[5]
    )
    other = tiny_gguf("flash", dialect="llama.cpp", part="mtp", recipe="q8")
    out = run(path, other, tmp_path / "out.gguf", mtp=True)
    theirs = digests(other)
    assert all(digests(out)[name] == theirs[name] for name in theirs if expert_part(name))


def test_a_donor_of_another_shape_is_refused_with_everything(base: Path, tiny_gguf: Make, tmp_path: Path) -> None:
    text = refused(base, tiny_gguf("pro", recipe="q8"), tmp_path / "out.gguf", layers=[3])
    for part in (
        "deepseek4.expert_count is 16 in the base and 24 in the donor",
        "deepseek4.attention.compress_ratios[0] is 0 in the base and 128 in the donor",
        "tensor blk.0.attn_q_b.weight is [128, 1024] in the base and [128, 2048] in the donor",
    ):
        assert part in text, text
    assert "and " in text.splitlines()[-1] and " more" in text.splitlines()[-1]


def test_every_difference_is_listed(base: Path, tmp_path: Path) -> None:
    metadata = {
        **tiny_metadata("flash"),
        "tokenizer.ggml.pre": string("deepseek-v3"),
        "general.name": string("another name is no difference"),
        "general.alignment": u32(64),
        "deepseek4.extra": u32(1),
    }
    tokens = metadata["tokenizer.ggml.tokens"].value  # type: ignore[union-attr]
    metadata["tokenizer.ggml.tokens"] = array(ValueType.STRING, [*tokens[:300], "other", *tokens[301:]])
    del metadata["deepseek4.rope.freq_base"]
    tensors = tiny_tensors("flash", types=RECIPES["q8"])
    tensors = [t for t in tensors if t.name != "output_norm.weight"]
    up = next(t for t in tensors if t.name == "blk.1.ffn_up_exps.weight")
    tensors = with_fields(tensors, str(up.name), ne=(256, 512, 8))
    norm = "blk.0.attn_norm.weight"
    tensors = [replace(t, name="blk.0.attn_normal.weight") if t.name == norm else t for t in tensors]
    path = write_gguf(tmp_path / "donor.gguf", metadata, tensors)
    text = refused(base, path, tmp_path / "out.gguf", layers=[1, 77])
    for part in (
        "general.alignment is 32 in the base and 64 in the donor",
        "metadata tokenizer.ggml.pre is 'joyai-llm' in the base and 'deepseek-v3' in the donor",
        "metadata tokenizer.ggml.tokens[300] is ",
        "metadata deepseek4.rope.freq_base is missing in the donor",
        "metadata deepseek4.extra is missing in the base",
        "tensor output_norm.weight is missing in the donor",
        "tensor blk.0.attn_norm.weight is missing in the donor",
        "tensor blk.0.attn_normal.weight is missing in the base",
        "tensor blk.1.ffn_up_exps.weight is [256, 256, 16] in the base and [256, 512, 8] in the donor",
        "layers 77 have no routed experts",
    ):
        assert part in text, text
    assert "general.name" not in text
    assert len(text.splitlines()) == 11


def test_numbers_of_another_width_are_the_same(base: Path, tmp_path: Path) -> None:
    changes = {"deepseek4.embedding_length": u64(256), "deepseek4.rope.freq_base": u32(10000)}
    donor = write_gguf(
        tmp_path / "donor.gguf", {**tiny_metadata("flash"), **changes}, tiny_tensors("flash", types=RECIPES["q8"])
    )
    plan_splice(base, donor, tmp_path / "out.gguf", layers=[1]).close()


def test_gate_and_up_of_different_types(base: Path, tmp_path: Path) -> None:
    def rule(name: str) -> Any:
        return RECIPES["ds4-q4" if name == "blk.1.ffn_gate_exps.weight" else "q8"](name)

    donor = write_gguf(tmp_path / "donor.gguf", tiny_metadata("flash"), tiny_tensors("flash", types=rule))
    text = refused(base, donor, tmp_path / "out.gguf", layers=[1])
    assert "blk.1.ffn_up_exps.weight is Q8_0 and its gate is Q4_K" in text
    plan_splice(base, donor, tmp_path / "out.gguf", layers=[2]).close()


def test_a_type_that_ds4_does_not_run(base: Path, tmp_path: Path) -> None:
    """The donor is a sound file, but what it brings could not be used."""
    name = "blk.1.ffn_down_exps.weight"
    raw = bytes(payload_bytes(GGMLType.Q6_K, (256, 256, 16)))
    tensors = with_fields(tiny_tensors("flash", types=RECIPES["q8"]), name, type=GGMLType.Q6_K, data=raw)
    donor = write_gguf(tmp_path / "donor.gguf", tiny_metadata("flash"), tensors)
    text = rf"(?s)spliced file would not run.*{name} is Q6_K"
    with (
        plan_splice(base, donor, tmp_path / "out.gguf", layers=[1]) as plan,
        pytest.raises(ds4.UnsupportedModelError, match=text),
    ):
        plan.check()
    run(base, donor, tmp_path / "out.gguf", layers=[2])


def test_another_architecture(base: Path, tmp_path: Path) -> None:
    path = rewrite(
        base, tmp_path / "a.gguf", "standard", edit=lambda kvs: [KV("general.architecture", "string", "x"), *kvs[1:]]
    )
    assert "the architecture is 'x', not 'deepseek4'" in refused(path, None, tmp_path / "out.gguf", layout="adjacent")


def test_damaged_and_missing_sources(base: Path, donor: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(donor.read_bytes()[:-40])
    with pytest.raises(ds4.ModelFileError, match=r"short\.gguf"):
        plan_splice(base, short, tmp_path / "out.gguf", layers=[1])
    with pytest.raises(FileNotFoundError):
        plan_splice(base, tmp_path / "none.gguf", tmp_path / "out.gguf", layers=[1])
    with pytest.raises(ValueError, match="need a donor"):
        plan_splice(base, None, tmp_path / "out.gguf", layers=[1])


def test_a_source_that_changes_between_plan_and_copy(base: Path, donor: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(donor.read_bytes())
    with plan_splice(base, copy, tmp_path / "out.gguf", layers=[1]) as plan:
        with open(copy, "r+b") as f:
            f.seek(-1, 2)
            f.write(b"\x01")
        os.utime(copy, ns=(1, 1))
        with pytest.raises(SpliceError, match="has changed"):
            splice(plan)
    assert [p.name for p in tmp_path.iterdir()] == ["copy.gguf"]


def test_the_output_is_looked_at_first(base: Path, donor: Path, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    with plan_splice(base, donor, out, layers=[1]) as plan:
        with pytest.raises(FileExistsError, match="--force"):
            splice(plan)
        assert out.read_bytes() == b"mine"
        splice(plan, force=True)
    assert digests(out) == expected(base, donor, {1})
    with (
        plan_splice(base, donor, tmp_path / "nowhere" / "out.gguf", layers=[1]) as plan,
        pytest.raises(FileNotFoundError, match="no such directory"),
    ):
        splice(plan)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("U", (), {"free": 1000})())
    with (
        plan_splice(base, donor, tmp_path / "new.gguf", layers=[1]) as plan,
        pytest.raises(OSError, match="1000 are free"),
    ):
        splice(plan)
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


def test_a_file_can_replace_its_own_base(base: Path, donor: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(base.read_bytes())
    run(path, donor, path, layers=[2], force=True)
    assert digests(path) == expected(base, donor, {2})


# ----------------------------------------------------------------------------------------------------- interruption


@pytest.mark.parametrize("layout", ["standard", "adjacent"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_splice_goes_on(
    base: Path, donor: Path, tmp_path: Path, layout: str, error: BaseException
) -> None:
    out = tmp_path / "out.gguf"
    stop_at = "blk.3.attn_norm.weight"

    def stop(done: int, total: int, name: str) -> None:
        if name == stop_at:
            raise error

    options: dict[str, Any] = {"layers": [1, 4], "layout": layout}
    with plan_splice(base, donor, out, **options) as plan, pytest.raises(type(error)):
        splice(plan, progress=stop)
    assert not out.exists() and partial_path(out).exists()
    seen = []
    with plan_splice(base, donor, out, **options) as plan:
        splice(plan, progress=lambda done, total, name: seen.append((done, total, name)))
    assert seen[0][2] == stop_at
    assert seen[-1][0] == seen[-1][1]
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]
    assert out.read_bytes() == run(base, donor, tmp_path / "whole.gguf", **options).read_bytes()


def test_other_sources_start_anew(base: Path, donor: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"

    def stop(done: int, total: int, name: str) -> None:
        if name.startswith("blk.3."):
            raise KeyboardInterrupt

    with plan_splice(base, donor, out, layers=[1]) as plan, pytest.raises(KeyboardInterrupt):
        splice(plan, progress=stop)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(donor.read_bytes())
    seen = []
    with plan_splice(base, copy, out, layers=[1]) as plan:
        splice(plan, progress=lambda done, total, name: seen.append(name))
    assert seen[0] == next(iter(digests(base)))
    assert digests(out) == expected(base, donor, {1})


def test_a_limit_of_the_file_size(base: Path, donor: Path, tmp_path: Path) -> None:
    """What the system refuses to write ends in its error, and what is complete is kept."""
    out = tmp_path / "out.gguf"
    code = (
        "import sys, signal\nfrom ds4.quantize import plan_splice, splice\nimport ds4.quantize.splicing as module\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "module.check_runs = lambda *a, **k: None\n"  # its sparse file would meet the limit first
        "with plan_splice(*sys.argv[1:4], layers=[1]) as plan:\n    splice(plan)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000_000, 6_000_000))

    done = subprocess.run(
        [sys.executable, "-c", code, str(base), str(donor), str(out)],
        capture_output=True, text=True, preexec_fn=limit, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "File too large" in done.stderr and str(out) in done.stderr, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf.part", "out.gguf.part.journal"]
    run(base, donor, out, layers=[1])
    assert digests(out) == expected(base, donor, {1})
