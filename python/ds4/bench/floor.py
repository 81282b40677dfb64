"""The bytes that a decoded token must read, and so the least time that a memory of known bandwidth needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ds4 import GGUFFile, Shape
from ds4.gguf_experts import expert_part, standard_tensors


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes that one decoded token reads.

    Attributes
    ----------
    groups : dict of str to int
        "head", "attention", "routed experts", "shared expert", "compressor and indexer", "router, hyper-connections,
        norms", "tables" (one row of each), "cache" (rows that attention and indexer read at the depth).
    layers : tuple of int
        Weight bytes of each layer.
    """

    groups: dict[str, int]
    layers: tuple[int, ...]

    @property
    def total(self) -> int:
        """All groups together."""
        return sum(self.groups.values())

    def floor(self, bandwidth: float) -> float:
        """Return the tokens a second that `bandwidth` bytes a second allow at most."""
        return bandwidth / self.total


def token_bytes(
    file: GGUFFile, shape: Shape, *, depth: int = 0, rows: Literal["f16", "f32"] = "f16", batch: int = 1
) -> TokenBytes:
    """Count the bytes that one token reads, or a batch of several together, each once.

    Parameters
    ----------
    file : GGUFFile
        The model; weights of the MTP block do not count.
    shape : Shape
        Its shape.
    depth : int
        Positions that the context holds.
    rows : {"f16", "f32"}
        Storage of cache rows.
    batch : int
        Tokens of the batch.

    Returns
    -------
    TokenBytes
        Of the routed experts the share that a token uses counts, of several tokens the share that they use on average
        when they choose independently; of tables one row a token. Cache rows count once a batch.
    """
    unused = 1 - shape.n_expert_used / shape.n_expert
    share = 1 - unused**batch
    groups: dict[str, int] = {}
    layers = [0] * shape.n_layer
    for view in standard_tensors(file).values():
        layer = _layer_of(view.name, shape)
        if layer is not None and layer >= shape.n_layer:
            continue
        n_bytes, group = view.n_bytes, _group_of(view.name)
        if expert_part(view.name):
            n_bytes = n_bytes * shape.n_expert_used // shape.n_expert if batch == 1 else int(n_bytes * share)
        elif group == "tables":
            n_bytes = n_bytes // view.ne[1] * batch
        groups[group] = groups.get(group, 0) + n_bytes
        if layer is not None:
            layers[layer] += n_bytes
    if depth:
        groups["cache"] = cache_bytes(shape, depth, rows=rows)
    return TokenBytes(groups, tuple(layers))


def cache_bytes(shape: Shape, depth: int, *, rows: Literal["f16", "f32"] = "f16") -> int:
    """Return the bytes of the cache that a token reads after `depth` positions."""
    size = 2 if rows == "f16" else 4
    row, total = size * shape.head_dim, 0
    for ratio in shape.compress_ratio:
        total += min(depth, shape.window) * row
        if ratio == 4:
            closed = depth // 4
            total += closed * size * shape.index_dim + min(closed, shape.index_top_k) * row
        elif ratio:
            total += depth // ratio * row
    return total


def _layer_of(name: str, shape: Shape) -> int | None:
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    if first == "mtp":
        return shape.n_layer
    return int(number) if first == "blk" and number.isdigit() else None


def _group_of(name: str) -> str:
    part = name.partition(".")[2].partition(".")[2] if name.startswith("blk.") else name
    if name.startswith("token_embd.") or "tid2eid" in part:
        return "tables"
    if name.startswith("output"):
        return "head"
    if expert_part(name):
        return "routed experts"
    if "shexp" in part:
        return "shared expert"
    if "compressor" in part or "indexer" in part:
        return "compressor and indexer"
    if part.startswith("attn") and not part.startswith(("attn_norm", "attn_sinks")):
        return "attention"
    return "router, hyper-connections, norms"
