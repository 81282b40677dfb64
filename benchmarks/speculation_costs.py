"""What the automatic choice of guesses loses where it does not pay, on simulated machines.

  python benchmarks/speculation_costs.py                    # 100 seeds of each machine and noise, 512 tokens
  python benchmarks/speculation_costs.py --seeds 1000 --tokens 2048
  python benchmarks/speculation_costs.py --first-seed 5000  # others than those that the constants were chosen with

For every kind of noise and every machine of tests/support/machines.py: mean and worst loss in percent of the time that
the tokens would have taken alone. Exit status 1 when one is above 3 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]
from support.machines import NOISES, UNPROFITABLE, Machine, run  # noqa: E402


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    n = worst = 0.0
    print(f"loss in %, mean and worst of {args.seeds} generations of {args.tokens} tokens")
    for noise, kind in NOISES.items():
        print(noise)
        for name, (batch, guess, chances) in UNPROFITABLE.items():
            losses = []
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                machine = Machine(batch, guess, chances, noise=kind, seed=seed)
                run(machine, args.tokens)
                losses.append(100 * (machine.spent / machine.alone - 1))
            print(f"  {name:<26}{statistics.fmean(losses):>7.2f}{max(losses):>7.2f}", flush=True)
            n += len(losses)
            worst = max(worst, *losses)
    print(f"worst of {n:.0f}: {worst:.2f} %")
    return 1 if worst > 3 else 0


if __name__ == "__main__":
    sys.exit(main())
