"""Importance data in memory: squared inputs of each matrix, summed over the tokens that reached it.

The importance of an input column is the mean of its squares. A matrix that no token reached (an expert that was never
chosen) has a count of 0; its importance is all ones, as importance files say it, and `Imatrix.observed` tells it from
one that was measured.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .errors import ImatrixError
from .names import entry_names, is_stack

FORMATS = ("dat", "gguf")

# (values of gate, values of down) of a layer -> experts: Flash and Pro. A .dat does not say how it is divided.
_PUBLISHED = {(256 * 4096, 256 * 2048): 256, (384 * 7168, 384 * 3072): 384}


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The importance of one tensor.

    Attributes
    ----------
    sums : ndarray of float32 or float64, shape (n_matrices, n_columns)
        Sums of squares of the inputs of each matrix.
    counts : ndarray of float64, shape (n_matrices,)
        Over how many tokens. 0: never observed.
    divided : bool
        False for an entry of a .dat file whose division into matrices is not known yet: all of its values are one row.
    """

    sums: NDArray[Any]
    counts: NDArray[np.float64]
    divided: bool = True

    @property
    def n_matrices(self) -> int:
        """Number of matrices."""
        return int(self.sums.shape[0])

    @property
    def n_columns(self) -> int:
        """Input columns of a matrix."""
        return int(self.sums.shape[1])

    def mean(self, matrix: int = 0) -> NDArray[np.float32]:
        """Return the mean squares of one matrix, float32 (n_columns,); ones if it was never observed."""
        if self.counts[matrix] <= 0:
            return np.ones(self.n_columns, dtype=np.float32)
        with np.errstate(over="ignore"):  # whoever writes a mean beyond float32 says so
            mean: NDArray[np.float32] = (self.sums[matrix].astype(np.float64) / self.counts[matrix]).astype(np.float32)
        return mean

    def divide(self, n_matrices: int) -> Entry:
        """Return an undivided entry as that of `n_matrices` matrices. Rows of ones become unobserved ones.

        Raises
        ------
        ValueError
            The number of values is not a multiple of `n_matrices`.
        """
        if self.divided:
            return self
        if n_matrices < 1 or self.sums.size % n_matrices:
            raise ValueError(f"{self.sums.size} values cannot be divided among {n_matrices} matrices")
        sums = self.sums.reshape(n_matrices, -1)
        counts = np.full(n_matrices, self.counts[0])
        unobserved = (sums == np.float32(self.counts[0])).all(axis=1)
        if unobserved.any():
            counts[unobserved] = 0
            sums = np.where(unobserved[:, None], np.float32(0), sums)
        return Entry(sums, counts)


@dataclass(frozen=True, slots=True)
class Gaps:
    """What an importance file lacks for a model; the values are matrix (expert) numbers.

    Attributes
    ----------
    missing : dict of str to tuple of int
        Matrices without an entry, by tensor.
    unobserved : dict of str to tuple of int
        Matrices with an entry that no token reached, by tensor.
    """

    missing: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unobserved: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unobserved)


