"""Importance files: both forms, what is refused, and what is found in them."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from ds4.gguf_writer import KV, GGUFWriter, TensorInfo
from ds4.imatrix import Entry, Imatrix, ImatrixError

from .files import (
    DOWN,
    GATE,
    N_EMBD,
    N_EXPERT,
    N_FF,
    UP,
    counted_imatrix,
    dat_bytes,
    dat_entry,
    good_dat,
    means,
    tail_bytes,
    write_bytes,
)

WANTED = [(GATE, N_EMBD, N_EXPERT), (UP, N_EMBD, N_EXPERT), (DOWN, N_FF, N_EXPERT)]


def read(tmp_path: Path, data: bytes, n_experts: int | None = None) -> Imatrix:
    return Imatrix.read(write_bytes(tmp_path / "x.dat", data), n_experts=n_experts)


# The older form


@pytest.mark.parametrize("n_experts", [None, N_EXPERT])
def test_a_dat_reads_as_documented(tmp_path: Path, n_experts: int | None) -> None:
    imatrix = read(tmp_path, good_dat(), n_experts)
    assert list(imatrix.entries) == [GATE, UP, DOWN]
    assert (imatrix.n_entries, imatrix.n_chunks, imatrix.dataset, imatrix.counted) == (3, 7, "set.txt", False)
    assert imatrix.source == str(tmp_path / "x.dat")
    for name, width, seed in ((GATE, N_EMBD, 1), (UP, N_EMBD, 1), (DOWN, N_FF, 2)):
        for e in range(N_EXPERT):
            got = imatrix.lookup(name, width, N_EXPERT, e)
            assert got is not None and got.dtype == np.float32
            np.testing.assert_array_equal(got, means(seed, N_EXPERT, width)[e])
            assert imatrix.observed(name, width, N_EXPERT, e)
    assert imatrix.lookup("blk.1.ffn_gate_exps.weight", N_EMBD, N_EXPERT, 0) is None
    assert not imatrix.observed("blk.1.ffn_gate_exps.weight", N_EMBD, N_EXPERT, 0)


@pytest.mark.parametrize(("n_calls", "divisor"), [(0, 1), (1, 1), (3, 3)])
def test_values_are_divided_by_the_calls_if_there_are_any(tmp_path: Path, n_calls: int, divisor: int) -> None:
    values = means(4, 1, 8)
    got = read(tmp_path, dat_bytes([dat_entry(b"output.weight", n_calls, values)])).lookup("output.weight", 8)
    assert got is not None
    np.testing.assert_array_equal(got, values[0] / np.float32(divisor))


def test_ones_are_an_expert_that_was_never_observed(tmp_path: Path) -> None:
    for n_experts in (None, N_EXPERT):
        imatrix = read(tmp_path, good_dat(unobserved=2), n_experts)
        assert [imatrix.observed(DOWN, N_FF, N_EXPERT, e) for e in range(4)] == [True, True, False, True]
        got = imatrix.lookup(DOWN, N_FF, N_EXPERT, 2)
        assert got is not None and (got == 1).all()
        gaps = imatrix.gaps(WANTED)
        assert gaps.unobserved == {GATE: (2,), UP: (2,), DOWN: (2,)} and not gaps.missing and gaps


def test_a_tail_may_be_absent(tmp_path: Path) -> None:
    raw = good_dat()
    imatrix = read(tmp_path, raw[: len(raw) - len(tail_bytes(7, b"set.txt"))])
    assert (imatrix.n_chunks, imatrix.dataset, imatrix.n_entries) == (0, "", 3)


def test_every_other_truncation_is_refused_with_file_and_place(tmp_path: Path) -> None:
    raw = good_dat()
    tail = len(raw) - len(tail_bytes(7, b"set.txt"))
    for n in (n for n in range(len(raw)) if n != tail):
        with pytest.raises(ImatrixError) as caught:
            read(tmp_path, raw[:n])
        assert "x.dat" in str(caught.value) and caught.value.offset is not None, n
        assert caught.value.offset <= n


def test_every_changed_byte_is_refused_or_read(tmp_path: Path) -> None:
    raw = good_dat()
    for i in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[i] ^= flip
            try:
                imatrix = read(tmp_path, bytes(changed), N_EXPERT)
            except ImatrixError:
                continue
            for entry in imatrix.entries.values():
                assert np.isfinite(entry.sums).all() and (entry.sums >= 0).all()


ONE = np.ones(4, dtype=np.float32)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "cut short"),
        (struct.pack("<i", 0), "would hold 0 entries"),
        (struct.pack("<i", -1) + bytes(100), "would hold -1 entries"),
        (b"hello, this is a text and not a file of importance", "neither GGUF nor .dat"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], n=2), "would hold 2 entries"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], n=2) + bytes(20), "a name of 0 bytes"),
        (dat_bytes([dat_entry(b"", 1, ONE)]), "a name of 0 bytes"),
        (dat_bytes([dat_entry(b"n" * 4097, 1, ONE)]), "a name of 4097 bytes"),
        (dat_bytes([struct.pack("<i", -5) + bytes(30)]), "a name of -5 bytes"),
        (dat_bytes([dat_entry(b"\xff\xfe", 1, ONE)]), "not UTF-8"),
        (dat_bytes([dat_entry(b"a", 1, ONE), dat_entry(b"a", 1, ONE)]), "entry a: it occurs twice"),
        (dat_bytes([dat_entry(b"a", -1, ONE)]), "entry a: it says -1 calls"),
        (dat_bytes([dat_entry(b"a", 1, ONE, 0)]), "and 0 values"),
        (dat_bytes([dat_entry(b"a", 1, ONE, -4)]), "and -4 values"),
        (dat_bytes([dat_entry(b"a", 1, ONE, 2**31 - 1)]), "needs 8589934588 bytes but 16 are left"),
        (dat_bytes([dat_entry(b"a", 1, np.float32([1, np.nan, 1]))]), "entry a: value 1 is nan"),
        (dat_bytes([dat_entry(b"a", 1, np.float32([1, 1, np.inf]))]), "entry a: value 2 is inf"),
        (dat_bytes([dat_entry(b"a", 1, np.float32([-1, 1, 1]))]), "entry a: value 0 is -1"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], b"\0" * 5), "dataset's name needs 4 bytes but 1 are left"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], tail_bytes(-1, b"x")), "-1 chunks"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], struct.pack("<ii", 1, -1)), "of -1 bytes"),
        (dat_bytes([dat_entry(b"a", 1, ONE)], tail_bytes(1, b"x") + b"!"), "1 bytes follow"),
        (dat_bytes([dat_entry(b"a\x1b[2J", 1, np.float32([np.nan]))]), r"entry a\x1b[2J: value 0"),
    ],
)
def test_a_hostile_dat_is_refused(tmp_path: Path, raw: bytes, text: str) -> None:
    with pytest.raises(ImatrixError) as caught:
        read(tmp_path, raw)
    assert text in str(caught.value) and "x.dat" in str(caught.value)


def test_the_offset_of_a_bad_value_is_its_own(tmp_path: Path) -> None:
    raw = bytearray(good_dat())
    at = raw.index(DOWN.encode()) + len(DOWN) + 8 + 4 * 5
    raw[at : at + 4] = struct.pack("<f", -2.5)
    with pytest.raises(ImatrixError) as caught:
        read(tmp_path, bytes(raw))
    assert (caught.value.entry, caught.value.offset, caught.value.path) == (DOWN, at, str(tmp_path / "x.dat"))
    assert isinstance(caught.value, ValueError)


def test_what_is_no_file_is_an_os_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.dat")
    for path in (tmp_path, tmp_path / "pipe.dat", tmp_path / "missing.dat"):
        with pytest.raises(OSError) as caught:
            Imatrix.read(path)
        assert caught.value.filename is not None


# The newer form


def container(path: Path, tensors: dict[str, np.ndarray], **changed: KV | None) -> Path:
    """Write a GGUF importance file with the PyPI package's words, by our writer."""
    kvs = {"type": KV("general.type", "string", "imatrix"), "chunks": KV("imatrix.chunk_count", "u32", 9), **changed}
    infos = [TensorInfo(n, v.shape[::-1], "F32") for n, v in tensors.items()]
    with GGUFWriter(path, [kv for kv in kvs.values() if kv], infos, force=True) as writer:
        writer.write([v.astype("<f4").tobytes()] for v in tensors.values())
        writer.publish()
    return path


