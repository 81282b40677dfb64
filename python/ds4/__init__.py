"""ds4: running DeepSeek V4 (Flash and Pro) on your own machine.

The names below are the public interface. They are loaded when they are first used, so importing the package costs
nothing, and `ds4.chat` and `ds4.tokenizer` work without the native library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .errors import (
        BackendUnavailableError,
        Cancelled,
        ClosedError,
        ContextFullError,
        DeviceError,
        DeviceMemoryError,
        DS4Error,
        InternalError,
        ModelFileError,
        SessionBusyError,
        SnapshotError,
        StateError,
        UnencodableValueError,
        UnsupportedModelError,
        WeightDataError,
    )
    from .experts import ExpertBlock, ExpertRecorder, ExpertStats, ExpertUse, ReadOptions
    from .gguf import GGUFFile, GGUFTensor, Metadata
    from .library import Backend, backends, cpu_isa, load_backend, native_version, set_cpu_isa
    from .model import MemoryPlan, Model, Shape
    from .sampling import Sampler, log_softmax
    from .session import Session, Step, TokenLogprob
    from .speculation import Draft, DraftStatistics
    from .steering import Steering, SteeringDirections
    from .stops import StopStrings
    from .tokenizer import Tokenizer

_HOMES = {
    "errors": (
        "BackendUnavailableError",
        "Cancelled",
        "ClosedError",
        "ContextFullError",
        "DS4Error",
        "DeviceError",
        "DeviceMemoryError",
        "InternalError",
        "ModelFileError",
        "SessionBusyError",
        "SnapshotError",
        "StateError",
        "UnencodableValueError",
        "UnsupportedModelError",
        "WeightDataError",
    ),
    "experts": ("ExpertBlock", "ExpertRecorder", "ExpertStats", "ExpertUse", "ReadOptions"),
    "gguf": ("GGUFFile", "GGUFTensor", "Metadata"),
    "library": ("Backend", "backends", "cpu_isa", "load_backend", "native_version", "set_cpu_isa"),
    "model": ("MemoryPlan", "Model", "Shape"),
    "sampling": ("Sampler", "log_softmax"),
    "session": ("Session", "Step", "TokenLogprob"),
    "speculation": ("Draft", "DraftStatistics"),
    "steering": ("Steering", "SteeringDirections"),
    "stops": ("StopStrings",),
    "tokenizer": ("Tokenizer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Backend",
    "BackendUnavailableError",
    "Cancelled",
    "ClosedError",
    "ContextFullError",
    "DS4Error",
    "DeviceError",
    "DeviceMemoryError",
    "Draft",
    "DraftStatistics",
    "ExpertBlock",
    "ExpertRecorder",
    "ExpertStats",
    "ExpertUse",
    "GGUFFile",
    "GGUFTensor",
    "InternalError",
    "MemoryPlan",
    "Metadata",
    "Model",
    "ModelFileError",
    "ReadOptions",
    "Sampler",
    "Session",
    "SessionBusyError",
    "Shape",
    "SnapshotError",
    "StateError",
    "Steering",
    "SteeringDirections",
    "Step",
    "StopStrings",
    "TokenLogprob",
    "Tokenizer",
    "UnencodableValueError",
    "UnsupportedModelError",
    "WeightDataError",
    "__version__",
    "backends",
    "cpu_isa",
    "load_backend",
    "log_softmax",
    "native_version",
    "set_cpu_isa",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
