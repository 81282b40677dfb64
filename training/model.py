"""A training implementation of the DeepSeek V4 architecture in plain PyTorch.

The arithmetic is that of the official model (hyper-connections, shared key/value attention with a sliding
window and compressed rows, hash and top-k routed experts, multi-token prediction block); the layout is
chosen for speed on a CPU: everything but attention works on a flat list of N tokens, matrix products run in
bfloat16, and the element wise parts are compiled.  `training/check_model.py` compares it with transformers'
DeepseekV4ForCausalLM.

Sequences are never packed: a batch holds B sequences of one length T, padded at the end.  T must be a
multiple of 4, and a multiple of 128 when it is larger than 256.  With T / 4 <= index_topk the lightning
indexer selects every row, so it plays no part in training the main model; posttrain.py
teaches it afterwards.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

BF = torch.bfloat16
PAD = 64
torch._dynamo.config.recompile_limit = 64


def make_config(vocab_size=3072):
    """config.json of ds4-tiny, in the official key names."""
    return dict(
        model_type="deepseek_v4",
        architectures=["DeepseekV4ForCausalLM"],
        vocab_size=vocab_size,
        hidden_size=256,
        moe_intermediate_size=256,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=128,
        qk_rope_head_dim=64,
        q_lora_rank=128,
        o_lora_rank=64,
        o_groups=2,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        num_hash_layers=2,
        compress_ratios=[0, 0, 4, 128, 4, 0],
        index_n_heads=8,
        index_head_dim=128,
        index_topk=128,
        sliding_window=128,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        rms_norm_eps=1e-6,
        swiglu_limit=10.0,
        max_position_embeddings=1048576,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling=dict(
            type="yarn", factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1
        ),
        num_nextn_predict_layers=1,
        hidden_act="silu",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        attention_bias=False,
        attention_dropout=0.0,
        initializer_range=0.02,
        torch_dtype="bfloat16",
    )


def rope_freqs(c, compressed):
    """The rotation frequencies of a plain layer, or the YaRN ones of a layer with compressed rows."""
    n, base = c["qk_rope_head_dim"], c["compress_rope_theta"] if compressed else c["rope_theta"]
    f = 1.0 / (base ** (torch.arange(0, n, 2, dtype=torch.float32) / n))
    if not compressed:
        return f
    y = c["rope_scaling"]

    def bound(turns):
        return (
            n * math.log(y["original_max_position_embeddings"] / (turns * 2 * math.pi)) / (2 * math.log(base))
        )

    low, high = max(math.floor(bound(y["beta_fast"])), 0), min(math.ceil(bound(y["beta_slow"])), n - 1)
    keep = 1 - ((torch.arange(n // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return f / y["factor"] * (1 - keep) + f * keep


def lin(x, w):
    return F.linear(x.to(BF), w.to(BF))


def rms(x, w, eps):
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x if w is None else x * w


def rotate(x, cos, sin):
    """Rotate consecutive pairs of the last entries of x; cos and sin broadcast against x[..., :pairs]."""
    n = 2 * cos.shape[-1]
    a, b = x[..., -n:].unflatten(-1, (-1, 2)).unbind(-1)
    y = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((x[..., :-n], y), -1)


def fp8(x):
    """Straight-through rounding of blocks of 64 values to E4M3, as the released models do with cache rows."""
    v = x.detach().unflatten(-1, (-1, 64))
    scale = torch.exp2(torch.ceil(torch.log2(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    u = v / scale
    step = torch.exp2(torch.floor(torch.log2(u.abs().clamp(min=2.0**-6))) - 3)
    return x + ((torch.round(u / step) * step * scale).flatten(-2) - x.detach())


def cache_row(x, cos, sin, qat):
    n = 2 * cos.shape[-1]
    x = rotate(x, cos, sin)
    return torch.cat((fp8(x[..., :-n]), x[..., -n:]), -1) if qat else x


# ------------------------------------------------------------- compiled pieces (flat: first axis = token)
def _hc_pre(x, fn, scale, base, norm_w, eps, hc_eps, iters):
    """Streams [N,4,E] -> (normalised input of the sublayer [N,E] bf16, post [N,4], comb [N,4,4])."""
    n, hc, dim = x.shape
    flat = x.reshape(n, hc * dim)
    m = lin(flat, fn).float() * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    return _hc_mix(x, m, scale, base, norm_w, eps, hc_eps, iters)


def _hc_mix(x, m, scale, base, norm_w, eps, hc_eps, iters):
    n, hc, _ = x.shape
    pre = torch.sigmoid(m[:, :hc] * scale[0] + base[:hc]) + hc_eps
    post = 2 * torch.sigmoid(m[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    # Sinkhorn by scaling vectors: the matrix is fixed, only its row and column factors are iterated.  Equal
    # to the official alternation but for its epsilons of 1e-6.
    z = torch.softmax((m[:, 2 * hc :] * scale[2] + base[2 * hc :]).view(n, hc, hc), -1) + hc_eps
    z = sinkhorn(z, iters)
    y = (pre[:, :, None] * x.float()).sum(1)
    return rms(y, norm_w, eps).to(BF), post, z


class Sinkhorn(torch.autograd.Function):
    """Doubly stochastic scaling; the backward pass differentiates the fixed point (a few conjugate steps)."""

    @staticmethod
    def forward(ctx, z, iters):
        out = _sinkhorn_fwd(z, iters)
        ctx.save_for_backward(z, out)
        return out

    @staticmethod
    def backward(ctx, g):
        z, p = ctx.saved_tensors
        return _sinkhorn_bwd(z, p, g), None


def _sinkhorn_fwd(z, iters):
    hc = z.shape[-1]
    r = [torch.ones_like(z[:, 0, 0]) for _ in range(hc)]
    zs = [[z[:, i, j] for j in range(hc)] for i in range(hc)]
    c = [1.0 / (zs[0][j] + zs[1][j] + zs[2][j] + zs[3][j]) for j in range(hc)]
    for _ in range(iters - 1):
        r = [1.0 / (zs[i][0] * c[0] + zs[i][1] * c[1] + zs[i][2] * c[2] + zs[i][3] * c[3]) for i in range(hc)]
        c = [1.0 / (zs[0][j] * r[0] + zs[1][j] * r[1] + zs[2][j] * r[2] + zs[3][j] * r[3]) for j in range(hc)]
    return torch.stack([zs[i][j] * r[i] * c[j] for i in range(hc) for j in range(hc)], -1).view(z.shape)


def _sinkhorn_bwd(z, p, g, steps=12):
    """Implicit gradient: dL/dz = (g - a 1^T - 1 b^T) * p / z with a, b from alternating projection."""
    hc = z.shape[-1]
    ps = [[p[:, i, j] for j in range(hc)] for i in range(hc)]
    gs = [[g[:, i, j] for j in range(hc)] for i in range(hc)]
    rows = [sum(ps[i][j] * gs[i][j] for j in range(hc)) for i in range(hc)]
    cols = [sum(ps[i][j] * gs[i][j] for i in range(hc)) for j in range(hc)]
    b = [torch.zeros_like(rows[0]) for _ in range(hc)]
    for _ in range(steps):
        a = [rows[i] - sum(ps[i][j] * b[j] for j in range(hc)) for i in range(hc)]
        b = [cols[j] - sum(ps[i][j] * a[i] for i in range(hc)) for j in range(hc)]
    a = [rows[i] - sum(ps[i][j] * b[j] for j in range(hc)) for i in range(hc)]
    out = [(gs[i][j] - a[i] - b[j]) * ps[i][j] / z[:, i, j] for i in range(hc) for j in range(hc)]
    return torch.stack(out, -1).view(z.shape)


def sinkhorn(z, iters):
    return Sinkhorn.apply(z, iters)


def _hc_post(x, y, post, comb):
    """streams'[k] = post[k] * y + sum_j comb[j][k] * streams[j]."""
    xf = x.float()
    y = y.float()
    out = [
        post[:, k, None] * y + sum(comb[:, j, k, None] * xf[:, j] for j in range(x.shape[1]))
        for k in range(x.shape[1])
    ]
    return torch.stack(out, 1).to(x.dtype)