SUMS, COUNTS = means(8, 2, 3), np.float32([[4], [0]])


def test_a_container_of_another_writer_reads(tmp_path: Path) -> None:
    """Written by the gguf package, in the layout of llama.cpp."""
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(str(path), arch="")
    writer.kv_data[0].clear()  # importance files have no architecture
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["wiki.txt"])
    writer.add_uint32("imatrix.chunk_count", 11)
    writer.add_uint32("imatrix.chunk_size", 512)
    writer.add_tensor("blk.0.attn_kv.weight.counts", np.float32([[7]]))
    writer.add_tensor("blk.0.attn_kv.weight.in_sum2", means(9, 1, 5))
    writer.add_tensor(f"{DOWN}.counts", COUNTS)
    writer.add_tensor(f"{DOWN}.in_sum2", SUMS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    imatrix = Imatrix.read(path)
    assert (imatrix.datasets, imatrix.n_chunks, imatrix.chunk_size, imatrix.counted) == (("wiki.txt",), 11, 512, True)
    got = imatrix.lookup("blk.0.attn_kv.weight", 5)
    assert got is not None
    np.testing.assert_array_equal(got, means(9, 1, 5)[0] / np.float32(7))
    assert imatrix.observed(DOWN, 3, 2, 0) and not imatrix.observed(DOWN, 3, 2, 1)
    unobserved = imatrix.lookup(DOWN, 3, 2, 1)
    assert unobserved is not None and (unobserved == 1).all()


def test_what_we_write_another_reader_reads(tmp_path: Path) -> None:
    path = tmp_path / "ours.gguf"
    ours = counted_imatrix()
    ours.write(path)
    reader = gguf.GGUFReader(str(path))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.type"] == "imatrix" and fields["imatrix.datasets"] == ["a.txt", "b.txt"]
    assert (fields["imatrix.chunk_count"], fields["imatrix.chunk_size"]) == (9, 512)
    assert "general.architecture" not in fields
    tensors = {t.name: t for t in reader.tensors}
    assert len(tensors) == 6
    for name, entry in ours.entries.items():
        assert list(tensors[f"{name}.in_sum2"].shape) == [entry.n_columns, N_EXPERT]
        assert list(tensors[f"{name}.counts"].shape) == [1, N_EXPERT]
        np.testing.assert_array_equal(tensors[f"{name}.in_sum2"].data, entry.sums.astype(np.float32))
        np.testing.assert_array_equal(tensors[f"{name}.counts"].data.reshape(-1), entry.counts)


def test_every_truncation_of_a_container_is_refused(tmp_path: Path) -> None:
    """L022: a file cut in half is refused, and its form is named."""
    path = tmp_path / "ours.gguf"
    counted_imatrix().write(path)
    raw = path.read_bytes()
    # The padding after the last payload may be cut: nothing of the data is lost.
    whole = len(raw) - (-(N_EXPERT * 4) % 32)
    for n in range(whole):
        with pytest.raises(ImatrixError) as caught:
            Imatrix.read(write_bytes(tmp_path / "cut.gguf", raw[:n]))
        assert "cut.gguf" in str(caught.value)
        if n >= 4:
            assert "GGUF" in str(caught.value)


def test_the_form_is_told_by_the_content_not_by_the_name(tmp_path: Path) -> None:
    """L022: each form under the other's name."""
    counted_imatrix().write(tmp_path / "a.dat", "gguf")
    assert Imatrix.read(tmp_path / "a.dat").counted
    assert not Imatrix.read(write_bytes(tmp_path / "b.gguf", good_dat())).counted


def test_a_model_is_no_importance_file(tmp_path: Path, flash_gguf: Path) -> None:
    with pytest.raises(ImatrixError, match=r"a GGUF file of a model \(deepseek4\)"):
        Imatrix.read(flash_gguf)


@pytest.mark.parametrize(
    ("tensors", "changed", "text"),
    [
        ({"a.in_sum2": SUMS, "a.counts": COUNTS}, {"type": None}, "not of importance data"),
        ({"a.in_sum2": SUMS}, {}, "entry a: counts is missing"),
        ({"a.counts": COUNTS}, {}, "entry a: in_sum2 is missing"),
        ({"a.in_sum2": SUMS, "a.counts": COUNTS, "b": SUMS}, {}, "entry b: tensors end in"),
        ({".in_sum2": SUMS, ".counts": COUNTS}, {}, "tensors end in"),
        ({"a.in_sum2": SUMS, "a.counts": np.float32([[1]])}, {}, "entry a: 2 matrices but 1 counts"),
        ({"a.in_sum2": -SUMS, "a.counts": COUNTS}, {}, "entry a: value 0 is -"),
        ({"a.in_sum2": SUMS * np.float32(np.inf), "a.counts": COUNTS}, {}, "entry a: value 0 is inf"),
        ({"a.in_sum2": SUMS, "a.counts": COUNTS * np.float32(np.nan)}, {}, "entry a: value 0 is nan"),
        ({"a.in_sum2": SUMS, "a.counts": COUNTS}, {"chunks": KV("imatrix.chunk_count", "i32", -3)}, "is -3, not"),
        ({"a.in_sum2": SUMS, "a.counts": COUNTS}, {"sets": KV("imatrix.datasets", "u32", 1)}, "not a list of texts"),
        ({}, {}, "it holds no entries"),
    ],
)
def test_a_hostile_container_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], changed: dict[str, KV | None], text: str
) -> None:
    path = container(tmp_path / "bad.gguf", tensors, **changed)
    with pytest.raises(ImatrixError) as caught:
        Imatrix.read(path)
    assert text in str(caught.value) and "bad.gguf" in str(caught.value)


