"""Compare training/model.py with transformers' DeepseekV4ForCausalLM on an exported checkpoint.

usage: python training/check_model.py DIR
DIR is a checkpoint written by train.py (or by `--random`).  The two run in different precisions (bfloat16
products against float32), so the check is on the loss and on the share of equal argmax, not on bits.
"""

import argparse
import json
import os

import torch
import transformers

from export import load_checkpoint, write_checkpoint
from model import Model, make_config


def hf_model(path):
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as m

    cfg = transformers.AutoConfig.from_pretrained(path)
    cfg._attn_implementation = "eager"
    cfg._experts_implementation = "eager"
    model, info = m.DeepseekV4ForCausalLM.from_pretrained(
        path, config=cfg, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"], info["missing_keys"]
    return model.eval()


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("path")
    ap.add_argument("--random", action="store_true", help="write a random checkpoint to DIR first")
    a = ap.parse_args()
    torch.set_grad_enabled(False)
    if a.random:
        torch.manual_seed(0)
        write_checkpoint(Model(make_config(), compiled=False), a.path, tokenizer=None)
    with open(os.path.join(a.path, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    ours = Model(c, compiled=False, qat=False)
    load_checkpoint(ours, a.path)
    ours.eval()
    hf = hf_model(a.path)
    torch.manual_seed(1)
    for t in (64, 192, 384, 512):
        x = torch.randint(0, c["vocab_size"], (2, t))
        p = ours(x).float()
        q = hf(input_ids=x, use_cache=False).logits
        err = (p - q).abs()
        print(
            f"T {t}: logit std {q.std():.3f}, difference mean {err.mean():.4f} max {err.max():.3f}, "
            f"same argmax {(p.argmax(-1) == q.argmax(-1)).float().mean():.3f}"
        )
        assert err.mean() < 0.05 * q.std()


if __name__ == "__main__":
    main()
