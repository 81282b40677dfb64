"""``ds4 eval``: questions whose answers are known."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ds4 import Session
from ds4.chat import EFFORT_MAX_CONTEXT
from ds4.eval import (
    Case,
    Control,
    EvalSettings,
    Gate,
    GateReport,
    Listener,
    Outcome,
    PlainListener,
    Runner,
    Suite,
    Task,
    Trace,
    TraceWriter,
    check_extractors,
    check_room,
    check_settings,
    compare,
    gate_json,
    make_tasks,
    n_passed,
    narrow_report,
    needed_ctx,
    open_suite,
    own_suites,
    printable,
    read_gate,
    read_trace,
    regrade,
    report_lines,
)
from ds4.eval.plain import HIGH, WIDE
from ds4.eval.plan import DEFAULT_TOKENS

from .diagnostics import source_of
from .opening import make_session, opened_model
from .options import MAX_CONTEXT, FiniteFloat, Whole, report_option, take
from .output import OutputFile, keep_apart
from .settings import Settings
from .terminal import note, tell, use_colour

_INTERRUPTED = 130
_PATH = click.Path(path_type=Path)

_HELP = """\b
Examples:
  ds4 eval                                   the tiny model of the package on its own suite
  ds4 eval -m flash.gguf                     the suite "general", live
  ds4 eval -m flash.gguf --suite my.jsonl --trace my.trace --plain
  ds4 eval --regrade-trace my.trace          grade the answers again, without a model
  ds4 eval -m flash.gguf --questions 4 -n 2048 --write-gate flash.gate
  ds4 eval -m flash.gguf --questions 4 -n 2048 --gate flash.gate

Asks the questions of a suite and grades the answers. On a terminal the cases are listed on the left and the answer at
hand is shown on the right; keys are Up and Down to select, Enter to run the selected case next, p to pause, q to stop
and report. The exit code is 1 when a case fails, or with --gate when the gate does not hold."""


class _Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Numbers of cases, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Read numbers, or fail as a usage error."""
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 8 and int(part) for part in parts):
            self.fail(f"{value!r} is not a list of case numbers such as 3,1,7", param, ctx)
        numbers = tuple(int(part) for part in parts)
        if len(set(numbers)) < len(numbers):
            self.fail(f"{value!r} names a case twice", param, ctx)
        return numbers


@dataclass(frozen=True, slots=True)
class _Files:
    """Where results go."""

    trace: Path | None
    gate: Path | None
    write_gate: Path | None
    json: Path | None
    retry: Path | None


