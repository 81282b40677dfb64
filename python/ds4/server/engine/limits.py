"""What the text of an answer is held to: JSON of a schema, tool calls, or either of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...grammar import Constraint, Grammar
from ...tokenizer import Tokenizer
from ..contract import JsonObject, Named, Request, RequestError


class Limits:
    """Holds the part of an answer behind its reasoning to one of some grammars.

    Which one it is need not be known before: each of them counts until the text leaves it.

    Parameters
    ----------
    tokenizer : Tokenizer
    grammars : sequence of Grammar
        At least one.
    """

    def __init__(self, tokenizer: Tokenizer, grammars: Sequence[Grammar]) -> None:
        self._alive = [Constraint(tokenizer, grammar) for grammar in grammars]

    def mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy of logits in which the tokens that may not come next have -inf."""
        if len(self._alive) == 1:
            return self._alive[0].mask(logits)
        allowed = np.logical_or.reduce([constraint.allowed() for constraint in self._alive])
        return np.where(allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Go on by one token that the mask let through."""
        if len(self._alive) > 1:
            self._alive = [constraint for constraint in self._alive if constraint.allowed()[token]]
        for constraint in self._alive:
            constraint.accept(token)


def grammars_of(request: Request, tools: Sequence[Mapping[str, Any]]) -> tuple[tuple[Grammar, ...], tuple[str, ...]]:
    """Return what the answer to a request is held to (nothing for a free one), and remarks.

    A request for JSON that also offers tools may be answered by a call or by JSON. One that must be answered by a call
    is: the form of the text does not matter then. Where the parameters of a tool cannot be enforced they are free, but
    for a tool that is declared `strict`.

    Raises
    ------
    RequestError
        A schema is wrong or says what cannot be enforced; the text names the part.
    """
    choice = request.tool_choice
    wanted = request.response_format
    grammars: list[Grammar] = []
    notes: tuple[str, ...] = ()
    must_call = choice == "required" or isinstance(choice, Named)
    if must_call or (wanted is not None and tools):
        names = [choice.name] if isinstance(choice, Named) else None
        try:
            enforced, notes = _enforceable(tools)
            grammars.append(Grammar.tool_calls(enforced, names, request.parallel_tool_calls))
        except ValueError as error:
            raise RequestError(f"these tools cannot be enforced: {error}", param="tools") from None
    if wanted is not None and not must_call:
        try:
            grammar = Grammar.json_object() if isinstance(wanted, JsonObject) else Grammar.json_schema(wanted.schema)
        except ValueError as error:
            raise RequestError(f"this response format cannot be enforced: {error}", param="response_format") from None
        grammars.append(grammar)
    return tuple(grammars), notes


def _enforceable(tools: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """Return the tools with free parameters where theirs cannot be enforced, and a remark for each."""
    try:
        Grammar.tool_calls(tools)
        return list(tools), ()
    except ValueError:
        pass
    out: list[Mapping[str, Any]] = []
    notes = []
    for tool in tools:
        try:
            Grammar.tool_calls([tool])
            out.append(tool)
        except ValueError as error:
            if tool["function"].get("strict"):
                raise
            out.append({"type": "function", "function": {"name": tool["function"]["name"]}})
            notes.append(str(error))
    return out, tuple(notes)
