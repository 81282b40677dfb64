"""How well a model predicts plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ds4.progress import Progress
from ds4.session import Session

from .cases import Case, text_cases
from .forcing import Meter, logprob_of, predictions
from .runs import finite, perplexity


@dataclass(frozen=True, slots=True)
class TextScore:
    """Sums over the tokens of a text.

    Attributes
    ----------
    name : str
        The text.
    bytes, tokens, windows : int
        Its size in UTF-8, the tokens predicted, and the windows they were predicted in.
    nll : float
        Negative log-likelihood in nats.
    matches : int
        Tokens that were the model's best.
    """

    name: str
    bytes: int
    tokens: int
    windows: int
    nll: float
    matches: int

    @property
    def avg_nll(self) -> float:
        """Negative log-likelihood of a token."""
        return self.nll / self.tokens

    @property
    def nll_per_byte(self) -> float:
        """Negative log-likelihood of a byte: the number to compare models of different vocabularies by."""
        return self.nll / self.bytes

    @property
    def bits_per_byte(self) -> float:
        """The same in bits."""
        return self.nll_per_byte / math.log(2)

    @property
    def perplexity(self) -> float:
        """e to the power of `avg_nll`; infinity where no float can hold it."""
        return perplexity(self.avg_nll)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {
            **asdict(self),
            "avg_nll": self.avg_nll,
            "nll_per_byte": self.nll_per_byte,
            "bits_per_byte": self.bits_per_byte,
            "perplexity": finite(self.perplexity),
            "match_rate": self.matches / self.tokens,
        }


def score_texts(
    session: Session,
    texts: Sequence[tuple[str, str]],
    *,
    stride: int | None = None,
    progress: Progress | None = None,
) -> list[TextScore]:
    """Score texts by windows of the session's context; every token is predicted once.

    Parameters
    ----------
    session : Session
        Its `n_ctx` is the size of the windows.
    texts : sequence of (name, text)
    stride : int, optional
        How far the windows move: see `text_cases`.
    progress : callable, optional
        Called with (positions done, positions in all, name of the window).

    Raises
    ------
    ValueError
        A text is empty, or the stride is impossible; nothing was computed.
    WeightDataError
        A logit is not finite.
    """
    tokenizer = session.model.tokenizer
    cut = [text_cases(tokenizer, text, session.n_ctx, stride=stride, name=name) for name, text in texts]
    meter = Meter(progress, sum(window.n_positions for windows in cut for window in windows))
    return [_score(session, name, text, windows, meter) for (name, text), windows in zip(texts, cut, strict=True)]


def score_text(
    session: Session, text: str, *, stride: int | None = None, name: str = "text", progress: Progress | None = None
) -> TextScore:
    """Score one text; see `score_texts`."""
    return score_texts(session, [(name, text)], stride=stride, progress=progress)[0]


def total_of(scores: Sequence[TextScore], name: str = "total") -> TextScore:
    """Return the sums over several texts."""
    return TextScore(
        name,
        sum(s.bytes for s in scores),
        sum(s.tokens for s in scores),
        sum(s.windows for s in scores),
        math.fsum(s.nll for s in scores),
        sum(s.matches for s in scores),
    )


def score_tokens(session: Session, ids: Sequence[int], first: int, *, progress: Progress | None = None) -> float:
    """Return the negative log-likelihood of `ids[first:]`, in nats, predicted from what stands before.

    Parameters
    ----------
    session : Session
        With room for all tokens but the last.
    ids : sequence of int
        Token ids, scored as they are: nothing is put in front.
    first : int
        Index of the first token that counts, 1 or more.
    progress : callable, optional
        Called with (positions done, positions in all, "tokens").

    Raises
    ------
    ContextFullError
        The session has not enough room.
    WeightDataError
        A logit is not finite.
    """
    rows = predictions(session, ids, first, progress=Meter(progress, len(ids) - 1).within("tokens"))
    return math.fsum(-logprob_of(row, token)[0] for token, row in zip(ids[first:], rows, strict=True))


def _score(session: Session, name: str, text: str, windows: Sequence[Case], meter: Meter) -> TextScore:
    losses = []
    matches = 0
    for window in windows:
        ids = window.prompt + window.target
        rows = predictions(session, ids, len(window.prompt), progress=meter.within(window.id))
        for token, row in zip(window.target, rows, strict=True):
            logprob, is_best = logprob_of(row, token)
            losses.append(-logprob)
            matches += is_best
    return TextScore(name, len(text.encode("utf-8")), len(losses), len(windows), math.fsum(losses), matches)
