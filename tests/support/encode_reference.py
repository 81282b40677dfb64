"""The searches of the Q2_K, Q4_K and IQ2_XXS encoders in numpy, many blocks at a time.

Each takes float32 blocks [n, 256] and weights of that shape or None, and returns uint8 [n, block bytes], the same
bytes as the native encoders. Sums are cumulative ones, since np.sum adds in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.dequant import Bytes, Floats, iq2_xxs_grid
from support.gguf_write import GGMLType

F32 = np.float32


def ordered_sum(x: NDArray[Any]) -> Floats:
    """Along the last axis, in order."""
    return np.cumsum(x, -1, dtype=F32)[..., -1]


def nearest(x: Floats, top: int) -> Floats:
    return np.clip(np.nan_to_num(np.rint(x), nan=0), 0, F32(top)).astype(F32)


def fit_affine(x: Floats, w: Floats, top: int, first: float, step: float, last: int, absolute: bool = False) -> Any:
    """x [n, m] ~ scale * code - min: returns scale [n], min [n], codes [n, m]."""

    def error(scale: Floats, low: Floats, codes: Floats) -> Floats:
        difference = (scale[:, None] * codes + low[:, None]) - x
        return ordered_sum(w * (np.abs(difference) if absolute else difference * difference))

    low, high = np.minimum(x.min(1), F32(0)), x.max(1)
    flat, first_low = high <= low, low
    sum_w, sum_wx = ordered_sum(w), ordered_sum(w * x)
    inverse = F32(top) / (high - low)
    codes = nearest(inverse[:, None] * (x - low[:, None]), top)
    scale = F32(1) / inverse
    best = error(scale, low, codes)
    for k in range(last + 1):
        inverse = ((F32(first) + F32(step) * F32(k)) + F32(top)) / (high - low)
        trial = nearest(inverse[:, None] * (x - low[:, None]), top)
        wl = w * trial
        l1, l2, xl = ordered_sum(wl), ordered_sum(wl * trial), ordered_sum(wl * x)
        det = sum_w * l2 - l1 * l1
        s, m = (sum_w * xl - sum_wx * l1) / det, (l2 * sum_wx - l1 * xl) / det
        s, m = np.where(m > 0, xl / l2, s), np.where(m > 0, F32(0), m)
        e = error(s, m, trial)
        keep = (det > 0) & (e < best)
        best, scale, low = np.where(keep, e, best), np.where(keep, s, scale), np.where(keep, m, low)
        codes = np.where(keep[:, None], trial, codes)
    codes[flat] = 0
    return np.where(flat, F32(0), scale), -np.where(flat, first_low, low), codes


def fit_scale(x: Floats, w: Floats, top: int) -> Any:
    """x [n, m] ~ scale * code: returns scale [n], codes [n, m] as the bytes that they are."""

    def wrap(codes: Floats) -> Floats:
        return np.mod(codes.astype(np.float64), 256).astype(F32)

    def error(inverse: Floats, codes: Floats) -> Floats:
        difference = x - (F32(1) / inverse)[:, None] * codes
        return ordered_sum((w * difference) * difference)

    peak = np.maximum(x.max(1), F32(0))
    inverse = F32(top) / peak
    best = error(inverse, wrap(np.rint(inverse[:, None] * x)))
    for k in (-4, -3, -2, -1, 1, 2, 3, 4):
        candidate = (F32(0.1) * F32(k) + F32(top)) / peak
        e = error(candidate, np.minimum(np.rint(candidate[:, None] * x), F32(top)))
        better = e < best
        best, inverse = np.where(better, e, best), np.where(better, candidate, inverse)
    codes = np.minimum(np.rint(inverse[:, None] * x), F32(top))
    xl, ll = ordered_sum((w * x) * codes), ordered_sum((w * codes) * codes)
    codes = wrap(codes)
    active = np.ones(len(x), bool)
    for _ in range(5):
        changed = np.zeros(len(x), bool)
        for i in range(x.shape[1]):
            a, b, old = x[:, i], w[:, i], codes[:, i]
            new_xl, new_ll = xl - (b * a) * old, ll - (b * old) * old
            possible = (new_xl > 0) & (new_ll > 0)
            new = np.minimum(np.rint((a * new_ll) / new_xl), F32(top))
            new_xl, new_ll = new_xl + (b * a) * new, new_ll + (b * new) * new
            better = (new_xl * new_xl) * ll > (xl * xl) * new_ll
            keep = active & possible & (new != old) & better
            codes[keep, i] = wrap(new[keep])
            xl, ll = np.where(keep, new_xl, xl), np.where(keep, new_ll, ll)
            changed |= keep
        active &= changed
    tiny = peak < F32(1e-15)
    codes[tiny] = 0
    return np.where(tiny | ~(ll > 0), F32(0), xl / ll), codes


def _half(x: Floats) -> Bytes:
    return np.ascontiguousarray(x, "<f2").view(np.uint8).reshape(-1, 2)


def _k_block(x: Floats, weights: Floats | None, kind: GGMLType) -> Any:
    """Scale codes, minimum codes [n, sub-blocks], codes [n, 256], d and dmin [n, 2] as bytes."""
    q2 = kind is GGMLType.Q2_K
    size, top, top_scale = (16, 3, 15) if q2 else (32, 15, 63)
    n, sub = len(x), x.reshape(-1, size)
    if weights is not None:
        mean = (ordered_sum(x * x) if q2 else F32(2) * ordered_sum(x * x)) / F32(256)
        w = (weights * np.sqrt(mean[:, None] + x * x)).reshape(-1, size)
        scale, low, codes = fit_affine(sub, w, top, -0.9, 0.05, 36)
        totals = ordered_sum(w).reshape(n, -1)
        d, scale_codes = fit_scale(scale.reshape(n, -1), totals, top_scale)
        dmin, min_codes = fit_scale(low.reshape(n, -1), totals, top_scale)
    else:
        if q2:
            scale, low, codes = fit_affine(sub, np.abs(sub), top, -0.5, 0.1, 15, absolute=True)
        else:
            w = np.sqrt(ordered_sum(sub * sub) / F32(32))[:, None] + np.abs(sub)
            scale, low, codes = fit_affine(sub, w, top, -1.0, 0.1, 20)
        rounded = []
        for values in (scale.reshape(n, -1), low.reshape(n, -1)):
            peak = values.max(1, keepdims=True)
            factor, unit = (np.where(peak > 0, q, F32(0)) for q in (F32(top_scale) / peak, peak / F32(top_scale)))
            rounded.append((unit[:, 0], nearest(factor * values, top_scale)))
        (d, scale_codes), (dmin, min_codes) = rounded
    s = (d.astype(np.float16).astype(F32)[:, None] * scale_codes).reshape(-1, 1)
    m = (dmin.astype(np.float16).astype(F32)[:, None] * min_codes).reshape(-1, 1)
    codes = np.where(s == 0, codes, nearest((sub + m) / s, top)).reshape(n, 256)
    return scale_codes.astype(np.uint8), min_codes.astype(np.uint8), codes.astype(np.uint8), _half(d), _half(dmin)


def encode_q2_k(x: Floats, weights: Floats | None) -> Bytes:
    scales, mins, codes, d, dmin = _k_block(x, weights, GGMLType.Q2_K)
    q = codes.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    return np.concatenate([scales | mins << 4, np.bitwise_or.reduce(q, 2).reshape(-1, 64), d, dmin], 1)


def encode_q4_k(x: Floats, weights: Floats | None) -> Bytes:
    scales, mins, codes, d, dmin = _k_block(x, weights, GGMLType.Q4_K)
    k = [
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        mins[:, :4] | mins[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4,
    ]
    q = codes.reshape(-1, 4, 2, 32)
    return np.concatenate([d, dmin, *k, (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)], 1)


def _grid_points(lattice: NDArray[np.int64], v: Floats, w: Floats, scale: Floats) -> NDArray[np.int64]:
    """The grid index for tuples [n, 8] with coordinates 1, 3, 5."""
    points = np.searchsorted([8, 25, 43], iq2_xxs_grid().astype(np.int64)) * 2 + 1
    distance = ((lattice[:, None] - points) ** 2).sum(2)
    nearest_one = distance.min(1)
    second = np.where(distance > nearest_one[:, None], distance, 999).min(1)
    difference = scale[:, None, None] * points.astype(F32) - v[:, None]
    cost = ordered_sum((w[:, None] * difference) * difference)
    cost[distance > second[:, None]] = np.inf
    order = np.argsort(distance, 1, kind="stable")  # by distance, then index: the first of equal costs is taken
    best = order[np.arange(len(v)), np.take_along_axis(cost, order, 1).argmin(1)]
    return np.where(nearest_one == 0, distance.argmin(1), best)


def encode_iq2_xxs(x: Floats, weights: Floats | None) -> Bytes:
    assert weights is not None
    n = len(x)
    w = (weights * np.sqrt((ordered_sum(x * x) / F32(256))[:, None] + x * x)).reshape(-1, 32)
    tuples, v = x.reshape(-1, 8), np.abs(x).reshape(-1, 8)
    minus = tuples < 0
    odd = np.flatnonzero(minus.sum(1) % 2)
    cheapest = ((w.reshape(-1, 8) * tuples) * tuples).argmin(1)[odd]
    v[odd, cheapest] *= -1
    minus[odd, cheapest] ^= True
    signs = (minus[:, :7] << np.arange(7)).sum(1).reshape(-1, 4)
    v = v.reshape(-1, 32)
    scale = fit_scale(v, w, 4)[0]
    whole = scale * F32(3)
    used = (v.max(1) >= F32(1e-15)) & (whole > 0)

    def choose(inverse: Floats, at: Floats) -> Any:
        lattice = (2 * nearest(F32(0.5) * (inverse[:, None] * v - F32(1)), 2) + 1).astype(np.int64)
        index = _grid_points(lattice.reshape(-1, 8), v.reshape(-1, 8), np.sqrt(w).reshape(-1, 8), np.repeat(at, 4))
        q = (np.searchsorted([8, 25, 43], iq2_xxs_grid().astype(np.int64)) * 2 + 1)[index].reshape(-1, 32).astype(F32)
        return index.reshape(-1, 4), ordered_sum((w * v) * q), ordered_sum((w * q) * q)

    best, index = np.zeros_like(scale), np.zeros((len(v), 4), np.int64)
    for step in range(-6, 7):
        inverse = (F32(5) + F32(step) * F32(0.1)) / whole
        trial, xq, qq = choose(inverse, F32(1) / inverse)
        keep = (qq > 0) & (xq * xq > best * qq)
        scale = np.where(keep, xq / qq, scale)
        best, index = np.where(keep, scale * xq, best), np.where(keep[:, None], trial, index)
    trial, xq, qq = choose(F32(1) / scale, scale)
    again = scale > 0
    index = np.where(again[:, None], trial, index)
    scale = np.where(again & (qq > 0), xq / qq, scale)
    signs = np.where((scale < 0)[:, None], ~signs & 127, signs)
    scale = np.where(used, np.abs(scale), F32(0)).reshape(n, 8)
    index[~used], signs[~used] = 0, 0
    d = scale.max(1) / F32(31)
    nibble = nearest(F32(0.5) * ((F32(1) / d)[:, None] * scale - F32(1)), 15).astype(np.uint32)
    words = np.zeros((n, 8, 2), np.uint32)
    words[:, :, 0] = (index << np.array([0, 8, 16, 24])).sum(1).reshape(n, 8)
    words[:, :, 1] = (signs << np.array([0, 7, 14, 21])).sum(1).reshape(n, 8).astype(np.uint32) | nibble << 28
    out = np.concatenate([_half(d), words.astype("<u4").view(np.uint8).reshape(n, 64)], 1)
    out[scale.max(1) == 0] = 0
    return out


ENCODERS = {GGMLType.Q2_K: encode_q2_k, GGMLType.Q4_K: encode_q4_k, GGMLType.IQ2_XXS: encode_iq2_xxs}


def encode(type_: GGMLType, x: Floats, weights: Floats | None = None) -> Bytes:
    """A row of whole blocks."""
    with np.errstate(all="ignore"):
        return ENCODERS[type_](x.reshape(-1, 256), None if weights is None else weights.reshape(-1, 256)).ravel()
