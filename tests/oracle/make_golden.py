#!/usr/bin/env python3
"""Regenerate tests/data/golden from Hugging Face transformers and, for simulated quantization, from float64 numpy.

    python tests/oracle/make_golden.py [--variant flash] [--out DIR] [--report]

Needs torch, transformers >= 5.24 and safetensors on top of the test requirements; about a minute on one core. See
tests/data/golden/README.md for the contents of the files and for the tolerances.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.compare import layer_distances

from oracle import tiny_shapes
from oracle.reference import TRAINED, Model, Session, Switches

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"

QAT_LENGTHS = (5, 129, 300)
STRICT = Switches(qat_kv=True, qat_index=True)
"""Rows stay float32: binary16 rounding is so frequent that even the shortest prompts have close calls."""
STRICT_SALTS = {"flash": {16: 2323, 24: 2095}, "pro": {16: 1813, 24: 2684}}
"""Prompts found by `find_strict`; all are the beginning of one of 24 tokens."""
STRICT_DRAWN = 24
N_GREEDY = 24
GREEDY_STEPS = (0, 1, 2, 3, 11, 23)
COLUMNS = tuple(range(5, 512, 64))
"""These logits are kept for every position; whole rows only for `positions_of`."""

# Around the first compressed row (ratio 4), the window of 128, the first row of ratio 128, the second of each, and the
# positions where the indexer starts to drop rows (top-k 16: from 67 on, top-k 24: from 99 on).
MARKS = (0, 1, 2, 3, 4, 7, 8, 31, 66, 67, 98, 99, 126, 127, 128, 129, 131, 191, 255, 256, 257, 383, 384, 511, 512, 640)


def positions_of(length: int) -> list[int]:
    """Positions whose whole logit row is kept: all of a short prompt, marks and the end of a long one."""
    if length <= 8:
        return list(range(length))
    return sorted({p for p in MARKS if p < length} | {length - 2, length - 1})


def thin(positions: list[int], n: int) -> list[int]:
    """At most n of the positions, first and last included."""
    if len(positions) <= n:
        return positions
    return sorted({positions[round(i * (len(positions) - 1) / (n - 1))] for i in range(n)})


class Transformers:
    """The tiny model loaded by transformers through its own conversion of the official checkpoint names."""

    def __init__(self, config: dict[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        self.c, self.w = config, weights
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            tensors = {k: torch.from_numpy(v.copy()) for k, v in weights.items()}
            save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
            cfg = AutoConfig.from_pretrained(folder)
            cfg._attn_implementation = cfg._experts_implementation = "eager"
            self.model, info = hf.DeepseekV4ForCausalLM.from_pretrained(
                folder, config=cfg, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
        if any(info.values()):
            raise SystemExit(f"transformers did not map the checkpoint completely: {info}")
        self.model.eval()
        self.mtp_block = MtpBlock(config, weights)

    def prefill(self, tokens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Logits [T, vocab], and the streams before each layer and before the head."""
        streams: dict[int, np.ndarray] = {}
        n_layer = self.c["num_hidden_layers"]

        def keep(i: int) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> None:
                streams[i] = (args[0] if args else kwargs["hidden_states"]).detach()[0].numpy()

            return hook

        inner = self.model.model
        handles = [m.register_forward_pre_hook(keep(i), with_kwargs=True) for i, m in enumerate(inner.layers)]
        handles.append(inner.hc_head.register_forward_pre_hook(keep(n_layer), with_kwargs=True))
        logits = self.model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].numpy()
        for handle in handles:
            handle.remove()
        return logits, [streams[i] for i in range(n_layer + 1)]

    def chunked(self, tokens: np.ndarray, sizes: list[int]) -> tuple[np.ndarray, DynamicCache]:
        """The same with a cache, fed in chunks of the given sizes, repeated."""
        cache, out, p, i = DynamicCache(config=self.model.config), [], 0, 0
        while p < len(tokens):
            piece = torch.from_numpy(tokens[p : p + sizes[i % len(sizes)]])[None]
            out.append(self.model(input_ids=piece, cache=cache, use_cache=True).logits[0].numpy())
            p += piece.shape[1]
            i += 1
        return np.concatenate(out), cache

    def greedy(self, tokens: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """n tokens chosen one at a time from the cached state, and the logits each was chosen from."""
        logits, cache = self.chunked(tokens, [len(tokens)])
        row, picked, rows = logits[-1], [], []
        for _ in range(n):
            picked.append(int(row.argmax()))
            rows.append(row)
            step = torch.tensor([[picked[-1]]])
            row = self.model(input_ids=step, cache=cache, use_cache=True).logits[0, -1].numpy()
        return np.array(picked), np.stack(rows)


class MtpBlock:
    """The MTP block put together from transformers' parts; transformers itself ignores ``mtp.*``."""

    RENAMED = (
        ("wq_a.weight", "q_a_proj.weight"),
        ("wq_b.weight", "q_b_proj.weight"),
        ("q_norm.weight", "q_a_norm.weight"),
        ("wkv.weight", "kv_proj.weight"),
        ("kv_norm.weight", "kv_norm.weight"),
        ("wo_a.weight", "o_a_proj.weight"),
        ("wo_b.weight", "o_b_proj.weight"),
        ("attn_sink", "sinks"),
    )

    def __init__(self, config: dict[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        self.c, self.w = config, weights
        single = {**config, "num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0}
        for key in ("model_type", "architectures", "torch_dtype"):
            del single[key]
        cfg = hf.DeepseekV4Config(**single)
        cfg._attn_implementation = cfg._experts_implementation = "eager"
        self.block = hf.DeepseekV4DecoderLayer(cfg, 0).float().eval()
        self.hc_head = hf.DeepseekV4HyperHead(cfg).float().eval()
        self.rotary = hf.DeepseekV4RotaryEmbedding(cfg)
        found = self.block.load_state_dict(self._state(), strict=False)
        if found.missing_keys or found.unexpected_keys:
            raise SystemExit(f"MTP block: {found}")
        self.hc_head.load_state_dict({f"hc_{k}": self._t(f"hc_head_{k}") for k in ("fn", "base", "scale")})

    def _t(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.w["mtp.0." + name].copy())

    def _state(self) -> dict[str, torch.Tensor]:
        t, sd = self._t, {}
        for ours, theirs in (("attn", "attn_hc"), ("ffn", "ffn_hc")):
            for part in ("fn", "base", "scale"):
                sd[f"{theirs}.{part}"] = t(f"hc_{ours}_{part}")
        sd["input_layernorm.weight"] = t("attn_norm.weight")
        sd["post_attention_layernorm.weight"] = t("ffn_norm.weight")
        for ours, theirs in self.RENAMED:
            sd["self_attn." + theirs] = t("attn." + ours)
        sd["mlp.gate.weight"] = t("ffn.gate.weight")
        sd["mlp.gate.e_score_correction_bias"] = t("ffn.gate.bias")
        experts = [f"ffn.experts.{e}." for e in range(self.c["n_routed_experts"])]
        gate_up = [torch.cat([t(e + "w1.weight"), t(e + "w3.weight")]) for e in experts]
        sd["mlp.experts.gate_up_proj"] = torch.stack(gate_up)
        sd["mlp.experts.down_proj"] = torch.stack([t(e + "w2.weight") for e in experts])
        for ours, theirs in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            sd[f"mlp.shared_experts.{theirs}.weight"] = t(f"ffn.shared_experts.{ours}.weight")
        return sd

    def _rms(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * weight

    def __call__(self, streams: np.ndarray, next_tokens: np.ndarray) -> np.ndarray:
        """Logits [T, vocab] from streams [T, n, embd] of positions 0.. and the token that follows each."""
        n, t = len(next_tokens), self._t
        embedded = torch.from_numpy(self.w["embed.weight"][next_tokens])
        e = self._rms(embedded, t("enorm.weight")) @ t("e_proj.weight").T
        h = self._rms(torch.from_numpy(streams), t("hnorm.weight")) @ t("h_proj.weight").T
        pos = torch.arange(n)
        age = pos[:, None] - pos[None, :]
        mask = torch.where((age >= 0) & (age < self.c["sliding_window"]), 0.0, float("-inf"))[None, None]
        rope = {k: self.rotary(e, position_ids=pos[None], layer_type=k) for k in ("main", "compress")}
        y = self.block(
            (e[:, None, :] + h)[None],
            position_embeddings=rope,
            position_ids=pos[None],
            attention_mask=mask,
            cache=None,
        )
        z = self._rms(self.hc_head(y)[0], t("norm.weight")) @ torch.from_numpy(self.w["head.weight"].copy()).T
        return z.numpy()


def golden_of(variant: str) -> dict[str, Any]:
    """Everything transformers says about one variant, plus the decision margins of the float64 reference."""
    config = tiny_shapes.VARIANTS[variant]
    weights = tiny_shapes.weights_of(variant)
    oracle, exact = Transformers(config, weights), Model(config, weights)
    out: dict[str, Any] = {
        "weights_sha256": np.array(tiny_shapes.weights_digest(weights)),
        "lengths": np.array(tiny_shapes.PROMPT_LENGTHS, np.int32),
        "columns": np.array(COLUMNS, np.int32),
    }
    for n in tiny_shapes.PROMPT_LENGTHS:
        started = time.monotonic()
        tokens = tiny_shapes.make_prompt(config, n)
        logits, streams = oracle.prefill(tokens)
        cached, _ = oracle.chunked(tokens, [7, 1, 64, 3, 130, 1, 1])
        keep = positions_of(n)
        out[f"tokens_{n}"] = tokens.astype(np.int32)
        out[f"positions_{n}"] = np.array(keep, np.int32)
        out[f"logits_{n}"] = logits[keep]
        out[f"argmax_{n}"] = logits.argmax(-1).astype(np.int32)
        out[f"logits_columns_{n}"] = logits[:, COLUMNS]

        picked, rows = oracle.greedy(tokens, N_GREEDY)
        out[f"greedy_{n}"] = picked.astype(np.int32)
        out[f"greedy_steps_{n}"] = np.array(GREEDY_STEPS, np.int32)
        out[f"greedy_logits_{n}"] = rows[list(GREEDY_STEPS)]

        hc_layers = range(1, len(streams)) if n in QAT_LENGTHS else (1, 3, len(streams) - 1)
        out[f"hc_layers_{n}"] = np.array(hc_layers, np.int32)
        out[f"hc_{n}"] = np.stack([streams[i][-1] for i in hc_layers])

        if n > 1:
            mtp = oracle.mtp_block(streams[-1][:-1], tokens[1:])
            keep = thin(positions_of(n - 1), 12)
            out[f"mtp_positions_{n}"] = np.array(keep, np.int32)
            out[f"mtp_logits_{n}"] = mtp[keep]

        session = Session(exact)
        ours = session.feed(tokens)[0]
        margins = session.margins()
        for name in ("router", "indexer"):
            out[f"{name}_margin_{n}"] = getattr(margins, name).astype(np.float32)
            out[f"{name}_layer_{n}"] = getattr(margins, name + "_layer").astype(np.int8)
        print(
            f"{variant} {n:3d}: float64 numpy differs by {np.abs(ours - logits).max():.1e}, transformers in chunks by "
            f"{np.abs(cached - logits).max():.1e}; smallest margin router {margins.router.min():.1e}, "
            f"indexer {margins.indexer.min():.1e}  ({time.monotonic() - started:.1f} s)",
            flush=True,
        )
    return out


def qat_of(variant: str) -> dict[str, Any]:
    """Logits of the float64 reference under simulated quantization."""
    config = tiny_shapes.VARIANTS[variant]
    weights = tiny_shapes.weights_of(variant)
    exact, single = Model(config, weights), Model(config, weights, np.float32)
    strict = STRICT_SALTS[variant]
    cases: list[tuple[str, np.ndarray, Switches]] = []
    cases += [("", tiny_shapes.make_prompt(config, n), TRAINED) for n in QAT_LENGTHS]
    cases += [("strict_", strict_prompt(config, n, salt), STRICT) for n, salt in strict.items()]
    out: dict[str, Any] = {
        "lengths": np.array(QAT_LENGTHS, np.int32),
        "strict_lengths": np.array(list(strict), np.int32),
    }
    for tag, tokens, switches in cases:
        n = len(tokens)
        session = Session(exact, switches, measure_codes=True)
        logits = session.feed(tokens)[0]
        margins = session.margins()
        # Float32 runs that differ only in the order of sums are all correct implementations.
        near = [run(single, switches, tokens, size) for size in (n, 3)]
        keep = list(range(n)) if tag else positions_of(n)
        arrays = {
            "tokens": tokens.astype(np.int32),
            "positions": np.array(keep, np.int32),
            "logits": logits[keep].astype(np.float32),
            "argmax": logits.argmax(-1).astype(np.int32),
            "natural": np.stack([np.abs(x - logits).max(-1) for x in near]).astype(np.float32),
        }
        for name in ("router", "indexer", "code"):
            arrays[name + "_margin"] = getattr(margins, name).astype(np.float32)
            arrays[name + "_layer"] = getattr(margins, name + "_layer").astype(np.int8)
        out |= {f"{tag}{name}_{n}": values for name, values in arrays.items()}
        print(
            f"{variant} qat {tag}{n}: float32 runs within {arrays['natural'].max():.1e}; "
            f"smallest margin code {margins.code.min():.1e}, router {margins.router.min():.1e}",
            flush=True,
        )
    return out


def strict_prompt(config: Mapping[str, Any], length: int, salt: int) -> np.ndarray:
    return tiny_shapes.make_prompt(config, STRICT_DRAWN, salt=salt)[:length]


def find_strict(variant: str, length: int, seconds: float) -> None:
    """Print salts whose prompt keeps every decision away from its boundary, each better than the one before.

    Wanted: all margins of rounded codes above 4e-6, of scores above 2e-5, and float32 runs in different chunks within
    6e-5 of float64.
    """
    config = tiny_shapes.VARIANTS[variant]
    weights = tiny_shapes.weights_of(variant)
    exact, single = Model(config, weights), Model(config, weights, np.float32)
    best, end = 4e-6, time.monotonic() + seconds
    for salt in itertools.count(1000):
        if time.monotonic() > end:
            return
        tokens = strict_prompt(config, length, salt)
        session = Session(exact, STRICT, measure_codes=True)
        logits = []
        for p in range(0, length, 4):
            logits.append(session.feed(tokens[p : p + 4])[0])
            margins = session.margins()
            if margins.code.min() <= best or min(margins.router.min(), margins.indexer.min()) < 2e-5:
                break
        else:
            whole = np.concatenate(logits)
            apart = max(float(np.abs(run(single, STRICT, tokens, n) - whole).max()) for n in (length, 5, 3, 1))
            if apart < 6e-5:
                best = float(margins.code.min())
                print(f"{variant} {length}: salt {salt}, margin {best:.2e}, float32 within {apart:.1e}", flush=True)


def run(model: Model, switches: Switches, tokens: np.ndarray, size: int) -> np.ndarray:
    session = Session(model, switches)
    return np.concatenate([session.feed(tokens[p : p + size])[0] for p in range(0, len(tokens), size)])


def report_qat(variant: str, qat: dict[str, Any]) -> None:
    """Print how far correct float32 runs are from float64 under quantization, and what single mistakes cost."""
    config = tiny_shapes.VARIANTS[variant]
    weights = tiny_shapes.weights_of(variant)
    exact, single = Model(config, weights), Model(config, weights, np.float32)
    wrong = {
        "no qat_kv": Switches(qat_index=True, f16_rows=True),
        "no qat_index": Switches(qat_kv=True, f16_rows=True),
        "no f16_rows": Switches(qat_kv=True, qat_index=True),
    }
    for n in QAT_LENGTHS:
        tokens, keep = qat[f"tokens_{n}"].astype(np.int64), qat[f"positions_{n}"]
        causal = np.minimum.accumulate(qat[f"code_margin_{n}"])
        shares = ", ".join(f"{t:.0e}: {(causal < t).mean():.0%}" for t in (1e-7, 3e-7, 1e-6, 3e-6))
        print(f"{variant} {n}: share of positions with a rounding margin below x before them: {shares}")
        print("  logits of whole runs, distance from float64")
        for label, d in zip(("float32 whole", "float32 by 3"), qat[f"natural_{n}"], strict=True):
            print(f"    {label:16s}" + _spread(d))
        for label, switches in wrong.items():
            d = np.abs(run(exact, switches, tokens, n)[keep] - qat[f"logits_{n}"]).max(-1)
            print(f"    {label:16s}" + _spread(d))
        print("  single layers from the streams of a float32 run, distance from float64")
        streams: list[Any] = []
        Session(single, TRAINED).feed(tokens, streams)
        for label, switches in {"float32": TRAINED, **wrong}.items():
            for layer, d in enumerate(layer_distances(exact, tokens, streams, switches)):
                print(f"    {label:14s}{layer} " + _spread(d))


def _spread(d: np.ndarray) -> str:
    low, mid, high = np.quantile(d, (0.1, 0.5, 0.9))
    return f" 10% {low:.1e}  median {mid:.1e}  90% {high:.1e}  max {d.max():.1e}  over 1e-3 {(d > 1e-3).mean():.0%}"


def save(path: Path, arrays: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--variant", choices=list(tiny_shapes.VARIANTS), action="append")
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("--report", action="store_true", help="also print the table of the README about quantization")
    parser.add_argument("--find-strict", type=int, metavar="LENGTH", help="search prompts for STRICT_SALTS instead")
    parser.add_argument("--seconds", type=float, default=300, help="duration of that search")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, numpy {np.__version__}")
    for variant in args.variant or tiny_shapes.VARIANTS:
        if args.find_strict:
            find_strict(variant, args.find_strict, args.seconds)
            continue
        save(args.out / f"{variant}.npz", golden_of(variant))
        qat = qat_of(variant)
        save(args.out / f"qat_{variant}.npz", qat)
        if args.report:
            report_qat(variant, qat)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