def _qkv(qa, kv, q_norm, wq_b, kv_norm, cos, sin, heads, eps, qat):
    qr = rms(qa, q_norm, eps)
    q = rms(lin(qr, wq_b).unflatten(-1, (heads, -1)), None, eps)
    q = rotate(q, cos[:, None], sin[:, None]) * q.shape[-1] ** -0.5
    k = cache_row(rms(kv, kv_norm, eps), cos, sin, qat)
    return q.to(BF), k.to(BF), qr.to(BF)


def _softmax(s, mask, sink):
    """Softmax of s [B,G,H,T,S] + mask [G,1,T,S] with one more logit, sink [H], that has no value."""
    s = s.float() + mask
    k = sink[:, None, None]
    m = torch.maximum(s.amax(-1, keepdim=True), k).detach()
    e = torch.exp(s - m)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(k - m))).to(BF)


def _unrotate(o, cos, sin):
    return rotate(o.float(), cos[:, None], -sin[:, None]).to(BF)


def _pool4(kv, gate, ape, norm, cos, sin, first, eps, qat):
    """kv, gate [M,4,2D] of consecutive groups -> rows [M,D]; first [M] marks groups that start a sequence."""
    d = kv.shape[-1] // 2
    g = gate.float() + ape
    k = kv.float()
    pk, pg = torch.roll(k[..., :d], 1, 0), torch.roll(g[..., :d], 1, 0)
    pg = torch.where(first[:, None, None], torch.full_like(pg, -1e30), pg)
    k, g = torch.cat((pk, k[..., d:]), 1), torch.cat((pg, g[..., d:]), 1)
    row = (torch.softmax(g, 1) * k).sum(1)
    return cache_row(rms(row, norm, eps), cos, sin, qat).to(BF)


