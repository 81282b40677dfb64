"""Asking a model questions whose answers are known: suites, graders, runs, records, and a gate against drift."""

from .checks import check_extractors
from .closing import Closed, Closing, rank_of
from .control import Control
from .gate import Drift, Expected, Gate, GateReport, check_settings, compare, gate_json, read_gate
from .grade import Grade, grade
from .outcome import Outcome, n_passed, printable, report_lines
from .plain import PlainListener, narrow_report
from .plan import EvalSettings, Task, check_room, make_tasks, needed_ctx
from .run import Listener, Runner, regraded
from .suite import Case, Suite, open_suite, own_suites, read_suite
from .trace import Regrade, Trace, TraceWriter, read_trace, regrade

__all__ = [
    # questions
    "Suite",
    "Case",
    "open_suite",
    "read_suite",
    "own_suites",
    # runs
    "EvalSettings",
    "Task",
    "make_tasks",
    "needed_ctx",
    "check_room",
    "Runner",
    "Listener",
    "Control",
    "PlainListener",
    "Outcome",
    "n_passed",
    "report_lines",
    "narrow_report",
    "printable",
    # the end of the reasoning
    "Closing",
    "Closed",
    "rank_of",
    # grading
    "grade",
    "Grade",
    "regraded",
    "check_extractors",
    # records
    "TraceWriter",
    "Trace",
    "read_trace",
    "Regrade",
    "regrade",
    # the gate
    "Gate",
    "Expected",
    "read_gate",
    "gate_json",
    "check_settings",
    "compare",
    "GateReport",
    "Drift",
]
