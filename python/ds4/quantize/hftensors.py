"""The tensors of a DeepSeek V4 checkpoint and their places in a GGUF file.

`expected_tensors` lists a whole model from its shape: official name(s), GGUF name, shape and role. Experts, one
tensor each in the checkpoint, are stacked. The order is the order of the file: embedding, layers, head, MTP block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .hfconfig import Shape


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the GGUF file.

    Parameters
    ----------
    name : str
        Its name in the file.
    sources : tuple of str
        Official names, in stacking order; one except for routed experts.
    shape : tuple of int
        Shape of each source, outermost dimension first.
    role : str
        One of `recipes.ROLES`.
    stacked : bool
        Whether the sources are stacked along a new outermost dimension.
    """

    name: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    role: str
    stacked: bool = False

    @property
    def ne(self) -> tuple[int, ...]:
        """Dimensions in the file, the contiguous one first."""
        outer = (len(self.sources),) if self.stacked else ()
        return (*reversed(self.shape), *outer)


def expected_tensors(shape: Shape) -> list[Tensor]:
    """Return every tensor of the main model, in file order."""
    s = shape
    out = [Tensor("token_embd.weight", ("embed.weight",), (s.n_vocab, s.n_embd), "selection")]
    for i in range(s.n_layer):
        ratio, hashed = s.compress_ratios[i], i < s.n_hash_layer
        out += _block(s, f"layers.{i}.", f"blk.{i}.", ratio, hashed)
    out += _hc_head(s, "", "output_hc_")
    out.append(Tensor("output_norm.weight", ("norm.weight",), (s.n_embd,), "float"))
    out.append(Tensor("output.weight", ("head.weight",), (s.n_vocab, s.n_embd), "dense"))
    return out


def expected_mtp_tensors(shape: Shape) -> list[Tensor]:
    """Return every tensor of the multi-token prediction block `mtp.0`, in file order."""
    s, prefix = shape, "mtp.0."
    out = list(_block(s, prefix, prefix, 0, hashed=False))
    for name in ("e_proj", "h_proj"):
        out.append(Tensor(f"{prefix}{name}.weight", (f"{prefix}{name}.weight",), (s.n_embd, s.n_embd), "dense"))
    for name in ("enorm", "hnorm", "norm"):
        out.append(Tensor(f"{prefix}{name}.weight", (f"{prefix}{name}.weight",), (s.n_embd,), "float"))
    out += _hc_head(s, prefix, prefix + "hc_head_")
    return out


def _hc_head(s: Shape, source: str, name: str) -> Iterator[Tensor]:
    yield Tensor(f"{name}fn.weight", (f"{source}hc_head_fn",), (s.n_hc, s.n_hc * s.n_embd), "mixing")
    yield Tensor(f"{name}base.weight", (f"{source}hc_head_base",), (s.n_hc,), "float")
    yield Tensor(f"{name}scale.weight", (f"{source}hc_head_scale",), (1,), "float")


def _block(s: Shape, source: str, name: str, ratio: int, hashed: bool) -> Iterator[Tensor]:
    yield from _mixing(s, source, name, "attn")
    yield from _attention(s, f"{source}attn.", name)
    if ratio:
        yield from _compressor(s, f"{source}attn.compressor.", f"{name}attn_compressor_", ratio, s.head_dim)
    if ratio == 4:
        indexer = f"{source}attn.indexer."
        rows = s.n_index_head * s.index_dim
        yield Tensor(f"{name}indexer.attn_q_b.weight", (f"{indexer}wq_b.weight",), (rows, s.q_lora), "selection")
        projection = f"{indexer}weights_proj.weight"
        yield Tensor(f"{name}indexer.proj.weight", (projection,), (s.n_index_head, s.n_embd), "selection")
        yield from _compressor(s, f"{indexer}compressor.", f"{name}indexer_compressor_", ratio, s.index_dim)
    yield from _mixing(s, source, name, "ffn")
    yield from _feed_forward(s, f"{source}ffn.", name, hashed)


def _mixing(s: Shape, source: str, name: str, which: str) -> Iterator[Tensor]:
    n = (2 + s.n_hc) * s.n_hc
    hc = f"hc_{which}_"
    yield Tensor(f"{name}{hc}fn.weight", (f"{source}{hc}fn",), (n, s.n_hc * s.n_embd), "mixing")
    yield Tensor(f"{name}{hc}base.weight", (f"{source}{hc}base",), (n,), "float")
    yield Tensor(f"{name}{hc}scale.weight", (f"{source}{hc}scale",), (3,), "float")
    yield Tensor(f"{name}{which}_norm.weight", (f"{source}{which}_norm.weight",), (s.n_embd,), "float")


def _attention(s: Shape, source: str, name: str) -> Iterator[Tensor]:
    width = s.n_head * s.head_dim
    rows = s.o_groups * s.o_lora
    for suffix, official, shape, role in (
        ("attn_q_a", "wq_a.weight", (s.q_lora, s.n_embd), "dense"),
        ("attn_q_a_norm", "q_norm.weight", (s.q_lora,), "float"),
        ("attn_q_b", "wq_b.weight", (width, s.q_lora), "dense"),
        ("attn_kv", "wkv.weight", (s.head_dim, s.n_embd), "dense"),
        ("attn_kv_a_norm", "kv_norm.weight", (s.head_dim,), "float"),
        ("attn_sinks", "attn_sink", (s.n_head,), "float"),
        ("attn_output_a", "wo_a.weight", (rows, width // s.o_groups), "dense"),
        ("attn_output_b", "wo_b.weight", (s.n_embd, rows), "dense"),
    ):
        yield Tensor(f"{name}{suffix}.weight", (source + official,), shape, role)


def _compressor(s: Shape, source: str, name: str, ratio: int, dim: int) -> Iterator[Tensor]:
    width = 2 * dim if ratio == 4 else dim
    yield Tensor(f"{name}ape.weight", (f"{source}ape",), (ratio, width), "mixing")
    yield Tensor(f"{name}kv.weight", (f"{source}wkv.weight",), (width, s.n_embd), "selection")
    yield Tensor(f"{name}gate.weight", (f"{source}wgate.weight",), (width, s.n_embd), "selection")
    yield Tensor(f"{name}norm.weight", (f"{source}norm.weight",), (dim,), "float")


def _feed_forward(s: Shape, source: str, name: str, hashed: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}ffn_gate_inp.weight", (f"{source}gate.weight",), (s.n_expert, s.n_embd), "selection")
    if hashed:
        table = (s.n_vocab, s.n_expert_used)
        yield Tensor(f"{name}ffn_gate_tid2eid.weight", (f"{source}gate.tid2eid",), table, "table")
    else:
        yield Tensor(f"{name}exp_probs_b.bias", (f"{source}gate.bias",), (s.n_expert,), "float")
    shared = s.n_ff * s.n_expert_shared
    # Official names: w1 is the gate, w3 the up and w2 the down projection.
    for part, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        shape = (s.n_embd, s.n_ff) if part == "down" else (s.n_ff, s.n_embd)
        sources = tuple(f"{source}experts.{e}.{w}.weight" for e in range(s.n_expert))
        yield Tensor(f"{name}ffn_{part}_exps.weight", sources, shape, "experts", stacked=True)
    for part, w in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        shape = (s.n_embd, shared) if part == "down" else (shared, s.n_embd)
        yield Tensor(f"{name}ffn_{part}_shexp.weight", (f"{source}shared_experts.{w}.weight",), shape, "dense")
