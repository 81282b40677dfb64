"""Turn off one mechanism of a trained model at a time and show what it was worth.

usage: python training/ablation.py --sets DIR [--model FILE] [--json FILE]

A mechanism is turned off in the weights: the script writes a copy of the model in which its tensors say
"nothing", and measures that copy like any model, through the public interface.  So nothing but the weights
differs, and the engine needs no switches that nobody else wants.

  indexer       its queries are random: the rows that a token reads are chosen without looking
  compressor 4  the rows of ratio 4 are empty: only the window and the rows of ratio 128 are left
  compressor 128, compressors  likewise the rows of ratio 128, and both
  hc mixing     the residual streams are carried on without being mixed (their matrix is the identity)
  hash routing  every token is sent to random experts instead of its own
  router        top-k layers always take the same experts
  sinks         attention cannot decline to look: all its weight goes to rows

--sets names the folder that make_sets.py wrote.  Shown is what `likelihood` measures: nats per token of the
held-out answers of each kind and of plain English, first of the model as it is, then how much is lost.
"""

import argparse
import json
import re
import tempfile
from pathlib import Path

import ds4
import numpy as np
from ds4.gguf import GGUFFile, quantize
from ds4.gguf_writer import GGUFWriter, TensorInfo, records_of

from likelihood import likelihood

IDENTITY = 40.0  # after the row softmax of the Sinkhorn iteration nothing is left of the other entries
NO_SINK = -1e4


def indexer(name, values, rng, ratio):
    if name.endswith("indexer.attn_q_b.weight"):
        return rng.normal(0, values.std(), values.shape)
    return None


def empty_rows(*ratios):
    def change(name, values, rng, ratio):
        if name.endswith("attn_compressor_norm.weight") and ratio in ratios:
            return np.zeros_like(values)
        return None

    return change


def hc_mixing(name, values, rng, ratio):
    if not name.startswith("blk."):
        return None
    n = 4  # streams
    if re.search(r"hc_(attn|ffn)_fn\.weight$", name):
        out = values.copy()
        out[2 * n :] = 0
        return out
    if re.search(r"hc_(attn|ffn)_base\.weight$", name):
        out = values.copy()
        out[2 * n :] = (IDENTITY * np.eye(n)).ravel()
        return out
    return None


def hash_routing(name, values, rng, ratio):
    return rng.permutation(values) if name.endswith("ffn_gate_tid2eid.weight") else None


def router(name, values, rng, ratio):
    if name.startswith("blk.") and name.endswith("exp_probs_b.bias"):
        return values + 100.0 * np.arange(len(values))  # the bias decides
    return None


def sinks(name, values, rng, ratio):
    return np.full_like(values, NO_SINK) if name.endswith("attn_sinks.weight") else None


MECHANISMS = {
    "indexer": indexer,
    "compressor 4": empty_rows(4),
    "compressor 128": empty_rows(128),
    "compressors": empty_rows(4, 128),
    "hc mixing": hc_mixing,
    "hash routing": hash_routing,
    "router": router,
    "sinks": sinks,
}


def without(mechanism, source, out):
    """Write a copy of the model file `source` in which the mechanism does nothing.

    Returns the names of the tensors that were changed.
    """
    rng = np.random.default_rng(1)
    change = MECHANISMS[mechanism]
    changed = {}
    with GGUFFile(source) as file:
        ratios = file.metadata["deepseek4.attention.compress_ratios"]
        for name, tensor in file.tensors.items():
            block = re.match(r"blk\.(\d+)\.", name)
            ratio = ratios[int(block[1])] if block else 0
            new = change(name, tensor.numpy(), rng, ratio)
            if new is not None:
                changed[name] = (
                    new.astype("<i4").tobytes() if tensor.type == "I32" else quantize(tensor.type, new)
                )
        infos = [TensorInfo(t.name, t.ne, t.type) for t in file.tensors.values()]
        with GGUFWriter(out, records_of(file), infos) as writer:
            writer.write([changed.get(n) or t.data()] for n, t in file.tensors.items())
            writer.publish()
    if not changed:
        raise ValueError(f"{source} has no tensor that {mechanism} is about")
    return sorted(changed)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sets", required=True, type=Path)
    ap.add_argument("--model", type=Path, help="a GGUF file; default: the embedded model")
    ap.add_argument("--json", type=Path, help="write the table to this file as well")
    a = ap.parse_args()
    source = a.model or ds4.Model.embedded_path()
    rows = {"as it is": likelihood(source, a.sets)}
    columns = list(rows["as it is"])
    print(f"| {'without':14} | " + " | ".join(f"{c:>10}" for c in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    print(f"| {'(as it is)':14} | " + " | ".join(f"{v:10.4f}" for v in rows["as it is"].values()) + " |")
    with tempfile.TemporaryDirectory() as folder:
        for mechanism in MECHANISMS:
            path = Path(folder) / "ablated.gguf"
            without(mechanism, source, path)
            row = rows[mechanism] = likelihood(path, a.sets)
            path.unlink()
            more = (f"{row[c] - rows['as it is'][c]:+10.4f}" for c in columns)
            print(f"| {mechanism:14} | " + " | ".join(more) + " |", flush=True)
    if a.json:
        a.json.write_text(
            json.dumps(dict(model=str(source), nats_per_token=rows), indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