def _pool(kv, gate, ape, norm, cos, sin, eps, qat):
    row = (torch.softmax(gate.float() + ape, 1) * kv.float()).sum(1)
    return cache_row(rms(row, norm, eps), cos, sin, qat).to(BF)


def _act(h, limit):
    g, u = h.float().chunk(2, -1)
    return (F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)).to(BF)


def _act_w(h, w, limit):
    g, u = h.float().chunk(2, -1)
    return (w[:, None] * F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)).to(BF)


def _scores(x, gate):
    return torch.sqrt(F.softplus(F.linear(x.float(), gate), threshold=20.0))


class Ops:
    """The element-wise pieces, compiled or not."""

    varying = ("softmax", "pool")  # all others see one shape only
    names = (
        "hc_pre",
        "hc_mix",
        "hc_post",
        "qkv",
        "softmax",
        "unrotate",
        "pool4",
        "pool",
        "act",
        "act_w",
        "scores",
    )

    def __init__(self, compiled):
        for n in self.names:
            f = globals()["_" + n]
            setattr(self, n, torch.compile(f, dynamic=n in self.varying) if compiled else f)


def use_compiled_sinkhorn():
    global _sinkhorn_fwd, _sinkhorn_bwd
    _sinkhorn_fwd = torch.compile(_sinkhorn_fwd, dynamic=False)
    _sinkhorn_bwd = torch.compile(_sinkhorn_bwd, dynamic=False)


