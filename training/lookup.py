"""Teach a ds4-tiny checkpoint to look facts up in its compressed rows, before the full mixture of train.py.

usage: python training/lookup.py --tokenizer TOKENIZER_JSON --init DIR --out DIR [--steps N]

In that mixture the look-up did not emerge in thousands of steps: few tokens need it, and the window serves
the near ones.  Here nothing else counts: short lists of facts, questions at once, a window of 16 tokens, and
a loss on the values alone.  A few minutes are enough, and what is forgotten comes back quickly.
"""

import argparse
import os
import random
import time

import torch
import torch.nn.functional as F

from data import common, recall
from export import load_checkpoint, write_checkpoint
from model import Model, make_config, use_compiled_sinkhorn
from optim import Optimizer
from tokenizer import STRESS, Encoder
from train import collate, padded, split_params

LENGTH, ROWS, WINDOW = 128, 24, 16


def example(rng, enc):
    """(tokens, weights of the values only) of a list of two to five facts and up to three questions."""
    some = recall.facts(rng, rng.randint(2, 5), set())
    messages = [common.user("Remember: " + recall.told(rng, some, " ") + "\n")]
    for i, f in enumerate(rng.sample(some, min(len(some), 3))):
        if i:
            messages.append(common.user(""))
        messages[-1]["content"] += rng.choice(f[2])
        messages.append(common.assistant(f[3]))
    ids, w = enc.example(dict(messages=messages, mode="chat", keep=True, stress=[f[4] for f in some]))
    return ids, [float(x == STRESS) for x in w]


def batch(rng, enc):
    out = []
    while len(out) < ROWS:
        ids, w = example(rng, enc)
        if len(ids) <= LENGTH:
            out.append((ids, w))
    return collate(out, LENGTH)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--init", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=280)
    ap.add_argument("--seed", default="7")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    use_compiled_sinkhorn()
    enc, rng = Encoder(a.tokenizer), random.Random(a.seed)
    model = Model(make_config(), stream_dtype=torch.bfloat16)
    load_checkpoint(model, a.init)
    muon, adam = split_params(model)
    opt = Optimizer(muon, adam, 3e-3, 2e-3)
    model.narrow = WINDOW
    t0, right, total = time.time(), 0.0, 0.0
    for step in range(1, a.steps + 1):
        x, w = batch(rng, enc)
        y = model.out(model.streams(x))
        weight = torch.roll(w, -1, 1)
        weight[:, -1] = 0
        at = padded(weight.flatten(), 64)
        target, weight = torch.roll(x, -1, 1).flatten()[at], weight.flatten()[at]
        logits = model.logits(y.index_select(0, at)).float()
        loss = (F.cross_entropy(logits, target, reduction="none") * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(muon + adam, 1.0)
        opt.step(min(1.0, step / 20))
        opt.zero_grad()
        right += float(((logits.argmax(-1) == target) * weight).sum())
        total += float(weight.sum())
        if step % 20 == 0:
            print(f"step {step}: {right / total:.3f} of the values, {time.time() - t0:.0f} s", flush=True)
            right = total = 0.0
    write_checkpoint(model, a.out, a.tokenizer)
    os._exit(0)


if __name__ == "__main__":
    main()