def test_sums_of_another_type_are_refused(tmp_path: Path) -> None:
    infos = [TensorInfo("a.in_sum2", (3, 2), "F16"), TensorInfo("a.counts", (1, 2), "F32")]
    with GGUFWriter(tmp_path / "h.gguf", [KV("general.type", "string", "imatrix")], infos) as writer:
        writer.write([[bytes(12)], [bytes(8)]])
        writer.publish()
    with pytest.raises(ImatrixError, match=r"a\.in_sum2 is F16, not F32"):
        Imatrix.read(tmp_path / "h.gguf")


# Looking up


def test_names_are_tried_in_the_documented_order(tmp_path: Path) -> None:
    names = [f"{GATE}.expert.2", f"{GATE}.expert_2", GATE, "layers.0.ffn.experts.2.w1.weight"]
    for first in range(len(names)):
        entries = []
        for i, name in enumerate(names[first:], first):
            values = np.full(N_EMBD * (N_EXPERT if name == GATE else 1), i + 2, dtype=np.float32)
            entries.append(dat_entry(name.encode(), 1, values))
        got = read(tmp_path, dat_bytes(entries[::-1])).lookup(GATE, N_EMBD, N_EXPERT, 2)
        assert got is not None and (got == first + 2).all()


@pytest.mark.parametrize(
    ("name", "official"),
    [
        ("blk.7.attn_output_a.weight", "layers.7.attn.wo_a.weight"),
        ("blk.7.ffn_up_shexp.weight", "layers.7.ffn.shared_experts.w3.weight"),
        ("blk.7.indexer_compressor_gate.weight", "layers.7.attn.indexer.compressor.wgate.weight"),
        ("mtp.0.e_proj.weight", "mtp.0.e_proj.weight"),
        ("output.weight", "head.weight"),
    ],
)
def test_official_names_are_found(name: str, official: str) -> None:
    imatrix = Imatrix({official: Entry(SUMS[:1], np.array([2.0]))})
    got = imatrix.lookup(name, 3)
    assert got is not None
    np.testing.assert_array_equal(got, SUMS[0] / 2)


