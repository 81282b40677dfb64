"""Importance files: how much each input column of a weight matrix matters, as measured on real prompts."""

from .data import Entry, Gaps, Imatrix
from .errors import ImatrixError

__all__ = ["Entry", "Gaps", "Imatrix", "ImatrixError"]
