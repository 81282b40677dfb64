"""Muon for the weight matrices, AdamW for everything else, in one optimizer."""

import torch

BF = torch.bfloat16


def orthogonalize(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrices; g [M, rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(BF)
    flip = x.shape[1] > x.shape[2]
    if flip:
        x = x.transpose(1, 2)
    x = x / (x.float().square().sum((1, 2), keepdim=True).sqrt() + 1e-7).to(BF)
    for _ in range(steps):
        s = torch.bmm(x, x.transpose(1, 2))
        x = a * x + torch.bmm(b * s + c * torch.bmm(s, s), x)
    return (x.transpose(1, 2) if flip else x).float()


class Optimizer:
    """Matrices [.., rows, columns] of `muon` get orthogonalized momentum, scaled to the size of an AdamW
    step."""

    def __init__(self, muon, adam, lr_muon, lr_adam, decay=0.05, momentum=0.95):
        self.muon, self.lr, self.decay, self.momentum = muon, lr_muon, decay, momentum
        self.buffers = [torch.zeros_like(p) for p in muon]
        self.lr_adam = lr_adam
        self.adam = torch.optim.AdamW(
            adam, lr=lr_adam, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True
        )

    @torch.no_grad()
    def step(self, scale):
        for g in self.adam.param_groups:
            g["lr"] = self.lr_adam * scale
        self.adam.step()
        lr = self.lr * scale
        todo = {}
        for p, m in zip(self.muon, self.buffers, strict=True):
            if p.grad is None:
                continue
            m.mul_(self.momentum).add_(p.grad)
            u = p.grad.add(m, alpha=self.momentum)
            todo.setdefault(tuple(p.shape[-2:]), []).append((p, u))
        for (rows, cols), items in todo.items():
            u = torch.cat([u.reshape(-1, rows, cols) for _, u in items])
            u = orthogonalize(u) * (0.2 * max(rows, cols) ** 0.5)
            at = 0
            for p, _ in items:
                n = p.numel() // (rows * cols)
                p.mul_(1 - lr * self.decay).add_(u[at : at + n].view_as(p), alpha=-lr)
                at += n

    def zero_grad(self):
        for p in self.muon:
            p.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self):
        return dict(buffers=self.buffers, adam=self.adam.state_dict())

    def load_state_dict(self, s):
        for a, b in zip(self.buffers, s["buffers"], strict=True):
            a.copy_(b)
        self.adam.load_state_dict(s["adam"])
