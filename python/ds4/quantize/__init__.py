"""Making model files from official checkpoints in BF16, F16 or F32."""

from .conversion import ConversionPlan, convert, plan_conversion
from .recipes import RECIPES
from .safetensors import Checkpoint, CheckpointError

__all__ = ["RECIPES", "Checkpoint", "CheckpointError", "ConversionPlan", "convert", "plan_conversion"]
