"""Directions in the outputs of layers, and steering by them: files, arithmetic, and what a session is given.

A direction is one unit vector d a layer. Steering changes the output y of attention or of the FFN to
y - scale * (d . y) * d, before it goes into the residual streams: a scale of 1 takes the direction out, a negative one
amplifies it. docs/steering.md tells the whole of it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MAX_DIRECTIONS", "MAX_SCALE", "Steering", "SteeringDirections", "as_steering", "contrast"]

Floats = NDArray[np.float32]

MAX_SCALE = 100.0
"""Scales lie in -MAX_SCALE..MAX_SCALE."""
MAX_DIRECTIONS = 8
"""Directions that act at a time."""

_UNIT = 1e-4  # a row whose length is that close to 1 is a unit vector, and keeps its bits
_MOST_NOTES = 1 << 20  # bytes of a .json file
_MOST_VALUES = 1 << 24  # of a file: 256 layers of 65536


class SteeringDirections:
    """One direction a layer, in the space of the layers' outputs.

    Parameters
    ----------
    values : array_like of float32, shape (n_layer, n_embd)
        Copied. Rows are brought to length 1; a row of zeros leaves its layer alone.
    notes : mapping, optional
        What is known of them, for the .json file; values as JSON has them.

    Raises
    ------
    ValueError
        Another number of dimensions, no values at all, or one that is not finite. The text names it.
    """

    __slots__ = ("_notes", "_values")

    def __init__(self, values: ArrayLike, *, notes: Mapping[str, Any] | None = None) -> None:
        rows = np.array(values, dtype=np.float32, order="C")
        if rows.ndim != 2 or not rows.size:
            raise ValueError(f"directions are an array (n_layer, n_embd), not one of shape {rows.shape}")
        if not np.isfinite(rows).all():
            layer, at = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise ValueError(f"value {at} of layer {layer} is {rows[layer, at]}; directions are finite")
        wide = rows.astype(np.float64)
        lengths = np.sqrt((wide * wide).sum(axis=1))
        change = (lengths > 0) & (np.abs(lengths - 1) > _UNIT)
        rows[change] = (wide[change] / lengths[change, None]).astype(np.float32)
        rows.flags.writeable = False
        self._values = rows
        self._notes: Mapping[str, Any] = MappingProxyType(dict(notes or {}))

    @property
    def values(self) -> Floats:
        """The unit vectors, float32 (n_layer, n_embd), not writable."""
        return self._values

    @property
    def notes(self) -> Mapping[str, Any]:
        """What is known of them."""
        return self._notes

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(self._values.shape[0])

    @property
    def n_embd(self) -> int:
        """Width of a layer's output."""
        return int(self._values.shape[1])

    @property
    def layers(self) -> list[int]:
        """Layers that have a direction: those whose row is not zero."""
        return [int(i) for i in np.flatnonzero(self._values.any(axis=1))]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the values, as 64 hexadecimal digits."""
        return hashlib.sha256(self._values.tobytes()).hexdigest()

    def only(self, layers: Iterable[int]) -> Self:
        """Return these directions in some layers, with zeros in the others.

        Raises
        ------
        ValueError
            There is no such layer.
        """
        wanted = sorted(set(layers))
        if wanted and (wanted[0] < 0 or wanted[-1] >= self.n_layer):
            raise ValueError(f"layers are 0..{self.n_layer - 1}, not {wanted[0]}..{wanted[-1]}")
        values = np.zeros_like(self._values)
        values[wanted] = self._values[wanted]
        return type(self)(values, notes=self._notes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SteeringDirections):
            return NotImplemented
        return self._values.shape == other._values.shape and self._values.tobytes() == other._values.tobytes()

    def __hash__(self) -> int:
        return hash((self._values.shape, self._values.tobytes()))

    def __repr__(self) -> str:
        return f"SteeringDirections({self.n_layer} layers of {self.n_embd}, {self.fingerprint[:12]})"

    # Files

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, n_layer: int | None = None, n_embd: int | None = None) -> Self:
        """Read a file: `.npz`, `.json` beside which the values lie, or `.f32`.

        Parameters
        ----------
        path : path-like
            A `.f32` file holds float32 values, little-endian, layer after layer; its shape stands in the `.json` file
            of the same name, or is given here.
        n_layer, n_embd : int, optional
            The shape that is wanted, a model's.

        Raises
        ------
        OSError
            A file cannot be read.
        ValueError
            It is damaged, of another shape or holds values that are not finite; the text names the file.
        """
        path = Path(path)
        try:
            if path.suffix == ".npz":
                values, notes = _read_npz(path)
            else:
                values, notes = _read_f32(path, n_layer, n_embd)
            if n_layer is not None and n_embd is not None and values.shape != (n_layer, n_embd):
                raise ValueError(f"it has {_shape(values.shape)}, the model has {_shape((n_layer, n_embd))}")
            return cls(values, notes=notes)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, by the end of its name: `.npz`, or `.json` and beside it `.f32`, whichever of both is named.

        A file that is there is replaced when the new one is whole.

        Raises
        ------
        OSError
            It cannot be written.
        ValueError
            The name has another ending, or the notes are no JSON.
        """
        path = Path(path)
        notes = json.dumps({**self._notes, "n_layer": self.n_layer, "n_embd": self.n_embd}, indent=2, allow_nan=False)
        if path.suffix == ".npz":
            with _Replaced(path) as place, place.open("wb") as file:
                np.savez(file, directions=self._values, notes=np.array(notes))
        elif path.suffix in (".json", ".f32"):
            with _Replaced(path.with_suffix(".f32")) as place:
                place.write_bytes(self._values.astype("<f4").tobytes())
            with _Replaced(path.with_suffix(".json")) as place:
                place.write_text(notes + "\n", encoding="utf-8")
        else:
            raise ValueError(f"{path}: directions are written as .npz, or as .json with .f32")


