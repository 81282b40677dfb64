"""Damaged and hostile GGUF files: each ends in an error that names the thing, its value and its place."""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import time
from dataclasses import dataclass

import numpy as np
import pytest
from support import native
from support.gguf_write import (
    GGMLType,
    Raw,
    Tensor,
    ValueType,
    array,
    boolean,
    build_gguf,
    f32,
    f64,
    i32,
    i64,
    string,
    u8,
    u16,
    u32,
    u64,
    with_fields,
)

TOP = 2**64 - 1
TRUNCATED = "the file looks truncated"

# Metadata of every type, in an order that puts the alignment between other keys.
METADATA = {
    "general.architecture": string("deepseek4"),
    "small": u8(7),
    "half": u16(9),
    "general.alignment": u32(64),
    "signed": i32(-3),
    "long": u64(5),
    "negative": i64(-5),
    "ratio": f32(1.5),
    "precise": f64(2.5),
    "flag": boolean(True),
    "tokens": array(ValueType.STRING, ["a", "", "\u00e9"]),
    "ratios": array(ValueType.U32, [0, 4, 128]),
}


def q8_tensor(name, n=32, **fields):
    return Tensor(name, GGMLType.Q8_0, (n,), bytes(34 * n // 32), **fields)


TENSORS = [
    q8_tensor("a"),
    Tensor("b", GGMLType.F32, (4, 4), np.arange(16, dtype="<f4").tobytes()),
    Tensor("c", GGMLType.Q6_K, (256,), bytes(210)),
]


@dataclass
class Answer:
    status: int
    text: str
    offset: int


class Opener:
    """Opens byte strings as files through the C interface."""

    def __init__(self, lib, scratch):
        self.lib, self.scratch, self.error = lib, scratch, native.Error()

    def path(self, path):
        handle = ctypes.c_void_p()
        self.error.message = b""
        status = self.lib.ds4_gguf_open(os.fsencode(path), ctypes.byref(handle), ctypes.byref(self.error))
        if status == native.OK:
            self.lib.ds4_gguf_close(handle)
            return Answer(status, "", native.NO_OFFSET)
        assert handle.value is None
        assert self.error.status == status
        assert self.error.message, "a refusal without a message"
        return Answer(status, self.error.text, self.error.offset)

    def __call__(self, data):
        self.scratch.write(data)
        return self.path(self.scratch.path)


@pytest.fixture(scope="module")
def opened():
    with native.scratch_file() as scratch:
        yield Opener(native.load_library(), scratch)


def refused(answer, *parts, offset=None):
    """The answer is DS4_E_FORMAT and its message holds every part."""
    assert answer.status == native.E_FORMAT, answer.text
    for part in parts:
        assert part in answer.text
    if offset is not None:
        assert answer.offset == offset, answer.text
        assert str(offset) in answer.text or "offset" not in answer.text
    return answer


def place(data, needle):
    assert data.count(needle) == 1
    return data.index(needle)


def test_a_good_file_is_accepted(opened):
    assert opened(build_gguf(METADATA, TENSORS)).status == native.OK


def test_files_without_tensors_or_metadata_are_accepted(opened):
    assert opened(build_gguf({}, TENSORS)).status == native.OK
    assert opened(build_gguf(METADATA, [])).status == native.OK
    assert opened(build_gguf({}, [])[:24]).status == native.OK


# ------------------------------------------------------------------------------------------------ 1: size and magic


@pytest.mark.parametrize("size", [0, 1, 4, 23])
def test_a_file_shorter_than_a_header(opened, size):
    refused(opened(build_gguf({}, TENSORS)[:size]), f"{size} bytes", "24", TRUNCATED)


@pytest.mark.parametrize(
    ("start", "hint"),
    [(b"GGUX", "GGUX"), (b"\x00\x01\x02\x03", r"\x00\x01\x02\x03"), (b"<htm", "web page"), (b"vers", "Git LFS")],
)
def test_another_magic(opened, start, hint):
    data = build_gguf({}, TENSORS)
    data = b"version https://git-lfs.github.com/spec/v1\noid" if start == b"vers" else start + data[4:]
    refused(opened(data), "not a GGUF file", hint, offset=0)


@pytest.mark.parametrize("version", [0, 1, 2, 4, 2**31])
def test_another_version(opened, version):
    refused(opened(build_gguf({}, TENSORS, version=version)), f"version {version} ", "version 3", offset=4)


def test_a_big_endian_file_is_called_that(opened):
    refused(opened(build_gguf({}, TENSORS, version=0x03000000)), "big-endian", offset=4)


# ------------------------------------------------------------------------------------------------------- 2: counts


@pytest.mark.parametrize("count", [2**20 + 1, 2**32, 2**40, 2**63, TOP])
def test_counts_are_compared_with_the_file(opened, count):
    refused(opened(build_gguf({}, [], n_tensors=count)), f"tensor count {count}", offset=8)
    refused(opened(build_gguf({}, [], n_kv=count)), f"metadata count {count}", offset=16)


def test_counts_that_the_rest_of_the_file_cannot_hold(opened):
    refused(opened(build_gguf(METADATA, TENSORS, n_kv=len(METADATA) + 1)))
    refused(opened(build_gguf(METADATA, TENSORS, n_tensors=len(TENSORS) + 1)))
    refused(opened(build_gguf(METADATA, [], n_tensors=8)[:-1]), "8 tensor records", TRUNCATED)


def test_a_huge_count_costs_neither_time_nor_memory(opened):
    """Two dozen bytes that declare billions of records."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    header = b"GGUF" + struct.pack("<I", 3)
    refused(opened(header + struct.pack("<QQ", 0, 2**32)))
    refused(opened(header + struct.pack("<QQ", 2**40, 0)))
    refused(opened(build_gguf({"k": Raw(9, struct.pack("<IQ", 10, 2**63))}, [])))
    refused(opened(build_gguf({"k": Raw(9, struct.pack("<IQ", 9, 2**62))}, [])))
    assert time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB


# ------------------------------------------------------------------------------------------------------ 3: lengths


@pytest.mark.parametrize("length", [TOP, TOP - 7, 2**63, 2**40, 65536])
def test_key_lengths(opened, length):
    data = build_gguf({"k": u32(1)}, TENSORS)
    data = data[:24] + struct.pack("<Q", length) + data[32:]
    refused(opened(data), "metadata record 0", f"key length {length}", offset=24)


def test_a_key_may_be_long_but_not_longer_than_the_file(opened):
    assert opened(build_gguf({"k" * 65535: u32(1)}, TENSORS)).status == native.OK
    data = build_gguf({"k": u32(1)}, TENSORS)
    refused(opened(data[:24] + struct.pack("<Q", 60000) + data[32:]), "key", "60000", TRUNCATED)


def test_empty_keys_and_names(opened):
    refused(opened(build_gguf({"": u32(1)}, TENSORS)), "key length 0", offset=24)
    refused(opened(build_gguf({}, [q8_tensor("")])), "tensor record 0", "name length 0", offset=24)


def test_tensor_names_have_at_most_63_bytes(opened):
    assert opened(build_gguf({}, [q8_tensor("n" * 63)])).status == native.OK
    refused(opened(build_gguf({}, [q8_tensor("n" * 64)])), "name length 64", offset=24)
    data = build_gguf({}, [q8_tensor("n")])
    refused(opened(data[:24] + struct.pack("<Q", TOP) + data[32:]), f"name length {TOP}", offset=24)


@pytest.mark.parametrize("length", [TOP, TOP - 8, 2**63, 5000])
def test_string_value_lengths(opened, length):
    data = build_gguf({"text": Raw(8, struct.pack("<Q", length) + b"abc")}, TENSORS)
    refused(opened(data), 'metadata key "text"', f"string length {length}", TRUNCATED, offset=24 + 8 + 4 + 4)


def test_keys_and_names_are_utf8(opened):
    refused(opened(build_gguf([(b"k\xff", u32(1))], TENSORS)), r"k\xff", "not UTF-8", offset=24 + 8 + 1)
    refused(opened(build_gguf({}, [q8_tensor(b"\xc3")])), r"\xc3", "not UTF-8", offset=24 + 8)


# ------------------------------------------------------------------------------------------------------- 4: arrays


@pytest.mark.parametrize("element", [t for t in ValueType if t is not ValueType.ARRAY])
@pytest.mark.parametrize("count", [2**61, 2**62, 2**63, TOP, 1000])
def test_array_counts(opened, element, count):
    data = build_gguf({"k": Raw(9, struct.pack("<IQ", element, count))}, [])
    refused(opened(data), 'metadata key "k"', str(count), TRUNCATED)


def test_a_string_array_that_ends_early(opened):
    data = build_gguf({"k": Raw(9, struct.pack("<IQQ", 8, 3, 1) + b"a" + struct.pack("<Q", TOP))}, TENSORS)
    refused(opened(data), 'metadata key "k"', f"string length {TOP}")


def nested(depth):
    return Raw(9, struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0))


def test_nesting_has_a_limit(opened):
    """Deep nesting would be a stack overflow in a reader that recurses without one."""
    for depth in (1, 2, 3, 4):
        assert opened(build_gguf({"k": nested(depth)}, TENSORS)).status == native.OK
    for depth in (5, 6, 9, 100_000):
        refused(opened(build_gguf({"k": nested(depth)}, TENSORS)), 'metadata key "k"', "nested more than 4 deep")


def test_an_array_of_arrays_with_too_many_elements(opened):
    refused(opened(build_gguf({"k": Raw(9, struct.pack("<IQ", 9, 2**60))}, [])), f"{2**60} arrays", TRUNCATED)


# -------------------------------------------------------------------------------------------- 5: value types, bools


@pytest.mark.parametrize("type_id", [13, 14, 255, 2**32 - 1])
def test_unknown_value_types(opened, type_id):
    refused(opened(build_gguf({"k": Raw(type_id, b"\1")}, TENSORS)), f"unknown value type {type_id}", offset=33)
    data = build_gguf({"k": Raw(9, struct.pack("<IQ", type_id, 0))}, TENSORS)
    refused(opened(data), f"unknown element type {type_id}", offset=37)
    data = build_gguf({"k": Raw(9, struct.pack("<IQIQ", 9, 1, type_id, 0))}, TENSORS)
    refused(opened(data), f"unknown element type {type_id}", offset=49)


@pytest.mark.parametrize("value", [2, 128, 255])
def test_bools_are_0_or_1(opened, value):
    refused(opened(build_gguf({"k": Raw(7, bytes([value]))}, TENSORS)), f"bool value {value}", offset=37)
    data = build_gguf({"k": Raw(9, struct.pack("<IQ", 7, 3) + bytes([0, 1, value]))}, TENSORS)
    refused(opened(data), f"bool value {value}", offset=51)


# ------------------------------------------------------------------------------------------ 6, 7: keys and alignment


def test_duplicate_keys(opened):
    data = build_gguf([("k", u32(1)), ("other", u32(1)), ("k", u32(1))], TENSORS)
    refused(opened(data), 'duplicate metadata key "k"', "24", offset=24 + 17 + 21)


def test_duplicate_alignment_is_not_decided_by_order(opened):
    data = build_gguf([("general.alignment", u32(32)), ("general.alignment", u32(64))], TENSORS)
    refused(opened(data), 'duplicate metadata key "general.alignment"')


@pytest.mark.parametrize("alignment", [0, 1, 3, 4, 24, 33, 2**21, 2**31, 2**32 - 1])
def test_alignment_values(opened, alignment):
    data = build_gguf({"general.alignment": u32(alignment)}, TENSORS, alignment=32)
    refused(opened(data), f"general.alignment {alignment} ", "power of two", offset=24)


@pytest.mark.parametrize("value", [i32(32), u64(32), u8(32), string("32"), array(ValueType.U32, [32]), f32(32)])
def test_alignment_types(opened, value):
    data = build_gguf({"general.alignment": value}, TENSORS, alignment=32)
    refused(opened(data), "general.alignment", value.type.name.lower(), "must be a u32", offset=24)


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096, 2**20])
def test_good_alignments(opened, alignment):
    assert opened(build_gguf({"general.alignment": u32(alignment)}, TENSORS)).status == native.OK


# ------------------------------------------------------------------------------------------------------ 8: tensors


@pytest.mark.parametrize("n_dims", [0, 5, 2**31])
def test_number_of_dimensions(opened, n_dims):
    data = build_gguf({}, [q8_tensor("t", n_dims=n_dims)])
    refused(opened(data), 'tensor "t"', f"{n_dims} dimensions", offset=33)


@pytest.mark.parametrize("dimension", [0, 2**40 + 1, 2**42 + 1, 2**63, TOP])
def test_dimensions(opened, dimension):
    for ne in ((dimension,), (32, dimension), (32, 1, dimension)):
        data = build_gguf({}, [Tensor("t", GGMLType.F32, ne, bytes(128))])
        refused(opened(data), 'tensor "t"', f"dimension {len(ne) - 1} is {dimension}", offset=37 + 8 * (len(ne) - 1))


@pytest.mark.parametrize("ne", [(2**31, 2**31), (2**40, 2**24), (2**32, 2**32), (2**40, 2**40, 2**40, 2**40)])
def test_products_and_sizes_that_wrap(opened, ne):
    refused(opened(build_gguf({}, [Tensor("t", GGMLType.F32, ne, bytes(128))])), 'tensor "t"')


def test_a_wrapping_product_is_named(opened):
    refused(opened(build_gguf({}, [Tensor("t", GGMLType.F32, (2**32, 2**32), b"")])), "product", "exceeds 64 bits")
    refused(opened(build_gguf({}, [Tensor("t", GGMLType.F32, (2**31, 2**31), b"")])), "size", "exceeds 64 bits")


@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38])
def test_removed_tensor_types(opened, type_id):
    refused(
        opened(build_gguf({}, [q8_tensor("t", n_dims=1, record=None)])[:45] + struct.pack("<IQ", type_id, 0)),
        'tensor "t"',
        f"removed tensor type {type_id} ",
        offset=45,
    )


@pytest.mark.parametrize("type_id", [42, 99, 2**32 - 1])
def test_unknown_tensor_types(opened, type_id):
    data = build_gguf({}, [Tensor("t", type_id, (32,), bytes(64))])
    refused(opened(data), 'tensor "t"', f"unknown tensor type {type_id} ", offset=45)


@pytest.mark.parametrize(
    ("type_", "n"), [(GGMLType.Q8_0, 33), (GGMLType.Q8_0, 16), (GGMLType.Q2_K, 32), (GGMLType.MXFP4, 31)]
)
def test_rows_are_whole_blocks(opened, type_, n):
    """Also when the total would be whole: 16 x 2 values of Q8_0 are one block, but no row is."""
    data = build_gguf({}, [Tensor("t", type_, (n, 32), bytes(4096))])
    refused(opened(data), 'tensor "t"', f"rows of {n} values", type_.name, offset=33)


def test_types_ds4_cannot_compute_with_are_still_readable(opened):
    assert opened(build_gguf({}, [Tensor("t", GGMLType.Q6_K, (256,), bytes(210))])).status == native.OK


# --------------------------------------------------------------------------------------------------- 9: tensor data


@pytest.mark.parametrize("offset", [1, 8, 31, 33])
def test_offsets_are_aligned(opened, offset):
    data = build_gguf({}, [q8_tensor("t", offset=offset)]) + bytes(64)
    refused(opened(data), 'tensor "t"', f"offset {offset} ", "alignment 32")


def test_alignment_that_comes_after_other_keys_counts_for_offsets(opened):
    tensors = [q8_tensor("a", offset=0), q8_tensor("b", offset=96)]
    data = build_gguf({"x": u32(1), "general.alignment": u32(64), "y": u32(1)}, tensors) + bytes(256)
    refused(opened(data), 'tensor "b"', "offset 96 ", "alignment 64")


@pytest.mark.parametrize("offset", [64, 1 << 40, 1 << 62])
def test_tensors_outside_the_file(opened, offset):
    data = build_gguf({}, [q8_tensor("t", offset=offset)])
    answer = refused(opened(data), 'tensor "t"', f"offset {offset} ", "34 bytes", f"the file has {len(data)} bytes")
    assert f"ends at byte {64 + offset + 34}," in answer.text


def test_a_tensor_whose_last_byte_is_outside(opened):
    data = build_gguf({}, [q8_tensor("t")])[: 64 + 34]
    assert opened(data).status == native.OK
    refused(opened(data[:-1]), 'tensor "t"', "ends at byte 98", "has 97 bytes", TRUNCATED)


@pytest.mark.parametrize("offset", [TOP - 31, TOP - 63, 2**63])
def test_offsets_that_wrap(opened, offset):
    refused(opened(build_gguf({}, [q8_tensor("t", offset=offset)])), 'tensor "t"', f"offset {offset} ")


def test_truncated_downloads_are_diagnosed(opened):
    """Cut by one byte, one page and half: the message tells the tensor, where it should end and the real size."""
    tensors = [Tensor(f"t{i}", GGMLType.F32, (4096,), bytes(16384)) for i in range(4)]
    data = build_gguf({}, tensors)
    assert len(data) % 16384 != 0
    for cut in (1, 4096, len(data) // 2):
        size = len(data) - cut
        first = next(i for i in range(4) if (len(data) - 65536) + 16384 * (i + 1) > size)
        refused(
            opened(data[:size]),
            f'tensor "t{first}"',
            f"byte {len(data) - 65536 + 16384 * (first + 1)}",
            f"the file has {size} bytes",
            TRUNCATED,
        )


def test_overlapping_tensors(opened):
    tensors = [q8_tensor("a", n=64), q8_tensor("b", offset=32)]
    refused(opened(build_gguf({}, tensors)), "overlap", '"a"', '"b"', "68 bytes")
    refused(opened(build_gguf({}, [q8_tensor("a", offset=64), q8_tensor("b", offset=64)]) + bytes(64)), "overlap")


def test_any_order_of_tensor_data_is_accepted(opened):
    tensors = [q8_tensor("a", offset=64), q8_tensor("b", offset=0)]
    assert opened(build_gguf({}, tensors)).status == native.OK


def test_duplicate_tensor_names(opened):
    refused(opened(build_gguf({}, [q8_tensor("a"), q8_tensor("b"), q8_tensor("a")])), 'duplicate tensor name "a"')


# --------------------------------------------------------------------------------------------- 12, 13: files, names


def test_things_that_are_not_regular_files(opened, tmp_path):
    for path, text in (
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
        ("/dev/null", "not a regular file"),
    ):
        answer = opened.path(path)
        assert answer.status == native.E_IO
        assert text in answer.text and os.fspath(path) in answer.text
    assert opened.path(tmp_path).text and opened.error.os_errno != 0


def test_a_fifo_is_refused_without_waiting(opened, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in opened.path(tmp_path / "pipe").text


def test_an_empty_path_and_null_arguments(opened):
    assert opened.path("").status == native.E_IO
    handle = ctypes.c_void_p()
    assert opened.lib.ds4_gguf_open(None, ctypes.byref(handle), None) == native.E_ARGUMENT
    assert opened.lib.ds4_gguf_open(b"x", None, None) == native.E_ARGUMENT
    opened.lib.ds4_gguf_close(None)


def test_names_in_messages_are_escaped_and_cut(opened):
    key = "evil\n\x1b[2J" + "x" * 200
    text = refused(opened(build_gguf([(key, u32(1)), (key, u32(1))], TENSORS))).text
    assert r"evil\x0a\x1b[2Jxxx" in text and "..." in text
    assert text.isprintable() and len(text) < 300


# --------------------------------------------------------------------------------------------------- systematically


def test_every_truncation_is_refused_with_a_message(opened):
    """The one exception is a cut inside the padding after the last tensor, which holds nothing."""
    data = build_gguf(METADATA, TENSORS)
    payload_end = len(data) - 256 + 210
    for size in range(len(data)):
        answer = opened(data[:size])
        if size >= payload_end:
            assert answer.status == native.OK
        else:
            refused(answer, TRUNCATED)


def test_every_changed_header_byte_is_refused_or_harmless(opened):
    """No byte of the header can make the reader crash or hand out a place outside the file."""
    data = bytearray(build_gguf(METADATA, TENSORS))
    header = len(data) - 64 - 64 - 256
    outcomes = {native.OK: 0, native.E_FORMAT: 0}
    for at in range(header):
        old = data[at]
        for value in {old ^ 1, old ^ 0x80, 0, 255, (old + 1) % 256, (old - 1) % 256} - {old}:
            data[at] = value
            outcomes[opened(bytes(data)).status] += 1
        data[at] = old
    assert outcomes[native.E_FORMAT] > 1000
    assert outcomes[native.OK] > 100


def test_fields_of_one_tensor_can_be_replaced(opened):
    """The helper the tests above rely on changes the record and nothing else."""
    changed = with_fields(TENSORS, "b", offset=32)
    assert opened(build_gguf(METADATA, TENSORS)).status == native.OK
    refused(opened(build_gguf(METADATA, changed)), 'tensor "b"', "offset 32 ")