def test_one_vector_serves_all_experts() -> None:
    imatrix = Imatrix({GATE: Entry(means(1, 1, N_EMBD), np.array([1.0]))})
    for e in range(N_EXPERT):
        got = imatrix.lookup(GATE, N_EMBD, N_EXPERT, e)
        assert got is not None
        np.testing.assert_array_equal(got, means(1, 1, N_EMBD)[0])


def test_missing_entries_are_listed_before_the_work(tmp_path: Path) -> None:
    """L023: an importance file with one expert's entry removed."""
    entries = [dat_entry(f"{GATE}.expert.{e}".encode(), 1, means(e, 1, N_EMBD)) for e in (0, 1, 3)]
    gaps = read(tmp_path, dat_bytes(entries)).gaps(WANTED)
    assert gaps.missing == {GATE: (2,), UP: (0, 1, 2, 3), DOWN: (0, 1, 2, 3)} and not gaps.unobserved
    assert not read(tmp_path, good_dat()).gaps(WANTED)


@pytest.mark.parametrize(("n_columns", "n_matrices"), [(N_EMBD + 1, N_EXPERT), (N_EMBD, 2), (N_EMBD * 2, N_EXPERT)])
def test_the_file_of_another_model_is_refused(tmp_path: Path, n_columns: int, n_matrices: int) -> None:
    counted_imatrix().write(tmp_path / "a.gguf")
    for imatrix in (
        Imatrix.read(tmp_path / "a.gguf"),
        read(tmp_path, good_dat()),
        read(tmp_path, good_dat(), N_EXPERT),
    ):
        with pytest.raises(ImatrixError, match="the file is of another model") as caught:
            imatrix.gaps([(GATE, n_columns, n_matrices)])
        assert caught.value.entry == GATE and caught.value.path == imatrix.source