@click.command("eval", help=_HELP, short_help="Ask questions whose answers are known.")
@take("model")
@click.option(
    "--suite",
    metavar="NAME|FILE",
    help=f"Suite of the package ({', '.join(own_suites())}) or a file of JSON lines. Default: tiny for the tiny model, "
    "general for any other.",
)
@click.option("--questions", type=Whole(1), metavar="N", help="Ask the first N cases only.")
@click.option("--case-sequence", type=_Numbers(), metavar="LIST", help="Ask these cases in this order, as 3,1,7.")
@click.option("--list-cases", is_flag=True, help="List the cases and exit.")
@click.option(
    "--retry-incomplete",
    type=_PATH,
    metavar="FILE",
    help="Take over the results of a trace and ask only what is missing there or ended without an answer.",
)
@click.option(
    "-n", "--tokens", type=Whole(1), default=DEFAULT_TOKENS, show_default=True, metavar="N",
    help="Most tokens of an answer; a case may have less.",
)  # fmt: skip
@click.option(
    "-c", "--ctx", type=Whole(1, MAX_CONTEXT), metavar="N",
    help="Positions of the context. Default: what the longest case needs.",
)  # fmt: skip
@take("think", "think_max", "nothink")
@click.option(
    "--temp", type=FiniteFloat(0.0, 100.0), default=0.0, show_default=True, metavar="T",
    help="Temperature; 0 always takes the best token.",
)  # fmt: skip
@take("top_k", "top_p", "min_p")
@click.option(
    "--seed", type=Whole(0, (1 << 64) - 1), default=0, show_default=True, metavar="N",
    help="Every case draws from a seed of its own, made of this one and its name.",
)  # fmt: skip
@click.option(
    "--soft-limit-reply-budget", "soft", type=Whole(0), metavar="N",
    help="In the last N tokens the reasoning may be closed.  [default: 1024, at most half of -n]",
)  # fmt: skip
@click.option(
    "--hard-limit-reply-budget", "hard", type=Whole(0), metavar="N",
    help="In the last N tokens the reasoning is closed.  [default: 512, at most a quarter of -n]",
)  # fmt: skip
@click.option(
    "--soft-limit-think-close-rank", "rank", type=Whole(1), default=3, show_default=True, metavar="N",
    help="The soft limit closes when the end of the reasoning is among the N best tokens.",
)  # fmt: skip
@click.option("--trace", type=_PATH, metavar="FILE", help="Record prompts, answers and verdicts.")
@click.option(
    "--regrade-trace", type=_PATH, metavar="FILE",
    help="Grade the answers of a trace again and list what changed; no model is needed. With --suite the right answers "
    "come from there.",
)  # fmt: skip
@click.option("--gate", type=_PATH, metavar="FILE", help="Compare token counts and answers with recorded ones.")
@click.option("--write-gate", type=_PATH, metavar="FILE", help="Record them.")
@report_option
@click.option("--plain", is_flag=True, help="One line a case instead of the live view.")
@click.option(
    "--pause-ms", type=Whole(0, 60_000), default=350, show_default=True, metavar="N",
    help="How long the live view shows a finished case.",
)  # fmt: skip
@click.option("--self-test-extractors", is_flag=True, help="Check the graders on texts with known results, and exit.")
@take("backend", "cpu", "threads", "affinity", "numa", "check", "force_memory", "simulate_memory", "no_qat")
@take("expert_cache", "ssd_streaming", "read_depth", "cold")
@take("activations")
@click.pass_context
def command(
    click_ctx: click.Context, /, suite: str | None, questions: int | None, case_sequence: tuple[int, ...] | None,
    list_cases: bool, retry_incomplete: Path | None, tokens: int, ctx: int | None, temp: float, seed: int,
    soft: int | None, hard: int | None, rank: int, trace: Path | None, regrade_trace: Path | None, gate: Path | None,
    write_gate: Path | None, json_file: Path | None, plain: bool, pause_ms: int, self_test_extractors: bool,
    think: bool, think_max: bool, nothink: bool, top_k: int, top_p: float, min_p: float, **values: Any,
) -> int:  # fmt: skip
    """Run the command."""
    if self_test_extractors:
        _used_alone(click_ctx, "self_test_extractors")
        return _self_test()
    if regrade_trace is not None:
        _used_alone(click_ctx, "regrade_trace", "suite", "json_file")
        return _regrade(regrade_trace, suite, json_file)
    cases = open_suite(suite if suite is not None else "tiny" if values["model"] is None else "general")
    if list_cases:
        _used_alone(click_ctx, "list_cases", "suite", "model", "questions", "case_sequence")
    numbered = _chosen(cases, questions, case_sequence)
    if list_cases:
        _list(numbered)
        return 0
    if values["cpu"] and values["backend"] not in ("auto", "cpu"):
        raise click.UsageError(f"--cpu and --backend {values['backend']} contradict each other")
    if gate is not None and write_gate is not None:
        raise click.UsageError("--gate and --write-gate cannot be given together")
    try:
        settings = EvalSettings(
            max_tokens=tokens, mode=_mode(think, think_max, nothink), effort="max" if think_max else None,
            temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, soft=soft, hard=hard, rank=rank,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if think_max and ctx is not None and ctx < EFFORT_MAX_CONTEXT:
        raise click.UsageError(f"--think-max needs a context of {EFFORT_MAX_CONTEXT}; -c {ctx} is too small")
    if write_gate is not None and temp > 0:
        raise click.UsageError("--write-gate records greedy answers; --temp must be 0")
    files = _Files(trace, gate, write_gate, json_file, retry_incomplete)
    keep_apart([trace, write_gate, json_file], [values["model"], gate, retry_incomplete, _suite_file(suite)])
    return _Run(cases, numbered, settings, Settings(**values), files, ctx, plain, pause_ms / 1000).run()


def _suite_file(suite: str | None) -> Path | None:
    return None if suite is None or suite in own_suites() else Path(suite)


def _used_alone(click_ctx: click.Context, name: str, *others: str) -> None:
    """Refuse options that have no effect on a kind of work."""
    from click.core import ParameterSource

    flags = {p.name: max(p.opts, key=len) for p in click_ctx.command.params if p.name}
    for other in flags:
        given = click_ctx.get_parameter_source(other) is ParameterSource.COMMANDLINE
        if given and other not in (name, *others):
            raise click.UsageError(f"{flags[other]} has no effect with {flags[name]}")


def _mode(think: bool, think_max: bool, nothink: bool) -> Any:
    given = [f for f, on in (("--think", think), ("--think-max", think_max), ("--nothink", nothink)) if on]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} cannot be given together")
    return "chat" if nothink else "thinking" if given else None


