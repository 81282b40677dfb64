"""Measuring speed: tokens a second of prefill and decode, where the time goes, and what the memory allows."""

from .floor import TokenBytes, token_bytes
from .plot import plot_profiles
from .run import Measurement, run_bench, touch_weights
from .workload import Workload, parse_workloads

__all__ = [
    "Measurement",
    "TokenBytes",
    "Workload",
    "parse_workloads",
    "plot_profiles",
    "run_bench",
    "token_bytes",
    "touch_weights",
]
