"""Directions: what becomes of values, files of both forms, and files that are not what they say."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds4.steering import Steering, SteeringDirections, as_steering, contrast
from numpy.typing import NDArray


@pytest.fixture
def directions() -> SteeringDirections:
    values = np.random.default_rng(0).standard_normal((3, 8))
    values[1] = 0
    return SteeringDirections(values, notes={"component": "ffn_out", "good_prompts": 4})


# ---------------------------------------------------------------------------------------- values


def test_rows_are_unit_vectors(directions: SteeringDirections) -> None:
    np.testing.assert_allclose(np.linalg.norm(directions.values, axis=1), [1, 0, 1], atol=1e-6)
    assert (directions.n_layer, directions.n_embd, directions.layers) == (3, 8, [0, 2])
    assert not directions.values.flags.writeable
    again = SteeringDirections(directions.values)
    assert again == directions and hash(again) == hash(directions), "unit vectors keep their bits"
    assert again.fingerprint == directions.fingerprint
    assert SteeringDirections(directions.values * 3e30).values[0] == pytest.approx(directions.values[0], abs=1e-6)
    assert SteeringDirections(-directions.values) != directions
    assert directions != 3


def test_a_copy_is_made() -> None:
    values = np.eye(2, 4, dtype=np.float32)
    made = SteeringDirections(values)
    values[0, 0] = 5
    assert made.values[0, 0] == 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros(4), "shape"),
        (np.zeros((0, 4)), "shape"),
        (np.zeros((2, 3, 4)), "shape"),
        ([[1.0, np.nan]], "value 1 of layer 0 is nan"),
        ([[1.0, 0], [-np.inf, 0]], "value 0 of layer 1 is -inf"),
    ],
)
def test_values_that_are_none(values: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SteeringDirections(values)


def test_some_layers_only(directions: SteeringDirections) -> None:
    one = directions.only([2])
    assert one.layers == [2]
    np.testing.assert_array_equal(one.values[2], directions.values[2])
    assert directions.only([]).layers == []
    for layers in ([3], [-1, 0]):
        with pytest.raises(ValueError, match=r"0\.\.2"):
            directions.only(layers)


def test_scales_and_places(directions: SteeringDirections) -> None:
    assert (Steering(directions).ffn, Steering(directions).attn) == (1.0, 0.0)
    assert Steering(directions, 0.5, -2.0).times(-2).attn == 4.0
    with pytest.raises(ValueError, match="ffn is 200"):
        Steering(directions, 2.0).times(100)
    assert Steering.in_place(directions, 0.5) == Steering(directions, ffn=0.5)
    attn = SteeringDirections(directions.values, notes={"component": "attn_out"})
    assert Steering.in_place(attn, 0.5) == Steering(attn, ffn=0.0, attn=0.5)
    one = Steering(directions)
    assert as_steering(None) == () and as_steering(one) == (one,) and as_steering(iter([one, one])) == (one, one)


# ---------------------------------------------------------------------------------------- making them


def outputs(seed: int, n: int = 20) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((n, 3, 64))


def test_contrast_finds_what_was_put_in() -> None:
    truth = np.linalg.qr(np.random.default_rng(9).standard_normal((64, 3)))[0].T
    shift = 40 * truth
    for options in ({}, {"pairs": True}, {"orthogonal": False}):
        found = contrast(outputs(1) + shift, outputs(2), **options).values  # type: ignore[arg-type]
        assert np.all((found * truth).sum(1) > 0.95)


def test_orthogonal_to_the_bad_mean() -> None:
    good, bad = outputs(1) + 3, outputs(2) + 5
    mean = bad.mean(0)
    kept, raw = contrast(good, bad).values, contrast(good, bad, orthogonal=False).values
    np.testing.assert_allclose((kept * mean).sum(1), 0, atol=1e-5)
    assert np.abs((raw * mean).sum(1)).min() > 1
    difference = good.mean(0) - bad.mean(0)
    np.testing.assert_allclose(raw, difference / np.linalg.norm(difference, axis=1)[:, None], atol=1e-6)


def test_pairs_count_alike() -> None:
    """One pair whose difference is huge does not decide."""
    bad = outputs(3, 9)
    good = bad.copy()
    good[:8, :, 0] += 1
    good[8, :, 1] += 1e6
    assert contrast(good, bad, orthogonal=False).values[:, 1].min() > 0.99
    assert contrast(good, bad, pairs=True, orthogonal=False).values[:, 0].min() > 0.95


def test_nothing_left_is_zero() -> None:
    bad = outputs(4)
    assert contrast(bad, bad).layers == []
    assert contrast(2 * bad[:1], bad[:1]).layers == [], "all of it lies along the bad mean"
    assert contrast(2 * bad[:1], bad[:1], orthogonal=False).layers == [0, 1, 2]


def test_outputs_that_do_not_fit() -> None:
    a = outputs(1)
    for good, bad in [(a[0], a), (a, a[:, :2]), (a[:0], a)]:
        with pytest.raises(ValueError, match="wanted"):
            contrast(good, bad)
    with pytest.raises(ValueError, match="no pairs"):
        contrast(a, a[:3], pairs=True)
    with pytest.raises(ValueError, match="finite"):
        contrast(np.where(a == a[3, 1, 2], np.inf, a), a)


# ---------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["a b.npz", "d.json", "d.f32"])
def test_a_file_and_back(tmp_path: Path, directions: SteeringDirections, name: str) -> None:
    path = tmp_path / name
    directions.save(path)
    for options in ({}, {"n_layer": 3, "n_embd": 8}):
        back = SteeringDirections.load(path, **options)  # type: ignore[arg-type]
        assert back == directions
        assert dict(back.notes) == dict(directions.notes)
    directions.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ([name] if name.endswith("npz") else ["d.f32", "d.json"]), (
        "nothing else is left"
    )
    with pytest.raises(ValueError, match=r"3 layers of 8, the model has 5 layers of 8"):
        SteeringDirections.load(path, n_layer=5, n_embd=8)


def test_bare_values_as_other_programs_write_them(tmp_path: Path, directions: SteeringDirections) -> None:
    path = tmp_path / "d.f32"
    path.write_bytes(directions.values.astype("<f4").tobytes())
    assert SteeringDirections.load(path, n_layer=3, n_embd=8) == directions
    with pytest.raises(ValueError, match="shape is not known"):
        SteeringDirections.load(path)
    with pytest.raises(ValueError, match=r"take 128 bytes, d\.f32 has 96"):
        SteeringDirections.load(path, n_layer=4, n_embd=8)
    (tmp_path / "d.json").write_text(json.dumps({"shape": [3, 8], "component": "attn_out"}))
    assert SteeringDirections.load(path).notes["component"] == "attn_out"


@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "no n_layer"),
        ('{"n_layer": 3}', "no n_layer and n_embd"),
        ('{"n_layer": "3", "n_embd": 8}', "no whole number"),
        ('{"n_layer": true, "n_embd": 24}', "no whole number"),
        ('{"n_layer": 0, "n_embd": 8}', "0 x 8"),
        ('{"n_layer": -3, "n_embd": -8}', "-3 x -8"),
        ('{"n_layer": 1000000, "n_embd": 1000000}', "1000000 x 1000000"),
        ('{"n_layer": 3, "n_embd": 9}', "take 108 bytes"),
        ('{"shape": [3]}', "no n_layer"),
        ('{"shape": "3x8"}', "no n_layer"),
        ("\xff", "no JSON"),
        (" " * (1 << 20) + "{}", "more than"),
    ],
)
def test_notes_that_are_none(tmp_path: Path, directions: SteeringDirections, notes: str, text: str) -> None:
    directions.save(tmp_path / "d.json")
    (tmp_path / "d.json").write_bytes(notes.encode("latin-1"))
    for name in ("d.f32", "d.json"):
        with pytest.raises(ValueError, match=text) as raised:
            SteeringDirections.load(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def bomb() -> bytes:
    """A member that says it is much larger than it is."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as box:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (5000, 5000)})
        box.writestr("directions.npy", head.getvalue() + bytes(100_000_000))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "damaged"),
        (npz(directions=np.zeros((0, 4))), "shape"),
        (b"version https://git-lfs.github.com/spec/v1\n", "damaged"),
        (npz(other=np.eye(3)), "no array named directions, but other"),
        (npz(directions=np.arange(6).reshape(2, 3)), "wanted is float32"),
        (npz(directions=np.ones(3)), "wanted is float32"),
        (npz(directions=np.array([{}, {}], dtype=object)), "holds objects"),
        (npz(directions=np.full((2, 3), np.nan)), "value 0 of layer 0 is nan"),
        (npz(directions=np.eye(3), notes=np.array("{")), "notes in it are no JSON"),
        (npz(directions=np.eye(3), notes=np.array("[]")), "no JSON object"),
        (npz(directions=np.full((2, 3), 1e300)), "inf"),
    ],
)
def test_npz_files_that_are_none(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(data)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=text) as raised:
        SteeringDirections.load(path)
    assert str(path) in str(raised.value)


