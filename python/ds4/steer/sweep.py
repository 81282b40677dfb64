"""What a steering does at several scales: greedy answers to the same prompts, and their lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from ds4.chat import CompletionParser, Content
from ds4.sampling import Sampler
from ds4.session import Session
from ds4.steering import MAX_SCALE, Steering

from .prompts import SteerPrompt


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer.

    Attributes
    ----------
    text : str
        Without the reasoning.
    words, tokens : int
        Words of the text, and tokens that were written, with the reasoning.
    ended : bool
        Whether the model ended it; False when it ran into the limit.
    right : bool or None
        Whether it contains what was expected; None when nothing was.
    """

    text: str
    words: int
    tokens: int
    ended: bool
    right: bool | None


@dataclass(frozen=True, slots=True)
class SweepRow:
    """All answers at one scale.

    Attributes
    ----------
    words, tokens : float
        Means over the answers.
    ended : float
        Share of the answers that the model ended.
    accuracy : float or None
        Share of right answers among the prompts that say what is right; None when none does.
    """

    scale: float
    words: float
    tokens: float
    ended: float
    accuracy: float | None
    answers: tuple[Answer, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def sweep(
    session: Session,
    steering: Sequence[Steering],
    prompts: Sequence[SteerPrompt],
    scales: Sequence[float],
    *,
    max_tokens: int = 160,
    mode: Literal["chat", "thinking"] = "chat",
    progress: Callable[[int, int], object] | None = None,
) -> list[SweepRow]:
    """Answer prompts greedily at each scale.

    Parameters
    ----------
    session : Session
        Ends empty, with the steering that it had.
    steering : sequence of Steering
        All their scales are multiplied by the scale of the row.
    prompts : sequence of SteerPrompt
        At least one.
    scales : sequence of float
    max_tokens : int
        Of an answer, at most.
    mode : {"chat", "thinking"}
    progress : callable, optional
        Called with (answers done, answers in all).

    Returns
    -------
    list of SweepRow
        In the order of the scales.

    Raises
    ------
    ValueError
        There are no prompts or scales, or a scale is out of range.
    ContextFullError
        A prompt does not fit.
    """
    if not prompts or not scales:
        raise ValueError("a sweep needs prompts and scales")
    steps = [[one.times(scale) for one in steering] for scale in scales]
    tokenizer = session.model.tokenizer
    ids = [prompt.tokens(tokenizer, mode) for prompt in prompts]
    before, out, done = session.steering, [], 0
    try:
        for scale, step in zip(scales, steps, strict=True):
            session.reset()
            session.set_steering(step)
            answers = []
            for prompt, tokens in zip(prompts, ids, strict=True):
                if progress is not None:
                    progress(done, len(scales) * len(prompts))
                answers.append(_answer(session, prompt, tokens, max_tokens, mode))
                done += 1
            out.append(_row(scale, answers))
    finally:
        session.reset()
        session.set_steering(before)
    if progress is not None:
        progress(done, done)
    return out


def parse_scales(text: str) -> list[float]:
    """Read scales as they are written on a command line, "-1,-0.5,0,0.5,1".

    Raises
    ------
    ValueError
        One is no number, out of range, or there twice.
    """
    out: list[float] = []
    for word in text.split(","):
        try:
            scale = float(word)
        except ValueError:
            raise ValueError(f"{word.strip()!r} is no scale") from None
        if not abs(scale) <= MAX_SCALE:
            raise ValueError(f"{scale:g} is out of -{MAX_SCALE:g}..{MAX_SCALE:g}")
        if scale in out:
            raise ValueError(f"{scale:g} is there twice")
        out.append(scale)
    return out


def _answer(
    session: Session, prompt: SteerPrompt, tokens: list[int], max_tokens: int, mode: Literal["chat", "thinking"]
) -> Answer:
    session.sync(tokens)
    parser = CompletionParser(mode)
    text, n, finish = "", 0, "length"
    for step in session.generate(max_tokens=max_tokens, sampler=Sampler(temperature=0.0)):
        n += step.finish != "stop"
        text += "".join(e.text for e in parser.feed(step.text) if isinstance(e, Content))
        finish = step.finish or finish
    text += "".join(e.text for e in parser.finish(finish) if isinstance(e, Content))
    return Answer(text, len(text.split()), n, finish == "stop", prompt.right(text))


def _row(scale: float, answers: list[Answer]) -> SweepRow:
    judged = [answer.right for answer in answers if answer.right is not None]
    return SweepRow(
        scale, fmean(a.words for a in answers), fmean(a.tokens for a in answers), fmean(a.ended for a in answers),
        fmean(judged) if judged else None, tuple(answers),
    )  # fmt: skip