# ------------------------------------------------------------------------------------------------- modules
class Shape:
    """What depends on (B, T) only: rotations, masks, group starts.  With `narrow` a token sees that many
    tokens instead of the whole window, besides the compressed rows."""

    def __init__(self, c, b, t, narrow=None):
        self.b, self.t = b, t
        pos = torch.arange(t).float()
        self.rot, self.rot4, self.rot128 = {}, None, None
        for comp in (False, True):
            a = pos[:, None] * rope_freqs(c, comp)
            self.rot[comp] = (a.cos().repeat(b, 1), a.sin().repeat(b, 1))
        for r in (4, 128):
            a = torch.arange(t // r).float()[:, None] * r * rope_freqs(c, True)
            setattr(self, f"rot{r}", (a.cos().repeat(b, 1), a.sin().repeat(b, 1)))
        first = torch.zeros(b, t // 4, dtype=torch.bool)
        first[:, 0] = True
        self.first = first.flatten()
        w = c["sliding_window"]
        p = torch.arange(t)
        self.block = w if t > 256 else t
        nb = t // self.block
        self.masks = {}
        for r in (0, 4, 128):
            d = p[:, None] - p[None, :]
            m = (d >= 0) & (d < (narrow or w))
            rows = (p[:, None] + 1) // r > torch.arange(t // r)[None, :] if r and t // r else None
            if nb == 1:
                full = m if rows is None else torch.cat((m, rows), 1)
                full = full[None, None]
            else:
                parts = []
                for i in range(nb):
                    q = slice(i * w, (i + 1) * w)
                    own = m[q, q]
                    prev = m[q, (i - 1) * w : i * w] if i else torch.zeros(w, w, dtype=torch.bool)
                    parts.append(torch.cat([prev, own] + ([] if rows is None else [rows[q]]), 1))
                full = torch.stack(parts)[:, None]
            self.masks[r] = torch.zeros(full.shape).masked_fill(~full, -1e30)


class Compressor(nn.Module):
    def __init__(self, c, ratio, dim):
        super().__init__()
        e, coff = c["hidden_size"], 2 if ratio == 4 else 1
        self.ratio, self.eps = ratio, c["rms_norm_eps"]
        self.ape = nn.Parameter(torch.zeros(ratio, coff * dim))
        self.wkv = nn.Parameter(torch.randn(coff * dim, e) / e**0.5)
        self.wgate = nn.Parameter(torch.randn(coff * dim, e) * 0.5 / e**0.5)
        self.norm = nn.Parameter(torch.ones(dim))

    def forward(self, ops, x, sh, qat):
        r = self.ratio
        n = sh.t // r
        if not n:
            return None
        if r * n != sh.t:
            x = x.view(sh.b, sh.t, -1)[:, : r * n].reshape(sh.b * r * n, -1)
        both = lin(x, torch.cat((self.wkv, self.wgate)))
        kv, gate = both.view(sh.b * n, r, -1).chunk(2, -1)
        cos, sin = getattr(sh, f"rot{r}")
        if r == 4:
            row = ops.pool4(kv, gate, self.ape, self.norm, cos, sin, sh.first, self.eps, qat)
        else:
            row = ops.pool(kv, gate, self.ape, self.norm, cos, sin, self.eps, qat)
        return row.view(sh.b, n, -1)


class Indexer(nn.Module):
    def __init__(self, c):
        super().__init__()
        e, ih, d = c["hidden_size"], c["index_n_heads"], c["index_head_dim"]
        self.heads = ih
        self.wq_b = nn.Parameter(torch.randn(ih * d, c["q_lora_rank"]) / c["q_lora_rank"] ** 0.5)
        self.weights_proj = nn.Parameter(torch.randn(ih, e) / e**0.5)
        self.compressor = Compressor(c, 4, d)

    def forward(self, ops, x, qr, sh):
        """Scores [B,T,rows] (future rows not masked)."""
        rows = self.compressor(ops, x, sh, False).float()
        cos, sin = sh.rot[True]
        q = lin(qr, self.wq_b).float().unflatten(-1, (self.heads, -1))
        q = rotate(q, cos[:, None], sin[:, None]).view(sh.b, sh.t, self.heads, -1)
        s = torch.relu(torch.einsum("bthd,bsd->bths", q, rows))
        g = lin(x, self.weights_proj).float() * (self.heads * q.shape[-1]) ** -0.5
        return (s * g.view(sh.b, sh.t, -1, 1)).sum(2)


class Attention(nn.Module):
    def __init__(self, c, ratio):
        super().__init__()
        e, h, d, q = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
        g, o = c["o_groups"], c["o_lora_rank"]
        self.ratio, self.heads, self.groups, self.eps = ratio, h, g, c["rms_norm_eps"]
        self.attn_sink = nn.Parameter(torch.zeros(h))
        self.wq_a = nn.Parameter(torch.randn(q, e) / e**0.5)
        self.q_norm = nn.Parameter(torch.ones(q))
        self.wq_b = nn.Parameter(torch.randn(h * d, q) / q**0.5)
        self.wkv = nn.Parameter(torch.randn(d, e) / e**0.5)
        self.kv_norm = nn.Parameter(torch.ones(d))
        self.wo_a = nn.Parameter(torch.randn(g * o, h * d // g) / (h * d // g) ** 0.5)
        self.wo_b = nn.Parameter(torch.randn(e, g * o) * 0.5 / (g * o) ** 0.5)
        self.compressor = Compressor(c, ratio, d) if ratio else None
        self.indexer = Indexer(c) if ratio == 4 else None
        self.record = None  # a list: forward appends (x, qr, attention over compressed rows)

    def forward(self, ops, x, sh, qat):
        h, b, t, blk = self.heads, sh.b, sh.t, sh.block
        cos, sin = sh.rot[bool(self.ratio)]
        both = lin(x, torch.cat((self.wq_a, self.wkv)))
        nq = self.wq_a.shape[0]
        q, kv, qr = ops.qkv(
            both[:, :nq], both[:, nq:], self.q_norm, self.wq_b, self.kv_norm, cos, sin, h, self.eps, qat
        )
        d = kv.shape[-1]
        nb = t // blk
        kv = kv.view(b, nb, blk, d)
        if nb > 1:
            kv = torch.cat((F.pad(kv[:, :-1], (0, 0, 0, 0, 1, 0)), kv), 2)
        local = kv.shape[2]
        if self.ratio:
            rows = self.compressor(ops, x, sh, qat)
            if rows is not None:
                kv = torch.cat((kv, rows[:, None].expand(-1, nb, -1, -1)), 2)
        s = kv.shape[2]
        kv = kv.reshape(b * nb, s, d)
        q = q.view(b * nb, blk, h, d).transpose(1, 2).reshape(b * nb, h * blk, d)
        a = torch.bmm(q, kv.transpose(1, 2)).view(b, nb, h, blk, s)
        mask = sh.masks[self.ratio if s > local else 0]
        p = ops.softmax(a, mask, self.attn_sink)
        if self.record is not None and s > local:
            self.record.append((x, qr, p[..., local:].float().sum(2).reshape(b, t, -1)))
        o = torch.bmm(p.view(b * nb, h * blk, s), kv)
        o = o.view(b * nb, h, blk, d).transpose(1, 2).reshape(b * t, h, d)
        o = ops.unrotate(o, cos, sin).view(b * t, self.groups, -1).transpose(0, 1)
        w = self.wo_a.to(BF).view(self.groups, -1, o.shape[-1])
        low = torch.bmm(o, w.transpose(1, 2)).transpose(0, 1).reshape(b * t, -1)
        return lin(low, self.wo_b)


class Gate(nn.Module):
    def __init__(self, c, hashed):
        super().__init__()
        n, k = c["n_routed_experts"], c["num_experts_per_tok"]
        self.weight = nn.Parameter(torch.randn(n, c["hidden_size"]) / c["hidden_size"] ** 0.5)
        if hashed:
            self.register_buffer(
                "tid2eid", torch.stack([torch.randperm(n)[:k] for _ in range(c["vocab_size"])])
            )
        else:
            self.register_buffer("bias", torch.zeros(n))


class MoE(nn.Module):
    def __init__(self, c, hashed):
        super().__init__()
        e, f, n = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
        self.k, self.n, self.scale, self.limit = (
            c["num_experts_per_tok"],
            n,
            c["routed_scaling_factor"],
            c["swiglu_limit"],
        )
        self.gate = Gate(c, hashed)
        self.w13 = nn.Parameter(torch.randn(n, 2 * f, e) / e**0.5)
        self.w2 = nn.Parameter(torch.randn(n, e, f) * 0.5 / f**0.5)
        self.s13 = nn.Parameter(torch.randn(2 * f, e) / e**0.5)
        self.s2 = nn.Parameter(torch.randn(e, f) * 0.5 / f**0.5)
        self.load = torch.zeros(n)

    def forward(self, ops, x, tokens, weight_of_token=None):
        s = ops.scores(x, self.gate.weight)
        if hasattr(self.gate, "tid2eid"):
            idx = self.gate.tid2eid[tokens]
        else:
            idx = torch.topk(s.detach() + self.gate.bias, self.k, -1, sorted=False).indices
        g = s.gather(1, idx)
        g = g / g.sum(-1, keepdim=True) * self.scale
        # Rows are sorted by expert and every expert's share is padded to a multiple of PAD, so that only a
        # few matrix shapes occur (oneDNN compiles a kernel for each).
        flat = idx.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.n)
        if self.training:
            self.load += counts
        sizes = (counts + PAD - 1) // PAD * PAD
        room = len(flat) + self.n * PAD
        sizes[-1] += room - sizes.sum()
        where = (sizes.cumsum(0) - sizes) - (counts.cumsum(0) - counts)
        dest = torch.arange(len(flat)) + where[flat[order]]
        src = torch.zeros(room, dtype=torch.long).index_copy_(0, dest, order // self.k)
        gs = torch.zeros(room).index_copy(0, dest, g.flatten().index_select(0, order))
        xs = x.index_select(0, src)
        w13, w2 = self.w13.to(BF), self.w2.to(BF)
        sizes = sizes.tolist()
        h = torch.cat([F.linear(a, w13[e]) for e, a in enumerate(xs.split(sizes))])
        h = ops.act_w(h, gs, self.limit)
        y = torch.cat([F.linear(a, w2[e]) for e, a in enumerate(h.split(sizes))])
        back = torch.empty_like(order).index_copy_(0, order, dest)
        y = y.index_select(0, back).view(len(x), self.k, -1).sum(1)
        return y + lin(ops.act(lin(x, self.s13), self.limit), self.s2)


class Block(nn.Module):
    def __init__(self, c, ratio, hashed):
        super().__init__()
        e, hc = c["hidden_size"], c["hc_mult"]
        self.c = c
        for w in ("attn", "ffn"):
            base = torch.zeros((2 + hc) * hc)
            base[:hc] = -1.1 + 0.5 * torch.randn(hc)
            base[hc : 2 * hc] = 0.5 * torch.randn(hc)
            base[2 * hc :] = (3.0 * torch.eye(hc)).flatten()
            self.register_parameter(
                f"hc_{w}_fn", nn.Parameter(torch.randn(len(base), hc * e) / (hc * e) ** 0.5)
            )
            self.register_parameter(f"hc_{w}_base", nn.Parameter(base))
            self.register_parameter(f"hc_{w}_scale", nn.Parameter(torch.full((3,), 0.3)))
            self.register_parameter(f"{w}_norm", nn.Parameter(torch.ones(e)))
        self.attn = Attention(c, ratio)
        self.ffn = MoE(c, hashed)

    def pre(self, ops, x, w):
        c = self.c
        return ops.hc_pre(
            x,
            getattr(self, f"hc_{w}_fn"),
            getattr(self, f"hc_{w}_scale"),
            getattr(self, f"hc_{w}_base"),
            getattr(self, f"{w}_norm"),
            c["rms_norm_eps"],
            c["hc_eps"],
            c["hc_sinkhorn_iters"],
        )

    def forward(self, ops, x, tokens, sh, qat):
        y, post, comb = self.pre(ops, x, "attn")
        x = ops.hc_post(x, self.attn(ops, y, sh, qat), post, comb)
        y, post, comb = self.pre(ops, x, "ffn")
        return ops.hc_post(x, self.ffn(ops, y, tokens), post, comb)


def hc_head(x, fn, scale, base, eps):
    flat = rms(x.flatten(1), None, eps)
    pre = torch.sigmoid(F.linear(flat, fn) * scale + base) + 1e-6
    return (pre[:, :, None] * x.float()).sum(1)


class Head(nn.Module):
    """hc_head_* and the final norm of the main model or of the MTP block."""

    def __init__(self, c, compiled=False):
        super().__init__()
        e, hc = c["hidden_size"], c["hc_mult"]
        self.eps = c["rms_norm_eps"]
        self.collapse = torch.compile(hc_head, dynamic=False) if compiled else hc_head
        self.hc_head_fn = nn.Parameter(torch.randn(hc, hc * e) * 0.3 / (hc * e) ** 0.5)
        self.hc_head_base = nn.Parameter(torch.full((hc,), -1.1))
        self.hc_head_scale = nn.Parameter(torch.ones(1))
        self.norm = nn.Parameter(torch.ones(e))

    def forward(self, x):
        y = self.collapse(x, self.hc_head_fn, self.hc_head_scale, self.hc_head_base, self.eps)
        return rms(y, self.norm, self.eps).to(BF)


class Model(nn.Module):
    def __init__(self, c, compiled=True, qat=True, stream_dtype=torch.float32):
        super().__init__()
        e, v, n = c["hidden_size"], c["vocab_size"], c["num_hidden_layers"]
        self.c, self.qat, self.stream_dtype = c, qat, stream_dtype
        self.ops = Ops(compiled)
        self.embed = nn.Parameter(torch.randn(v, e) * 0.7)
        self.layers = nn.ModuleList(
            Block(c, c["compress_ratios"][i], i < c["num_hash_layers"]) for i in range(n)
        )
        self.out = Head(c, compiled)
        self.head = nn.Parameter(torch.randn(v, e) * 0.5 / e**0.5)
        self.mtp = Block(c, 0, False)
        self.mtp_out = Head(c, compiled)
        self.enorm, self.hnorm = nn.Parameter(torch.ones(e)), nn.Parameter(torch.ones(e))
        self.e_proj = nn.Parameter(torch.randn(e, e) * 0.7 / e**0.5)
        self.h_proj = nn.Parameter(torch.randn(e, e) * 0.7 / e**0.5)
        self.shapes = {}
        self.narrow = None  # see Shape; a training aid

    def shape(self, b, t):
        key = (b, t, self.narrow)
        if key not in self.shapes:
            self.shapes[key] = Shape(self.c, *key)
        return self.shapes[key]

    def streams(self, tokens):
        """tokens [B,T] -> streams [B*T,4,E] before the head."""
        sh = self.shape(*tokens.shape)
        flat = tokens.flatten()
        x = F.embedding(flat, self.embed)[:, None, :].expand(-1, self.c["hc_mult"], -1).to(self.stream_dtype)
        x = x.contiguous()
        for layer in self.layers:
            x = layer(self.ops, x, flat, sh, self.qat)
        return x

    def mtp_streams(self, x, tokens):
        """Streams of every position and its tokens -> streams of the MTP block (row p predicts token p+2)."""
        eps = self.c["rms_norm_eps"]
        sh = self.shape(*tokens.shape)
        nxt = torch.roll(tokens, -1, 1).flatten()
        e = lin(rms(F.embedding(nxt, self.embed.detach()), self.enorm, eps), self.e_proj)
        h = lin(rms(x, self.hnorm, eps), self.h_proj)
        y = (e[:, None, :].float() + h.float()).to(self.stream_dtype)
        return self.mtp(self.ops, y, nxt, sh, self.qat)

    def logits(self, y):
        return lin(y, self.head)

    def forward(self, tokens):
        return self.logits(self.out(self.streams(tokens))).view(*tokens.shape, -1)


# ------------------------------------------------------------------------------------------------- export
def official_tensors(model):
    """name -> view of a parameter or buffer, in the official checkpoint names."""
    out = {"embed.weight": model.embed, "head.weight": model.head}

    def head(prefix, h):
        for k in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
            out[prefix + k] = getattr(h, k)
        out[prefix + "norm.weight"] = h.norm

    def comp(prefix, m):
        out[prefix + "ape"] = m.ape
        for k in ("wkv", "wgate", "norm"):
            out[prefix + k + ".weight"] = getattr(m, k)

    def block(p, b):
        for w in ("attn", "ffn"):
            for k in ("fn", "base", "scale"):
                out[f"{p}hc_{w}_{k}"] = getattr(b, f"hc_{w}_{k}")
            out[f"{p}{w}_norm.weight"] = getattr(b, f"{w}_norm")
        a = b.attn
        out[p + "attn.attn_sink"] = a.attn_sink
        for k in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "wo_a", "wo_b"):
            out[f"{p}attn.{k}.weight"] = getattr(a, k)
        if a.compressor is not None:
            comp(p + "attn.compressor.", a.compressor)
        if a.indexer is not None:
            out[p + "attn.indexer.wq_b.weight"] = a.indexer.wq_b
            out[p + "attn.indexer.weights_proj.weight"] = a.indexer.weights_proj
            comp(p + "attn.indexer.compressor.", a.indexer.compressor)
        f = b.ffn
        out[p + "ffn.gate.weight"] = f.gate.weight
        if hasattr(f.gate, "tid2eid"):
            out[p + "ffn.gate.tid2eid"] = f.gate.tid2eid
        else:
            out[p + "ffn.gate.bias"] = f.gate.bias
        for e in range(f.n):
            w1, w3 = f.w13[e].chunk(2)
            for k, w in (("w1", w1), ("w2", f.w2[e]), ("w3", w3)):
                out[f"{p}ffn.experts.{e}.{k}.weight"] = w
        w1, w3 = f.s13.chunk(2)
        for k, w in (("w1", w1), ("w2", f.s2), ("w3", w3)):
            out[f"{p}ffn.shared_experts.{k}.weight"] = w

    for i, b in enumerate(model.layers):
        block(f"layers.{i}.", b)
    head("", model.out)
    block("mtp.0.", model.mtp)
    head("mtp.0.", model.mtp_out)
    for k in ("enorm", "hnorm", "e_proj", "h_proj"):
        out[f"mtp.0.{k}.weight"] = getattr(model, k)
    return {k: v.detach() for k, v in out.items()}
