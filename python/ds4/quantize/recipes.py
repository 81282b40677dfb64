"""Output recipes: which tensor type each role of a tensor gets.

Small float tensors stay F32 and the expert tables I32 in every recipe. In the quantized recipe the matrices that
decide selections (router, indexer, compressors, hyper-connections) and the embedding are F16, as in the published
files: they are small, and an error there changes what is computed, not only how exactly.
"""

from __future__ import annotations

ROLES = ("float", "table", "mixing", "selection", "dense", "experts")
"""What a tensor is for.

float      norms, scales, bases, sinks, router bias
table      expert ids of hash-routed layers
mixing     hyper-connection matrices and the position tables of the compressors: F32 in the checkpoint
selection  embedding, compressor and indexer matrices, router
dense      attention projections, shared expert, output, projections of the MTP block
experts    the routed experts
"""

RECIPES: dict[str, dict[str, str]] = {
    "f32": {"mixing": "F32", "selection": "F32", "dense": "F32", "experts": "F32"},
    "f16": {"mixing": "F16", "selection": "F16", "dense": "F16", "experts": "F16"},
    "bf16": {"mixing": "F32", "selection": "BF16", "dense": "BF16", "experts": "BF16"},
    "q8_0": {"mixing": "F16", "selection": "F16", "dense": "Q8_0", "experts": "Q8_0"},
}

_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


def type_of(recipe: str, role: str) -> str:
    """Return the name of the tensor type that a recipe gives to a role."""
    if role == "float":
        return "F32"
    if role == "table":
        return "I32"
    return RECIPES[recipe][role]


def file_type(recipe: str) -> int:
    """Return the number of `general.file_type` that other programs show for a recipe."""
    return _FILE_TYPES[recipe]
