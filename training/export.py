"""Read and write checkpoints in the official format: config.json, tokenizer.json, model.safetensors.

usage: python training/export.py --base DIR [--average DIR] [--mtp DIR] [--indexer DIR]
                                 [--raise-sinks X] --out DIR

joins the results of posttrain.py: everything from --base but the MTP block and the indexers. --average takes
the mean of --base and another run that started from it. --raise-sinks adds X to the sink of every head,
before a training run that shall make use of them.
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

from model import official_tensors

# Kept in float32: tiny, and read by every container as float32.
FLOAT32 = ("norm.weight", "hc_", "attn_sink", "gate.bias", ".ape")


def write_checkpoint(model, path, tokenizer):
    """Write the model to the folder `path`; tokenizer is a tokenizer.json to ship along, or None."""
    os.makedirs(path, exist_ok=True)
    out = {}
    for name, v in official_tensors(model).items():
        keep = v.dtype == torch.int64 or any(k in name for k in FLOAT32)
        out[name] = v.clone() if keep else v.to(torch.bfloat16)
    save_file(out, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(model.c, f, indent=1)
    if tokenizer:
        shutil.copyfile(tokenizer, os.path.join(path, "tokenizer.json"))
        with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(
                {
                    "tokenizer_class": "PreTrainedTokenizerFast",
                    "bos_token": "<｜begin▁of▁sentence｜>",
                    "eos_token": "<｜end▁of▁sentence｜>",
                    "pad_token": "<｜▁pad▁｜>",
                    "add_bos_token": False,
                    "add_eos_token": False,
                    "model_max_length": model.c["max_position_embeddings"],
                },
                f,
                indent=1,
                ensure_ascii=False,
            )


def load_checkpoint(model, path):
    """Load a checkpoint written by write_checkpoint into the model."""
    src = load_file(os.path.join(path, "model.safetensors"))
    dst = official_tensors(model)
    assert src.keys() == dst.keys(), src.keys() ^ dst.keys()
    with torch.no_grad():
        for k, v in dst.items():
            v.copy_(src[k])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--base", required=True)
    ap.add_argument("--average")
    ap.add_argument("--mtp")
    ap.add_argument("--indexer")
    ap.add_argument("--raise-sinks", type=float, default=0.0)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    places = (a.base, a.mtp or a.base, a.indexer or a.base)
    base, mtp, indexer = (load_file(os.path.join(p, "model.safetensors")) for p in places)
    if a.average:
        other = load_file(os.path.join(a.average, "model.safetensors"))
        for k, v in base.items():
            if v.is_floating_point():
                base[k] = ((v.float() + other[k].float()) / 2).to(v.dtype)
    out = {}
    for k in base:
        source = mtp if k.startswith("mtp.") else indexer if ".indexer." in k else base
        out[k] = source[k] + a.raise_sinks if k.endswith("attn_sink") else source[k]
    if a.out != a.base:
        shutil.copytree(a.base, a.out, dirs_exist_ok=True)
    save_file(out, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main()
