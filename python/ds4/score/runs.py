"""Scores of given continuations, and the files that keep them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds4.progress import Progress
from ds4.session import Session

from .cases import Case, check_room, read_utf8
from .forcing import Meter, logprob_of, predictions

COLUMNS = ("id", "prompt_tokens", "target_tokens", "nll", "avg_nll", "first_match", "greedy_lcp")
"""Header of a run's table; the column `kind` follows when cases have one."""

JSON_FORMAT = "ds4-score-cases"


@dataclass(frozen=True, slots=True)
class CaseScore:
    """How well a model predicts one continuation.

    Attributes
    ----------
    id : str
        The case.
    prompt_tokens, target_tokens : int
        Sizes.
    nll : float
        Negative log-likelihood of the continuation, in nats, summed over its tokens.
    first_match : bool
        Whether the model's best first token is that of the continuation.
    greedy_lcp : int
        Leading tokens of the continuation that are the model's best ones.
    kind : str or None
        The case's group.
    """

    id: str
    prompt_tokens: int
    target_tokens: int
    nll: float
    first_match: bool
    greedy_lcp: int
    kind: str | None = None

    @property
    def avg_nll(self) -> float:
        """Negative log-likelihood of a token."""
        return self.nll / self.target_tokens

    def as_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return {**asdict(self), "avg_nll": self.avg_nll}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over cases: averages of a token are weighted by tokens, those of a case are not weighted.

    Attributes
    ----------
    cases, target_tokens : int
    nll, avg_nll, perplexity : float
        Sum, average of a token, and e to the power of that.
    first_matches : int
        Cases whose first token is the model's best.
    mean_lcp : float
        Average of `CaseScore.greedy_lcp`.
    """

    cases: int
    target_tokens: int
    nll: float
    avg_nll: float
    perplexity: float
    first_matches: int
    mean_lcp: float

    @classmethod
    def of(cls, scores: Iterable[CaseScore]) -> Totals:
        """Add up scores; there must be one at least."""
        found = list(scores)
        n_tokens = sum(s.target_tokens for s in found)
        nll = math.fsum(s.nll for s in found)
        return cls(
            cases=len(found),
            target_tokens=n_tokens,
            nll=nll,
            avg_nll=nll / n_tokens,
            perplexity=perplexity(nll / n_tokens),
            first_matches=sum(s.first_match for s in found),
            mean_lcp=sum(s.greedy_lcp for s in found) / len(found),
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as an object; a perplexity beyond all numbers is null."""
        return {**asdict(self), "perplexity": finite(self.perplexity)}


