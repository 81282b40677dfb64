"""Hit rates of expert caches on routing traces: what the engine does against the best that is possible.

::

    python benchmarks/expert_trace.py
    python benchmarks/expert_trace.py --seed 1 2 3 --tokens 4000 --sentence-tokens 6 --json out.json

Makes a trace of the selections of a Flash-shaped model: every layer has a Zipf-like liking for some experts, which
drifts within hundreds of tokens (the topic) and within a few (the sentence). Shares and locality are like those of
published runs: the 16 most used experts of a layer take 30 to 50 % of its traffic, and one LRU cache a layer of 16,
20 and 24 experts hits 64, 68 and 73 %. Then caches for 10, 25 and 50 % of all experts are simulated. "belady" knows the
future; the bars are at least 85 % of its hit rate at 10 %, and 95 % at 50 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from ds4.bench.expert_profile import BUDGETS, SCALES, HeatScales, Selections, compare_policies, simulate
from numpy.typing import NDArray

BARS = {0.1: 0.85, 0.5: 0.95}


def make_trace(
    n_tokens: int,
    *,
    n_layers: int = 43,
    n_experts: int = 256,
    n_used: int = 6,
    zipf: float = 0.6,
    topic: float = 1.0,
    topic_tokens: float = 400.0,
    sentence: float = 1.3,
    sentence_tokens: float = 10.0,
    seed: int = 1,
) -> Selections:
    """Draw a trace: scores are -zipf * log(rank) + two autoregressive parts + noise, and the best are selected."""
    rng = np.random.default_rng(seed)
    shape = n_layers, n_experts
    ranks = np.argsort(rng.random(shape), axis=1) + 1
    liking = -zipf * np.log(ranks)
    slow, fast = rng.standard_normal(shape), rng.standard_normal(shape)
    keep_slow, keep_fast = np.exp(-1 / topic_tokens), np.exp(-1 / sentence_tokens)
    out = np.empty((n_tokens, n_layers, n_used), np.int64)

    def drift(x: NDArray[np.float64], keep: float) -> NDArray[np.float64]:
        moved: NDArray[np.float64] = keep * x + np.sqrt(1 - keep * keep) * rng.standard_normal(shape)
        return moved

    for t in range(n_tokens):
        slow, fast = drift(slow, keep_slow), drift(fast, keep_fast)
        scores = liking + topic * slow + sentence * fast + 0.5 * rng.gumbel(size=shape)
        out[t] = np.argpartition(-scores, n_used - 1, axis=1)[:, :n_used]
    blocks = np.tile(np.arange(n_layers), n_tokens)
    return Selections(blocks, out.reshape(-1, n_used), (n_experts,) * n_layers)


def locality(trace: Selections) -> dict[str, float]:
    """Return the share of the 16 most used experts of a layer, and hit rates of LRU caches of single layers."""
    counts = -np.sort(-trace.counts(), axis=1)
    found = {"top16": float(counts[:, :16].sum() / counts.sum())}
    layers = range(0, len(trace.n_experts), 11)
    for slots in (16, 20, 24):
        rates = []
        for layer in layers:
            chosen = trace.blocks == layer
            one = Selections(np.zeros(chosen.sum(), np.int64), trace.ids[chosen], (trace.n_experts[layer],))
            rates.append(simulate(one, "lru", slots).hit_rate)
        found[f"lru{slots}"] = float(np.mean(rates))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--layers", type=int, default=43)
    parser.add_argument("--topic-tokens", type=float, default=400.0)
    parser.add_argument("--sentence-tokens", type=float, default=10.0)
    parser.add_argument("--near", type=float, default=SCALES.near, help="half-life of the near average, in tokens")
    parser.add_argument("--far", type=float, default=SCALES.far, help="half-life of the far average, in tokens")
    parser.add_argument("--near-share", type=float, default=SCALES.near_share)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    facts, failed = [], []
    for seed in args.seed:
        trace = make_trace(
            args.tokens,
            n_layers=args.layers,
            topic_tokens=args.topic_tokens,
            sentence_tokens=args.sentence_tokens,
            seed=seed,
        )
        like = locality(trace)
        print(f"seed {seed}: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in like.items()))
        found = compare_policies(trace, scales=HeatScales(args.near, args.far, args.near_share))
        for budget in BUDGETS:
            slots = round(budget * sum(trace.n_experts))
            rates = {s.policy: s.hit_rate for s in found if s.slots == slots}
            part = rates["ours"] / rates["belady"]
            shown = ", ".join(f"{policy} {100 * rate:.2f} %" for policy, rate in rates.items())
            print(
                f"{100 * budget:.0f} % of the experts ({slots}): {shown}; ours / belady {100 * part:.1f} %", flush=True
            )
            if part < BARS.get(budget, 0):
                failed.append(f"seed {seed}: {100 * part:.1f} % of the best, the bar is {100 * BARS[budget]:.0f} %")
        caches = [{"policy": s.policy, "slots": s.slots, "hit_rate": s.hit_rate} for s in found]
        facts.append({"seed": seed, "locality": like, "caches": caches})
    if args.json:
        options = {k: v for k, v in vars(args).items() if k not in ("json", "seed")}
        args.json.write_text(json.dumps({**options, "traces": facts}, indent=1) + "\n")
    for text in failed:
        print(f"failed: {text}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
