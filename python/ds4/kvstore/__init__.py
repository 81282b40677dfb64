"""A store of session states on disk.

A state is found by the bytes of the rendered prompt that led to it, is loaded in a fraction of the time that computing
it takes, and what follows is bit-identical. States that begin with the same tokens share the rows of these.

::

    with KVStore("~/.cache/ds4/kv") as store:
        hit = store.lookup(prompt.key(), model=model.fingerprint, settings=session_settings(session), n_ctx=32_768)
        if hit is not None:
            with hit:
                hit.load(session)
        ...
        store.save(session, prompt.key(), reason="cold")
"""

from .check import Finding, check_files
from .codec import session_settings
from .errors import StoreDamageError, StoredFileError
from .hit import Hit
from .policy import SavePolicy
from .records import Entry, Reason
from .retention import Retention
from .staged import Staged
from .store import UNLIMITED, KVStore, StoreStats

__all__ = [
    "KVStore",
    "Hit",
    "Staged",
    "Entry",
    "Reason",
    "SavePolicy",
    "Retention",
    "StoreStats",
    "UNLIMITED",
    "StoreDamageError",
    "StoredFileError",
    "Finding",
    "check_files",
    "session_settings",
]
