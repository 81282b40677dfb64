"""States of our sessions as files of the other engine, and back.

Rows and logits come back with all their bits. What such a file has no place for is lost: the MTP block's part. Its text
is the key without the marks of special tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .dsv4 import Dims, Payload
from .errors import StoredFileError
from .kvc import REASONS, KvcFile

if TYPE_CHECKING:
    from ds4 import Session, Tokenizer

    from .records import Entry

__all__ = ["from_kvc", "key_of_kvc", "to_kvc"]

MODELS = {"flash": 0, "pro": 1}


def to_kvc(
    session: Session,
    key: bytes,
    *,
    quant: int,
    entry: Entry | None = None,
    tool_blocks: Mapping[str, str] | None = None,
) -> KvcFile:
    """Return the state of a session as a file of the other engine.

    Parameters
    ----------
    session : Session
        At the state.
    key : bytes
        Its key.
    quant : {2, 4}
        Bits of the routed experts of the model file that will load it: the other engine may refuse another one.
    entry : Entry, optional
        The stored state, for the reason, the hits and the times.
    tool_blocks : mapping, optional
        Exact texts of tool calls, by call id.

    Raises
    ------
    ValueError
        A field is out of its range.
    StateError
        Nothing was evaluated yet.
    """
    dims = Dims.of(session.model.shape)
    payload = Payload.of(session.state(), dims)
    now = int(time.time())
    return KvcFile(
        text=key.replace(b"\xff", b""),
        payload=payload.to_bytes(dims),
        n_tokens=len(payload.tokens),
        n_ctx=payload.n_ctx,
        quant=quant,
        model=MODELS.get(session.model.shape.name, 0),
        reason=REASONS.index(entry.reason) if entry is not None else 0,
        hits=entry.hits if entry is not None else 0,
        created=int(entry.created) if entry is not None else now,
        last_used=int(entry.last_used) if entry is not None else now,
        tool_blocks={call: text.encode("utf-8", "surrogateescape") for call, text in (tool_blocks or {}).items()},
    )


def from_kvc(file: KvcFile, session: Session) -> int:
    """Bring a session to the state of a file, and return its positions.

    Raises
    ------
    StoredFileError
        The payload is damaged, or of another model. The session is unchanged.
    ContextFullError, SnapshotError, StateError
        As `Session.load_state`: too many positions, values that no row can hold, a session with `mtp=True`.
    """
    payload = Payload.from_bytes(file.payload, Dims.of(session.model.shape))
    if len(payload.tokens) != file.n_tokens:
        raise StoredFileError(f"the payload has {len(payload.tokens)} tokens, the file says {file.n_tokens}")
    session.load_state(payload.state())
    return file.n_tokens


def key_of_kvc(file: KvcFile, tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    """Return the key of the state of a file.

    Parameters
    ----------
    file : KvcFile
        The file.
    tokenizer : Tokenizer
        Of the model.
    tokens : list of int
        The state's tokens. When they make the text, they tell which of its marks are special tokens; a text without
        hidden reasoning is other than they are, and every mark in it is taken for a token.
    """
    if b"".join(map(tokenizer.token_bytes, tokens)) != file.text:
        tokens = tokenizer.encode(file.text.decode("utf-8", "surrogateescape"), specials=True)
    return b"".join(b"\xff" * tokenizer.is_special(t) + tokenizer.token_bytes(t) for t in tokens)
