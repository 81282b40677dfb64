"""Train the MTP block and the lightning indexers of a finished ds4-tiny, everything else frozen.

usage: python training/posttrain.py --tokenizer TOKENIZER_JSON --init DIR --out DIR --steps N [--part
mtp|indexer]

The two parts are independent: on two cores run one process each and join the results with export.py.

The MTP block learns to predict token p+2 from the streams of p and token p+1, on what the assistant writes
and with a small weight on everything else.  An indexer learns that the softmax of its scores is the attention
(summed over the heads) that the layer pays to its compressed rows, from long sequences; the positions that
write an answer count as much as all others together.

--init may hold an MTP block and indexers that are trained already, for an earlier state of the main model:
less is left to learn then.
"""

import argparse
import json
import os
import time

import torch
import torch.nn.functional as F

from data import LONG_MIX, MIX
from export import load_checkpoint, write_checkpoint
from model import Model, make_config, use_compiled_sinkhorn
from optim import Optimizer
from tokenizer import Encoder
from train import Validation, batches, padded

LONG = 768  # the indexer selects every row of up to 512 tokens, so it learns nothing that matters from them
ELSEWHERE = 0.03  # weight of a token that the assistant does not write, for the MTP block
PAD_TOKEN = 2
MTP = ("mtp", "mtp_out", "enorm", "hnorm", "e_proj", "h_proj")


def indexer_loss(model, layer, record, sh, answers):
    """KL divergence of the indexer's choice from the attention, and the share of attention (of the best
    possible share) in the rows that it selects; both the mean of all positions and of `answers`."""
    x, qr, p = record
    s = layer.attn.indexer(model.ops, x, qr, sh)
    rows = torch.arange(s.shape[2])
    future = rows[None, :] >= (torch.arange(sh.t)[:, None] + 1) // 4
    s = s.masked_fill(future, -1e30)
    total = p.sum(-1)
    use = total > 0.01
    target = p[use] / total[use][:, None]
    answers = answers[use]
    loss = -(target * F.log_softmax(s[use], -1)).sum(-1) + (target * (target + 1e-9).log()).sum(-1)
    with torch.no_grad():
        k = model.c["index_topk"] * s.shape[2] // 384  # a third of the rows, as with 1536 tokens
        top = target.gather(1, s[use].topk(k, -1).indices).sum(-1)
        share = top / target.topk(k, -1).values.sum(-1)
        share = 0.5 * (share.mean() + (share[answers].mean() if answers.any() else share.mean()))
    loss = 0.5 * (loss.mean() + (loss[answers].mean() if answers.any() else loss.mean()))
    return loss, float(share)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--init", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, required=True)
    ap.add_argument("--part", choices=("mtp", "indexer", "both"), default="both")
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", default="2")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(int(a.seed))
    use_compiled_sinkhorn()
    model = Model(make_config(), stream_dtype=torch.bfloat16)
    load_checkpoint(model, a.init)
    muon, adam = [], []
    for name, p in model.named_parameters():
        mine = (name.split(".")[0] in MTP and a.part != "indexer") or ("indexer" in name and a.part != "mtp")
        p.requires_grad_(mine)
        if mine:
            big = p.ndim >= 2 and "hc_" not in name and ".gate." not in name and not name.endswith("ape")
            (muon if big else adam).append(p)
    opt = Optimizer(muon, adam, a.lr, a.lr * 0.75)
    val = Validation(Encoder(a.tokenizer))
    indexed = [layer for layer in model.layers if layer.attn.indexer is not None and a.part != "mtp"]
    data = batches(a.tokenizer, a.seed, 768, LONG_MIX if a.part == "indexer" else MIX)
    t0, sums = time.time(), [0.0, 0.0, 0.0, 0]
    for step in range(1, a.steps + 1):
        x, w, _ = next(data)
        while a.part == "indexer" and x.shape[1] < LONG:
            x, w, _ = next(data)
        for layer in indexed:
            layer.attn.record = []
        with torch.no_grad():
            s = model.streams(x)
        loss = torch.zeros(())
        if a.part != "indexer":
            y = model.mtp_out(model.mtp_streams(s, x))
            weight = torch.roll(torch.where(x == PAD_TOKEN, 0.0, w.clamp(ELSEWHERE, 1.0)), -2, 1)
            weight[:, -2:] = 0
            at = padded(weight.flatten())
            target, weight = torch.roll(x, -2, 1).flatten()[at], weight.flatten()[at]
            each = F.cross_entropy(model.logits(y.index_select(0, at)).float(), target, reduction="none")
            loss = (each * weight).sum() / weight.sum()
            sums[0] += float(loss.detach())
        for layer in indexed:
            record, layer.attn.record = layer.attn.record[0], None
            if x.shape[1] >= LONG:
                answers = torch.roll(w, -1, 1) > 0
                answers &= answers.float().mean() < 0.5  # not for plain text, which is all answer
                kl, top = indexer_loss(model, layer, record, model.shape(*x.shape), answers)
                loss = loss + kl
                sums[1] += float(kl.detach()) / 2
                sums[2] += top / 2
        sums[3] += x.shape[1] >= LONG
        loss.backward()
        torch.nn.utils.clip_grad_norm_(muon + adam, 1.0)
        opt.step(min(1.0, step / 20, (a.steps - step) / (0.4 * a.steps)))
        opt.zero_grad()
        f = model.mtp.ffn
        if a.part != "indexer":
            f.gate.bias += 1e-3 * torch.sign(f.load.mean() - f.load)
            f.load.zero_()
        if step % 25 == 0:
            n = max(1, sums[3])
            row = dict(
                step=step, mtp=sums[0] / 25, kl=sums[1] / n, top=sums[2] / n, minutes=(time.time() - t0) / 60
            )
            print(json.dumps({k: round(v, 4) for k, v in row.items()}), flush=True)
            sums = [0.0, 0.0, 0.0, 0]
    if a.part != "indexer":
        token = {k: round(v["token"], 4) for k, v in val.run(model, mtp=True).items()}
        print("share of second-next tokens that the MTP block predicts:", json.dumps(token), flush=True)
    write_checkpoint(model, a.out, a.tokenizer)
    os._exit(0)  # do not wait for the data worker


if __name__ == "__main__":
    main()
