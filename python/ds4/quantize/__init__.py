"""Making model files: from official checkpoints (FP8 and FP4 as released, or BF16, F16, F32), and from other files."""

from .conversion import ConversionPlan, convert, plan_conversion
from .recipes import RECIPES
from .safetensors import Checkpoint, CheckpointError
from .splicing import SpliceError, SplicePlan, format_layers, parse_layers, plan_splice, splice

__all__ = [
    "RECIPES",
    "Checkpoint",
    "CheckpointError",
    "ConversionPlan",
    "SpliceError",
    "SplicePlan",
    "convert",
    "format_layers",
    "parse_layers",
    "plan_conversion",
    "plan_splice",
    "splice",
]