@dataclass(frozen=True, slots=True)
class Run:
    """The scores of a set of cases under one model."""

    cases: tuple[CaseScore, ...]

    @property
    def totals(self) -> Totals:
        """Sums over all cases."""
        return Totals.of(self.cases)

    @property
    def by_kind(self) -> dict[str, Totals]:
        """Sums of every kind, in the order in which they first appear; cases without one are left out."""
        return {kind: Totals.of(s for s in self.cases if s.kind == kind) for kind in kinds_of(self.cases)}

    def as_tsv(self) -> str:
        """Return the table with its header, numbers with nine decimals."""
        with_kind = any(s.kind is not None for s in self.cases)
        lines = ["\t".join((*COLUMNS, "kind") if with_kind else COLUMNS)]
        for s in self.cases:
            row = [s.id, str(s.prompt_tokens), str(s.target_tokens), f"{s.nll:.9f}", f"{s.avg_nll:.9f}"]
            row += [str(int(s.first_match)), str(s.greedy_lcp)]
            lines.append("\t".join([*row, s.kind or ""] if with_kind else row))
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return everything as an object, which `read_run` reads again."""
        return {
            "format": JSON_FORMAT,
            "totals": self.totals.as_json(),
            "kinds": {kind: totals.as_json() for kind, totals in self.by_kind.items()},
            "cases": [s.as_json() for s in self.cases],
        }


def perplexity(avg_nll: float) -> float:
    """Return e to the power of an average; infinity where no float can hold it."""
    return math.exp(avg_nll) if avg_nll < 709 else math.inf


def finite(value: float) -> float | None:
    """Return a number as JSON can have it."""
    return value if math.isfinite(value) else None


def kinds_of(scores: Iterable[Any]) -> list[str]:
    """Return the kinds of cases or scores, in the order in which they first appear."""
    return list(dict.fromkeys(s.kind for s in scores if s.kind is not None))


def score_cases(session: Session, cases: Sequence[Case], *, progress: Progress | None = None) -> Run:
    """Score given continuations: every token is predicted from those before it, whatever the model would have written.

    Parameters
    ----------
    session : Session
        Its settings are those of the score. It is left at the last case.
    cases : sequence of Case
        One at least; see `read_cases`.
    progress : callable, optional
        Called with (positions done, positions in all, id of the case).

    Raises
    ------
    ValueError
        There is no case, or one does not fit into the session; nothing was computed.
    WeightDataError
        A logit is not finite.
    """
    if not cases:
        raise ValueError("there are no cases")
    check_room(cases, session.n_ctx)
    meter = Meter(progress, sum(case.n_positions for case in cases))
    return Run(tuple(_score(session, case, meter) for case in cases))


def _score(session: Session, case: Case, meter: Meter) -> CaseScore:
    ids = case.prompt + case.target
    losses = []
    lcp = 0
    rows = predictions(session, ids, len(case.prompt), progress=meter.within(case.id))
    for i, (token, row) in enumerate(zip(case.target, rows, strict=True)):
        logprob, is_best = logprob_of(row, token)
        losses.append(-logprob)
        lcp += is_best and lcp == i
    return CaseScore(case.id, len(case.prompt), len(case.target), math.fsum(losses), lcp > 0, lcp, case.kind)


# Files


def read_run(path: Path) -> Run:
    """Read the scores of a run, from a table (`Run.as_tsv`) or from JSON (`Run.as_json`).

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no run, or a value is impossible; the text names the line or the case.
    """
    text = read_utf8(path)
    rows = _json_scores(text, path) if text.lstrip().startswith("{") else _tsv_scores(text, path)
    seen = set()
    for where, score in rows:
        problem = _problem(score)
        if score.id in seen:
            problem = f"the id {score.id!r} appears twice"
        if problem:
            raise ValueError(f"{path}: {where}: {problem}")
        seen.add(score.id)
    if not rows:
        raise ValueError(f"{path}: there are no cases in it")
    return Run(tuple(score for _, score in rows))


def _tsv_scores(text: str, path: Path) -> list[tuple[str, CaseScore]]:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    header = lines[0].split("\t")
    if tuple(header[: len(COLUMNS)]) != COLUMNS:
        raise ValueError(f"{path}: not a table of scores; its header should be {' '.join(COLUMNS)}")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) != len(header):
            raise ValueError(f"{path}: line {number}: {len(columns)} columns, but the header has {len(header)}")
        row = dict(zip(header, columns, strict=True))
        try:
            score = CaseScore(
                row["id"],
                int(row["prompt_tokens"]),
                int(row["target_tokens"]),
                float(row["nll"]),
                {"0": False, "1": True}[row["first_match"]],
                int(row["greedy_lcp"]),
                row.get("kind") or None,
            )
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}: line {number}: not a number where one should be ({error})") from None
        rows.append((f"line {number}", score))
    return rows


def _json_scores(text: str, path: Path) -> list[tuple[str, CaseScore]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if found.get("format") != JSON_FORMAT or not isinstance(found.get("cases"), list):
        raise ValueError(f"{path}: not the JSON of a run of cases (its format should be {JSON_FORMAT!r})")
    rows = []
    kinds = {
        "id": str,
        "prompt_tokens": int,
        "target_tokens": int,
        "nll": float,
        "first_match": bool,
        "greedy_lcp": int,
    }
    for number, row in enumerate(found["cases"], 1):
        where = f"case {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{path}: {where}: not an object")
        for key, kind in kinds.items():
            if type(row.get(key)) is not kind:
                raise ValueError(f"{path}: {where}: {key!r} is missing or not of type {kind.__name__}")
        kind_name = row.get("kind")
        if kind_name is not None and not isinstance(kind_name, str):
            raise ValueError(f"{path}: {where}: 'kind' is not a text")
        rows.append((where, CaseScore(**{key: row[key] for key in kinds}, kind=kind_name)))
    return rows


def _problem(score: CaseScore) -> str | None:
    if score.prompt_tokens < 1 or score.target_tokens < 1:
        return "the number of tokens must be 1 or more"
    if not (math.isfinite(score.nll) and score.nll >= 0):
        return f"{score.nll} is not a negative log-likelihood"
    if not 0 <= score.greedy_lcp <= score.target_tokens or (score.greedy_lcp > 0) != score.first_match:
        return f"first_match and greedy_lcp ({score.greedy_lcp}) contradict each other or target_tokens"
    return None
