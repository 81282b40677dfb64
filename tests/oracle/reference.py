"""The DeepSeek V4 forward pass in plain numpy, written to be read.

This file is the definition that the engine is tested against; it was compared with transformers in float32 (see
`make_golden.py`) and shares no code with it. It is deliberately *streaming*: one `Session` holds exactly the state
that a snapshot must contain, and `Session.feed` may be called with chunks of any size.

All switches off is the arithmetic of transformers. All on is the arithmetic the released weights were trained for:
cached rows and indexer queries pass through FP8 or FP4, and rows are stored as binary16.

Run it in float64 (the default) to get the exact answer and the margin of every discrete decision: which experts,
which compressed rows, which code of a rounded value. A float32 implementation may take a decision the other way
round only where the margin is of the order of its own rounding error. Run it in float32 to see how far two correct
implementations can be apart.

Shapes are written as [T, ...] for T positions; ``embd`` is the width, ``n`` the number of hyper-connection streams.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F32 = np.float32

KIND_WINDOW, KIND_COMPRESSED, KIND_INDEXER = "window", "compressed", "indexer"


@dataclass(frozen=True)
class Switches:
    """Simulated quantization, as the weights were trained with. All off equals transformers."""

    qat_kv: bool = False
    """FP8 E4M3 round trip of the part of each KV row that is not rotated, window and compressed rows alike."""
    qat_index: bool = False
    """Hadamard transform and FP4 E2M1 round trip of indexer queries and indexer rows."""
    f16_rows: bool = False
    """Rows are rounded to binary16 when they are stored."""


PLAIN = Switches()
TRAINED = Switches(qat_kv=True, qat_index=True, f16_rows=True)


class Hooks(Protocol):
    """Lets a comparison follow another implementation's discrete decisions; see `support.compare`.

    ``layer`` counts from 0; the MTP block is the layer after the last.
    """

    def row(self, layer: int, kind: str, number: int, exact: Array, rounded: Array) -> Array:
        """Return the row to store, ``rounded`` to keep ours. ``exact`` is the row before any rounding."""
        ...

    def select(self, layer: int, position: int, scores: Array, order: Array, k: int) -> Array:
        """Return the k compressed rows to attend to. ``order`` ranks all rows, best first."""
        ...


# ---------------------------------------------------------------------------------------------- elementary functions


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def sigmoid(x: Array) -> Array:
    out: Array = 1.0 / (1.0 + np.exp(-x))
    return out


def softplus(x: Array) -> Array:
    """Linear above 20, like the official implementation."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


# ----------------------------------------------------------------------------------------- simulated quantization