@dataclass(frozen=True, slots=True)
class Steering:
    """A direction with its scales.

    Attributes
    ----------
    directions : SteeringDirections
    ffn, attn : float
        Scales for the output of the FFN and of attention, in -100..100: positive takes the direction out (1: all of
        it), negative amplifies it, 0 does nothing.
    """

    directions: SteeringDirections
    ffn: float = 1.0
    attn: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ffn", "attn"):
            scale = getattr(self, name)
            if not abs(scale) <= MAX_SCALE:
                raise ValueError(f"{name} is {scale}; a scale lies in -{MAX_SCALE:g}..{MAX_SCALE:g}")

    @classmethod
    def in_place(cls, directions: SteeringDirections, scale: float = 1.0) -> Self:
        """Return the steering of the outputs that the directions were made of; of the FFN if they do not say."""
        if directions.notes.get("component") == "attn_out":
            return cls(directions, ffn=0.0, attn=scale)
        return cls(directions, ffn=scale, attn=0.0)

    def times(self, factor: float) -> Steering:
        """Return the same with both scales multiplied."""
        return Steering(self.directions, self.ffn * factor, self.attn * factor)


def as_steering(steering: Steering | Iterable[Steering] | None) -> tuple[Steering, ...]:
    """Return what a session is to be steered with, as a tuple.

    Raises
    ------
    ValueError
        There are more than MAX_DIRECTIONS.
    TypeError
        One is no Steering.
    """
    if steering is None:
        return ()
    all_ = (steering,) if isinstance(steering, Steering) else tuple(steering)
    for one in all_:
        if not isinstance(one, Steering):
            raise TypeError(f"a Steering is wanted, not {type(one).__name__}")
    if len(all_) > MAX_DIRECTIONS:
        raise ValueError(f"{len(all_)} directions; at most {MAX_DIRECTIONS} act at a time")
    return all_


def contrast(
    good: ArrayLike, bad: ArrayLike, *, pairs: bool = False, orthogonal: bool = True
) -> SteeringDirections:  # fmt: skip
    """Return the directions from the outputs of one kind of prompts to those of another.

    Parameters
    ----------
    good, bad : array_like, shape (n_prompts, n_layer, n_embd)
        An output of every layer for every prompt. Both hold at least one prompt.
    pairs : bool
        good[i] and bad[i] belong together: the direction is the mean of their differences, each brought to length 1.
        Else it is the difference of the means.
    orthogonal : bool
        Take out of it what lies along the mean of `bad`, so that steering leaves the common part alone.

    Returns
    -------
    SteeringDirections
        A layer in which nothing is left has zeros.

    Raises
    ------
    ValueError
        The shapes do not fit, or a value is not finite.
    """
    a, b = np.asarray(good, dtype=np.float64), np.asarray(bad, dtype=np.float64)
    if a.ndim != 3 or b.ndim != 3 or a.shape[1:] != b.shape[1:] or not a.size or not b.size:
        raise ValueError(f"outputs of shapes {a.shape} and {b.shape}; wanted are (prompts, n_layer, n_embd) twice")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("an output is not finite")
    mean = b.mean(axis=0)
    if pairs:
        if len(a) != len(b):
            raise ValueError(f"{len(a)} and {len(b)} prompts are no pairs")
        rows = _unit(a - b, np.abs(a).max(axis=-1, keepdims=True)).mean(axis=0)
    else:
        rows = a.mean(axis=0) - mean
    size = np.linalg.norm(mean, axis=-1, keepdims=True)
    rows = _unit(rows, size)
    if orthogonal:
        along = _unit(mean, 0.0)
        rows = _unit(rows - (rows * along).sum(axis=-1, keepdims=True) * along, 1.0)
    return SteeringDirections(rows.astype(np.float32))


def _unit(rows: NDArray[np.float64], size: Any) -> NDArray[np.float64]:
    """Bring rows to length 1; those that are only rounding errors of values of `size` to 0."""
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    keep = (length > 1e-7 * size) & (length > 0)
    return np.where(keep, rows / np.where(keep, length, 1.0), 0.0)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape) + " values" if len(shape) != 2 else f"{shape[0]} layers of {shape[1]}"


