"""The side of the server that has the model: prompts, sessions, turns at the processor, answers as events."""

from .local import LocalEngine, LocalGeneration
from .settings import Settings
from .statistics import Statistics

__all__ = ["LocalEngine", "LocalGeneration", "Settings", "Statistics"]
