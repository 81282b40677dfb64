"""Making model files: from official checkpoints (FP8 and FP4 as released, or BF16, F16, F32), and from other files.

plan = plan_quantization("flash-mxfp4.gguf", "flash-q2.gguf", recipe="q2", imatrix="flash.dat")
with plan:
    quantize(plan)
"""

from ds4.imatrix import ImatrixError

from .compare import Place, TensorError, compare
from .conversion import convert, plan_conversion, plan_quantization, quantize
from .layers import format_layers, parse_layers
from .plan import FilePlan, Plan, PlanError, TensorPlan
from .policy import Policy
from .recipes import RECIPES
from .safetensors import Checkpoint, CheckpointError
from .splicing import SpliceError, SplicePlan, plan_splice, splice
from .template import TemplateError
from .writing import kept_files

__all__ = [
    "RECIPES",
    "Checkpoint",
    "CheckpointError",
    "FilePlan",
    "ImatrixError",
    "Place",
    "Plan",
    "PlanError",
    "Policy",
    "SpliceError",
    "SplicePlan",
    "TemplateError",
    "TensorError",
    "TensorPlan",
    "compare",
    "convert",
    "format_layers",
    "kept_files",
    "parse_layers",
    "plan_conversion",
    "plan_quantization",
    "plan_splice",
    "quantize",
    "splice",
]
