"""The token timeline of a chat: a head (BOS, effort, system text) and turns, each rendered once.

Turns are only ever appended, with the tokens that the model itself drew, so that each new turn extends what the
session holds. Reasoning of earlier turns stays (the published encoder can also leave it out, which would mean
computing everything after it again).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ds4 import Tokenizer
from ds4.chat import EFFORT_MAX_CONTEXT, Prompt, Special, protocol, render

MODES = ("think", "think-max", "nothink")


@dataclass(slots=True)
class Turn:
    """A user's message and the model's reply, as tokens; `text` is the message."""

    text: str
    prompt: list[int]
    thinking: bool
    reply: list[int] = field(default_factory=list)


class Conversation:
    """A chat without tools.

    Parameters
    ----------
    tokenizer : Tokenizer
        The model's.
    system : str or None
        System text.
    mode : str
        One of `MODES`: "think-max" renders its request in front of everything.
    """

    def __init__(self, tokenizer: Tokenizer, *, system: str | None, mode: str) -> None:
        self.tokenizer = tokenizer
        self.system = system
        self.mode = mode
        self.turns: list[Turn] = []

    @property
    def thinking(self) -> bool:
        """Whether the next turn begins with reasoning."""
        return self.mode != "nothink"

    def add(self, text: str) -> list[int]:
        """Add a user's message and return the tokens of the whole conversation up to the model's turn."""
        self.turns.append(self.turn(text, thinking=self.thinking))
        return self.tokens()

    def turn(self, text: str, *, thinking: bool) -> Turn:
        """Return a turn with a message and without a reply, which is not added."""
        _, prompt = self._rendered(text, thinking)
        return Turn(text, prompt.encode(self.tokenizer), thinking)

    def drop_last(self) -> Turn:
        """Take the last turn away and return it."""
        return self.turns.pop()

    def set_reply(self, tokens: list[int]) -> None:
        """Store what the model wrote in the last turn, without the end token."""
        self.turns[-1].reply = list(tokens)

    def tokens(self) -> list[int]:
        """Return the timeline; every turn but the last is closed, whatever ended it."""
        head, _ = self._rendered("", self.thinking)
        ids = head.encode(self.tokenizer)
        for i, turn in enumerate(self.turns):
            ids += turn.prompt + turn.reply
            if i < len(self.turns) - 1:
                ids += self._closing(turn)
        return ids

    def _closing(self, turn: Turn) -> list[int]:
        end_think = self.tokenizer.special(protocol.END_THINK)
        unclosed = turn.thinking and end_think not in turn.reply
        return ([end_think] if unclosed else []) + [self.tokenizer.eos_id]

    def _rendered(self, text: str, thinking: bool) -> tuple[Prompt, Prompt]:
        """Render a conversation with one message; returns its head and its turn."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        effort = "max" if self.mode == "think-max" and thinking else None
        whole = render(messages, mode="thinking" if thinking else "chat", effort=effort)
        cut = whole.parts.index(Special(protocol.USER))
        return Prompt(whole.parts[:cut]), Prompt(whole.parts[cut:])


def fitting_mode(mode: str, n_ctx: int) -> tuple[str, str | None]:
    """Return the mode to use in a context of `n_ctx`, and a warning when it is not the one asked for."""
    if mode == "think-max" and n_ctx < EFFORT_MAX_CONTEXT:
        return "think", (
            f"--think-max needs a context of at least {EFFORT_MAX_CONTEXT} (-c {EFFORT_MAX_CONTEXT}), this one has "
            f"{n_ctx}: thinking plainly instead"
        )
    return mode, None