def test_a_small_file_that_unpacks_to_much(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(bomb())
    with pytest.raises(ValueError, match="more than 67108864 bytes"):
        SteeringDirections.load(path)


def test_every_truncation_and_flipped_byte(tmp_path: Path, directions: SteeringDirections) -> None:
    path = tmp_path / "d.npz"
    directions.save(path)
    good = path.read_bytes()
    for cut in range(0, len(good), 7):
        path.write_bytes(good[:cut])
        with pytest.raises(ValueError):
            SteeringDirections.load(path)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x41
        path.write_bytes(bad)
        try:  # some bytes say nothing: dates, attributes
            found = SteeringDirections.load(path)
        except ValueError:
            continue
        assert found == directions, f"byte {at}"


def test_names_and_places(tmp_path: Path, directions: SteeringDirections) -> None:
    with pytest.raises(ValueError, match=r"\.npz"):
        directions.save(tmp_path / "d.bin")
    with pytest.raises(FileNotFoundError):
        directions.save(tmp_path / "none" / "d.npz")
    for name in ("d.npz", "d.json", "d.f32"):
        with pytest.raises(FileNotFoundError):
            SteeringDirections.load(tmp_path / name, n_layer=3, n_embd=8)
    with pytest.raises(ValueError):
        SteeringDirections(directions.values, notes={"x": float("nan")}).save(tmp_path / "d.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_leaves_what_was(tmp_path: Path, directions: SteeringDirections, monkeypatch: Any) -> None:
    path = tmp_path / "d.npz"
    directions.save(path)
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        directions.only([0]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["d.npz"]
