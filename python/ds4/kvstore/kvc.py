"""Files "KVC" version 1 of the other engine: a rendered text, the state it leads to, and exact tool calls.

Little-endian::

    0   "KVC", u8 version 1        20  u8 kind of the payload, 2; three zero bytes
    4   u8 bits of the experts     24  u64 created, u64 last used (Unix time)
    5   u8 reason                  40  u64 bytes of the payload
    6   u8 flags                   48  u32 bytes of the text
    7   u8 model (0 Flash, 1 Pro)  52  text, payload, trailer
    8   u32 tokens, u32 hits, u32 context

The trailer of tool calls (flag 1) is ``"KTM", u8 1, u32 count``, then per call ``u32, u32`` and that many bytes of the
call's id and of its exact text. The name of a file is the SHA-1 of the text in hex and ``.kv``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ds4.gguf_writer import sync_directory

from .errors import StoredFileError
from .records import MAX_CALL_ID

__all__ = ["KvcFile", "kvc_name", "read_kvc", "write_kvc"]

VERSION, ABI = 1, 2
TOOLS, RESPONSES_TEXT, THINKING_TEXT, TITLE = 1, 2, 4, 8
REASONS = ("unknown", "cold", "continued", "evict", "shutdown", "agent system prompt", "agent session")
MAX_CALLS = 400_000
MAX_BLOCK = 512 << 20
_HEAD = struct.Struct("<3s5B3IB3s3QI")


@dataclass(frozen=True, slots=True)
class KvcFile:
    """A file.

    Attributes
    ----------
    text : bytes
        The rendered text, UTF-8.
    payload : bytes
        The state; `ds4.kvstore.dsv4` reads it.
    n_tokens, n_ctx : int
        Tokens of the state; context of the session.
    quant : int
        2 or 4: bits of the routed experts.
    reason : int
        Index of `REASONS`.
    flags : int
        1 tool calls follow; 2 and 4: the text leaves hidden reasoning out; 8 a title follows, which is not read.
    model : int
        0 Flash, 1 Pro.
    hits : int
        How often it was loaded.
    created, last_used : int
        Unix times.
    tool_blocks : mapping
        Exact texts of tool calls, as bytes, by call id.
    """

    text: bytes
    payload: bytes
    n_tokens: int
    n_ctx: int
    quant: int
    model: int
    reason: int = 0
    flags: int = 0
    hits: int = 0
    created: int = 0
    last_used: int = 0
    tool_blocks: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name."""
        return kvc_name(self.text)

    def to_bytes(self) -> bytes:
        """Return the file.

        Raises
        ------
        ValueError
            A field is out of its range.
        """
        if self.quant not in (2, 4) or self.n_tokens < 1:
            raise ValueError(f"quant is {self.quant} and n_tokens {self.n_tokens}; 2 or 4, and 1 or more are possible")
        flags = self.flags & ~(TOOLS | TITLE) | (TOOLS if self.tool_blocks else 0)
        try:
            head = _HEAD.pack(
                b"KVC", VERSION, self.quant, self.reason, flags, self.model, self.n_tokens, self.hits, self.n_ctx, ABI,
                b"\0\0\0", self.created, self.last_used, len(self.payload), len(self.text),
            )  # fmt: skip
        except struct.error as error:
            raise ValueError(f"a field is out of its range: {error}") from error
        parts = [head, self.text, self.payload]
        if self.tool_blocks:
            parts.append(struct.pack("<3sBI", b"KTM", 1, len(self.tool_blocks)))
            for call, block in self.tool_blocks.items():
                raw = call.encode("utf-8", "surrogateescape")
                if not 0 < len(raw) <= MAX_CALL_ID or len(block) > MAX_BLOCK:
                    raise ValueError(f"a call id has 1 to {MAX_CALL_ID} bytes and its text at most {MAX_BLOCK}")
                parts += [struct.pack("<II", len(raw), len(block)), raw, block]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> KvcFile:
        """Read a file; every length is checked before it is used. A damaged trailer ends the list of tool calls.

        Raises
        ------
        StoredFileError
            It is no such file, or is cut short.
        """
        if len(data) < _HEAD.size or data[:3] != b"KVC":
            raise StoredFileError("not a KVC file: the first bytes are not its magic")
        fields = _HEAD.unpack_from(data)
        _, version, quant, reason, flags, model, n_tokens, hits, n_ctx, abi, zero, created, last_used, size, n_text = (
            fields
        )
        if version != VERSION or abi != ABI or zero != b"\0\0\0":
            raise StoredFileError(f"KVC version {version} with payload {abi}; version {VERSION} with {ABI} is read")
        if quant not in (2, 4) or not n_tokens or reason >= len(REASONS):
            raise StoredFileError(f"damaged: quant {quant}, {n_tokens} tokens, reason {reason}")
        if len(data) < _HEAD.size + n_text + size:
            raise StoredFileError(f"cut short: {len(data)} bytes instead of {_HEAD.size + n_text + size} or more")
        text = data[_HEAD.size : _HEAD.size + n_text]
        payload = data[_HEAD.size + n_text : _HEAD.size + n_text + size]
        blocks = _trailer(data, _HEAD.size + n_text + size) if flags & TOOLS else {}
        return cls(
            text, payload, n_tokens, n_ctx, quant, model, reason, flags, hits, created, last_used, blocks
        )  # fmt: skip


def _trailer(data: bytes, at: int) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    if data[at : at + 4] != b"KTM\1" or len(data) < at + 8:
        return out
    (count,) = struct.unpack_from("<I", data, at + 4)
    at += 8
    if count > MAX_CALLS:
        return out
    for _ in range(count):
        if len(data) < at + 8:
            break
        n_id, n_block = struct.unpack_from("<II", data, at)
        if not 0 < n_id <= MAX_CALL_ID or n_block > MAX_BLOCK or len(data) < at + 8 + n_id + n_block:
            break
        call = data[at + 8 : at + 8 + n_id].decode("utf-8", "surrogateescape")
        out[call] = data[at + 8 + n_id : at + 8 + n_id + n_block]
        at += 8 + n_id + n_block
    return out


def kvc_name(text: bytes) -> str:
    """Return the name of the file of a text."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest() + ".kv"


def read_kvc(path: str | os.PathLike[str]) -> KvcFile:
    """Read a file.

    Raises
    ------
    StoredFileError
        It is no such file, or is cut short.
    OSError
        It cannot be read.
    """
    return KvcFile.from_bytes(Path(path).read_bytes())


def write_kvc(directory: str | os.PathLike[str], file: KvcFile) -> Path:
    """Write a file into a directory, under the name that its text has there, and return its path.

    It appears whole and on the disk, readable for its owner only, in place of an older one of that text.

    Raises
    ------
    ValueError
        A field is out of its range.
    OSError
        It cannot be written; nothing is left.
    """
    target = Path(directory) / file.name
    data = file.to_bytes()
    handle, temporary = tempfile.mkstemp(prefix=f".{os.getpid()}-", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(target)) from error
        raise
    sync_directory(target.parent)
    return target