E4M3 = np.array([m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])
"""The non-negative values of FP8 E4M3 ("fn": no infinities, largest 448), index = code."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6.0])
"""The non-negative values of FP4 E2M1, index = code."""

FP8_BLOCK, FP8_FLOOR = 64, 1e-4
FP4_BLOCK, FP4_FLOOR = 32, 6 * 2.0**-126


def round_to_codes(x: Array, codes: Array) -> Array:
    """Nearest value of the sorted non-negative table; ties go to the even code, the sign is kept."""
    a = np.abs(x)
    hi = np.clip(np.searchsorted(codes, a), 1, len(codes) - 1)
    lo = hi - 1
    below, above = a - codes[lo], codes[hi] - a
    pick = np.where((above < below) | ((above == below) & (hi % 2 == 0)), hi, lo)
    out: Array = np.copysign(codes[pick], x)
    return out


def block_scale(x: Array, codes: Array, floor: float) -> Array:
    """Power-of-two scale of the last axis: 2^ceil(log2(max(amax, floor) / top)).

    The exponent is taken of the float32 product ``amax * (1 / top)``, like the official kernels: it matters only
    within an ulp of ``top * 2^k``.
    """
    amax = np.maximum(np.abs(x).max(-1, keepdims=True), floor)
    q = (amax.astype(F32) * F32(1.0 / codes[-1])).astype(F32)
    mantissa, exponent = np.frexp(q.astype(np.float64))  # q = mantissa * 2^exponent, 0.5 <= mantissa < 1
    scale: Array = np.exp2(np.where(mantissa == 0.5, exponent - 1, exponent).astype(np.float64))
    return scale


def block_round(x: Array, codes: Array, block: int, floor: float) -> Array:
    """Scale blocks of the last axis by a power of two and round them to the code values."""
    v = np.asarray(x, F32).astype(np.float64).reshape(*x.shape[:-1], -1, block)
    scale = block_scale(v, codes, floor)
    top = codes[-1]
    return (round_to_codes(np.clip(v / scale, -top, top), codes) * scale).reshape(x.shape).astype(x.dtype)


def fp8_rows(x: Array, n_rot: int) -> Array:
    """FP8 round trip of all but the last ``n_rot`` entries."""
    n = x.shape[-1] - n_rot
    return np.concatenate([block_round(x[..., :n], E4M3, FP8_BLOCK, FP8_FLOOR), x[..., n:]], -1)


def hadamard(x: Array) -> Array:
    """Walsh-Hadamard transform of the last axis in Sylvester order, divided by sqrt(length)."""
    n = x.shape[-1]
    y, step = x.reshape(-1, n).copy(), 1
    while step < n:
        z = y.reshape(-1, n // (2 * step), 2, step)
        y = np.stack([z[:, :, 0] + z[:, :, 1], z[:, :, 0] - z[:, :, 1]], 2).reshape(-1, n)
        step *= 2
    out: Array = (y * n**-0.5).reshape(x.shape)
    return out


def fp4_rows(x: Array) -> Array:
    """Hadamard transform, then FP4 round trip. Scores keep their meaning: the transform is orthogonal."""
    return block_round(hadamard(x), E2M1, FP4_BLOCK, FP4_FLOOR)


def f16_rows(x: Array) -> Array:
    return x.astype(np.float16).astype(x.dtype)


MINOR_JUMP = 4e-3
"""Rounding steps below this, in units of the row's RMS, are not worth a margin: taking one the other way round moves
the logits by less than the tolerance. They are the codes near zero, where boundaries are densest."""


def code_gap(x: Array, codes: Array, block: int, floor: float) -> Array:
    """Smallest distance of an entry to a rounding boundary, over the last axis, in units of the row's RMS.

    Boundaries between values closer than `MINOR_JUMP` do not count.
    """
    rms = np.sqrt((x.astype(np.float64) ** 2).mean(-1))
    v = x.astype(np.float64).reshape(*x.shape[:-1], -1, block)
    unit = block_scale(v, codes, floor) / rms[..., None, None]
    a = np.abs(v) / rms[..., None, None]
    middle, jump = (codes[:-1] + codes[1:]) / 2, np.diff(codes)
    hi = np.clip(np.searchsorted(middle, a / unit), 1, len(middle) - 1)
    gaps = [np.where(jump[i] * unit > MINOR_JUMP, np.abs(a - middle[i] * unit), np.inf) for i in (hi, hi - 1)]
    out: Array = np.minimum(*gaps).min((-1, -2))
    if codes is E2M1:
        # Crossing amax = 6 * 2^k changes the grid of the whole block; for E4M3 the grids of both scales agree but for
        # the values nearest to zero.
        peak = a.max(-1, keepdims=True)
        edge = np.minimum(np.abs(peak - codes[-1] * unit), np.abs(peak - codes[-1] * unit / 2))
        out = np.minimum(out, edge.min((-1, -2)))
    return out


# ---------------------------------------------------------------------------------------------------------- rotation


def rope_frequencies(n_rot: int, base: float, yarn: Mapping[str, float] | None) -> NDArray[np.float32]:
    """Angles per position of the n_rot / 2 pairs; float32 arithmetic as in the official model."""
    f: NDArray[np.float32] = (F32(1) / (F32(base) ** (np.arange(0, n_rot, 2, dtype=F32) / F32(n_rot)))).astype(F32)
    if yarn is None:
        return f

    def pair_of(rotations: float) -> float:
        span = yarn["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return n_rot * math.log(span) / (2 * math.log(base))

    low = max(math.floor(pair_of(yarn["beta_fast"])), 0)
    high = min(math.ceil(pair_of(yarn["beta_slow"])), n_rot - 1)
    ramp = np.clip((np.arange(n_rot // 2, dtype=F32) - low) / F32(max(high - low, 0.001)), 0, 1)
    keep = (1 - ramp).astype(F32)
    return (f / F32(yarn["factor"]) * (1 - keep) + f * keep).astype(F32)


def rotate(x: Array, positions: Array, freqs: NDArray[np.float32], *, inverse: bool = False) -> Array:
    """Rotate consecutive pairs of the last ``2 * len(freqs)`` entries of x [T, (heads,) dim]."""
    angle = (np.asarray(positions, F32)[:, None] * freqs[None, :]).astype(F32)
    c, s = np.cos(angle.astype(x.dtype)), np.sin(angle.astype(x.dtype))
    if inverse:
        s = -s
    if x.ndim == 3:
        c, s = c[:, None], s[:, None]
    n = 2 * len(freqs)
    a, b = x[..., -n::2], x[..., -n + 1 :: 2]
    y = x.copy()
    y[..., -n::2], y[..., -n + 1 :: 2] = a * c - b * s, a * s + b * c
    return y


# ------------------------------------------------------------------------------------------------------------- model


class Model:
    """Weights and the parts of the network that keep no state.

    Parameters
    ----------
    config, weights
        As made by `oracle.tiny_shapes`, or any configuration and weights with official names.
    dtype
        float64 for the exact answer, float32 for an implementation of engine precision.
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array], dtype: Any = np.float64) -> None:
        self.c = dict(config)
        self.w = {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in weights.items()}
        self.dtype = dtype
        self.eps: float = config["rms_norm_eps"]
        n_rot = config["qk_rope_head_dim"]
        self.freqs_plain = rope_frequencies(n_rot, config["rope_theta"], None)
        self.freqs_compressed = rope_frequencies(n_rot, config["compress_rope_theta"], config["rope_scaling"])

    # Hyper-connections. X [T, n, embd] are the streams.

    def hc_pre(self, X: Array, prefix: str, which: str) -> tuple[Array, Array, Array]:
        """Mix of the streams that a sublayer reads [T, embd], and how its output is spread: post, comb."""
        c, w = self.c, self.w
        n, T, eps = c["hc_mult"], X.shape[0], c["hc_eps"]
        fn, scale, base = (w[f"{prefix}hc_{which}_{k}"] for k in ("fn", "scale", "base"))
        mix = rms_norm(X.reshape(T, -1), None, self.eps) @ fn.T
        pre = sigmoid(mix[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(mix[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        z = (mix[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(T, n, n)  # [row = source, column = destination]
        z = np.exp(z - z.max(-1, keepdims=True))
        z = z / z.sum(-1, keepdims=True) + eps
        z = z / (z.sum(1, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            z = z / (z.sum(2, keepdims=True) + eps)
            z = z / (z.sum(1, keepdims=True) + eps)
        return np.einsum("th,thd->td", pre, X), post, z

    @staticmethod
    def hc_post(y: Array, X: Array, post: Array, comb: Array) -> Array:
        out: Array = post[:, :, None] * y[:, None, :] + np.einsum("tsd,tse->tde", comb, X)
        return out

    def hc_head(self, X: Array, prefix: str) -> Array:
        w = self.w
        mix = rms_norm(X.reshape(X.shape[0], -1), None, self.eps) @ w[prefix + "hc_head_fn"].T
        pre = sigmoid(mix * w[prefix + "hc_head_scale"][0] + w[prefix + "hc_head_base"]) + self.c["hc_eps"]
        out: Array = np.einsum("th,thd->td", pre, X)
        return out

    # Mixture of experts. x [T, embd] is the normalised input.

    def expert(self, x: Array, prefix: str, weight: Array | None = None) -> Array:
        """Clamped SwiGLU; the routing weight is applied before the down projection."""
        w, limit = self.w, self.c["swiglu_limit"]
        gate = np.minimum(x @ w[prefix + "w1.weight"].T, limit)
        up = np.clip(x @ w[prefix + "w3.weight"].T, -limit, limit)
        m = gate * sigmoid(gate) * up
        if weight is not None:
            m = m * weight[:, None]
        out: Array = m @ w[prefix + "w2.weight"].T
        return out

    def route(self, x: Array, tokens: Array, prefix: str) -> tuple[Array, Array, Array]:
        """Experts [T, used], their weights [T, used], and the score gap at the selection boundary [T]."""
        w, c = self.w, self.c
        score = np.sqrt(softplus(x @ w[prefix + "gate.weight"].T))
        gap = np.full(len(x), np.inf)
        if prefix + "gate.tid2eid" in w:
            chosen = w[prefix + "gate.tid2eid"][tokens]
        else:
            biased, k = score + w[prefix + "gate.bias"], c["num_experts_per_tok"]
            order = np.argsort(-biased, axis=1, kind="stable")
            chosen = order[:, :k]
            ranked = np.take_along_axis(biased, order, 1)
            gap = (ranked[:, k - 1] - ranked[:, k]).astype(np.float64)
        g = np.take_along_axis(score, chosen, 1)
        return chosen, g / g.sum(1, keepdims=True) * c["routed_scaling_factor"], gap

    def moe(self, x: Array, tokens: Array, prefix: str) -> tuple[Array, Array]:
        chosen, weight, gap = self.route(x, tokens, prefix)
        y = np.zeros_like(x)
        for e in np.unique(chosen):
            t, k = np.nonzero(chosen == e)
            y[t] += self.expert(x[t], f"{prefix}experts.{e}.", weight[t, k])
        return y + self.expert(x, prefix + "shared_experts."), gap

    def head(self, X: Array, prefix: str) -> Array:
        """Logits [T, vocab] from streams; the output matrix is shared with the MTP block."""
        out: Array = (
            rms_norm(self.hc_head(X, prefix), self.w[prefix + "norm.weight"], self.eps) @ self.w["head.weight"].T
        )
        return out


class Compressor:
    """Pools ``ratio`` tokens into one row.

    State: the projected rows of the incomplete group, and for ratio 4 the first halves of the previous group, which
    overlaps with the next.
    """

    def __init__(self, model: Model, prefix: str, ratio: int, dim: int) -> None:
        self.m, self.prefix, self.ratio, self.dim = model, prefix, ratio, dim
        self.previous: tuple[Array, Array] | None = None
        self.kv: list[Array] = []
        self.score: list[Array] = []

    def feed(self, x: Array, pos0: int) -> list[tuple[int, int, Array]]:
        """Take x [T, embd]; return (row number, position that closed it, row before rounding)."""
        w, p, r, d = self.m.w, self.prefix, self.ratio, self.dim
        kv, score = x @ w[p + "wkv.weight"].T, x @ w[p + "wgate.weight"].T
        out = []
        for t in range(len(x)):
            pos = pos0 + t
            self.kv.append(kv[t])
            self.score.append(score[t] + w[p + "ape"][pos % r])
            if (pos + 1) % r:
                continue
            K, S = np.stack(self.kv), np.stack(self.score)
            self.kv, self.score = [], []
            if r == 4:
                current = (K[:, :d], S[:, :d])
                K, S = K[:, d:], S[:, d:]
                if self.previous is not None:
                    K, S = np.concatenate([self.previous[0], K]), np.concatenate([self.previous[1], S])
                self.previous = current
            a = np.exp(S - S.max(0))
            row = (a * K).sum(0) / a.sum(0)
            row = rms_norm(row, w[p + "norm.weight"], self.m.eps)
            first = pos + 1 - r
            out.append((first // r, pos, rotate(row[None], np.array([first]), self.m.freqs_compressed)[0]))
        return out


class Layer:
    """One transformer layer (or the MTP block) with its part of the session's state."""

    def __init__(
        self,
        model: Model,
        number: int,
        prefix: str,
        ratio: int,
        switches: Switches,
        hooks: Hooks | None,
        measure: bool,
    ) -> None:
        self.m, self.number, self.prefix, self.ratio = model, number, prefix, ratio
        self.switches, self.hooks, self.measure = switches, hooks, measure
        dim, index_dim = model.c["head_dim"], model.c["index_head_dim"]
        self.window = np.zeros((0, dim), model.dtype)  # KV rows of the last sliding_window positions
        self.compressed = np.zeros((0, dim), model.dtype)  # all of them
        self.index_rows = np.zeros((0, index_dim), model.dtype)
        self.compressor = Compressor(model, prefix + "attn.compressor.", ratio, dim) if ratio else None
        self.index_compressor = (
            Compressor(model, prefix + "attn.indexer.compressor.", 4, index_dim) if ratio == 4 else None
        )
        # Margins of the discrete decisions taken at each position so far; infinite where there was none.
        self.router_gap: list[float] = []
        self.indexer_gap: list[float] = []
        self.code_gap: list[float] = []

    def _store(self, kind: str, number: int, row: Array) -> Array:
        """Round a new row as the switches say."""
        exact = row
        if kind == KIND_INDEXER:
            if self.switches.qat_index:
                row = fp4_rows(row)
        elif self.switches.qat_kv:
            row = fp8_rows(row, self.m.c["qk_rope_head_dim"])
        if self.switches.f16_rows:
            row = f16_rows(row)
        return row if self.hooks is None else self.hooks.row(self.number, kind, number, exact, row)

    def _note_code_gap(self, t: int, x: Array, kind: str) -> None:
        """Record how near the FP8 or FP4 rounding of x [..., dim] came to going the other way."""
        if not self.measure:
            return
        if kind == KIND_INDEXER:
            if self.switches.qat_index:
                gap = code_gap(hadamard(x), E2M1, FP4_BLOCK, FP4_FLOOR).min()
                self.code_gap[t] = min(self.code_gap[t], float(gap))
        elif self.switches.qat_kv:
            gap = code_gap(x[..., : -self.m.c["qk_rope_head_dim"]], E4M3, FP8_BLOCK, FP8_FLOOR).min()
            self.code_gap[t] = min(self.code_gap[t], float(gap))

    def _select(self, query: Array, weight: Array, position: int, n: int) -> Array:
        """The compressed rows that one position of a ratio 4 layer attends to."""
        k = self.m.c["index_topk"]
        if n <= k:
            return np.arange(n)
        score = (np.maximum(self.index_rows[:n] @ query.T, 0) * weight).sum(1)
        order = np.argsort(-score, kind="stable")  # ties: the lower row number wins
        self.indexer_gap[position] = float(score[order[k - 1]] - score[order[k]])
        return order[:k] if self.hooks is None else self.hooks.select(self.number, position, score, order, k)

    def attention(self, x: Array, pos0: int) -> Array:
        """x [T, embd] normalised, at positions pos0.. -> output [T, embd]."""
        m, w, c, a = self.m, self.m.w, self.m.c, self.prefix + "attn."
        T, heads, dim, W, r = len(x), c["num_attention_heads"], c["head_dim"], c["sliding_window"], self.ratio
        pos = np.arange(pos0, pos0 + T)
        freqs = m.freqs_compressed if r else m.freqs_plain
        self.indexer_gap += [np.inf] * T
        self.code_gap += [np.inf] * T

        qr = rms_norm(x @ w[a + "wq_a.weight"].T, w[a + "q_norm.weight"], m.eps)
        q = rms_norm((qr @ w[a + "wq_b.weight"].T).reshape(T, heads, dim), None, m.eps)
        q = rotate(q, pos, freqs)
        kv = rotate(rms_norm(x @ w[a + "wkv.weight"].T, w[a + "kv_norm.weight"], m.eps), pos, freqs)
        for t in range(T):
            self._note_code_gap(pos0 + t, kv[t], KIND_WINDOW)
            kv[t] = self._store(KIND_WINDOW, pos0 + t, kv[t])
        rows = np.concatenate([self.window, kv])
        first = pos0 - len(self.window)  # position of rows[0]

        if self.compressor:
            for number, at, row in self.compressor.feed(x, pos0):
                self._note_code_gap(at, row, KIND_COMPRESSED)
                self.compressed = np.concatenate([self.compressed, self._store(KIND_COMPRESSED, number, row)[None]])
        if self.index_compressor:
            for number, at, row in self.index_compressor.feed(x, pos0):
                self._note_code_gap(at, row, KIND_INDEXER)
                self.index_rows = np.concatenate([self.index_rows, self._store(KIND_INDEXER, number, row)[None]])
            n_heads, index_dim = c["index_n_heads"], c["index_head_dim"]
            iq = rotate((qr @ w[a + "indexer.wq_b.weight"].T).reshape(T, n_heads, index_dim), pos, freqs)
            for t in range(T):
                if (pos0 + t + 1) // r > c["index_topk"]:
                    self._note_code_gap(pos0 + t, iq[t], KIND_INDEXER)
            if self.switches.qat_index:
                iq = fp4_rows(iq)
            iw = (x @ w[a + "indexer.weights_proj.weight"].T) * (index_dim * n_heads) ** -0.5

        out = np.zeros((T, heads, dim), x.dtype)
        sink = w[a + "attn_sink"][:, None]
        for t in range(T):
            keys = rows[max(0, pos[t] - W + 1) - first : pos[t] + 1 - first]
            if r:
                n = (pos[t] + 1) // r  # rows whose last source token is at or before this position
                visible = self._select(iq[t], iw[t], pos0 + t, n) if r == 4 else np.arange(n)
                keys = np.concatenate([keys, self.compressed[visible]])
            s = q[t] @ keys.T * dim**-0.5
            top = np.maximum(s.max(1, keepdims=True), sink)
            e = np.exp(s - top)
            out[t] = (e @ keys) / (e.sum(1, keepdims=True) + np.exp(sink - top))
        self.window = rows[-W:]

        out = rotate(out, pos, freqs, inverse=True)
        groups, rank = c["o_groups"], c["o_lora_rank"]
        low = np.einsum("tgi,goi->tgo", out.reshape(T, groups, -1), w[a + "wo_a.weight"].reshape(groups, rank, -1))
        y: Array = low.reshape(T, -1) @ w[a + "wo_b.weight"].T
        return y

    def forward(self, X: Array, tokens: Array, pos0: int) -> Array:
        m, p = self.m, self.prefix
        x, post, comb = m.hc_pre(X, p, "attn")
        X = m.hc_post(self.attention(rms_norm(x, m.w[p + "attn_norm.weight"], m.eps), pos0), X, post, comb)
        x, post, comb = m.hc_pre(X, p, "ffn")
        y, gap = m.moe(rms_norm(x, m.w[p + "ffn_norm.weight"], m.eps), tokens, p + "ffn.")
        self.router_gap += [float(g) for g in gap]
        return m.hc_post(y, X, post, comb)


@dataclass(frozen=True)
class Margins:
    """How near each position came to a different discrete decision; arrays [T], infinite where there was none.

    ``router`` and ``indexer`` are score gaps at the selection boundary, ``code`` distances to an FP8 or FP4 rounding
    boundary that matters (see `code_gap`); each the smallest over all layers. ``*_layer`` says where.
    """

    router: NDArray[np.float64]
    router_layer: NDArray[np.int64]
    indexer: NDArray[np.float64]
    indexer_layer: NDArray[np.int64]
    code: NDArray[np.float64]
    code_layer: NDArray[np.int64]


class Session:
    """One timeline: the state of all layers and of the MTP block.

    Parameters
    ----------
    model
    switches
        Simulated quantization.
    hooks
        Overrides discrete decisions; not kept in snapshots.
    measure_codes
        Also record the margins of FP8 and FP4 rounding (slow, so not by default).
    """

    def __init__(
        self, model: Model, switches: Switches = PLAIN, *, hooks: Hooks | None = None, measure_codes: bool = False
    ) -> None:
        c = model.c
        n = c["num_hidden_layers"]
        self.m = model
        self.layers = [
            Layer(model, i, f"layers.{i}.", c["compress_ratios"][i], switches, hooks, measure_codes) for i in range(n)
        ]
        self.mtp = Layer(model, n, "mtp.0.", c["compress_ratios"][n], switches, hooks, measure_codes)
        self.pos = 0

    def feed(self, tokens: Array, trace: list[Array] | None = None) -> tuple[Array, Array]:
        """Advance by the tokens; return logits [T, vocab] and the streams [T, n, embd] read by the head.

        ``trace`` receives the streams before each layer, and those before the head as its last element.
        """
        X = np.repeat(self.m.w["embed.weight"][tokens][:, None, :], self.m.c["hc_mult"], 1)
        for layer in self.layers:
            if trace is not None:
                trace.append(X)
            X = layer.forward(X, tokens, self.pos)
        if trace is not None:
            trace.append(X)
        self.pos += len(tokens)
        return self.m.head(X, ""), X

    def feed_mtp(self, X: Array, next_tokens: Array, pos0: int) -> tuple[Array, Array]:
        """MTP logits and output streams for positions pos0.. .

        X are the streams of those positions before the head (or, to draft further, the block's own output) and
        next_tokens the token that follows each. Row p predicts token p + 2.
        """
        m, w = self.m, self.m.w
        e = rms_norm(w["embed.weight"][next_tokens], w["mtp.0.enorm.weight"], m.eps) @ w["mtp.0.e_proj.weight"].T
        h = rms_norm(X, w["mtp.0.hnorm.weight"], m.eps) @ w["mtp.0.h_proj.weight"].T
        Y = self.mtp.forward(e[:, None, :] + h, next_tokens, pos0)
        return m.head(Y, "mtp.0."), Y

    def margins(self) -> Margins:
        """Margins of the main layers for all positions fed so far."""
        found = []
        for name in ("router_gap", "indexer_gap", "code_gap"):
            table = np.array([getattr(layer, name) for layer in self.layers])
            found += [table.min(0), table.argmin(0)]
        return Margins(*found)

    def _set_model(self, model: Model | None) -> None:
        for holder in [self, *self.layers, self.mtp]:
            holder.m = model  # type: ignore[assignment]
        for layer in [*self.layers, self.mtp]:
            for compressor in (layer.compressor, layer.index_compressor):
                if compressor:
                    compressor.m = model  # type: ignore[assignment]

    def snapshot(self) -> dict[str, Any]:
        """A copy of the whole state, without the weights."""
        model = self.m
        self._set_model(None)
        state = copy.deepcopy(self.__dict__)
        self._set_model(model)
        return state

    @classmethod
    def restore(cls, model: Model, snapshot: Mapping[str, Any]) -> Session:
        """A session that goes on where `snapshot` was taken."""
        self = cls.__new__(cls)
        self.__dict__.update(copy.deepcopy(dict(snapshot)))
        self._set_model(model)
        return self
