"""What this machine can run: processor, back ends, memory against models, disk, extras; what to do about the rest."""

from __future__ import annotations

from .backends import BackendFacts, Finding, backend_facts, gpu_findings
from .disk import DiskFacts, measure_disk
from .extras import extras
from .fit import Fit, fit_of, least_bytes
from .machine import machine_facts, memory_facts, sizes_of

__all__ = [
    "BackendFacts",
    "DiskFacts",
    "Finding",
    "Fit",
    "backend_facts",
    "extras",
    "fit_of",
    "gpu_findings",
    "least_bytes",
    "machine_facts",
    "measure_disk",
    "memory_facts",
    "sizes_of",
]
