"""Making model files from official checkpoints: FP8 and FP4 as released, or BF16, F16, F32."""

from .conversion import ConversionPlan, convert, plan_conversion
from .recipes import RECIPES
from .safetensors import Checkpoint, CheckpointError

__all__ = ["RECIPES", "Checkpoint", "CheckpointError", "ConversionPlan", "convert", "plan_conversion"]
