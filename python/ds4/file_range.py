"""A range of bytes of one file, copied into another by the kernel where it can."""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import dataclass

# What a kernel or file system says that does not copy between these two files.
_UNABLE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSOCK, errno.EPERM, errno.ETXTBSY}
_BUFFER = 1024 * 1024
_SMALL = 64 * 1024  # one read and one write cost less than asking the kernel


@dataclass(frozen=True, slots=True)
class FileRange:
    """`n_bytes` bytes at `offset` of the file behind the descriptor `fd`; `name` is for messages."""

    fd: int
    offset: int
    n_bytes: int
    name: str

    def crc32(self, crc: int = 0) -> int:
        """Return the CRC-32 of the bytes, going on from `crc`.

        Raises
        ------
        OSError
            The file cannot be read or has become shorter.
        """
        offset, left = self.offset, self.n_bytes
        while left:
            piece = self._read(offset, min(_BUFFER, left))
            crc = zlib.crc32(piece, crc)
            offset += len(piece)
            left -= len(piece)
        return crc

    def copy_to(self, fd: int, position: int) -> None:
        """Write the bytes into another file at `position`.

        On file systems that share blocks between files nothing is moved. Where the kernel does not copy, the bytes go
        through this process.

        Raises
        ------
        OSError
            Reading or writing failed, or the source has become shorter.
        """
        done = self._by_kernel(fd, position) if self.n_bytes > _SMALL else 0
        while done < self.n_bytes:
            piece = self._read(self.offset + done, min(_BUFFER, self.n_bytes - done))
            _write_all(fd, piece, position + done)
            done += len(piece)

    def _by_kernel(self, fd: int, position: int) -> int:
        """Return how many leading bytes the kernel copied: all, or fewer if it turns out that it cannot."""
        done = 0
        for method in (_copy_file_range, _sendfile):
            try:
                while done < self.n_bytes:
                    n = method(self.fd, fd, self.offset + done, position + done, self.n_bytes - done)
                    if n == 0:
                        return done  # the end of the source, or a file system that says so: reading tells which
                    done += n
                return done
            except OSError as error:
                if error.errno not in _UNABLE:
                    raise
            except AttributeError:  # a system without the call
                continue
        return done

    def _read(self, offset: int, n: int) -> bytes:
        try:
            piece = os.pread(self.fd, n, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from None
        if not piece:
            raise OSError(errno.EIO, f"the file has become shorter than {offset + n} bytes", self.name)
        return piece


def file_identity(path: str | os.PathLike[str], fd: int) -> list[str | int]:
    """Return path, size and time of the last change of an open file, whatever has that path now."""
    state = os.fstat(fd)
    return [os.path.abspath(path), state.st_size, state.st_mtime_ns]


def _copy_file_range(source: int, target: int, offset: int, position: int, n: int) -> int:
    return os.copy_file_range(source, target, n, offset, position)


def _sendfile(source: int, target: int, offset: int, position: int, n: int) -> int:
    os.lseek(target, position, os.SEEK_SET)
    return os.sendfile(target, source, offset, n)


def _write_all(fd: int, piece: bytes, position: int) -> None:
    view = memoryview(piece)
    while view:
        n = os.pwrite(fd, view, position)
        view = view[n:]
        position += n