def _read_f32(path: Path, n_layer: int | None, n_embd: int | None) -> tuple[Floats, dict[str, Any]]:
    beside = path.with_suffix(".json")
    notes: dict[str, Any] = {}
    if beside.is_file() or path.suffix == ".json":
        notes = _read_notes(beside)
        try:
            shape = tuple(int(notes.pop(name)) for name in ("n_layer", "n_embd"))
        except KeyError:
            shape = _named_shape(notes)
    elif n_layer is not None and n_embd is not None:
        shape = (n_layer, n_embd)
    else:
        raise ValueError(f"the shape is not known: there is no {beside.name} beside it")
    if min(shape) < 1 or shape[0] * shape[1] > _MOST_VALUES:
        raise ValueError(f"{beside.name} has the shape {shape[0]} x {shape[1]}")
    values = path if path.suffix != ".json" else path.with_suffix(".f32")
    size, wanted = values.stat().st_size, shape[0] * shape[1] * 4
    if size != wanted:
        raise ValueError(f"{_shape(shape)} take {wanted} bytes, {values.name} has {size}")
    return np.fromfile(values, dtype="<f4").reshape(shape), notes


def _named_shape(notes: dict[str, Any]) -> tuple[int, ...]:
    """Take the shape out of notes that write it as a list."""
    shape = notes.pop("shape", None)
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int for n in shape):
        raise ValueError("the notes have no n_layer and n_embd")
    return (shape[0], shape[1])


def _read_notes(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MOST_NOTES:
        raise ValueError(f"{path.name} has more than {_MOST_NOTES} bytes")
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from None
    if not isinstance(notes, dict):
        raise ValueError(f"{path.name} is no JSON object")
    for name in ("n_layer", "n_embd"):
        if name in notes and type(notes[name]) is not int:
            raise ValueError(f"{name} in {path.name} is no whole number")
    return notes


def _read_npz(path: Path) -> tuple[Floats, dict[str, Any]]:
    if path.stat().st_size > _MOST_VALUES * 4 + 2 * _MOST_NOTES:
        raise ValueError(f"it has {path.stat().st_size} bytes")
    data = io.BytesIO(path.read_bytes())
    try:
        with zipfile.ZipFile(data) as box:
            names = [entry.filename for entry in box.infolist()]
            if "directions.npy" not in names:
                raise ValueError(f"it has no array named directions, but {', '.join(names) or 'nothing'}")
            values = _read_npy(box, "directions", _MOST_VALUES * 4)
            text = str(_read_npy(box, "notes", _MOST_NOTES * 4)) if "notes.npy" in names else "{}"
    except (
        zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, OSError, RuntimeError, OverflowError
    ) as error:  # fmt: skip
        raise ValueError(f"it is damaged: {error}") from None
    if values.dtype.kind != "f" or values.ndim != 2:
        raise ValueError(f"directions has {values.dtype}, shape {values.shape}; wanted is float32 (n_layer, n_embd)")
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the notes in it are no JSON: {error}") from None
    if not isinstance(notes, dict):
        raise ValueError("the notes in it are no JSON object")
    for name in ("n_layer", "n_embd"):
        notes.pop(name, None)
    with np.errstate(over="ignore"):  # what does not fit float32 is refused as infinite
        return values.astype(np.float32), notes


def _read_npy(box: zipfile.ZipFile, name: str, most: int) -> NDArray[Any]:
    """Read an array of a .npz without objects; its size is checked before its memory is taken."""
    with box.open(f"{name}.npy") as member:
        data = member.read(most + 1024)
        if len(data) >= most + 1024 or member.read(1):
            raise ValueError(f"{name} in it has more than {most} bytes")
    body = io.BytesIO(data)
    version = np.lib.format.read_magic(body)
    if version == (1, 0):
        shape, column_major, dtype = np.lib.format.read_array_header_1_0(body)
    elif version == (2, 0):
        shape, column_major, dtype = np.lib.format.read_array_header_2_0(body)
    else:
        raise ValueError(f"{name} in it has version {version} of its format")
    if dtype.hasobject:
        raise ValueError(f"{name} in it holds objects")
    count, left = math.prod(shape), len(data) - body.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(f"{name} in it has {left} bytes, its shape {shape} of {dtype} says something else")
    values = np.frombuffer(data, dtype=dtype, count=count, offset=body.tell()) if count else np.zeros(0, dtype)
    return values.reshape(shape, order="F" if column_major else "C")


class _Replaced:
    """A file under another name beside its own, which takes its name when the block ends well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        return self._place

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self._place.replace(self._path)
        finally:
            self._place.unlink(missing_ok=True)


def native_list(steering: tuple[Steering, ...]) -> list[tuple[Floats, float, float]]:
    """Return them as the native session takes them."""
    return [(one.directions.values, float(one.ffn), float(one.attn)) for one in steering]
