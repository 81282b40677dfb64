"""Making directions of prompts, and seeing what they do: the work behind ``ds4 steer``."""

from .build import build_directions
from .prompts import SteerPrompt, read_prompts
from .sweep import Answer, SweepRow, parse_scales, sweep

__all__ = [
    "Answer",
    "SteerPrompt",
    "SweepRow",
    "build_directions",
    "parse_scales",
    "read_prompts",
    "sweep",
]