def test_a_number_of_experts_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImatrixError, match=r"entry blk\.0\.ffn_gate_exps\.weight: 24 values cannot be divided"):
        read(tmp_path, good_dat(), 5)
    with pytest.raises(ValueError, match="n_experts must be 1 or more"):
        read(tmp_path, good_dat(), 0)


def test_published_sizes_need_no_number_of_experts(tmp_path: Path) -> None:
    gate, down = np.ones(256 * 4096, dtype=np.float32), np.ones(256 * 2048, dtype=np.float32)
    gate[5 * 4096] = 2
    raw = dat_bytes([dat_entry(GATE.encode(), 1, gate), dat_entry(DOWN.encode(), 1, down)])
    entries = read(tmp_path, raw).entries
    assert entries[GATE].sums.shape == (256, 4096) and entries[DOWN].sums.shape == (256, 2048)
    assert np.flatnonzero(entries[GATE].counts).tolist() == [5] and not entries[DOWN].counts.any()


# Writing


def test_a_dat_is_written_as_documented(tmp_path: Path) -> None:
    """Means with ncall 1, gate, up, down by layer, ones for an expert that nobody chose."""
    ours = counted_imatrix()
    shuffled = Imatrix({n: ours.entries[n] for n in (DOWN, UP, GATE)}, datasets=["set"], n_chunks=3)
    path = tmp_path / "ours.dat"
    shuffled.write(path)
    expected = []
    for name in (GATE, UP, DOWN):
        entry = ours.entries[name]
        rows = [
            (entry.sums[e] / entry.counts[e]).astype(np.float32)
            if entry.counts[e]
            else np.ones(entry.n_columns, dtype=np.float32)
            for e in range(N_EXPERT)
        ]
        expected.append(dat_entry(name.encode(), 1, np.concatenate(rows)))
    assert path.read_bytes() == dat_bytes(expected, tail_bytes(3, b"set"))


def test_dat_to_container_and_back_changes_nothing(tmp_path: Path) -> None:
    for unobserved in (None, 1):
        source = write_bytes(tmp_path / "a.dat", good_dat(unobserved))
        Imatrix.read(source, n_experts=N_EXPERT).write(tmp_path / "b.gguf", force=True)
        container = Imatrix.read(tmp_path / "b.gguf")
        assert container.n_chunks == 7 and container.datasets == ("set.txt",)
        container.write(tmp_path / "c.dat", force=True)
        assert (tmp_path / "c.dat").read_bytes() == source.read_bytes()


