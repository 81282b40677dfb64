"""Train ds4-tiny.

usage: python training/train.py --tokenizer TOKENIZER_JSON --out DIR --steps N --decay-from M [options]

The data is generated on the fly from --seed by a worker process.  The learning rate warms up, stays
constant, and decays linearly to zero from step --decay-from to --steps.  When the file DIR/stop appears the
decay begins at once (with the same length); the equivalent explicit arguments are printed at the end.
DIR/ckpt-STEP holds checkpoints in the official format, DIR/latest is a link to the newest, DIR/state.pt is
what --resume needs.
"""

import argparse
import concurrent.futures as futures
import json
import multiprocessing
import os
import random
import time

import torch
import torch.nn.functional as F

from data import MIX, english, heldout, recall, stream
from export import load_checkpoint, write_checkpoint
from model import Model, make_config, use_compiled_sinkhorn
from optim import Optimizer
from tokenizer import Encoder

BUCKETS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 1664)
TOKENS = 3072  # per micro batch; a multiple of every bucket length but the last
RANKS = 2  # workers; also the micro batches of a step
SHARD = 3072  # conversations generated at a time


def rows(t):
    """Sequences in a micro batch of length t."""
    return round(TOKENS / t)


def make_shard(tokenizer, seed, k, n, mix):
    """Encoded conversations of shard k: list of (ids, weights, whether the window is narrow)."""
    enc = Encoder(tokenizer)
    return [(*enc.example(i), i.get("narrow", False)) for i in stream(f"{seed}-{k}", n, mix)]


def batches(tokenizer, seed, shard=SHARD, mix=MIX):
    """Endless (tokens [B,T], weights [B,T] of predicting each token, narrow) in a fixed order."""
    left = {(t, narrow): [] for t in BUCKETS for narrow in (False, True)}
    with futures.ProcessPoolExecutor(1) as pool:
        k, job = 0, pool.submit(make_shard, tokenizer, seed, 0, shard, mix)
        while True:
            examples, k = job.result(), k + 1
            job = pool.submit(make_shard, tokenizer, seed, k, shard, mix)
            out = []
            for ids, w, narrow in examples:
                t = next((t for t in BUCKETS if len(ids) <= t), None)
                if t is None:
                    continue  # too long: without its end it would teach nothing
                part = left[t, narrow]
                part.append((ids, w))
                if len(part) == rows(t):
                    out.append((*collate(part, t), narrow))
                    part.clear()
            random.Random(f"{seed}-{k}").shuffle(out)
            yield from out


def collate(examples, t):
    x = torch.full((len(examples), t), 2)
    w = torch.zeros(len(examples), t)
    for i, (ids, ws) in enumerate(examples):
        x[i, : len(ids)] = torch.tensor(ids)
        w[i, : len(ws)] = torch.tensor(ws)
    return x, w


def loss_of(model, x, w, mtp=False):
    """Sum of weighted losses; only the positions with a weight go through the output matrix."""
    if mtp:
        with torch.no_grad():
            s = model.streams(x)
        y = model.mtp_out(model.mtp_streams(s.detach(), x))
        # row p predicts token p+2
        target, weight = torch.roll(x, -2, 1), torch.roll(w, -2, 1)
        weight[:, -2:] = 0
    else:
        y = model.out(model.streams(x))
        target, weight = torch.roll(x, -1, 1), torch.roll(w, -1, 1)
        weight[:, -1:] = 0
    at = padded(weight.flatten())
    logits = model.logits(y.index_select(0, at)).float()
    loss = F.cross_entropy(logits, target.flatten()[at], reduction="none")
    return loss, logits, target.flatten()[at], weight.flatten()[at], at


def padded(weight, size=256):
    """The positions with a weight; the last position, which predicts nothing, is repeated until there is a
    multiple of size of them (few shapes, fewer kernels)."""
    at = weight.nonzero().squeeze(1)
    n = -len(at) % size
    return torch.cat((at, torch.full((n,), len(weight) - 1))) if n else at


