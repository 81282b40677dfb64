"""Running a model against test vectors, and recording new ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ds4.chat import render
from ds4.progress import Progress
from ds4.session import Session, TokenLogprob
from ds4.tokenizer import Tokenizer

from .cases import official_prompt
from .forcing import Meter
from .vectors import AnyCase, LocalCase, VectorCase, VectorStep

TOP_K, MAX_LOGPROB_GAP = 20, 4.0
"""A candidate of an official vector must be among so many best ones, and its log-probability so near."""

OVERLAPS = ((5, 4), (20, 15), (64, 40))
"""Of so many best tokens of a local vector, so many must be among the model's."""

MAX_LOGIT_GAP = 8.0
"""Greatest difference of a logit among the 20 best of a local vector."""

Status = Literal["pass", "fail", "skip"]
Count = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class VectorResult:
    """What became of one case.

    Attributes
    ----------
    id : str
        The case.
    status : {"pass", "fail", "skip"}
    reasons : tuple of str
        Why it failed; empty otherwise.
    prompt_tokens : int
        Tokens of the prompt; 0 when it was skipped.
    steps, mismatches : int
        Choices compared, and those that differed.
    worst : float
        Greatest difference of a log-probability (official vectors) or logit (local ones) that was compared.
    """

    id: str
    status: Status
    reasons: tuple[str, ...] = ()
    prompt_tokens: int = 0
    steps: int = 0
    mismatches: int = 0
    worst: float = 0.0