def _chosen(suite: Suite, first: int | None, sequence: tuple[int, ...] | None) -> list[tuple[int, Case]]:
    """Return cases with their numbers, in the order in which they are asked."""
    n = len(suite.cases)
    if sequence is not None:
        for number in sequence:
            if number > n:
                raise click.UsageError(f"--case-sequence: there is no case {number}; {suite.name} has {n}")
        numbers = list(sequence)
    else:
        numbers = list(range(1, n + 1))
    return [(number, suite.cases[number - 1]) for number in numbers[:first]]


def _list(numbered: Sequence[tuple[int, Case]]) -> None:
    width = max(len(case.name) for _, case in numbered)
    for number, case in numbered:
        print(f"{number:>4}  {case.name:<{width}}  {case.kind:<7}  {printable(case.expected)}")


def _self_test() -> int:
    faults, n = check_extractors()
    for fault in faults:
        note(fault)
    print(f"{n - len(faults)} of {n} checks of the graders are right")
    return 1 if faults else 0


def _regrade(path: Path, suite: str | None, json_file: Path | None) -> int:
    keep_apart([json_file], [path, _suite_file(suite)])
    trace = read_trace(path)
    _tell_cut_off(trace, path)
    found = regrade(trace, None if suite is None else open_suite(suite).cases)
    say: Callable[[str], object] = (lambda line: tell(line + "\n")) if str(json_file) == "-" else print
    for old, new in found.changed:
        line = f"{new.case.name}: {old.state}, answer {old.given or '-'} -> {new.state}, answer {new.given or '-'} "
        say(printable(line + f"(right: {new.case.expected})"))
    say(f"passed {n_passed(found.after)} of {len(found.after)}; recorded {n_passed(found.before)}")
    if json_file is not None:
        with OutputFile(json_file) as out:
            out.write_json(
                {
                    "format": "ds4-eval-regrade",
                    "trace": str(path),
                    "passed": n_passed(found.after),
                    "recorded": n_passed(found.before),
                    "total": len(found.after),
                    "changed": [
                        {"case": new.case.name, "before": {"state": old.state, "given": old.given},
                         "after": {"state": new.state, "given": new.given}, "expected": new.case.expected}
                        for old, new in found.changed
                    ],
                }
            )  # fmt: skip
    return 0


def _tell_cut_off(trace: Trace, path: Path) -> None:
    if trace.truncated:
        note(f"{path}: the last record is cut off and was left out")


