"""The model files that are published for engines of this family: their names, sizes and what streaming them takes.

Sizes are those of the recipes (the shapes are known) and of the directory that the files carry; the hub's own count
decides when one is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .budget import ExpertPlan

__all__ = ["HEAD_BYTES", "PUBLISHED", "REPOSITORY", "PublishedFile", "session_bytes"]

REPOSITORY = "antirez/deepseek-v4-gguf"
HEAD_BYTES = 5_333_824
"""What the directory of a Flash file takes, most of it the tokenizer."""

Shape = Literal["flash", "pro"]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file.

    Attributes
    ----------
    target : str
        The short name for it.
    file : str
        Its name in the repository.
    shape : {"flash", "pro"}
        The model.
    n_bytes : int
        Size of the file.
    text : str
        What it is.
    experts : ExpertPlan or None
        What streaming takes; None for a file with nothing but an MTP block.
    """

    target: str
    file: str
    shape: Shape
    n_bytes: int
    text: str
    experts: ExpertPlan | None

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights."""
        return self.n_bytes - HEAD_BYTES


_FLASH, _PRO = 8_801_384_796, 29_416_789_388  # bytes of what is no routed expert
_FLASH_EXPERTS, _PRO_EXPERTS = 43 * 256, 61 * 384
_Q2, _Q4, _PRO_Q2 = 7_090_176, 14_168_064, 18_591_744  # bytes of an expert in a cache, in whole pages

PUBLISHED = (
    PublishedFile(
        "q2", "DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix.gguf", "flash",
        86_714_777_664 + HEAD_BYTES, "Flash, experts in 2 bits", ExpertPlan(_FLASH, _Q2, _FLASH_EXPERTS),
    ),
    PublishedFile(
        "q2-q4", "DeepSeek-V4-Flash-Layers37-42Q4KExperts-OtherExpertLayersIQ2XXSGateUp-Q2KDown-AProjQ8-SExpQ8-OutQ8-"
        "chat-v2-imatrix-fixed.gguf", "flash", 97_586_413_632 + HEAD_BYTES,
        "Flash, experts in 2 bits, those of the last six layers in 4", ExpertPlan(_FLASH, _Q4, _FLASH_EXPERTS),
    ),
    PublishedFile(
        "q4", "DeepSeek-V4-Flash-Q4KExperts-F16HC-F16Compressor-F16Indexer-Q8Attn-Q8Shared-Q8Out-chat-v2-imatrix.gguf",
        "flash", 164_628_168_768 + HEAD_BYTES, "Flash, experts in 4 bits", ExpertPlan(_FLASH, _Q4, _FLASH_EXPERTS),
    ),
    PublishedFile(
        "mtp", "DeepSeek-V4-Flash-MTP-Q4K-Q8_0-F32.gguf", "flash", 3_807_602_400,
        "MTP block of Flash, to guess tokens with (--mtp)", None,
    ),
    PublishedFile(
        "pro-q2", "DeepSeek-V4-Pro-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-Instruct-imatrix.gguf", "pro",
        464_621_969_216 + HEAD_BYTES, "Pro, experts in 2 bits", ExpertPlan(_PRO, _PRO_Q2, _PRO_EXPERTS),
    ),
)  # fmt: skip

_SESSION: dict[Shape, tuple[int, int]] = {"flash": (765_000_000, 6_884), "pro": (1_140_000_000, 9_856)}


def session_bytes(shape: Shape, n_ctx: int) -> int:
    """Return about what a session of that many positions takes, with the default settings."""
    fixed, per_position = _SESSION[shape]
    return fixed + per_position * n_ctx
