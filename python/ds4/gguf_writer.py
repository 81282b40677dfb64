"""Writing GGUF v3 files, streamed tensor by tensor.

The directory is known before the first payload byte: offsets are canonical (payloads in directory order, each at a
multiple of the alignment). A file appears under its final name only when it is complete and on the disk: it is
written under another name in the same directory, synced, and renamed. A write that can be resumed leaves the tensors
it finished in `NAME.part` when it is interrupted (`ds4.gguf_partial`); any other leaves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from .file_range import FileRange
from .gguf import GGUFFile, aligned, type_info
from .gguf_partial import PartialFile, partial_bytes

ALIGNMENT = 32
"""Alignment of payloads in a file without the key `general.alignment`."""
VERSION = 3

VALUE_TYPES = {
    "u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
    "f32": (6, "<f"), "bool": (7, "<B"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class KV:
    """One metadata record: `type` is a name of `VALUE_TYPES`, "string", or one of these in brackets: "[i32]"."""

    key: str
    type: str
    value: Any

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return _string(self.key) + self._encode_value()

    def _encode_value(self) -> bytes:
        if self.type == "string":
            return struct.pack("<I", _STRING) + _string(self.value)
        if self.type.startswith("["):
            element = self.type[1:-1]
            if element == "string":
                head = struct.pack("<IIQ", _ARRAY, _STRING, len(self.value))
                return head + b"".join(_string(v) for v in self.value)
            number, code = VALUE_TYPES[element]
            head = struct.pack("<IIQ", _ARRAY, number, len(self.value))
            return head + b"".join(struct.pack(code, v) for v in self.value)
        number, code = VALUE_TYPES[self.type]
        return struct.pack("<I", number) + struct.pack(code, self.value)


@dataclass(frozen=True, slots=True)
class StoredKV(KV):
    """A record of another file, written byte for byte as it stands there."""

    raw: bytes

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return self.raw


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor to be written: name, `ne` (contiguous dimension first) and type name."""

    name: str
    ne: tuple[int, ...]
    type: str

    @property
    def n_bytes(self) -> int:
        """Bytes of the payload; rows are whole blocks."""
        info = type_info(self.type)
        block = info.block_elements
        if self.ne[0] % block:
            raise ValueError(f"{self.name}: rows of {self.ne[0]} values do not fill {self.type} blocks of {block}")
        return info.n_bytes(math.prod(self.ne))


@dataclass(frozen=True, slots=True)
class Layout:
    """The directory of a file: header bytes (padded to the data) and the offset of every payload."""

    header: bytes
    offsets: tuple[int, ...]
    """Offset of every payload, from the start of the file."""
    n_bytes: int
    """Size of the whole file."""


def records_of(file: GGUFFile) -> list[KV]:
    """Return the metadata of a file as records to be written; their bytes are those of the file."""
    return [KV(key, file.metadata.kind(key), file.metadata[key]) for key in file.metadata]


def stored_records(file: GGUFFile) -> list[StoredKV]:
    """Return the metadata of a file as records to be written verbatim."""
    m = file.metadata
    return [StoredKV(key, m.kind(key), m[key], m.record(key)) for key in m]


def make_layout(kvs: Sequence[KV], tensors: Sequence[TensorInfo]) -> Layout:
    """Lay out a file: canonical offsets; the alignment is that of `general.alignment`, or `ALIGNMENT`."""
    alignment = next((kv.value for kv in kvs if kv.key == "general.alignment"), ALIGNMENT)
    for names in ([kv.key for kv in kvs], [t.name for t in tensors]):
        if len(set(names)) != len(names):
            raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} occurs twice")
    relative, position = [], 0
    for tensor in tensors:
        relative.append(position)
        position += aligned(tensor.n_bytes, alignment)
    parts = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(kvs))]
    parts += [kv.encode() for kv in kvs]
    for tensor, offset in zip(tensors, relative, strict=True):
        parts.append(_string(tensor.name))
        parts.append(struct.pack(f"<I{len(tensor.ne)}Q", len(tensor.ne), *tensor.ne))
        parts.append(struct.pack("<IQ", type_info(tensor.type).id, offset))
    header = b"".join(parts)
    header += bytes(aligned(len(header), alignment) - len(header))
    return Layout(header, tuple(len(header) + o for o in relative), len(header) + position)