class Imatrix:
    """The importance data of a model: entries by tensor name.

    Parameters
    ----------
    entries : mapping of str to Entry
        By GGUF tensor name.
    source : str
        The file it came from; "" for data that was just collected.
    datasets : iterable of str
        Names of the texts it was collected on.
    n_chunks : int
        Number of prompts or chunks of text, as the collector counted; informative only.
    chunk_size : int
        Tokens of a chunk at most, 0 if unknown.
    counted : bool
        Whether counts are numbers of tokens. False for a .dat file, which holds means.

    Examples
    --------
    >>> imatrix = Imatrix.read("flash.dat")
    >>> importance = imatrix.lookup("blk.3.ffn_gate_exps.weight", n_columns=4096, n_matrices=256, matrix=17)
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        *,
        source: str = "",
        datasets: Iterable[str] = (),
        n_chunks: int = 0,
        chunk_size: int = 0,
        counted: bool = True,
    ) -> None:
        self._entries = dict(entries)
        self.source = source
        self.datasets = tuple(datasets)
        self.n_chunks = n_chunks
        self.chunk_size = chunk_size
        self.counted = counted

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The entries by name, in file order."""
        return self._entries

    @property
    def n_entries(self) -> int:
        """Number of entries."""
        return len(self._entries)

    @property
    def dataset(self) -> str:
        """The names of the texts it was collected on, as one string."""
        return ", ".join(self.datasets)

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, n_experts: int | None = None) -> Self:
        """Read an importance file, whichever of the two forms it has.

        Parameters
        ----------
        path : path-like
            A .dat or GGUF file; its first bytes tell which.
        n_experts : int, optional
            Number of experts of the model. A .dat does not hold it; without it the entries of experts stay undivided
            until `lookup` is told, unless they have the size of Flash or Pro.

        Raises
        ------
        OSError
            The file cannot be read or is no regular file.
        ImatrixError
            It is damaged, cut short or no importance file; the error names file, entry and place.
        """
        from .container import read_container
        from .dat import read_dat

        if n_experts is not None and n_experts < 1:
            raise ValueError(f"n_experts must be 1 or more, not {n_experts}")
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", os.fspath(path))
        with open(path, "rb") as f:
            is_gguf = f.read(4) == b"GGUF"
        if is_gguf:
            return cls(**read_container(path))
        out = cls(**read_dat(path))
        out._divide(n_experts)
        return out

    def _divide(self, n_experts: int | None) -> None:
        known = n_experts or self._published_experts()
        divided: dict[tuple[int, int], Entry] = {}  # gate and up may share an entry
        for name, entry in self._entries.items():
            n = known if is_stack(name) else 1
            if n is None:
                continue
            key = id(entry.sums), n
            try:
                divided[key] = self._entries[name] = divided.get(key) or entry.divide(n)
            except ValueError as error:
                raise ImatrixError(str(error), path=self.source, entry=name) from None

    def _published_experts(self) -> int | None:
        for name, gate in self._entries.items():
            down = self._entries.get(name.replace("ffn_gate_exps", "ffn_down_exps"))
            if "ffn_gate_exps" in name and down is not None:
                return _PUBLISHED.get((gate.sums.size, down.sums.size))
        return None

    def write(self, path: str | os.PathLike[str], format: str | None = None, *, force: bool = False) -> None:
        """Write an importance file. It gets its name when it is complete and on the disk.

        Parameters
        ----------
        path : path-like
            Where to write.
        format : {"dat", "gguf"}, optional
            By the suffix of the name when not given. "gguf" keeps sums and counts, "dat" only means.
        force : bool
            Replace an existing file.

        Raises
        ------
        OSError
            The file cannot be written, or exists.
        ImatrixError
            The data cannot be expressed in this form.
        """
        from .container import write_container
        from .dat import write_dat

        path = Path(path)
        format = format or format_of(path)
        if format not in FORMATS:
            raise ValueError(f"unknown format {format!r} of importance files; known are {', '.join(FORMATS)}")
        if not self._entries:
            raise ImatrixError("there is no data to write", path=str(path))
        (write_dat if format == "dat" else write_container)(self, path, force)

    def merge(self, others: Iterable[Imatrix]) -> Imatrix:
        """Return the data of this and other files together: sums and counts are added.

        Raises
        ------
        ImatrixError
            Two files have entries of different size, or one of them holds means without token counts and another
            does not: they cannot be weighed against each other.
        """
        parts = [self, *others]
        merged: dict[str, Entry] = {}
        for part in parts:
            if part.counted != self.counted:
                means, counts = (part, self) if self.counted else (self, part)
                raise ImatrixError(
                    f"it holds means without token counts (a .dat), {counts.source or 'the other'} holds counts: merge "
                    "the .gguf files that were collected",
                    path=means.source or None,
                )
            for name, entry in part.entries.items():
                before = merged.get(name)
                merged[name] = entry if before is None else _add(before, entry, name, part.source)
        return Imatrix(
            merged,
            datasets=dict.fromkeys(d for part in parts for d in part.datasets),
            n_chunks=sum(part.n_chunks for part in parts),
            chunk_size=max(part.chunk_size for part in parts),
            counted=self.counted,
        )

    def lookup(self, name: str, n_columns: int, n_matrices: int = 1, matrix: int = 0) -> NDArray[np.float32] | None:
        """Return the importance of the input columns of one matrix.

        Looked for are, in this order, NAME.expert.E, NAME.expert_E and NAME, for the GGUF name and then for the
        official one. An entry may hold all matrices of the tensor or one vector for all of them.

        Parameters
        ----------
        name : str
            GGUF name of the tensor.
        n_columns, n_matrices : int
            Its row length and number of stacked matrices.
        matrix : int
            Which one.

        Returns
        -------
        ndarray of float32, shape (n_columns,), or None
            Means of squares; None if there is no entry. All ones for a matrix that was never observed: ask `observed`.

        Raises
        ------
        ImatrixError
            The entry has another size: it is of another model.
        """
        found = self._find(name, n_columns, n_matrices, matrix)
        return None if found is None else found[0].mean(found[1])

    def observed(self, name: str, n_columns: int, n_matrices: int = 1, matrix: int = 0) -> bool:
        """Whether any token reached a matrix; False also when there is no entry. Arguments as in `lookup`."""
        found = self._find(name, n_columns, n_matrices, matrix)
        return found is not None and bool(found[0].counts[found[1]] > 0)

    def gaps(self, tensors: Iterable[tuple[str, int, int]]) -> Gaps:
        """Compare with a model: which of its matrices have no entry, and which were never observed.

        Parameters
        ----------
        tensors : iterable of (name, n_columns, n_matrices)
            Tensors that are to be quantized by importance.

        Raises
        ------
        ImatrixError
            An entry has another size: the file is of another model.
        """
        gaps = Gaps()
        for name, n_columns, n_matrices in tensors:
            missing, unobserved = [], []
            for matrix in range(n_matrices):
                found = self._find(name, n_columns, n_matrices, matrix)
                if found is None:
                    missing.append(matrix)
                elif found[0].counts[found[1]] <= 0:
                    unobserved.append(matrix)
            if missing:
                gaps.missing[name] = tuple(missing)
            if unobserved:
                gaps.unobserved[name] = tuple(unobserved)
        return gaps

    def _find(self, name: str, n_columns: int, n_matrices: int, matrix: int) -> tuple[Entry, int] | None:
        if not 0 <= matrix < n_matrices:
            raise ValueError(f"matrix {matrix} of {name} is not in 0..{n_matrices - 1}")
        key = next((n for n in entry_names(name, matrix) if n in self._entries), None)
        if key is None:
            return None
        entry = self._entries[key]
        if not entry.divided and entry.sums.size in (n_columns, n_columns * n_matrices):
            entry = self._entries[key] = entry.divide(entry.sums.size // n_columns)
        if not entry.divided or entry.n_columns != n_columns or entry.n_matrices not in (1, n_matrices):
            held = f"{entry.n_matrices} x {entry.n_columns} values" if entry.divided else f"{entry.sums.size} values"
            raise ImatrixError(
                f"it holds {held} but {name} needs {n_matrices} x {n_columns} (or {n_columns} for all): the file is of "
                "another model",
                path=self.source or None,
                entry=key,
            )
        return entry, matrix if entry.n_matrices > 1 else 0

    def __repr__(self) -> str:
        return f"<Imatrix {self.source or 'in memory'}: {self.n_entries} entries>"


def format_of(path: Path) -> str:
    """Return the format that a file name asks for.

    Raises
    ------
    ValueError
        The suffix is neither .dat nor .gguf.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ValueError(f"{path}: an importance file is named .dat or .gguf")
    return suffix


def _add(a: Entry, b: Entry, name: str, source: str) -> Entry:
    if a.sums.shape != b.sums.shape:
        raise ImatrixError(
            f"{b.n_matrices} x {b.n_columns} values cannot be merged with {a.n_matrices} x {a.n_columns}",
            path=source or None,
            entry=name,
        )
    if not (a.divided and b.divided):
        raise ImatrixError(
            "the number of experts is not known, and so not who was observed; give it", path=source or None, entry=name
        )
    return Entry(a.sums.astype(np.float64) + b.sums, a.counts + b.counts)
