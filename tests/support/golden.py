"""Typed access to tests/data/golden; what the arrays mean is described in the README there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN_DIR = Path(__file__).resolve().parents[1] / "data" / "golden"

VARIANTS = ("flash", "pro")


@dataclass(frozen=True)
class GoldenMargins:
    """Smallest margin of a decision per position [T], over all layers, and the layer where it occurs.

    Router and indexer: score gap at the selection boundary. Code, only under simulated quantization: distance of a
    value to an FP8 or FP4 rounding boundary, in units of the row's RMS.
    """

    router: NDArray[np.float32]
    router_layer: NDArray[np.int8]
    indexer: NDArray[np.float32]
    indexer_layer: NDArray[np.int8]
    code: NDArray[np.float32] | None = None
    code_layer: NDArray[np.int8] | None = None

    @classmethod
    def _of(cls, z: Mapping[str, Any], n: int) -> GoldenMargins:
        names = ("router_margin", "router_layer", "indexer_margin", "indexer_layer", "code_margin", "code_layer")
        return cls(*(z.get(f"{name}_{n}") for name in names))  # type: ignore[arg-type]


@dataclass(frozen=True)
class GoldenPrompt:
    """What transformers computes for one prompt, quantization off. T = length, K rows kept, V = 512."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    logits: NDArray[np.float32]
    """[K, V], at `positions`."""
    argmax: NDArray[np.int32]
    """[T]."""
    columns: NDArray[np.int32]
    logits_columns: NDArray[np.float32]
    """[T, len(columns)]: a few logits of every position."""
    greedy: NDArray[np.int32]
    """The 24 tokens that follow under greedy decoding."""
    greedy_steps: NDArray[np.int32]
    greedy_logits: NDArray[np.float32]
    """[steps, V]; the row of step k is the one greedy[k] was chosen from."""
    hc_layers: NDArray[np.int32]
    hc: NDArray[np.float32]
    """[layers, 4, embd]: streams of the last position before these layers; layer 5 = before the head."""
    mtp_positions: NDArray[np.int32]
    mtp_logits: NDArray[np.float32]
    """[rows, V]; row p is made of the streams of p and token p + 1, and predicts token p + 2. Empty for length 1."""
    margins: GoldenMargins

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class GoldenQatPrompt:
    """What the float64 reference computes for one prompt under simulated quantization.

    ``strict`` prompts have FP8 and FP4 on and rows in float32, and were searched for: none of their decisions is
    close, so that correct float32 implementations agree to 1e-4 (all positions are kept). The others have everything
    on, and only distributions can be compared.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    logits: NDArray[np.float32]
    argmax: NDArray[np.int32]
    natural: NDArray[np.float32]
    """[2, T]: distance of two float32 runs of the reference from float64, largest over the row."""
    margins: GoldenMargins
    strict: bool

    @property
    def length(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Golden:
    """All golden data of one variant."""

    variant: str
    weights_sha256: str
    prompts: Mapping[int, GoldenPrompt]
    qat: Mapping[int, GoldenQatPrompt]
    """Lengths 5, 129, 300: everything on, rows binary16."""
    qat_strict: Mapping[int, GoldenQatPrompt]
    """Lengths 8, 16: FP8 and FP4 on, rows float32."""


def load_golden(variant: str, folder: Path = GOLDEN_DIR) -> Golden:
    with np.load(folder / f"{variant}.npz") as z, np.load(folder / f"qat_{variant}.npz") as q:
        plain, qat = dict(z), dict(q)
    empty = {
        "mtp_positions_1": np.zeros(0, np.int32),
        "mtp_logits_1": np.zeros((0, plain["logits_1"].shape[1]), np.float32),
    }
    plain = {**empty, **plain}
    names = ["tokens", "positions", "logits", "argmax", "logits_columns", "greedy", "greedy_steps"]
    names += ["greedy_logits", "hc_layers", "hc", "mtp_positions", "mtp_logits"]
    prompts = {}
    for n in map(int, plain["lengths"]):
        fields = {name: plain[f"{name}_{n}"] for name in names}
        prompts[n] = GoldenPrompt(columns=plain["columns"], margins=GoldenMargins._of(plain, n), **fields)
    names = ["tokens", "positions", "logits", "argmax", "natural"]
    sets: list[dict[int, GoldenQatPrompt]] = []
    for key, tag in (("lengths", ""), ("strict_lengths", "strict_")):
        sets.append({})
        for n in map(int, qat.get(key, ())):
            part = {k.removeprefix(tag): v for k, v in qat.items() if k.startswith(tag)}
            fields = {name: part[f"{name}_{n}"] for name in names}
            sets[-1][n] = GoldenQatPrompt(margins=GoldenMargins._of(part, n), strict=bool(tag), **fields)
    return Golden(variant, str(plain["weights_sha256"]), prompts, sets[0], sets[1])