def test_container_to_container_keeps_sums_and_counts(tmp_path: Path) -> None:
    counted_imatrix().write(tmp_path / "a.gguf")
    Imatrix.read(tmp_path / "a.gguf").write(tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_gate_and_up_share_their_memory(tmp_path: Path) -> None:
    ours = counted_imatrix()
    ours.write(tmp_path / "a.gguf")
    ours.write(tmp_path / "a.dat")
    for path in (tmp_path / "a.gguf", tmp_path / "a.dat"):
        entries = Imatrix.read(path, n_experts=N_EXPERT).entries
        assert entries[UP].sums is entries[GATE].sums and entries[DOWN].sums is not entries[GATE].sums
    other = {**ours.entries, UP: Entry(ours.entries[UP].sums * 2, ours.entries[UP].counts)}
    Imatrix(other).write(tmp_path / "b.gguf")
    entries = Imatrix.read(tmp_path / "b.gguf").entries
    np.testing.assert_array_equal(entries[UP].sums, 2 * entries[GATE].sums)


def test_an_undivided_dat_can_be_copied_but_not_converted(tmp_path: Path) -> None:
    imatrix = read(tmp_path, good_dat(2))
    imatrix.write(tmp_path / "copy.dat")
    assert (tmp_path / "copy.dat").read_bytes() == good_dat(2)
    with pytest.raises(ImatrixError, match=r"read the \.dat with n_experts"):
        imatrix.write(tmp_path / "copy.gguf")
    assert not (tmp_path / "copy.gguf").exists()


@pytest.mark.parametrize("suffix", ["dat", "gguf"])
def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path, suffix: str) -> None:
    path = write_bytes(tmp_path / f"a.{suffix}", b"precious")
    with pytest.raises(FileExistsError):
        counted_imatrix().write(path)
    assert path.read_bytes() == b"precious"
    counted_imatrix().write(path, force=True)
    assert Imatrix.read(path, n_experts=N_EXPERT).n_entries == 3
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["dat", "gguf"])
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    broken = counted_imatrix()
    entries = dict(broken.entries)
    for bad in (1e300, np.nan, np.inf):
        entries[DOWN] = Entry(np.full((N_EXPERT, N_FF), bad), np.ones(N_EXPERT))
        with pytest.raises(ImatrixError, match="not finite or does not fit float32"):
            Imatrix(entries).write(tmp_path / f"a.{suffix}")
    with pytest.raises(ImatrixError, match="no data to write"):
        Imatrix({}).write(tmp_path / f"a.{suffix}")
    with pytest.raises(FileNotFoundError):
        broken.write(tmp_path / "missing" / f"a.{suffix}")
    with pytest.raises(ImatrixError, match="names of"):
        Imatrix({"n" * 5000: Entry(SUMS, np.ones(2))}).write(tmp_path / f"a.{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["dat", "gguf"])
def test_a_full_disk_leaves_nothing_and_names_the_file(tmp_path: Path, suffix: str) -> None:
    code = (
        "import resource, signal, sys; import numpy as np; from ds4.imatrix import Entry, Imatrix\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "Imatrix({'a': Entry(np.ones((64, 64)), np.ones(64) * 2)}).write(sys.argv[1])\n"
    )
    path = tmp_path / f"a.{suffix}"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "File too large" in done.stderr and path.name in done.stderr
    assert not list(tmp_path.iterdir())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_the_format_follows_from_the_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"named \.dat or \.gguf"):
        counted_imatrix().write(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="unknown format 'zip'"):
        counted_imatrix().write(tmp_path / "a.dat", "zip")
    counted_imatrix().write(tmp_path / "a.bin", "dat")
    assert (tmp_path / "a.bin").read_bytes()[:4] == struct.pack("<i", 3)


# Merging


def test_merging_adds_sums_and_counts(tmp_path: Path) -> None:
    a, b = counted_imatrix(3), counted_imatrix(4, (0, 2, 1, 0))
    extra = Imatrix({"output.weight": Entry(SUMS[:1], np.array([3.0]))}, datasets=["b.txt", "c.txt"], n_chunks=1)
    merged = a.merge([b, extra])
    assert list(merged.entries) == [GATE, UP, DOWN, "output.weight"]
    for name in (GATE, UP, DOWN):
        np.testing.assert_array_equal(merged.entries[name].counts, [5, 2, 2, 12])
        np.testing.assert_array_equal(merged.entries[name].sums, a.entries[name].sums + b.entries[name].sums)
    assert (merged.n_chunks, merged.datasets) == (19, ("a.txt", "b.txt", "c.txt"))


def test_merging_means_leaves_out_experts_that_a_file_never_saw(tmp_path: Path) -> None:
    a = Imatrix.read(write_bytes(tmp_path / "a.dat", good_dat(0)), n_experts=N_EXPERT)
    b = Imatrix.read(write_bytes(tmp_path / "b.dat", good_dat(1)), n_experts=N_EXPERT)
    merged = a.merge([b])
    for e in range(N_EXPERT):
        got = merged.lookup(GATE, N_EMBD, N_EXPERT, e)
        assert got is not None
        np.testing.assert_array_equal(got, means(1, N_EXPERT, N_EMBD)[e])


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    counted = counted_imatrix()
    with pytest.raises(ImatrixError, match="means without token counts"):
        counted.merge([read(tmp_path, good_dat(), N_EXPERT)])
    with pytest.raises(ImatrixError, match="means without token counts"):
        read(tmp_path, good_dat(), N_EXPERT).merge([counted])
    with pytest.raises(ImatrixError, match="the number of experts is not known"):
        read(tmp_path, good_dat()).merge([read(tmp_path, good_dat())])
    with pytest.raises(ImatrixError, match="2 x 3 values cannot be merged with 4 x 6"):
        counted.merge([Imatrix({GATE: Entry(SUMS, np.ones(2))})])