class GGUFWriter:
    """Write one GGUF file: `write`, then `publish`. Leaving the context removes what was not published.

    Parameters
    ----------
    path : path-like
        The final name.
    kvs, tensors : sequences
        The whole directory.
    force : bool
        Replace an existing file.
    resume_key : str, optional
        Names everything that the payloads depend on besides the directory (the sources and their state, options).
        With a key, a write that an interruption or a full disk stops keeps its finished tensors in `PATH.part`, and a
        later write with the same key and directory continues after them.

    Raises
    ------
    OSError
        Another process is writing `PATH.part`, or it cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kvs: Sequence[KV],
        tensors: Sequence[TensorInfo],
        *,
        force: bool = False,
        resume_key: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.tensors = tuple(tensors)
        self.layout = make_layout(kvs, tensors)
        self.force = force
        self._temporary: str | None = None
        self._partial: PartialFile | None = None
        if resume_key is not None:
            sizes = [(o, t.n_bytes) for o, t in zip(self.layout.offsets, self.tensors, strict=True)]
            self._partial = PartialFile(self.path, self.layout.header, sizes, resume_key)

    @property
    def n_done(self) -> int:
        """Number of leading tensors that an earlier, interrupted write left behind whole."""
        return self._partial.n_done if self._partial else 0

    @property
    def kept(self) -> Path | None:
        """Where an interrupted write keeps its finished tensors, or None."""
        return self._partial.path if self._partial and self._partial.path.exists() else None

    def write(self, payloads: Iterable[Iterable[bytes | FileRange]]) -> None:
        """Write the whole file under another name and sync it.

        Parameters
        ----------
        payloads : iterable
            For every tensor, in directory order, the pieces of its payload: bytes, or ranges of other files. The first
            `n_done` are not iterated.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        try:
            if self._partial is not None:
                self._temporary = str(self._partial.path)
                handle = self._partial.open()
            else:
                handle, self._temporary = tempfile.mkstemp(
                    prefix=f".{self.path.name[:100]}.", suffix=".tmp", dir=self.path.parent
                )
            with os.fdopen(handle, "wb") as f:
                self._write_to(f, payloads)
            os.chmod(self._temporary, 0o666 & ~umask())
        except OSError as error:
            if error.filename is None:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            raise

    def _write_to(self, f: BinaryIO, payloads: Iterable[Iterable[bytes | FileRange]]) -> None:
        if not self.n_done:
            f.write(self.layout.header)
        for i, (tensor, offset, payload) in enumerate(zip(self.tensors, self.layout.offsets, payloads, strict=True)):
            if i < self.n_done:
                continue
            f.seek(offset)
            written = crc = 0
            for piece in payload:
                if isinstance(piece, FileRange):
                    f.flush()
                    piece.copy_to(f.fileno(), offset + written)
                    written += piece.n_bytes
                    f.seek(offset + written)
                    crc = piece.crc32(crc) if self._partial is not None else 0
                    continue
                written += f.write(piece)
                crc = zlib.crc32(piece, crc)
            if written != tensor.n_bytes:
                raise AssertionError(f"{tensor.name}: {written} bytes written, {tensor.n_bytes} planned")
            if self._partial is not None:
                f.flush()
                self._partial.note_done(i, crc)
        f.truncate(self.layout.n_bytes)  # the padding after the last tensor; gaps between tensors are zeros already
        f.flush()
        os.fsync(f.fileno())

    def publish(self) -> None:
        """Give the written file its final name.

        Raises
        ------
        FileExistsError
            The name was taken meanwhile and `force` is not set.
        OSError
            It is that of a device or a pipe.
        """
        assert self._temporary is not None, "publish() before write()"
        check_replaceable(self.path)
        if not self.force:
            self._link()
        else:
            os.replace(self._temporary, self.path)
            self._temporary = None
        if self._partial is not None:
            self._partial.discard()
            self._temporary = None
        sync_directory(self.path.parent)

    def _link(self) -> None:
        # A hard link fails when the name is taken; a rename would replace the file.
        assert self._temporary is not None
        try:
            os.link(self._temporary, self.path)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "appeared while writing", str(self.path)) from None
        except OSError:  # a file system without hard links
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, "appeared while writing", str(self.path)) from None
            os.replace(self._temporary, self.path)
            self._temporary = None
        self.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Data that cannot be written will not be better next time; a full disk or an impatient user may be.
        if self._partial is not None and isinstance(error, OSError | KeyboardInterrupt | SystemExit | GeneratorExit):
            self._partial.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Remove what was written and not published, if there is anything."""
        if self._partial is not None:
            self._partial.discard()
        elif self._temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._temporary = None


def write_sparse(f: BinaryIO, layout: Layout) -> None:
    """Write the directory of a file and give it its full size without payloads (zeros that take no room)."""
    f.write(layout.header)
    f.flush()
    os.truncate(f.fileno(), layout.n_bytes)


def check_replaceable(path: Path) -> None:
    """Check that a name is free or that of a regular file: renaming a file to it would put it in a device's place.

    Raises
    ------
    OSError
        It is a directory, a device, a pipe or a socket.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory; give a file name", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is a device or a pipe; give the name of a regular file", str(path))


def check_targets(targets: Sequence[tuple[Path, int]], *, force: bool = False) -> None:
    """Check that files of given sizes can be written, together, without writing anything.

    Raises
    ------
    OSError
        A name is taken (and `force` is not set) or is no regular file's, or its directory is missing, not writable or
        too full.
    """
    needed: dict[int, int] = {}
    for path, n_bytes in targets:
        parent = path.parent
        check_replaceable(path)
        if not parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory", str(parent))
        if os.path.lexists(path) and not force:
            raise FileExistsError(errno.EEXIST, "exists already; --force replaces it", str(path))
        if not os.access(parent, os.W_OK):
            raise PermissionError(errno.EACCES, "the directory is not writable", str(parent))
        device = parent.stat().st_dev
        needed[device] = needed.get(device, 0) + n_bytes - partial_bytes(path)
        free = shutil.disk_usage(parent).free
        if needed[device] > free:
            raise OSError(errno.ENOSPC, f"{needed[device]} bytes are needed but {free} are free", str(parent))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def umask() -> int:
    """Return the permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_directory(path: Path) -> None:
    """Have the names of a directory on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
