"""How far a quantized model has moved away from its parent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4.progress import Progress
from ds4.sampling import log_softmax
from ds4.session import Session
from ds4.tokenizer import Tokenizer

from .cases import Case, check_room
from .forcing import Meter, predictions
from .runs import kinds_of


@dataclass(frozen=True, slots=True)
class Divergence:
    """Distances of two models' predictions over some tokens, in nats.

    Attributes
    ----------
    id : str
        The case, or what the sums are of.
    tokens : int
        Tokens predicted.
    mean_kl, median_kl, p99_kl, max_kl : float
        Of the Kullback-Leibler divergence of the model from its parent, KL(parent || model), token by token.
    agreements : int
        Tokens for which both have the same best prediction.
    mean_gap, max_gap : float
        Where they differ: how much less likely the parent holds the model's choice than its own (difference of
        log-probabilities). Small gaps are near-ties, which any rounding turns over. 0 when they never differ.
    parent_nll, nll : float
        Negative log-likelihood of the tokens, summed.
    kind : str or None
        The case's group.
    """

    id: str
    tokens: int
    mean_kl: float
    median_kl: float
    p99_kl: float
    max_kl: float
    agreements: int
    mean_gap: float
    max_gap: float
    parent_nll: float
    nll: float
    kind: str | None = None

    @property
    def agreement(self) -> float:
        """Share of the tokens for which the best prediction is the same."""
        return self.agreements / self.tokens

    @property
    def delta(self) -> float:
        """Change of the negative log-likelihood of a token; above 0 the model is worse than its parent."""
        return (self.nll - self.parent_nll) / self.tokens

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {
            **asdict(self),
            "agreement": self.agreement,
            "parent_avg_nll": self.parent_nll / self.tokens,
            "avg_nll": self.nll / self.tokens,
            "delta": self.delta,
        }


@dataclass(frozen=True, slots=True)
class DivergenceReport:
    """Distances case by case, of every kind, and of all tokens."""

    total: Divergence
    kinds: tuple[Divergence, ...]
    cases: tuple[Divergence, ...]

    def as_json(self) -> dict[str, Any]:
        """Return everything as an object."""
        return {
            "format": "ds4-score-divergence",
            "total": self.total.as_json(),
            "kinds": {d.id: d.as_json() for d in self.kinds},
            "cases": [d.as_json() for d in self.cases],
        }


def check_same_tokens(one: Tokenizer, other: Tokenizer) -> None:
    """Check that two tokenizers are the same, so that predictions can be compared.

    Raises
    ------
    ValueError
        They differ; the text names the first difference.
    """
    if one.n_vocab != other.n_vocab:
        raise ValueError(f"the models have different vocabularies: {other.n_vocab} tokens and {one.n_vocab}")
    if (one.bos_id, one.eos_id) != (other.bos_id, other.eos_id):
        raise ValueError("the models have different BOS or EOS tokens")
    for i in range(one.n_vocab):
        if one.token_bytes(i) != other.token_bytes(i) or one.is_special(i) != other.is_special(i):
            raise ValueError(
                f"the models have different vocabularies: token {i} is {other.token_bytes(i)!r} in one and "
                f"{one.token_bytes(i)!r} in the other"
            )


def divergence(
    session: Session, parent: Session, cases: Sequence[Case], *, progress: Progress | None = None
) -> DivergenceReport:
    """Measure how far a model's predictions are from its parent's.

    Both are asked side by side, chunk by chunk, so the memory does not grow with the text; what is kept is four
    numbers a token. All arithmetic is float64 over the whole vocabulary.

    Parameters
    ----------
    session, parent : Session
        Sessions of the model and of the one it was made from.
    cases : sequence of Case
        What is predicted; `text_cases` makes them from a text, `read_cases` reads them.
    progress : callable, optional
        Called with (positions done in both, positions in both, id of the case).

    Raises
    ------
    ValueError
        There is no case, one does not fit, or the models have different tokenizers; nothing was computed.
    WeightDataError
        A logit is not finite.
    """
    if not cases:
        raise ValueError("there are no cases")
    if session is parent:
        raise ValueError("two sessions are needed: one cannot hold both predictions")
    if session.n_vocab != parent.n_vocab:
        raise ValueError(f"the models have different vocabularies: {parent.n_vocab} tokens and {session.n_vocab}")
    check_same_tokens(session.model.tokenizer, parent.model.tokenizer)
    check_room(cases, min(session.n_ctx, parent.n_ctx))
    meter = Meter(progress, 2 * sum(case.n_positions for case in cases))
    tables = [_table(session, parent, case, meter) for case in cases]
    return DivergenceReport(
        total=_summary("total", None, tables),
        kinds=tuple(
            _summary(kind, kind, [t for t, c in zip(tables, cases, strict=True) if c.kind == kind])
            for kind in kinds_of(cases)
        ),
        cases=tuple(_summary(c.id, c.kind, [t]) for t, c in zip(tables, cases, strict=True)),
    )


_KL, _GAP, _PARENT, _OWN = range(4)


def _table(session: Session, parent: Session, case: Case, meter: Meter) -> NDArray[np.float64]:
    """Return KL, gap (NaN where both agree), and the losses of parent and model, a row a token."""
    ids = case.prompt + case.target
    first = len(case.prompt)
    rows = np.empty((len(case.target), 4))
    pairs = zip(
        predictions(parent, ids, first, progress=meter.within(case.id)),
        predictions(session, ids, first, progress=meter.within(case.id)),
        strict=True,
    )
    for i, (token, (theirs, ours)) in enumerate(zip(case.target, pairs, strict=True)):
        p, q = log_softmax(theirs), log_softmax(ours)
        best, chosen = int(theirs.argmax()), int(ours.argmax())
        kl = float((np.exp(p) * (p - q)).sum())  # 0 at least, but for rounding
        rows[i] = max(kl, 0.0), math.nan if best == chosen else p[best] - p[chosen], -p[token], -q[token]
    return rows


def _summary(name: str, kind: str | None, tables: Sequence[NDArray[np.float64]]) -> Divergence:
    rows = np.concatenate(tables)
    kl = rows[:, _KL]
    gaps = rows[:, _GAP][~np.isnan(rows[:, _GAP])]
    n = len(rows)
    return Divergence(
        id=name,
        tokens=n,
        mean_kl=math.fsum(kl) / n,
        median_kl=float(np.median(kl)),
        p99_kl=float(np.percentile(kl, 99)),
        max_kl=float(kl.max()),
        agreements=n - len(gaps),
        mean_gap=math.fsum(gaps) / len(gaps) if len(gaps) else 0.0,
        max_gap=float(gaps.max()) if len(gaps) else 0.0,
        parent_nll=math.fsum(rows[:, _PARENT]),
        nll=math.fsum(rows[:, _OWN]),
        kind=kind,
    )
