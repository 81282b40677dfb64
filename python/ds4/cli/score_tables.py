"""The tables that ``ds4 score`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ds4.score import Comparison, Divergence, DivergenceReport, Run, TextScore, Totals, VectorReport, total_of

_SHOWN_IDS = 10
_SHOWN_CASES = 8


def text_table(scores: Sequence[TextScore]) -> list[str]:
    """Return a line per text, and their sum when there are several."""
    rows = [*scores, *([total_of(scores)] if len(scores) > 1 else [])]
    head = ("text", "bytes", "tokens", "windows", "NLL/token", "NLL/byte", "bits/byte", "perplexity", "best %")
    return _table(
        head,
        [
            (
                s.name,
                str(s.bytes),
                str(s.tokens),
                str(s.windows),
                f"{s.avg_nll:.6f}",
                f"{s.nll_per_byte:.6f}",
                f"{s.bits_per_byte:.6f}",
                f"{s.perplexity:.4f}",
                f"{100 * s.matches / s.tokens:.2f}",
            )
            for s in rows
        ],
    )


def run_table(run: Run) -> list[str]:
    """Return the sums of a run, of every kind and of all."""
    rows = [*run.by_kind.items(), ("all", run.totals)]
    return _table(
        ("kind", "cases", "tokens", "NLL/token", "perplexity", "first token", "mean prefix"),
        [_totals_row(name, totals) for name, totals in rows],
    )


def _totals_row(name: str, t: Totals) -> tuple[str, ...]:
    return (
        name,
        str(t.cases),
        str(t.target_tokens),
        f"{t.avg_nll:.6f}",
        f"{t.perplexity:.4f}",
        str(t.first_matches),
        f"{t.mean_lcp:.2f}",
    )


def divergence_table(report: DivergenceReport) -> list[str]:
    """Return a line per case and per kind, and one of all tokens."""
    rows = [*(report.cases if len(report.cases) > 1 else ()), *report.kinds, report.total]
    head = ("case", "tokens", "mean KL", "median KL", "p99 KL", "max KL", "agree %", "NLL parent", "NLL", "change")
    return _table(head, [_divergence_row(d) for d in rows])


def _divergence_row(d: Divergence) -> tuple[str, ...]:
    return (
        d.id,
        str(d.tokens),
        *(f"{v:.3e}" for v in (d.mean_kl, d.median_kl, d.p99_kl, d.max_kl)),
        f"{100 * d.agreement:.2f}",
        f"{d.parent_nll / d.tokens:.6f}",
        f"{d.nll / d.tokens:.6f}",
        f"{d.delta:+.6f}",
    )


def divergence_note(d: Divergence) -> str:
    """Return a sentence about the predictions that are turned over."""
    flips = d.tokens - d.agreements
    if not flips:
        return "the best prediction is the same for every token"
    return (
        f"another best prediction for {flips} of {d.tokens} tokens; there the parent prefers its own by "
        f"{d.mean_gap:.3f} nats on average, {d.max_gap:.3f} at most"
    )


def comparison_table(whole: Comparison, kinds: Mapping[str, Comparison]) -> list[str]:
    """Return the sums of a comparison, the cases that changed most, and the ids that one side lacks."""
    rows = [*kinds.items(), ("all", whole)]
    out = _table(
        (
            "kind",
            "cases",
            "tokens",
            "old NLL",
            "new NLL",
            "change",
            "relative",
            "wins",
            "losses",
            "ties",
            "first",
            "prefix",
        ),
        [
            (
                name,
                str(c.old.cases),
                str(c.old.target_tokens),
                f"{c.old.avg_nll:.6f}",
                f"{c.new.avg_nll:.6f}",
                f"{c.difference:+.6f}",
                "" if c.relative is None else f"{100 * c.relative:+.2f} %",
                str(c.wins),
                str(c.losses),
                str(c.ties),
                f"{c.old.first_matches} > {c.new.first_matches}",
                f"{c.old.mean_lcp:.2f} > {c.new.mean_lcp:.2f}",
            )
            for name, c in rows
        ],
    )
    ordered = sorted(whole.cases, key=lambda c: c.delta)
    for title, cases in (
        ("most improved", [c for c in ordered if c.outcome > 0][:_SHOWN_CASES]),
        ("most worsened", [c for c in reversed(ordered) if c.outcome < 0][:_SHOWN_CASES]),
    ):
        if cases:
            out += ["", f"{title}, NLL of a token:"]
            out += [f"  {c.delta:+.6f}  {c.id}" for c in cases]
    for side, ids in (("old", whole.only_old), ("new", whole.only_new)):
        if ids:
            more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
            out += ["", f"only in the {side} run, not compared: {', '.join(ids[:_SHOWN_IDS])}{more}"]
    return out


def vector_lines(report: VectorReport) -> list[str]:
    """Return a line per case with the reasons of those that failed, and the sums."""
    out = []
    for r in report.results:
        detail = "" if r.status == "skip" else f"  {r.prompt_tokens} tokens, {r.steps} steps, worst gap {r.worst:.3f}"
        out.append(f"{r.status.upper():<5} {r.id}{detail}")
        out += [f"      {reason}" for reason in r.reasons]
    steps = sum(r.steps for r in report.results)
    differing = sum(r.mismatches for r in report.results)
    out.append(
        f"{report.count('pass')} passed, {report.count('fail')} failed, {report.count('skip')} skipped; "
        f"{differing} of {steps} choices differ"
    )
    return out


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Align columns: names to the left, numbers to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