DISTANCES = ((130, 300), (300, 512), (512, 1000), (1000, 1500))


# Some of the recall conversations see only a few tokens directly, so that the compressed rows are needed, and
# learned, with short and cheap sequences.
NARROW = 24


def finished(item):
    """A held-out item with the answer that training would have shown."""
    target = dict(item["target"])
    if item["mode"] == "chat":
        target.pop("reasoning_content", None)
    return dict(item, messages=[*item["messages"], target])


def only_last(ids, w, enc):
    """The weights w without those of earlier answers."""
    start = len(ids) - 1 - ids[::-1].index(enc.assistant)
    return [0.0] * start + w[start:]


class Validation:
    """Teacher-forced check on held-out items: an item is right if every token of its answer is the argmax,
    which is the same as an exact greedy answer."""

    def __init__(self, enc, per_kind=64):
        self.sets = {}
        for mode in ("thinking", "chat"):
            for kind in ("arithmetic", "tools", "chat", "ds4"):
                self.add(enc, kind, mode, heldout(kind, per_kind, seed=7, mode=mode))
            for low, high in DISTANCES:
                items = recall.at_distance(per_kind // 4, low, high, seed=7, mode=mode)
                self.add(enc, f"recall-{low}", mode, items)
        if english.available():
            self.add(enc, "english", "text", heldout("english", per_kind, seed=7))

    def add(self, enc, kind, mode, items):
        by_len = self.sets.setdefault((kind, mode), {})
        for item in items:
            ids, w = enc.example(item if mode == "text" else finished(item))
            t = next((t for t in BUCKETS if len(ids) <= t), None)
            if t:
                by_len.setdefault(t, []).append((ids, only_last(ids, w, enc) if "needle" in item else w))

    @torch.no_grad()
    def run(self, model, mtp=False, rank=0, world=1):
        """Results of every world-th set, starting with number rank."""
        model.eval()
        out = {}
        for (kind, mode), by_len in list(self.sets.items())[rank::world]:
            right = n = total = count = hits = 0
            for t, examples in by_len.items():
                size = rows(t)
                for i in range(0, len(examples), size):
                    part = examples[i : i + size]
                    x, w = collate(part + [([2], [0.0])] * (size - len(part)), t)
                    loss, logits, target, weight, at = loss_of(model, x, w, mtp)
                    ok = (logits.argmax(-1) == target).float() * weight
                    bad = torch.zeros(size).index_add_(0, at // t, weight - ok)
                    right += int((bad[: len(part)] == 0).sum())
                    n += len(part)
                    total, count = total + float((loss * weight).sum()), count + float(weight.sum())
                    hits += float(ok.sum())
            out[f"{kind}/{mode}"] = dict(loss=total / count, exact=right / n, token=hits / count)
        model.train()
        return out


def split_params(model):
    """(matrices, the rest) of the main model without the indexer."""
    muon, adam = [], []
    for name, p in model.named_parameters():
        if "indexer" in name or name.split(".")[0] in (
            "mtp",
            "mtp_out",
            "enorm",
            "hnorm",
            "e_proj",
            "h_proj",
        ):
            p.requires_grad_(False)
        elif p.ndim >= 2 and name not in ("embed", "head") and "hc_" not in name and ".gate." not in name:
            (adam if name.endswith("ape") else muon).append(p)
        else:
            adam.append(p)
    return muon, adam


def mixture(text):
    """Shares of the kinds of conversations from an argument; kinds that are not named do not occur."""
    mix = {kind: float(share) for kind, _, share in (part.partition("=") for part in text.split(","))}
    if not mix.keys() <= MIX.keys():
        raise argparse.ArgumentTypeError(f"unknown kinds {sorted(mix.keys() - MIX.keys())}")
    return mix


def link(path, target):
    tmp = path + ".tmp"
    if os.path.lexists(tmp):
        os.remove(tmp)
    os.symlink(os.path.abspath(target), tmp)
    os.replace(tmp, path)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, required=True)
    ap.add_argument("--decay-from", type=int, required=True)
    ap.add_argument("--warmup", type=int, default=100)
    ap.add_argument("--lr-muon", type=float, default=4e-3)
    ap.add_argument("--lr-adam", type=float, default=3e-3)
    ap.add_argument("--seed", default="1")
    ap.add_argument("--minutes", type=float, default=10, help="between checkpoints")
    ap.add_argument("--validate", type=int, default=250, help="steps between validations")
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--mix", type=mixture, default=MIX, help="shares of kinds: arithmetic=0.3,quiz=0.5,...")
    ap.add_argument("--init", help="start from this checkpoint folder instead of random weights")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    torch.manual_seed(int(a.seed))
    model = Model(make_config(), compiled=False)
    if a.init:
        load_checkpoint(model, a.init)
    model.share_memory()
    muon, adam = split_params(model)
    trained = muon + adam
    shared = dict(
        state=model.state_dict(),
        grads=[[torch.zeros_like(p).share_memory_() for p in trained] for _ in range(RANKS)],
        loads=torch.zeros(RANKS, len(model.layers), model.c["n_routed_experts"]).share_memory_(),
        scalars=torch.zeros(RANKS, 4).share_memory_(),
    )
    ctx = multiprocessing.get_context("spawn")
    barrier, queue = ctx.Barrier(RANKS), ctx.SimpleQueue()
    jobs = [ctx.Process(target=work, args=(r, a, shared, barrier, queue)) for r in range(RANKS)]
    for j in jobs:
        j.start()
    for j in jobs:
        j.join()


def work(rank, a, shared, barrier, queue):
    """One of RANKS single-threaded workers: weights and gradients are shared memory, each worker takes one
    of the micro batches of a step and then updates its part of the weights."""
    torch.set_num_threads(1)
    torch.manual_seed(int(a.seed))
    use_compiled_sinkhorn()
    enc = Encoder(a.tokenizer)
    model = Model(make_config(), stream_dtype=torch.bfloat16)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    for k, v in shared["state"].items():
        own[k].data = v
    muon, adam = split_params(model)
    trained = muon + adam
    order = sorted(range(len(trained)), key=lambda i: -trained[i].numel())
    mine = [set(order[r::RANKS]) for r in range(RANKS)][rank]
    n = len(muon)
    opt = Optimizer(
        [p for i, p in enumerate(muon) if i in mine],
        [p for i, p in enumerate(adam) if i + n in mine],
        a.lr_muon,
        a.lr_adam,
    )
    step, seen, spent = 0, 0, 0.0
    state, log, stop = (os.path.join(a.out, f) for f in (f"state-{rank}.pt", "log.jsonl", "stop"))
    if a.resume:
        s = torch.load(state)
        if rank == 0:
            model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        step, seen, spent = s["step"], s["seen"], s["spent"]
    barrier.wait()
    parent = os.getppid()
    val = Validation(enc)
    data = batches(a.tokenizer, a.seed, mix=a.mix)
    for _ in range(step * RANKS):
        next(data)
    steps, decay_from = a.steps, a.decay_from
    scalars, grads, loads = shared["scalars"], shared["grads"], shared["loads"]
    routed = [i for i, layer in enumerate(model.layers) if hasattr(layer.ffn.gate, "bias")]
    t0 = t_saved = t_recent = time.time()
    recent, n_recent = [], 0

    def save(final=False):
        whole = model.state_dict() if rank == 0 else None
        now = spent if final else spent + time.time() - t0
        torch.save(dict(model=whole, opt=opt.state_dict(), step=step, seen=seen, spent=now), state + ".tmp")
        os.replace(state + ".tmp", state)
        if rank == 0:
            path = os.path.join(a.out, "final" if final else f"ckpt-{step}")
            write_checkpoint(model, path, a.tokenizer)
            link(os.path.join(a.out, "latest"), path)
        barrier.wait()

    while step < steps:
        if os.getppid() != parent:
            os._exit(1)  # the main process was killed
        scalars[rank, 2] = float(os.path.exists(stop)) if rank == 0 else 0.0
        scalars[rank, 3] = float(time.time() - t_saved > 60 * a.minutes) if rank == 0 else 0.0
        todo = [next(data) for _ in range(RANKS)]
        x, w, narrow = todo[rank]
        model.narrow = NARROW if narrow else None
        loss, _, _, weight, _ = loss_of(model, x, w)
        model.narrow = None
        # every micro batch counts alike, however few of its tokens do: long ones have short answers
        loss = (loss * weight).sum() / float(weight.sum()) / RANKS
        loss.backward()
        seen += sum(x.numel() for x, *_ in todo)
        n_recent += sum(x.numel() for x, *_ in todo)
        for p, g in zip(trained, grads[rank], strict=True):
            if p.grad is None:
                g.zero_()
            else:
                g.copy_(p.grad)
            p.grad = None
        scalars[rank, 0] = loss.detach()
        for i in routed:
            loads[rank, i] = model.layers[i].ffn.load
            model.layers[i].ffn.load.zero_()
        barrier.wait()
        if scalars[0, 2] and step < decay_from:
            steps, decay_from = step + steps - decay_from, step
            if rank == 0:
                print(f"stop file: decay from {decay_from} to {steps}", flush=True)
        scale = min(1.0, (step + 1) / a.warmup)
        if step >= decay_from:
            scale *= (steps - step) / (steps - decay_from)
        square = 0.0
        for i in mine:
            g = torch.add(grads[0][i], grads[1][i])
            trained[i].grad = g
            square += float(g.square().sum())
        scalars[rank, 1] = square
        save_now = bool(scalars[0, 3])
        barrier.wait()
        norm = float(scalars[:, 1].sum().sqrt())
        for i in mine:
            trained[i].grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        opt.step(scale)
        opt.zero_grad()
        if rank == 0:
            for i in routed:  # aux-loss-free balance of the routed experts
                load = loads[:, i].sum(0)
                model.layers[i].ffn.gate.bias += 1e-3 * scale * torch.sign(load.mean() - load)
                balance = float(load.max() / load.mean())
        value = float(scalars[:, 0].sum())
        barrier.wait()
        step += 1
        recent.append(value)
        checked = None
        if step % a.validate == 0 or step == steps:
            checked = val.run(model, rank=rank, world=RANKS)
            if rank:
                queue.put(checked)
            else:
                checked |= queue.get()
        if rank == 0 and (step % 25 == 0 or checked):
            row = dict(
                step=step, loss=round(sum(recent) / len(recent), 4), norm=round(norm, 2), lr=round(scale, 3),
                tok_s=round(n_recent / (time.time() - t_recent)), seen=seen, balance=round(balance, 2),
                minutes=round((spent + time.time() - t0) / 60, 2),
            )  # fmt: skip
            if checked:
                row["val"] = {k: {m: round(x, 4) for m, x in v.items()} for k, v in sorted(checked.items())}
            print(json.dumps(row), flush=True)
            with open(log, "a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
            recent, t_recent, n_recent = [], time.time(), 0
        if save_now:
            save()
            t_saved = time.time()
    spent += time.time() - t0
    save(final=True)
    if rank == 0:
        print(f"mixture {a.mix}; {seen} tokens in {spent / 60:.1f} minutes")
        print(f"equal to: --seed {a.seed} --steps {steps} --decay-from {decay_from}", flush=True)
    os._exit(0)  # do not wait for the data worker


if __name__ == "__main__":
    main()