class _Run:
    """One run of the command."""

    def __init__(
        self, suite: Suite, numbered: Sequence[tuple[int, Case]], eval_settings: EvalSettings, settings: Settings,
        files: _Files, ctx: int | None, plain: bool, pause_s: float,
    ) -> None:  # fmt: skip
        self._suite, self._numbered = suite, numbered
        self._eval, self._settings, self._files = eval_settings, settings, files
        self._ctx, self._plain, self._pause_s = ctx, plain, pause_s
        self._quiet = str(files.json) == "-"

    def run(self) -> int:
        gate = self._gate()
        earlier = None if self._files.retry is None else read_trace(self._files.retry)
        if earlier is not None and self._files.retry is not None:
            _tell_cut_off(earlier, self._files.retry)
        with ExitStack() as stack:
            json_out = None if self._files.json is None else stack.enter_context(OutputFile(self._files.json))
            gate_out = self._files.write_gate and stack.enter_context(OutputFile(self._files.write_gate))
            model = stack.enter_context(opened_model(self._settings))
            tasks = make_tasks(model.tokenizer, self._numbered, self._eval)
            n_ctx = self._ctx or needed_ctx(tasks, self._eval)
            check_room(tasks, n_ctx)
            session = stack.enter_context(make_session(model, self._settings, n_ctx))
            source = source_of(model, self._settings)
            known = _taken_over(tasks, earlier)
            with self._trace(source) as trace:
                if trace is not None:
                    for outcome in known.values():
                        self._record(trace, outcome)
                runner, interrupted = self._ask(session, tasks, known, trace)
            outcomes = runner.outcomes()
            report = None if gate is None or interrupted else compare(gate, outcomes, session)
            self._report(outcomes, runner.seconds, report)
            if gate_out and not interrupted:
                gate_out.write_json(gate_json(outcomes, self._eval, source))
                note(f"wrote {gate_out.name}: {len(outcomes)} cases")
            if json_out is not None:
                json_out.write_json(self._json(source, n_ctx, outcomes, runner.seconds, report))
        if interrupted:
            return _INTERRUPTED
        if report is not None:
            return 0 if report.holds else 1
        return 0 if n_passed(outcomes) == len(outcomes) else 1

    def _gate(self) -> Gate | None:
        if self._files.gate is None:
            return None
        gate = read_gate(self._files.gate)
        check_settings(gate, self._eval)
        asked = {case.name for _, case in self._numbered}
        missing = [case.name for case in gate.cases if case.name not in asked]
        if missing:
            raise ValueError(f"{gate.path} holds {missing[0]}, which is not among the cases that are asked")
        return gate

    @contextmanager
    def _trace(self, source: dict[str, Any]) -> Iterator[TraceWriter | None]:
        """Open the trace: it grows under a name with .part behind it, and gets its own at the end of the run."""
        path = self._files.trace
        if path is None:
            yield None
            return
        part = _part(path)
        with open(part, "wb", buffering=0) as file:
            settings = self._eval.as_json()
            head = {"suite": self._suite.name, **source, **{f"setting_{k}": v for k, v in settings.items()}}
            with _named_errors(part):
                writer = TraceWriter(file, head, len(self._suite.cases))
            yield writer
            with _named_errors(part):
                os.fsync(file.fileno())
        part.replace(path)

    def _record(self, trace: TraceWriter, outcome: Outcome) -> None:
        assert self._files.trace is not None
        with _named_errors(_part(self._files.trace)):
            trace.add(outcome)

    def _ask(
        self, session: Session, tasks: Sequence[Task], known: dict[int, Outcome], trace: TraceWriter | None
    ) -> tuple[Runner, bool]:
        """Ask the cases; tells also whether Ctrl-C ended that."""
        control = Control()

        def runner_for(listener: Listener, pause_s: float) -> Runner:
            if trace is not None:
                listener = _Traced(listener, lambda outcome: self._record(trace, outcome))
            return Runner(session, tasks, self._eval, listener, control=control, pause_s=pause_s, known=known)

        if not self._plain and not self._quiet and _is_roomy():
            from ds4.eval.view import LiveView  # not needed elsewhere, and slow to load

            view = LiveView(tasks, control, known=known, colour=use_colour(sys.stdout))
            runner = runner_for(view, self._pause_s)
            view.show(runner.run)
            return runner, False
        runner = runner_for(PlainListener(tasks, self._say, _columns()), 0.0)
        try:
            runner.run()
        except KeyboardInterrupt:
            note("interrupted")
            return runner, True
        return runner, False

    def _say(self, line: str) -> None:
        if self._quiet:
            tell(line + "\n")
        else:
            print(line, flush=True)

    def _report(self, outcomes: Sequence[Outcome], seconds: float, report: GateReport | None) -> None:
        columns = _columns()
        narrow = columns is not None and columns < WIDE
        lines = narrow_report(outcomes, columns or 0) if narrow else report_lines(outcomes, seconds)
        for line in ("", *lines, *(report.lines() if report is not None else ())):
            self._say(line)

    def _json(
        self, source: dict[str, Any], n_ctx: int, outcomes: Sequence[Outcome], seconds: float, report: GateReport | None
    ) -> dict[str, Any]:
        return {
            "format": "ds4-eval",
            "suite": self._suite.name,
            **source,
            "ctx": n_ctx,
            "settings": self._eval.as_json(),
            "passed": n_passed(outcomes),
            "total": len(outcomes),
            "seconds": round(seconds, 3),
            "gate": None if report is None else report.as_json(),
            "cases": [o.as_json() for o in outcomes],
        }


class _Traced:
    """Passes everything on and records outcomes."""

    def __init__(self, listener: Listener, record: Callable[[Outcome], None]) -> None:
        self._listener, self._record = listener, record
        self.state, self.progress, self.text = listener.state, listener.progress, listener.text

    def done(self, index: int, outcome: Outcome) -> None:
        """Record an outcome."""
        self._record(outcome)
        self._listener.done(index, outcome)


def _part(path: Path) -> Path:
    """Return the name of a trace that is being written."""
    return path.with_name(path.name + ".part")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Let an error of writing name the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _taken_over(tasks: Sequence[Task], earlier: Trace | None) -> dict[int, Outcome]:
    """Return the complete outcomes of an earlier run, graded as they would be now."""
    if earlier is None:
        return {}
    found = {o.case.name: o for o in regrade(earlier).after if o.complete}
    return {
        i: replace(found[t.case.name], number=t.number)
        for i, t in enumerate(tasks)
        if t.case.name in found and found[t.case.name].case.text == t.case.text
    }


def _columns() -> int | None:
    """Return the columns of the terminal on standard output, None when there is none."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns or None


def _is_roomy() -> bool:
    """Whether there is a terminal with room for the live view."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.columns >= WIDE and size.lines >= HIGH
