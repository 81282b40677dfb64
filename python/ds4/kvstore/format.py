"""Files of the store: a head, then sections, each with its SHA-256.

Little-endian::

    0   8   magic "DS4KVF\\x1a\\n"
    8   u32 version, 1
    12  u32 number of sections, 1..8192
    16  u64 bytes of the whole file
    24  per section 48 bytes: tag (4 characters), u32 0, u64 bytes, SHA-256 of the bytes
    ..  SHA-256 of everything before it
    ..  the sections, in that order, without gaps

So every byte is covered by a checksum, and a head that is sound says how long the file must be. A section META holds
facts as JSON (`ds4.kvstore.records`); the others are bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import StoredFileError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Content", "Section", "StoredFile", "encode", "n_bytes_of"]

MAGIC = b"DS4KVF\x1a\n"
VERSION = 1
MAX_SECTIONS = 8192
_HEAD = struct.Struct("<8sIIQ")
_SECTION = struct.Struct("<4sIQ32s")
_DIGEST = 32
_PIECE = 1 << 24

Content = Sequence["ReadableBuffer"]
"""Pieces of bytes that follow each other in a file."""


@dataclass(frozen=True, slots=True)
class Section:
    """Where a section lies, and its checksum."""

    offset: int
    n_bytes: int
    digest: bytes


def encode(sections: Iterable[tuple[str, ReadableBuffer]]) -> Content:
    """Return a file as pieces: the head, and the sections as they were given, not copied."""
    table, pieces, n_bytes = b"", [], 0
    for tag, data in sections:
        view = memoryview(data).cast("B")
        table += _SECTION.pack(tag.encode("ascii"), 0, view.nbytes, hashlib.sha256(view).digest())
        pieces.append(view)
        n_bytes += view.nbytes
    n_head = _HEAD.size + len(table) + _DIGEST
    head = _HEAD.pack(MAGIC, VERSION, len(pieces), n_head + n_bytes) + table
    return [head + hashlib.sha256(head).digest(), *pieces]


def n_bytes_of(content: Content) -> int:
    """Return the length of a file in pieces."""
    return sum(memoryview(piece).nbytes for piece in content)


class StoredFile:
    """A file of the store, open for reading; its head is read and checked.

    The file stays readable when its name is taken away, also by another process.

    Parameters
    ----------
    path : path-like
        The file.
    part : Section, optional
        Where in it a file of the store lies, when it is not the whole.

    Raises
    ------
    StoredFileError
        The head is damaged, or the file has another length than it says.
    OSError
        The file cannot be opened or read.
    """

    def __init__(self, path: str | os.PathLike[str], part: Section | None = None) -> None:
        self.path = os.fspath(path)
        self._base = 0 if part is None else part.offset
        # Neither a link nor a pipe that somebody put there is followed or waited for.
        self.fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(self.fd)
            if not stat.S_ISREG(found.st_mode):
                raise StoredFileError("not a regular file")
            self.n_bytes = found.st_size if part is None else part.n_bytes
            self.sections = self._head()
        except BaseException:
            self.close()
            raise

    def _head(self) -> dict[str, Section]:
        if self.n_bytes < _HEAD.size + _SECTION.size + _DIGEST:
            raise StoredFileError(f"cut short: {self.n_bytes} bytes are too few for a head")
        fixed = self._pread(0, _HEAD.size)
        magic, version, n_sections, n_bytes = _HEAD.unpack(fixed)
        if magic != MAGIC:
            raise StoredFileError("not a file of the store: the first bytes are not its magic")
        if version != VERSION:
            raise StoredFileError(f"version {version}; this ds4 reads version {VERSION}")
        if not 1 <= n_sections <= MAX_SECTIONS:
            raise StoredFileError(f"damaged: {n_sections} sections")
        n_table = n_sections * _SECTION.size
        if self.n_bytes < _HEAD.size + n_table + _DIGEST:
            raise StoredFileError(f"cut short: {self.n_bytes} bytes are too few for {n_sections} sections")
        rest = self._pread(_HEAD.size, n_table + _DIGEST)
        if hashlib.sha256(fixed + rest[:n_table]).digest() != rest[n_table:]:
            raise StoredFileError("damaged: the checksum of the head differs")
        sections: dict[str, Section] = {}
        offset = _HEAD.size + len(rest)
        for raw, zero, length, digest in _SECTION.iter_unpack(rest[:n_table]):
            tag = raw.decode("latin-1")
            if zero or tag in sections:
                raise StoredFileError(f"damaged: a section {tag!r} that cannot be")
            sections[tag] = Section(offset, length, digest)
            offset += length
        if not offset == n_bytes == self.n_bytes:
            raise StoredFileError(f"damaged: {self.n_bytes} bytes instead of {n_bytes}")
        return sections

    def _pread(self, offset: int, length: int) -> bytearray:
        out = bytearray(length)
        view = memoryview(out)
        done = 0
        while done < length:
            n = os.preadv(self.fd, [view[done : done + _PIECE]], self._base + offset + done)
            if n == 0:
                raise StoredFileError(f"cut short: {offset + done} bytes instead of {offset + length}")
            done += n
        return out

    def read(self, tag: str, most: int | None = None) -> bytearray:
        """Return a section whose checksum is right.

        Parameters
        ----------
        tag : str
            Name of the section.
        most : int, optional
            A longer one is refused before memory is taken for it.

        Raises
        ------
        StoredFileError
            There is no such section, it is too long, or it is damaged.
        """
        section = self.sections.get(tag)
        if section is None:
            raise StoredFileError(f"there is no section {tag}")
        if most is not None and section.n_bytes > most:
            raise StoredFileError(f"section {tag} has {section.n_bytes} bytes, {most} are the most")
        data = self._pread(section.offset, section.n_bytes)
        if hashlib.sha256(data).digest() != section.digest:
            raise StoredFileError(f"damaged: the checksum of section {tag} differs")
        return data

    def read_all(self) -> bytes:
        """Return the whole file."""
        return bytes(self._pread(0, self.n_bytes))

    def close(self) -> None:
        """Close the file. Closing again does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()
