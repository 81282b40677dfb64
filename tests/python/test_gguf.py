"""The Python face of GGUF files; what a sound file is, is tested with the reader."""

from __future__ import annotations

import gc
import struct
from pathlib import Path

import ds4
import numpy as np
import pytest
from ds4 import gguf
from support.gguf_write import ValueType, array, boolean, f32, i32, string, tensor_f32, tensor_i32, u8, u64, write_gguf

TOKENS = 129_280


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a value of every kind and two tensors."""
    metadata = {
        "general.architecture": string("nothing known"),
        "a.byte": u8(255),
        "a.int": i32(-5),
        "a.long": u64(2**64 - 1),
        "a.float": f32(0.5),
        "a.flag": boolean(True),
        "an.empty": array(ValueType.I32, []),
        "an.array": array(ValueType.I16, [1, -2, 3]),
        "an.array.of.flags": array(ValueType.BOOL, [True, False]),
        "some.texts": array(ValueType.STRING, ["", "née", b"\xff\x00z"]),
        "many.texts": array(ValueType.STRING, [f"Ġtoken{i}" for i in range(TOKENS)]),
    }
    tensors = [
        tensor_f32("weights", np.arange(6, dtype=np.float32).reshape(2, 3)),
        tensor_i32("ids", np.array([[7, -1]], dtype=np.int32)),
    ]
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", metadata, tensors)


def test_metadata_are_plain_python_values(small: Path) -> None:
    with ds4.GGUFFile(small) as file:
        meta = file.metadata
        assert meta["general.architecture"] == "nothing known"
        assert (meta["a.byte"], meta["a.int"], meta["a.long"], meta["a.float"]) == (255, -5, 2**64 - 1, 0.5)
        assert meta["a.flag"] is True
        assert meta["an.empty"] == []
        assert meta["an.array"] == [1, -2, 3]
        assert meta["an.array.of.flags"] == [True, False]
        assert meta.count("an.array") == 3
        assert meta.count("a.int") is None
        assert "a.int" in meta and "a.nothing" not in meta
        assert meta.get("a.nothing", 3) == 3
        with pytest.raises(KeyError, match=r"a\.nothing"):
            meta["a.nothing"]
        assert list(meta)[:2] == ["general.architecture", "a.byte"], "file order"


def test_text_that_is_no_utf8_survives(small: Path) -> None:
    """Bytes that are not UTF-8 come as lone surrogates and encode back to what the file holds."""
    with ds4.GGUFFile(small) as file:
        texts = file.metadata["some.texts"]
    assert texts[:2] == ["", "née"]
    assert texts[2].encode("utf-8", "surrogateescape") == b"\xff\x00z"


def test_a_token_table_is_decoded_once(small: Path) -> None:
    with ds4.GGUFFile(small) as file:
        texts = file.metadata["many.texts"]
        assert len(texts) == TOKENS
        assert texts[-1] == f"Ġtoken{TOKENS - 1}"
        assert file.metadata["many.texts"] is texts


def test_arrays_of_arrays_are_lists_of_lists(tmp_path: Path) -> None:
    """ds4 needs none, but a sound file may hold them."""
    value = struct.pack("<IIQ", 9, 9, 2)  # an array of two arrays
    value += struct.pack("<IQhh", ValueType.I16, 2, -1, 5)
    value += struct.pack("<IQQ1s", ValueType.STRING, 1, 1, b"x")
    key = b"nested"
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + value
    path = tmp_path / "nested.gguf"
    path.write_bytes(data + bytes(-len(data) % 32))
    with ds4.GGUFFile(path) as file:
        assert file.metadata["nested"] == [[-1, 5], ["x"]]


def test_tensors_tell_their_directory_and_values(small: Path) -> None:
    with ds4.GGUFFile(small) as file:
        weights, ids = file.tensors["weights"], file.tensors["ids"]
        assert (weights.type, weights.ne, weights.shape, weights.size) == ("F32", (3, 2), (2, 3), 6)
        assert weights.n_bytes == 24
        assert weights.offset >= file.data_offset
        assert weights.offset % file.alignment == 0
        np.testing.assert_array_equal(weights.numpy(), np.arange(6, dtype=np.float32).reshape(2, 3))
        assert ids.numpy().dtype == np.int32
        np.testing.assert_array_equal(ids.numpy(), [[7, -1]])
        assert bytes(weights.data()) == np.arange(6, dtype="<f4").tobytes()
        assert weights.data().readonly
        assert list(file.tensors) == ["weights", "ids"]
        assert file.file_bytes == small.stat().st_size
        assert file.version == 3


def test_a_view_outlives_the_file(small: Path) -> None:
    """Bytes of a tensor stay mapped as long as somebody holds them, closed or not."""
    file = ds4.GGUFFile(small)
    view = np.frombuffer(file.tensors["weights"].data(), dtype="<f4")
    file.close()
    del file
    gc.collect()
    assert view.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_closed_file_says_so(small: Path) -> None:
    file = ds4.GGUFFile(small)
    file.close()
    file.close()
    assert file.closed
    for use in (lambda: file.metadata, lambda: file.tensors, lambda: file.version):
        with pytest.raises(ds4.ClosedError, match="small"):
            use()
    assert "closed" in repr(file)


def test_a_file_that_cannot_be_opened_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        ds4.GGUFFile(tmp_path / "nothing.gguf")
    assert caught.value.filename == str(tmp_path / "nothing.gguf")
    with pytest.raises(IsADirectoryError):
        ds4.GGUFFile(tmp_path)
    with pytest.raises(ValueError, match="NUL"):
        ds4.GGUFFile("a\0b")


def test_a_damaged_file_tells_path_and_offset(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    data[24:32] = b"\xff" * 8  # length of the first key
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ds4.ModelFileError, match=r"bad\.gguf") as caught:
        ds4.GGUFFile(path)
    assert caught.value.path == str(path)
    assert caught.value.offset is not None


def test_types_are_known_by_id_and_name() -> None:
    q8 = gguf.type_info("q8_0")
    assert (q8.id, q8.name, q8.block_elements, q8.block_bytes) == (8, "Q8_0", 32, 34)
    assert gguf.type_info(8) == q8
    assert q8.n_bytes(64) == 68
    with pytest.raises(ValueError, match="33"):
        q8.n_bytes(33)
    for unknown in ("Q8_9", 4711, -1):
        with pytest.raises(ValueError, match="unknown tensor type"):
            gguf.type_info(unknown)


@pytest.mark.parametrize(("name", "tolerance"), [("F32", 0.0), ("F16", 2**-11), ("BF16", 2**-8), ("Q8_0", 2**-7)])
def test_what_is_encoded_decodes_again(name: str, tolerance: float) -> None:
    values = np.random.default_rng(1).uniform(-1, 1, (3, 64)).astype(np.float32)
    stored = gguf.quantize(name, values)
    assert len(stored) == gguf.type_info(name).n_bytes(values.size)
    np.testing.assert_allclose(gguf.dequantize(name, stored).reshape(3, 64), values, atol=tolerance)


def test_wrong_amounts_are_refused() -> None:
    with pytest.raises(ValueError, match="31 values"):
        gguf.quantize("Q8_0", np.zeros(31))
    with pytest.raises(ValueError, match="33 bytes"):
        gguf.dequantize("Q8_0", bytes(33))
    with pytest.raises(ValueError, match="take 68 bytes, not 34"):
        gguf.dequantize("Q8_0", bytes(34), 64)
    with pytest.raises(ds4.UnsupportedModelError):
        gguf.quantize("Q6_K", np.zeros(256))
    assert gguf.dequantize("F32", b"").shape == (0,)
