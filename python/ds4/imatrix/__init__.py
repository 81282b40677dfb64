"""Importance files: how much each input column of a weight matrix matters, as measured on real prompts.

`Imatrix` reads, writes and merges them, `collect_imatrix` measures, `read_prompts` prepares what to measure on, and
`coverage` says how much every expert saw.
"""

from .collect import collect_imatrix
from .corpus import CorpusPrompt, read_prompts, write_corpus
from .coverage import Coverage, LayerCoverage, coverage
from .data import Entry, Gaps, Imatrix
from .errors import CorpusError, ImatrixError

__all__ = [
    "CorpusError",
    "CorpusPrompt",
    "Coverage",
    "Entry",
    "Gaps",
    "Imatrix",
    "ImatrixError",
    "LayerCoverage",
    "collect_imatrix",
    "coverage",
    "read_prompts",
    "write_corpus",
]
