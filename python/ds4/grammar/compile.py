"""Grammars compiled for a vocabulary, each once.

Compiling takes a millisecond or so, preparing a vocabulary of 129,280 tokens half a second; copies of a
compiled grammar are cheap and start at its beginning. Everything here may be used from several threads.
"""

from __future__ import annotations

import re
import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4.chat.protocol import DSML

from .guard import GuardTables

if TYPE_CHECKING:
    from ds4.tokenizer import Tokenizer

MAX_CACHED = 64
"""Compiled grammars that are kept for each vocabulary; the least recently used goes first."""

MAX_CACHED_BYTES = 16 << 20
"""Text of the grammars that are kept for each vocabulary; a grammar longer than a quarter of it is not kept."""

# Limits of llguidance. A row of 20,000 items is an object with as many optional properties as `schema` allows; a step
# of 500,000 takes 25 ms at worst; a state of the lexer has one or two kilobytes, and constraints of one grammar share
# them.
_MAX_ROW = 20_000
_MAX_STEP = 500_000
_MAX_STATES = 50_000

DSML_RULE = "dsml: <[0]>"
"""Stands in a grammar for the rule of the protocol's added token, whose id a vocabulary gives."""


class Vocabulary:
    """A tokenizer as llguidance sees it, with the grammars compiled for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import llguidance

        n = tokenizer.n_vocab
        self.n_vocab = n
        self.eos_id = tokenizer.eos_id
        self.dsml_id = tokenizer.special(DSML)
        self.tokens = [tokenizer.token_bytes(i) for i in range(n)]
        self.specials = frozenset(i for i in range(n) if tokenizer.is_special(i))
        self.native = llguidance.LLTokenizer(
            _Table(tokenizer, self.tokens, sorted(self.specials)),  # type: ignore[arg-type]
            n_vocab=n,
            eos_token=tokenizer.eos_id,
        )
        self.guard = GuardTables(self)
        self.guard.made()  # now, and not between two tokens of somebody's answer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._n_bytes = 0

    def matcher(self, source: str) -> Any:
        """Return a fresh matcher for a grammar.

        Raises
        ------
        ValueError
            The grammar is wrong or too large.
        """
        with self._lock:
            compiled = self._compiled.get(source)
            if compiled is not None:
                self._compiled.move_to_end(source)
                return compiled.deep_copy()
        compiled = compile_grammar(self.native, source.replace(DSML_RULE, f"dsml: <[{self.dsml_id}]>"))
        copy = compiled.deep_copy()
        if len(source) <= MAX_CACHED_BYTES // 4:
            self._keep(source, compiled)
        return copy

    @cached_property
    def order(self) -> tuple[list[bytes], NDArray[np.int64]]:
        """The tokens that are text, sorted by their bytes, and their ids."""
        ids = sorted((i for i in range(self.n_vocab) if i not in self.specials), key=self.tokens.__getitem__)
        return [self.tokens[i] for i in ids], np.array(ids, np.int64)

    def beginning_with(self, text: bytes) -> NDArray[np.int64]:
        """Return the ids of the tokens whose bytes begin with a text; it must not end in the byte 255."""
        sorted_bytes, ids = self.order
        after = text[:-1] + bytes([text[-1] + 1])
        return ids[bisect_left(sorted_bytes, text) : bisect_left(sorted_bytes, after)]

    def matching(self, expression: re.Pattern[bytes]) -> NDArray[np.int64]:
        """Return the ids of the tokens of text in which an expression is found."""
        sorted_bytes, ids = self.order
        return ids[[bool(expression.search(text)) for text in sorted_bytes]]

    @property
    def n_cached(self) -> int:
        """Number of compiled grammars that are kept."""
        return len(self._compiled)

    def _keep(self, source: str, compiled: Any) -> None:
        with self._lock:
            if source not in self._compiled:
                self._n_bytes += len(source)
            self._compiled[source] = compiled
            while len(self._compiled) > MAX_CACHED or self._n_bytes > MAX_CACHED_BYTES:
                old, _ = self._compiled.popitem(last=False)
                self._n_bytes -= len(old)


class _Table:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], specials: list[int]) -> None:
        self.eos_token_id = tokenizer.eos_id
        self.tokens = tokens
        self.special_token_ids = specials
        self._tokenizer = weakref.ref(tokenizer)  # or the tokenizer would keep itself alive

    def __call__(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        return [] if tokenizer is None else tokenizer.encode(text)


_vocabularies: weakref.WeakKeyDictionary[Tokenizer, Vocabulary] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer, prepared at its first use and kept as long as the tokenizer lives."""
    with _lock:
        found = _vocabularies.get(tokenizer)
        if found is None:
            found = _vocabularies[tokenizer] = Vocabulary(tokenizer)
        return found


def compile_grammar(native: Any, source: str) -> Any:
    """Compile a grammar.

    Raises
    ------
    ValueError
        With llguidance's reason, in one line.
    """
    import llguidance

    limits = llguidance.LLParserLimits(
        max_items_in_row=_MAX_ROW, step_max_items=_MAX_STEP, max_lexer_states=_MAX_STATES, verbose_errors=False
    )
    matcher = llguidance.LLMatcher(native, llguidance.LLMatcher.grammar_from_lark(source), log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(reason(matcher.get_error()))
    return matcher


def reason(text: str) -> str:
    """Return the part of an error message that says what is wrong."""
    text = text.split("\n   1 |")[0].split("<backtrace>")[0].strip()
    for marker in ("failed to compile JSON schema: ", "(in regex): "):
        text = text.split(marker, 1)[-1]
    line = " ".join(part.strip() for part in text.replace("<non-verbose/>", "").split("\n") if part.strip(" ^"))
    return line if len(line) <= 500 else line[:497] + "..."
