"""States of a store as files of the other engine, and back: the part of ``ds4 kv`` that needs a model."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds4 import GGUFFile
from ds4.kvstore import Entry, KVStore, StoredFileError
from ds4.kvstore.exchange import from_kvc, key_of_kvc, to_kvc
from ds4.kvstore.kvc import kvc_name, read_kvc, write_kvc

from .opening import make_session, opened_model, tokenizer_file
from .settings import Settings

if TYPE_CHECKING:
    from ds4.kvstore.records import Reason

_REASONS: dict[int, Reason] = {1: "cold", 2: "continued", 3: "evict", 4: "shutdown", 5: "cold"}
_BITS = {"Q2_K": 2, "IQ2_XXS": 2, "Q4_K": 4, "MXFP4": 4}


def export_kvc(store: KVStore, entry: Entry, out: Path, quant: str | None, settings: Settings, *, force: bool) -> Path:
    """Write a state as a file of the other engine into a directory, and return its path.

    Raises
    ------
    click.ClickException
        The model is not that of the state, or the bits of its experts are not known.
    FileExistsError
        There is a file for this text, and `force` is not set.
    """
    facts = _session_facts(entry)
    bits = _bits(settings) if quant is None else int(quant)
    with opened_model(settings) as model:
        if model.fingerprint != entry.model:
            raise click.ClickException(f"the state is of another model file (fingerprint {entry.model.hex()})")
        settings = replace(settings, no_qat=not facts["qat"], activations=facts["activations"])
        with make_session(model, settings, entry.n_tokens + 1) as session:
            key = store.read_key(entry)
            hit = store.lookup(key, model=entry.model, settings=entry.settings, n_ctx=session.n_ctx)
            if hit is None:
                raise click.ClickException(f"the state {entry.name} is damaged or gone")
            with hit:
                target = out / kvc_name(key.replace(b"\xff", b""))
                if target.exists() and not force:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
                hit.load(session)
                file = to_kvc(session, key, quant=bits, entry=entry, tool_blocks=hit.tool_blocks)
    return write_kvc(out, file)


def import_kvc(store: KVStore, path: Path, settings: Settings) -> Entry | None:
    """Store the state of a file of the other engine; what `KVStore.save` returns.

    Raises
    ------
    StoredFileError
        It is damaged, or of another model.
    """
    try:
        file = read_kvc(path)
        with opened_model(settings) as model, make_session(model, settings, file.n_tokens + 1) as session:
            from_kvc(file, session)
            key = key_of_kvc(file, model.tokenizer, session.tokens)
            blocks = {c: b.decode("utf-8", "surrogateescape") for c, b in file.tool_blocks.items()}
            reason = _REASONS.get(file.reason, "evict")
            return store.save(session, key, reason=reason, tool_blocks=blocks)
    except StoredFileError as error:
        raise StoredFileError(f"{path}: {error}") from error


def _session_facts(entry: Entry) -> dict[str, Any]:
    facts: Any = json.loads(entry.settings)
    if facts.get("mtp") or facts.get("steering") or facts["rows"] != "f16":
        raise click.ClickException("states with steering, the MTP block or F32 rows have no place in such a file")
    return dict(facts)


def _bits(settings: Settings) -> int:
    """Return 2 or 4: the bits of the routed experts of the model file."""
    path = tokenizer_file(settings)
    with GGUFFile(path) as file:
        types = {t.type for name, t in file.tensors.items() if "_exps." in name}
    bits = {_BITS.get(t, 0) for t in types}
    if len(bits) == 1 and 0 not in bits:
        return bits.pop()
    raise click.ClickException(f"{path} has experts in {', '.join(sorted(types)) or 'no type'}; say --quant 2 or 4")
