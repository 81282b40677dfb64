"""Measuring models: likelihood of texts and of given continuations, divergence of a quantized model, test vectors."""

from .cases import CASE_SUFFIXES, Case, check_room, needed_ctx, official_prompt, read_cases, read_utf8, text_cases
from .compare import CaseDelta, Comparison, compare_kinds, compare_runs
from .divergence import Divergence, DivergenceReport, check_same_tokens, divergence
from .runs import CaseScore, Run, Totals, read_run, score_cases
from .text import TextScore, score_text, score_texts, score_tokens, total_of
from .vector_run import VectorReport, VectorResult, default_ids, record_vectors, run_vectors, vector_ctx
from .vectors import LocalCase, VectorCase, VectorStep, as_lines, read_vectors

__all__ = [
    # texts
    "score_text",
    "score_texts",
    "score_tokens",
    "total_of",
    "TextScore",
    # given continuations
    "Case",
    "CASE_SUFFIXES",
    "read_cases",
    "text_cases",
    "read_utf8",
    "needed_ctx",
    "check_room",
    "official_prompt",
    "score_cases",
    "CaseScore",
    "Run",
    "Totals",
    "read_run",
    "compare_runs",
    "compare_kinds",
    "Comparison",
    "CaseDelta",
    # divergence
    "divergence",
    "check_same_tokens",
    "Divergence",
    "DivergenceReport",
    # test vectors
    "read_vectors",
    "run_vectors",
    "record_vectors",
    "vector_ctx",
    "as_lines",
    "default_ids",
    "VectorCase",
    "VectorStep",
    "LocalCase",
    "VectorReport",
    "VectorResult",
]