@dataclass(frozen=True, slots=True)
class VectorReport:
    """What became of all cases."""

    results: tuple[VectorResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no case failed."""
        return all(r.status != "fail" for r in self.results)

    def count(self, status: Status) -> int:
        """Return how many cases have a status."""
        return sum(r.status == status for r in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return everything as an object."""
        return {
            "format": "ds4-score-vectors",
            "passed": self.passed,
            "counts": {"pass": self.count("pass"), "fail": self.count("fail"), "skip": self.count("skip")},
            "steps": sum(r.steps for r in self.results),
            "mismatches": sum(r.mismatches for r in self.results),
            "cases": [asdict(r) for r in self.results],
        }


def prompt_of(case: AnyCase, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that a case is evaluated on before the first choice."""
    if isinstance(case, VectorCase):
        return official_prompt(case.prompt, tokenizer)
    if case.mode == "chat":
        ids = render([{"role": "user", "content": case.text}], mode="chat").encode(tokenizer)
    else:
        ids = tokenizer.encode(case.text, specials=case.mode == "rendered")
    return tuple(ids[: case.frontier])


def vector_ctx(cases: Sequence[AnyCase], tokenizer: Tokenizer, skip: Collection[str] = ()) -> int:
    """Return the context that running cases takes; 1 when all are skipped."""
    return max((_positions(c, prompt_of(c, tokenizer)) for c in cases if c.id not in skip), default=1)


def run_vectors(
    session: Session, cases: Sequence[AnyCase], *, skip: Collection[str] = (), progress: Progress | None = None
) -> VectorReport:
    """Compare a model with test vectors.

    For an official vector the best token of every step must have the bytes of the recorded one, and every recorded
    candidate must be among the 20 best, its log-probability no more than 4 away. After a step that differs the recorded
    token is fed, so that later steps are compared behind the right prefix. For a local vector see `OVERLAPS` and
    `MAX_LOGIT_GAP`; the best token must be the same.

    Parameters
    ----------
    session : Session
        Settings of the run.
    cases : sequence of VectorCase or LocalCase
        From `read_vectors`.
    skip : collection of str
        Ids of cases to leave out.
    progress : callable, optional
        Called with (positions done, positions in all, id of the case).

    Raises
    ------
    ValueError
        An id to skip is that of no case, or nothing would be left to compare.
    """
    unknown = sorted(set(skip) - {case.id for case in cases})
    if unknown:
        raise ValueError(f"there is no case {unknown[0]!r} to skip; there are {', '.join(c.id for c in cases)}")
    if all(case.id in skip for case in cases):
        raise ValueError("all cases are skipped, so nothing would be compared")
    tokenizer = session.model.tokenizer
    prompts = {case.id: prompt_of(case, tokenizer) for case in cases if case.id not in skip}
    meter = Meter(progress, sum(_positions(c, prompts[c.id]) for c in cases if c.id in prompts))
    results = []
    for case in cases:
        if case.id in skip:
            results.append(VectorResult(case.id, "skip"))
            continue
        prompt = prompts[case.id]
        count = meter.within(case.id)
        problem = _unfit(case, prompt, session)
        if problem is not None:
            results.append(VectorResult(case.id, "fail", (problem,), len(prompt)))
        elif isinstance(case, VectorCase):
            results.append(_run_official(session, case, prompt, count))
        else:
            results.append(_run_local(session, case, prompt, count))
        count(_positions(case, prompt), 0)
    return VectorReport(tuple(results))


def _positions(case: AnyCase, prompt: Sequence[int]) -> int:
    return len(prompt) + (len(case.steps) - 1 if isinstance(case, VectorCase) else 0)


def _unfit(case: AnyCase, prompt: Sequence[int], session: Session) -> str | None:
    """Return why a case cannot be run at all."""
    if isinstance(case, LocalCase):
        if len(prompt) < case.frontier:
            return f"the text has {len(prompt)} tokens, fewer than the frontier of {case.frontier}"
        worst = max(token for token, _ in case.top)
        if worst >= session.n_vocab:
            return f"token {worst} is not in the vocabulary of {session.n_vocab}"
    needed = _positions(case, prompt)
    if case.n_ctx is not None and needed > case.n_ctx:
        return f"{needed} positions are needed, but the case says a context of {case.n_ctx}"
    if needed > session.n_ctx:
        return f"{needed} positions are needed, but the context has room for {session.n_ctx}"
    return None


def _run_official(session: Session, case: VectorCase, prompt: Sequence[int], count: Count) -> VectorResult:
    tokenizer = session.model.tokenizer
    reasons = []
    if case.prompt_tokens not in (None, len(prompt)):
        reasons.append(f"the prompt has {len(prompt)} tokens, not {case.prompt_tokens}")
    session.sync(prompt, progress=count)
    done = mismatches = 0
    worst = 0.0
    for i, step in enumerate(case.steps):
        local = session.logprobs(TOP_K)
        best = tokenizer.token_bytes(local[0].token)
        done += 1
        if best != step.token:
            mismatches += 1
            reasons.append(f"step {i}: the model's token is {_shown(best)}, not {_shown(step.token)}")
        gap, problems = _compare_top(i, step, local, tokenizer)
        worst = max(worst, gap)
        reasons += problems
        if i + 1 < len(case.steps):
            token = _token_of(step.token, local, tokenizer)
            if token is None:
                reasons.append(f"step {i}: no token has the bytes {_shown(step.token)}; later steps are not compared")
                break
            session.eval(token)
    return VectorResult(case.id, "fail" if reasons else "pass", tuple(reasons), len(prompt), done, mismatches, worst)


def _compare_top(
    i: int, step: VectorStep, local: Sequence[TokenLogprob], tokenizer: Tokenizer
) -> tuple[float, list[str]]:
    found: dict[bytes, float] = {}
    for candidate in local:
        found.setdefault(tokenizer.token_bytes(candidate.token), candidate.logprob)
    worst = 0.0
    problems = []
    for token, logprob in step.top:
        if token not in found:
            problems.append(f"step {i}: {_shown(token)} is not among the {len(local)} best tokens")
            continue
        gap = abs(found[token] - logprob)
        worst = max(worst, gap)
        if gap > MAX_LOGPROB_GAP:
            problems.append(
                f"step {i}: the log-probability of {_shown(token)} is {found[token]:.3f}, more than "
                f"{MAX_LOGPROB_GAP:g} away from {logprob:.3f}"
            )
    return worst, problems


def _token_of(data: bytes, local: Sequence[TokenLogprob], tokenizer: Tokenizer) -> int | None:
    """Return the token with these bytes, a likely one if there are several."""
    for candidate in local:
        if tokenizer.token_bytes(candidate.token) == data:
            return candidate.token
    return next((i for i in range(tokenizer.n_vocab) if tokenizer.token_bytes(i) == data), None)


def _run_local(session: Session, case: LocalCase, prompt: Sequence[int], count: Count) -> VectorResult:
    session.sync(prompt, progress=count)
    logits = session.logits()
    order = np.lexsort((np.arange(logits.size), -logits))
    theirs = [token for token, _ in case.top]
    reasons = []
    mismatch = int(order[0]) != theirs[0]
    if mismatch:
        reasons.append(f"the model's best token is {int(order[0])}, not {theirs[0]}")
    for size, needed in OVERLAPS:
        if len(theirs) >= size:
            common = len({int(t) for t in order[:size]} & set(theirs[:size]))
            if common < needed:
                reasons.append(f"{common} of the {size} best tokens are the same; {needed} are needed")
    gaps = [(abs(float(logits[token]) - logit), token) for token, logit in case.top[:TOP_K]]
    worst, token = max(gaps)
    if worst > MAX_LOGIT_GAP:
        reasons.append(f"the logit of token {token} is {worst:.3f} away; at most {MAX_LOGIT_GAP:g} is allowed")
    return VectorResult(case.id, "fail" if reasons else "pass", tuple(reasons), len(prompt), 1, int(mismatch), worst)


def _shown(data: bytes) -> str:
    return repr(data.decode("utf-8", "backslashreplace"))


def record_vectors(
    session: Session,
    prompts: Sequence[tuple[str, str]],
    *,
    steps: int = 4,
    top: int = 5,
    progress: Progress | None = None,
) -> list[VectorCase]:
    """Record what a model answers, so that the same can be asked for later.

    Parameters
    ----------
    session : Session
        Settings of the run.
    prompts : sequence of (id, text)
        User messages.
    steps : int
        Tokens of every answer; an answer that ends earlier has fewer.
    top : int
        Candidates of every step, 0..20.
    progress : callable, optional
        Called with (positions done, positions in all, id of the case).

    Raises
    ------
    ValueError
        A number is out of its range, a prompt does not fit, or the model has no answer at all to one.
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, not {steps}")
    if not 0 <= top <= TOP_K:
        raise ValueError(f"top must be in 0..{TOP_K}, not {top}")
    tokenizer = session.model.tokenizer
    encoded = [(name, text, official_prompt(text, tokenizer)) for name, text in prompts]
    for name, _, ids in encoded:
        if len(ids) + steps - 1 > session.n_ctx:
            raise ValueError(
                f"case {name}: {len(ids)} tokens of prompt and {steps} steps need a context of "
                f"{len(ids) + steps - 1}, this one has {session.n_ctx}"
            )
    meter = Meter(progress, sum(len(ids) + steps - 1 for _, _, ids in encoded))
    cases = []
    for name, text, ids in encoded:
        count = meter.within(name)
        session.sync(ids, progress=count)
        found: list[VectorStep] = []
        while len(found) < steps:
            local = session.logprobs(TOP_K)
            chosen = local[0].token
            if chosen == tokenizer.eos_id:
                break
            candidates = tuple((tokenizer.token_bytes(c.token), c.logprob) for c in local[:top])
            found.append(VectorStep(tokenizer.token_bytes(chosen), candidates))
            if len(found) < steps:
                session.eval(chosen)
        if not found:
            raise ValueError(f"case {name}: the model ends its answer at once, so there is nothing to record")
        count(len(ids) + steps - 1, 0)
        cases.append(VectorCase(name, text, tuple(found), len(ids) + steps - 1, len(ids)))
    return cases


def default_ids(files: Sequence[Path]) -> list[str]:
    """Return ids for prompt files: their names without suffix.

    Raises
    ------
    ValueError
        Two are the same.
    """
    names = [path.stem for path in files]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two prompt files are named {name}, which is to be the id of a case")
    return names
