"""The numbers of a model: those of its architecture, and the memory that a session takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryPlan", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Every number that decides the arithmetic of a model; names follow the keys of the file.

    Attributes
    ----------
    name : str
        Name of the shape: "flash", "pro", "ds4-tiny", ...
    n_layer, n_embd, n_vocab : int
        Layers, width of the residual stream, token ids.
    n_head, head_dim, n_rot : int
        Attention heads, their width, and how many of its last values are rotated.
    q_lora, o_lora, o_groups : int
        Ranks of the query and output projections, and the groups of the latter.
    n_expert, n_expert_used, n_expert_shared, n_ff : int
        Routed experts, how many a token uses, shared experts, and an expert's width.
    n_hash_layer : int
        Leading layers whose experts are chosen by the token id.
    window : int
        Exact rows that attention sees.
    n_index_head, index_dim, index_top_k : int
        Heads of the indexer, their width, and how many compressed rows it chooses.
    n_hc, sinkhorn_iterations : int
        Residual streams, and the steps that balance their mixing.
    expert_scale, norm_eps, hc_eps, swiglu_clamp : float
        Factor of the routed experts, two guards of divisions, and the bound of gate and up.
    rope_base, compress_rope_base, yarn_factor, yarn_beta_fast, yarn_beta_slow : float
    yarn_original_ctx : int
        Rotation of layers without and with compression.
    compress_ratio : tuple of int
        Per layer: positions that share a compressed row, or 0.
    """

    name: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    head_dim: int
    n_rot: int
    q_lora: int
    o_lora: int
    o_groups: int
    n_expert: int
    n_expert_used: int
    n_expert_shared: int
    n_ff: int
    n_hash_layer: int
    window: int
    n_index_head: int
    index_dim: int
    index_top_k: int
    n_hc: int
    sinkhorn_iterations: int
    expert_scale: float
    norm_eps: float
    hc_eps: float
    swiglu_clamp: float
    rope_base: float
    compress_rope_base: float
    yarn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_original_ctx: int
    compress_ratio: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a session, in bytes.

    Attributes
    ----------
    weights_bytes : int
        Mapped from the file and shared by all sessions; of a model that streams, the other weights and the cache.
    window_bytes, compressed_bytes, indexer_bytes, compressor_bytes : int
        Exact rows, compressed rows, rows of the indexer, and unfinished groups.
    scratch_bytes : int
        Work space of a chunk.
    checkpoint_bytes : int
        Checkpoints, when there are as many as the options allow.
    total_session_bytes : int
        All but the weights.
    """

    weights_bytes: int
    window_bytes: int
    compressed_bytes: int
    indexer_bytes: int
    compressor_bytes: int
    scratch_bytes: int
    checkpoint_bytes: int
    total_session_bytes: int
