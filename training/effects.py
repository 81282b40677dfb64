"""Show what each way of quantizing costs the tiny model, and what importances win back.

usage: python training/effects.py --parent FILE --sets DIR [--work DIR] [-n ITEMS] [--json FILE]

The parent (BF16) is quantized by each recipe; every file is then measured on the held-out sets of
make_sets.py (nats per token) and on held-out tasks answered greedily (share of right answers): sums, tool
calls, recall.  Importances come from the calibration sets, which hold what training has seen.
"""

import argparse
import json
import tempfile
from pathlib import Path

import ds4
from ds4 import imatrix, score
from ds4.quantize import plan_quantization, quantize

from evaluate import Engine, measure
from likelihood import N_CTX, likelihood

# name in the table, recipe, with importances
VARIANTS = (
    ("F16", "f16", False),
    ("Q8_0", "q8_0", False),
    ("Q4_K experts", "q4", False),
    ("Q4_K experts, imatrix", "q4", True),
    ("q2-q4, imatrix", "q2-q4", True),
    ("q2, synthetic", "q2", False),
    ("q2, imatrix", "q2", True),
)
TASKS = ("arithmetic", "tools", "recall")


def collect(parent, sets, out):
    """Write the importance file of the calibration set."""
    with ds4.Model.open(parent) as model:
        prompts = [
            p for f in ("calibration.jsonl", "calibration.txt") for p in imatrix.read_prompts(sets / f)
        ]
        found = imatrix.collect_imatrix(
            model, prompts, n_ctx=N_CTX, datasets=["calibration"], mtp=model.has_mtp
        )
    found.write(out, format="gguf", force=True)
    return out


def distance(path, parent, sets):
    """(KL divergence from the parent in nats, share of equal best tokens) on the held-out conversations."""
    with (
        ds4.Model.open(path) as model,
        ds4.Model.open(parent) as other,
        model.session(n_ctx=N_CTX) as session,
        other.session(n_ctx=N_CTX) as above,
    ):
        cases = score.read_cases(sets / "heldout.jsonl", model.tokenizer)
        total = score.divergence(session, above, cases).total
        return total.mean_kl, total.agreement


def tasks(path, n):
    """Share of right answers of each task, both modes together."""
    engine = Engine(path)
    return {
        kind: sum(measure(engine, kind, mode, n, 0)["right"] for mode in ("thinking", "chat")) / 2
        for kind in TASKS
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--parent", required=True, type=Path)
    ap.add_argument("--sets", required=True, type=Path)
    ap.add_argument("--work", type=Path, help="keep the files here")
    ap.add_argument("-n", type=int, default=100, help="items per task and mode")
    ap.add_argument("--json", type=Path, help="write the table to this file as well")
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = a.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        importances = collect(a.parent, a.sets, work / "imatrix.gguf")
        rows = []
        for name, recipe, weighted in VARIANTS:
            path = work / (name.replace(", ", "-").replace(" ", "-") + ".gguf")
            given = importances if weighted else None
            quantize(plan_quantization(a.parent, path, recipe=recipe, imatrix=given), force=True)
            nll = likelihood(path, a.sets)
            kl, agreement = distance(path, a.parent, a.sets)
            row = dict(name=name, n_bytes=path.stat().st_size, nll=nll, kl=kl, agreement=agreement)
            rows.append(row | dict(tasks=tasks(path, a.n)))
            show(rows)
        if a.json:
            a.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def show(rows):
    """Print the newest row as a line of a Markdown table, the head before the first."""
    row = rows[-1]
    if len(rows) == 1:
        heads = ["file", "MB", *(f"nll {k}" for k in row["nll"]), "KL", "same best", *row["tasks"]]
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    values = [row["name"], f"{row['n_bytes'] / 1e6:.1f}", *(f"{v:.4f}" for v in row["nll"].values())]
    values += [f"{row['kl']:.5f}", f"{row['agreement']:.2%}", *(f"{v:.1%}" for v in row["tasks"].values())]
    print("| " + " | ".join(values) + " |", flush=True)


if __name__ == "__main__":
    main()
