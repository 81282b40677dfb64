"""Single mistakes in the native core, one mechanism each. Every one must make some test fail.

A mutant replaces one exact text of one file. `expected` False marks changes that no whole run of the tiny models can
see: guards of numbers that never get there, and rounding ties, which random rows do not hit (the bit-exact tests of
tests/python/native have them). `levels` names the instruction sets (ds4.cpu_isa()) whose machines compute with the
text: elsewhere the mutant is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # below src/ds4core
    old: str
    new: str
    expected: bool = True
    levels: tuple[str, ...] = ()


CPU = "backend/cpu/"
GRAPH = "model/graph.cpp"

MUTANTS = (
    # rotation
    Mutant(
        "rope: halves instead of neighbours",
        CPU + "row_kernels.inc",
        "        size_t i = 0;\n        for (; i + LANES <= n; i += LANES) {\n            const vf v = load(x + i);\n"
        "            store(x + i, v * load(cosine + i) + swap_pairs(v) * (load(sine + i) * sign));\n        }\n"
        "        for (; i < n; i += 2) {\n            const float a = x[i], b = x[i + 1];\n"
        "            x[i] = a * cosine[i] + b * (sine[i] * sign);\n"
        "            x[i + 1] = b * cosine[i + 1] + a * (sine[i + 1] * sign);",
        "        for (size_t i = 0; i < n / 2; i++) {\n            const float a = x[i], b = x[i + n / 2];\n"
        "            x[i] = a * cosine[2 * i] + b * (sine[2 * i] * sign);\n"
        "            x[i + n / 2] = b * cosine[2 * i] + a * (sine[2 * i + 1] * sign);",
    ),
    Mutant(
        "rope: the first entries instead of the last",
        CPU + "rope.cpp",
        "x + b * dim + dim - n_rot, m",
        "x + b * dim, m",
    ),
    Mutant(
        "rope: output not rotated back", GRAPH, "    rope(s_.attn, freqs, n, c.n_head, c.head_dim, pos0, -1.0f);\n", ""
    ),
    Mutant("rope: output rotated forward", GRAPH, "c.head_dim, pos0, -1.0f)", "c.head_dim, pos0, 1.0f)"),
    Mutant("rope: keys not rotated", GRAPH, "    rope(s_.kv, freqs, n, 1, c.head_dim, pos0, 1.0f);\n", ""),
    Mutant("rope: no YaRN", "model/rope_table.cpp", "if (!compressed) return f;", "if (base > 0) return f;"),
    Mutant("rope: YaRN ramp reversed", "model/rope_table.cpp", "float keep = 1.0f - ramp;", "float keep = ramp;"),
    Mutant(
        "rope: compressed layers use the plain base",
        "model/rope_table.cpp",
        "compressed ? s.compress_rope_base : s.rope_base",
        "s.rope_base",
    ),
    Mutant(
        "rope: plain layers use the compressed base",
        GRAPH,
        "w.ratio ? m_.freqs_compressed : m_.freqs_plain",
        "m_.freqs_compressed",
    ),
    Mutant(
        "rope: cosine and sine scaled by the YaRN magnitude",
        CPU + "rope.cpp",
        "s = std::sin(angle);\n        cosine[2 * i] = cosine[2 * i + 1] = std::cos(angle);",
        "s = 1.2772588722f * std::sin(angle);\n"
        "        cosine[2 * i] = cosine[2 * i + 1] = 1.2772588722f * std::cos(angle);",
    ),
    # compressor
    Mutant(
        "compressor: row rotated at its last token",
        CPU + "compressor.cpp",
        "rope_angles(static_cast<uint32_t>(g * r),",
        "rope_angles(static_cast<uint32_t>(g * r + r - 1),",
    ),
    Mutant(
        "compressor: row number taken as position",
        CPU + "compressor.cpp",
        "rope_angles(static_cast<uint32_t>(g * r),",
        "rope_angles(static_cast<uint32_t>(g),",
    ),
    Mutant(
        "compressor: no APE",
        CPU + "compressor.cpp",
        "q->rows->add(s + t * width, ape + (pos0 + t) % r * width, width);",
        "(void)ape;",
    ),
    Mutant("compressor: no overlap with the previous group", CPU + "compressor.cpp", "if (g > 0)", "if (g > g)"),
    Mutant(
        "compressor: halves swapped",
        CPU + "compressor.cpp",
        "add(g - 1, 0);\n                add(g, dim);",
        "add(g - 1, dim);\n                add(g, 0);",
    ),
    Mutant(
        "compressor: plain mean",
        CPU + "row_kernels.inc",
        "const vf e = exp_of(load_some(s[i] + c, m) - top);",
        "const vf e = splat(1.0f);",
    ),
    Mutant(
        "compressor: no norm", CPU + "compressor.cpp", "q->rows->rms_row(row, norm, row, dim, a->eps);", "(void)norm;"
    ),
    Mutant(
        "compressor: rotated before its norm",
        CPU + "compressor.cpp",
        "q->rows->rms_row(row, norm, row, dim, a->eps);\n            rope_angles(static_cast<uint32_t>(g * r), freqs, "
        "a->n_rot / 2, cosine, sine);\n            "
        "q->rows->rope(row + dim - a->n_rot, 1, dim, a->n_rot, cosine, sine, 1.0f);",
        "rope_angles(static_cast<uint32_t>(g * r), freqs, a->n_rot / 2, cosine, sine);\n            "
        "q->rows->rope(row + dim - a->n_rot, 1, dim, a->n_rot, cosine, sine, 1.0f);\n            "
        "q->rows->rms_row(row, norm, row, dim, a->eps);",
    ),
    Mutant(
        "compressor: ring written one row late",
        CPU + "compressor.cpp",
        "size_t slot = (pos0 + t) % ring * width;",
        "size_t slot = (pos0 + t + 1) % ring * width;",
    ),
    # indexer
    Mutant("indexer: no ReLU", CPU + "attention_kernels.inc", "bits &= ~negative;", "(void)negative;"),
    Mutant(
        "indexer: weights ignored",
        CPU + "indexer.cpp",
        "h < a->heads ? w[h] * a->scale",
        "h < a->heads ? a->scale + 0 * w[h]",
    ),
    Mutant(
        "indexer: worst rows chosen",
        CPU + "indexer.cpp",
        "if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();",
        "scores[i] = -scores[i];",
    ),
    Mutant(
        "indexer: query not rotated",
        GRAPH,
        "    rope(s_.index_q, freqs, n, c.n_index_head, c.index_dim, pos0, 1.0f);\n",
        "",
    ),
    Mutant(
        "indexer: one row too few",
        CPU + "indexer.cpp",
        "counts[t] = static_cast<int32_t>(k);",
        "counts[t] = static_cast<int32_t>(k - 1);",
    ),
    Mutant(
        "indexer: the first rows instead of the best",
        CPU + "indexer.cpp",
        "chosen += scores[i] > kept || tie;",
        "chosen++;",
    ),
    Mutant(
        "indexer: rows visible one token late",
        CPU + "indexer.cpp",
        "(a->pos0 + t + 1) / a->ratio;",
        "(a->pos0 + t) / a->ratio;",
    ),
    Mutant(
        "indexer: the first block of rows for every block",
        CPU + "indexer.cpp",
        "rows, i + j, a->dim,",
        "rows, b + j, a->dim,",
    ),
    # attention
    Mutant(
        "attention: compressed rows visible one token late",
        CPU + "attention.cpp",
        "n_total += (pos + 1) / a->ratio;",
        "n_total += pos / a->ratio;",
    ),
    Mutant(
        "attention: window of 127",
        CPU + "attention.cpp",
        "first = pos + 1 > a->window ? pos + 1 - a->window : 0;",
        "first = pos + 2 > a->window ? pos + 2 - a->window : 0;",
    ),
    Mutant(
        "attention: window of 129",
        CPU + "attention.cpp",
        "first = pos + 1 > a->window ? pos + 1 - a->window : 0;",
        "first = pos > a->window ? pos - a->window : 0;",
    ),
    Mutant("attention: no sink", CPU + "attention_kernels.inc", "exp16(&sum);", "sum = v16{0};"),
    Mutant(
        "attention: values of the last block of rows only",
        CPU + "attention.cpp",
        "inverse : nullptr, i == 0,",
        "inverse : nullptr, true,",
    ),
    Mutant(
        "attention: scale of the unrotated part",
        GRAPH,
        "1.0f / std::sqrt(static_cast<float>(c.head_dim))};",
        "1.0f / std::sqrt(static_cast<float>(c.head_dim - c.n_rot))};",
    ),
    Mutant("attention: no norm per query head", GRAPH, "    norm(s_.q, {}, s_.q, n * c.n_head, c.head_dim);\n", ""),
    Mutant("attention: no query norm", GRAPH, "    norm(s_.q_a, w.q_a_norm, s_.q_a, n, c.q_lora);\n", ""),
    Mutant("attention: no key norm", GRAPH, "    norm(s_.kv, w.kv_norm, s_.kv, n, c.head_dim);\n", ""),
    Mutant(
        "attention: output groups in reverse",
        CPU + "float_product.cpp",
        "ptr(a->x) + g * n_in);",
        "ptr(a->x) + (a->groups - 1 - g) * n_in);",
    ),
    Mutant(
        "attention: no input norm",
        GRAPH,
        "norm(s_.x, w.attn_norm, s_.normed, n, m_.shape.n_embd);\n    attention(",
        "norm(s_.x, {}, s_.normed, n, m_.shape.n_embd);\n    attention(",
    ),
    # hyper-connections
    Mutant(
        "HC: mixing transposed",
        CPU + "row_kernels.inc",
        "w[k] * s0) + w[4 + k] * s1) + w[8 + k] * s2) + w[12 + k] * s3",
        "w[4 * k] * s0) + w[4 * k + 1] * s1) + w[4 * k + 2] * s2) + w[4 * k + 3] * s3",
    ),
    Mutant("HC: post without its factor 2", CPU + "row_kernels.inc", "post[i] *= 2.0f;", "post[i] *= 1.0f;"),
    Mutant(
        "HC: Sinkhorn begins and ends with the rows",
        CPU + "row_kernels.inc",
        "    balance(comb, h, iterations, eps);",
        "    transpose(comb, h);\n    balance(comb, h, iterations, eps);\n    transpose(comb, h);",
    ),
    Mutant(
        "HC: 19 Sinkhorn iterations",
        CPU + "row_kernels.inc",
        "pass + 2 >= 2 * iterations",
        "pass + 4 >= 2 * iterations",
    ),
    Mutant(
        "HC: 5 Sinkhorn iterations",
        CPU + "row_kernels.inc",
        "pass + 2 >= 2 * iterations",
        "pass + 2 >= 10 + 0 * iterations",
    ),
    Mutant(
        "HC: columns left as they are",
        CPU + "row_kernels.inc",
        "const v4 inverse = 1.0f / (((r0 + r1) + r2) + r3 + eps);",
        "const v4 inverse = pass % 2 ? 1.0f / (((r0 + r1) + r2) + r3 + eps) : v4{1, 1, 1, 1};",
    ),
    Mutant(
        "HC: mix not normalised",
        CPU + "hyper.cpp",
        "k->hc_coefficients(mix + t * width, k->inverse_rms(s, h * dim, a->norm_eps), scale",
        "k->hc_coefficients(mix + t * width, 1.0f, scale",
    ),
    Mutant(
        "HC: no eps on pre",
        CPU + "row_kernels.inc",
        "hc_gates(mix, inverse, scale[0], base, h, eps, pre);",
        "hc_gates(mix, inverse, scale[0], base, h, 0.0f, pre);",
        expected=False,
    ),
    Mutant(
        "HC head: plain mean",
        CPU + "hyper.cpp",
        "k->hc_gather(s, dim, gate, h,",
        "for (size_t i = 0; i < h; i++) gate[i] = 0.25f;\n            k->hc_gather(s, dim, gate, h,",
    ),
    # experts
    Mutant(
        "router: bias inside the weights",
        CPU + "router.cpp",
        "sum += w[j] = z[id[j]];",
        "sum += w[j] = z[id[j]] + (bias ? bias[id[j]] : 0.0f);",
    ),
    Mutant(
        "router: bias ignored",
        CPU + "router.cpp",
        "float v = bias ? z[e] + bias[e] : z[e];",
        "float v = z[e]; (void)bias;",
    ),
    Mutant("router: hash layers choose by score", CPU + "router.cpp", "if (table)", "if (table && k == 0)"),
    Mutant("router: no square root", CPU + "row_kernels.inc", "__builtin_sqrtf(softplus[l])", "softplus[l]"),
    Mutant("router: no scaling", CPU + "router.cpp", "kRouterFloor) * a->scale", "kRouterFloor)"),
    Mutant(
        "router: no normalisation",
        CPU + "router.cpp",
        "w[j] / std::max(sum, kRouterFloor)",
        "w[j] / std::max(0 * sum + 1, kRouterFloor)",
    ),
    Mutant("router: no floor", CPU + "router.cpp", "std::max(sum, kRouterFloor)", "sum", expected=False),
    Mutant(
        "experts: gate not clamped",
        CPU + "row_kernels.inc",
        "const vf a = min_of(load_some(g + i, m), top);",
        "const vf a = load_some(g + i, m);",
    ),
    Mutant(
        "experts: gate clamped on both sides",
        CPU + "row_kernels.inc",
        "const vf a = min_of(load_some(g + i, m), top);",
        "const vf a = max_of(min_of(load_some(g + i, m), top), bottom);",
    ),
    Mutant(
        "experts: up not clamped",
        CPU + "row_kernels.inc",
        "const vf b = max_of(min_of(load_some(u + i, m), top), bottom);",
        "const vf b = load_some(u + i, m);",
    ),
    Mutant(
        "experts: shared expert not clamped",
        GRAPH,
        "uint64_t{n} * c.n_ff, c.swiglu_clamp}",
        "uint64_t{n} * c.n_ff, 1e9f}",
    ),
    Mutant(
        "experts: shared expert left out", GRAPH, "    matmul(w.down_shexp, s_.shared_gate, s_.y, n, 1, true);\n", ""
    ),
    Mutant("experts: activation scaled", CPU + "row_kernels.inc", "weight * (a / (1.0f", "1.5f * weight * (a / (1.0f"),
    Mutant(
        "experts: gate and up exchanged",
        "model/bind.cpp",
        "{&l->gate_exps, &l->up_exps, &l->down_exps}",
        "{&l->up_exps, &l->gate_exps, &l->down_exps}",
    ),
    Mutant("experts: no input norm", GRAPH, "norm(s_.x, w.ffn_norm, s_.normed", "norm(s_.x, {}, s_.normed"),
    # products in panels of weights, with activations rounded to 8 bits
    Mutant(
        "panels: bias of Q8_0 not taken off",
        CPU + "panel_vnni.cpp",
        "DS4_EACH_COUNT(DS4_BLOCKS_32), 128, Quads::kRun",
        "DS4_EACH_COUNT(DS4_BLOCKS_32), 0, Quads::kRun",
        levels=("avx512vnni",),
    ),
    Mutant(
        "panels: correction of the bias added twice",
        CPU + "panel.cpp",
        "put(dst, 64 * T + j * T + t, -format.bias * sum);",
        "put(dst, 64 * T + j * T + t, -2 * format.bias * sum);",
        levels=("avx512", "avx512vnni"),
    ),
    Mutant(
        "panels: factors of the groups ignored",
        CPU + "panel_512.inc",
        "_mm512_mullo_epi32(factor, acc[0][t])",
        "acc[0][t]",
        levels=("avx512", "avx512vnni"),
    ),
    Mutant(
        "panels: minimums ignored",
        CPU + "panel.cpp",
        "std::memcpy(dst + 4 * (72 * T + j * T + t), src[b].bsums + 2 * j, 4);",
        "put(dst, 72 * T + j * T + t, 0);",
    ),
    Mutant(
        "panels: quads in the other order", CPU + "panel.cpp", "quads == Quads::kEighth ?", "quads != Quads::kEighth ?"
    ),
    Mutant(
        "panels: tokens of another block packed",
        CPU + "product.cpp",
        "x + (block.first + t) * x_stride",
        "x + (b % n_blocks + t) * x_stride",
    ),
    Mutant(
        "panels: sums not zeroed",
        CPU + "product.cpp",
        "    memset(sums, 0, n_panels * n * kPanelRows * sizeof(float));\n",
        "",
    ),
    Mutant(
        "panels: every row is the next one",
        CPU + "product.cpp",
        "std::min(r, n_rows - 1)",
        "std::min(r + 1, n_rows - 1)",
    ),
    Mutant(
        "panels: output groups in reverse", CPU + "matmul.cpp", "tokens.group(g)", "tokens.group(a->groups - 1 - g)"
    ),
    Mutant(
        "float products: the first slab of tokens for all",
        CPU + "float_product.cpp",
        "        x += p.token * a_->x_stride;\n",
        "",
    ),
    Mutant(
        "threads: last piece of a share done twice",
        "base/thread_pool.cpp",
        "shares_[t].next.store(first,",
        "shares_[t].next.store(first ? first - 1 : 0,",
    ),
    # head
    Mutant(
        "head: no output norm",
        GRAPH,
        "norm(s_.x, norm_weight, s_.normed",
        "(void)norm_weight; norm(s_.x, {}, s_.normed",
    ),
    # simulated quantization
    Mutant(
        "QAT: window rows not rounded",
        GRAPH,
        "if (cfg_.qat) {\n        ds4_args_round_rows r{s_.kv",
        "if (cfg_.qat && n == 0) {\n        ds4_args_round_rows r{s_.kv",
    ),
    Mutant(
        "QAT: indexer queries not rounded",
        GRAPH,
        "if (cfg_.qat) {\n        ds4_args_round_rows r{s_.index_q",
        "if (cfg_.qat && n == 0) {\n        ds4_args_round_rows r{s_.index_q",
    ),
    Mutant(
        "QAT: compressed rows not rounded", CPU + "compressor.cpp", "if (a->round == DS4_ROUND_FP8)", "if (a->n == 0)"
    ),
    Mutant("QAT: indexer rows not rounded", CPU + "compressor.cpp", "if (a->round == DS4_ROUND_FP4)", "if (a->n == 0)"),
    Mutant(
        "QAT: rotated entries rounded too",
        CPU + "rounding.cpp",
        "round_blocks(row, dim - n_rot, 64",
        "(void)n_rot; round_blocks(row, dim, 64",
    ),
    Mutant(
        "QAT: FP8 ties away from zero",
        CPU + "rounding.cpp",
        "std::nearbyint(a / step) * step, x);\n}\n\nfloat round_e2m1",
        "std::round(a / step) * step, x);\n}\n\nfloat round_e2m1",
        expected=False,
    ),
    Mutant(
        "QAT: FP8 scale not a power of two",
        CPU + "rounding.cpp",
        "float scale = power_of_two_at_least(amax * (1.0f / top));",
        "float scale = amax * (1.0f / top);",
    ),
    Mutant(
        "QAT: FP4 ties away from zero",
        CPU + "rounding.cpp",
        "std::nearbyint(a / step) * step, x);\n}\n\nnamespace",
        "std::round(a / step) * step, x);\n}\n\nnamespace",
        expected=False,
    ),
    Mutant("QAT: Hadamard without its factor", CPU + "rounding.cpp", "row[i] *= norm;", "(void)norm;"),
    Mutant(
        "cache: F32 rows stored as F16", "session/session.cpp",
        "row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;\n    Placement", "row_type = DS4_ROW_F16;\n    Placement"
    ),
    Mutant(
        "cache: F16 rows stored as F32", "session/session.cpp",
        "row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;\n    Placement", "row_type = DS4_ROW_F32;\n    Placement"
    ),
    # state
    Mutant("snapshot: ratio 4 forgets the previous group", "kv/cache.h",
           "return ratio == 4 && begin ? begin - 4 : begin;", "return begin;"),
    Mutant("rewind: to the checkpoint before", "session/checkpoints.cpp", "if (c->pos <= pos) return &*c;",
           "if (c->pos < pos) return &*c;"),
    Mutant("rewind: checkpoints behind it stay", "session/checkpoints.cpp", "if (c.pos > pos) c.why = 0;",
           "if (c.pos > pos + 1000000) c.why = 0;"),
    Mutant("rewind: compressors not put back", "session/tail.cpp",
           "        ops->upload(s.queue, part.place, tail, part.bytes);\n",
           "        if (part.kind != Segment::state) ops->upload(s.queue, part.place, tail, part.bytes);\n"),
    Mutant("rewind: MTP streams not put back", "session/tail.cpp",
           "    if (s.mtp_streams) ops->upload(s.queue, s.past.streams(pos - 1), tail, stream_bytes(s.model->shape));\n", ""),
    Mutant("rewind: logits not put back", "session/tail.cpp", "    memcpy(s.logits.data(), tail, s.logits.size() * 4);\n", ""),
    Mutant("sync: the end of a turn not kept", "session/session.cpp", "if (st == DS4_OK) s.turn_end = n;", ""),
    Mutant("checkpoints: chunks not cut", "session/checkpoints.h", "return last > pos ? last : end;",
           "(void)last, (void)pos; return end;"),
    Mutant("fork: MTP streams missing", "session/fork.cpp",
           "    if (pos) ops->copy(s.queue, made->past.streams(pos - 1), s.past.streams(pos - 1), stream_bytes(s.model->shape));\n",
           ""),
    Mutant("packing: a row that is no codes taken for codes", "session/pack.cpp", "return !(p.mantissa & 0xFFFFFu);",
           "return true;"),
    Mutant("packing: small codes cut", "session/pack.cpp", "return !(full & ((1u << shift) - 1));", "return true;"),
    Mutant("packing: sign of zero lost", "session/pack.cpp", "const uint32_t sign = p.sign << 7;",
           "const uint32_t sign = p.magnitude ? p.sign << 7 : 0;"),
    Mutant("packing: indexer codes in the other order", "session/pack.cpp", "static_cast<uint8_t>(low | high << 4)",
           "static_cast<uint8_t>(high | low << 4)"),
    Mutant("import: last row of a range missing", "session/portable.cpp",
           "const uint64_t last = std::min(h.stop, at) / r;", "const uint64_t last = (std::min(h.stop, at) - 1) / r;"),
    Mutant("import: other tokens accepted", "session/portable.cpp",
           "if (tokens_hash(tokens, h.stop) == h.tokens_hash) return DS4_OK;", "if (h.stop) return DS4_OK;"),
    Mutant("state as arrays: groups of ratio 4 exchanged", "session/float_state.cpp", "p >= open ? 4 : 0", "p < open ? 4 : 0"),
    Mutant(
        "snapshot: window one row short",
        "kv/cache.cpp",
        "const uint64_t kept = shape_.window - 1;",
        "const uint64_t kept = shape_.window - 2;",
    ),
    Mutant(
        "snapshot: streams of the last position missing",
        "session/snapshot.cpp",
        "if (mtp_bytes(s)) ops->upload(s.queue, s.past.streams(h.n_tokens - 1), p, mtp_bytes(s));",
        "",
    ),
    Mutant(
        "stopped chunk: compressor states not undone",
        "session/session.cpp",
        "if (long_) s_.cache.restore_states(s_.queue);",
        "",
    ),
    Mutant(
        "cache: no history before a chunk",
        "kv/cache.cpp",
        "return s.window - 1 + kSlack + chunk;",
        "return s.window > chunk ? s.window : chunk;",
    ),
    # slack, drafts
    Mutant("slack: compressor rings without it", "kv/cache.cpp", "return state_entries(ratio) + kSlack;",
           "return state_entries(ratio);"),
    Mutant("slack: window without it", "kv/cache.cpp", "return s.window - 1 + kSlack + chunk;",
           "return s.window - 1 + chunk;"),
    Mutant("slack: a stopped short chunk uses none", "session/session.cpp",
           "s_.past.reach(s_.tokens.size() + n);", "(void)n;"),
    Mutant("slack: one position too many", "session/past.h", "written_ > kSlack ? written_ - kSlack : 0",
           "written_ > kSlack + 1 ? written_ - kSlack - 1 : 0"),
    Mutant("slack: a state from elsewhere has a past", "session/past.h", "floor_ = pos ? pos + 1 : 0;", "floor_ = 0;"),
    Mutant("slack: logits of another position", "session/checkpoints.cpp", "s.past.streams(pos - 1), 1);",
           "s.past.streams(pos), 1);"),
    Mutant("ahead: any token takes it", "session/ahead.h", "return next < tokens.size() && tokens[next] == token;",
           "return next < tokens.size() && token >= 0;"),
    Mutant("ahead: logits of the token before", "session/session.cpp", "s.ahead.logits.data() + s.ahead.next * vocab, vocab",
           "s.ahead.logits.data() + (s.ahead.next - 1) * vocab, vocab"),
    Mutant("ahead: kept when the timeline goes back", "session/checkpoints.cpp", "        s.ahead.drop();\n", ""),
    Mutant("ahead: seen by those who look on", "session/session.cpp", "if (fit == 1 || observed(s) ||", "if (fit == 1 ||"),
    Mutant("draft: fed with the streams of the last position", "session/draft.cpp",
           "s.graph->mtp_input(s.scratch.streams, 1);", "s.graph->mtp_input(s.past.streams(pos), 1);"),
    Mutant("draft: all at one position", "session/draft.cpp", "pos + static_cast<uint32_t>(*n), s.cache.mtp",
           "pos, s.cache.mtp"),
    # MTP
    Mutant(
        "MTP: paired with the token itself",
        "session/session.cpp",
        "ops->upload(s.queue, s.scratch.tokens, tokens + skip, (n - skip) * 4);",
        "ops->upload(s.queue, s.scratch.tokens, tokens, (n - skip) * 4);",
    ),
    Mutant("MTP: norms exchanged", GRAPH, "norm(streams_in, w.hnorm,", "norm(streams_in, w.enorm,"),
    Mutant("MTP: embedding left out", GRAPH, "    ops_.add_rows(q_, &add);\n", ""),
    Mutant(
        "MTP: head of the main model",
        "session/session.cpp",
        "s.graph->head(m.mtp->head, m.mtp->norm,",
        "s.graph->head(m.head, m.output_norm,",
    ),
    Mutant("MTP: window not fed by prefill", GRAPH, "    window_rows(w, cache, n, pos0, m_.freqs_plain);\n", ""),
    # importance statistics
    Mutant(
        "importance: one sum for all experts",
        CPU + "experts.cpp",
        "double *sum = sums + expert * width;",
        "double *sum = sums;",
    ),
    Mutant(
        "importance: chunks counted instead of tokens",
        CPU + "experts.cpp",
        "counts[expert] += m;",
        "counts[expert] += m > 0;",
    ),
    Mutant(
        "importance: squares in float32",
        CPU + "experts.cpp",
        "static_cast<double>(row[c]) * static_cast<double>(row[c])",
        "static_cast<double>(row[c] * row[c])",
        expected=False,
    ),
    Mutant(
        "importance: drafts counted",
        "session/session.cpp",
        "s.graph->mtp_block(1, static_cast<uint32_t>(s.tokens.size()) - 1, s.cache.mtp);",
        "s.graph->mtp_block(1, static_cast<uint32_t>(s.tokens.size()) - 1, s.cache.mtp, s.importance ? "
        "&s.importance->block(s.model->shape.n_layer) : nullptr);",
    ),
    # expert layout
    Mutant("layout: parts of a record all at its start", "model/bind.cpp", "advance(at(*t), part.offset)", "at(*t)"),
    Mutant(
        "layout: fingerprint of the layout, not of the model",
        "model/bind.cpp",
        "const bool adjacent = !layout.records.empty();",
        "const bool adjacent = layout.records.empty() && g.kvs.empty();",
    ),
    Mutant(
        "layout: the check takes experts as contiguous",
        "model/check.cpp",
        "t.data + p.offset, r->bytes}",
        "t.data + p.offset, p.bytes()}",
    ),
    Mutant(
        "layout: gate and up may differ",
        "model/expert_layout.cpp",
        "if (sound && r.part[0].type != r.part[1].type)",
        "if (sound && r.n_expert)",
    ),
)
