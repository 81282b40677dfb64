"""Measuring speed: tokens a second of prefill and decode, where the time goes, and what the memory allows."""

from .drafts import DraftCosts, expected_tokens, measure_draft_costs
from .floor import TokenBytes, token_bytes
from .frontier import Frontier, frontiers, run_sweep, warm_up
from .machine import build_facts, machine_facts, peak_rss
from .plot import plot_profiles
from .run import Measurement, run_bench, touch_weights
from .sweep_compare import SweepComparison, compare_sweeps
from .sweep_plot import plot_comparison, plot_sweep
from .sweep_table import Sweep, read_sweep
from .text import text_sha256, text_tokens
from .workload import Workload, parse_workloads

__all__ = [
    "DraftCosts",
    "Frontier",
    "Measurement",
    "Sweep",
    "SweepComparison",
    "TokenBytes",
    "Workload",
    "build_facts",
    "compare_sweeps",
    "expected_tokens",
    "frontiers",
    "machine_facts",
    "measure_draft_costs",
    "parse_workloads",
    "peak_rss",
    "plot_comparison",
    "plot_profiles",
    "plot_sweep",
    "read_sweep",
    "run_bench",
    "run_sweep",
    "text_sha256",
    "text_tokens",
    "token_bytes",
    "touch_weights",
    "warm_up",
]
