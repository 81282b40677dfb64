"""Single mistakes in the native core, one mechanism each. Every one must make some test fail.

A mutant replaces one exact text of one file. `expected` False marks changes that no whole run of the tiny models can
see: guards of numbers that never get there, and rounding ties, which random rows do not hit (the bit-exact tests of
tests/python/native have them). `levels` names the instruction sets (ds4.cpu_isa()) whose machines compute with the
text: elsewhere the mutant is skipped. `tests` names the tests that should notice.
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
    tests: tuple[str, ...] = ()


CPU = "backend/cpu/"
GRAPH = "model/graph.cpp"
ENGINE = "tests/python/engine/"
STEERING = (ENGINE + "test_steering.py",)
AHEAD = (ENGINE + "test_ahead.py", ENGINE + "test_step_back.py")
REWIND = (ENGINE + "test_rewind.py", ENGINE + "test_step_back.py")
PARTS = (ENGINE + "test_portable.py", ENGINE + "test_state_arrays.py")
STREAM = (ENGINE + "test_streaming.py",)
CACHE = ("tests/python/native/test_expert_cache.py",)
READER = ("tests/python/native/test_stream_reader.py",)
STREAMED = "model/graph_stream.cpp"
EXPERTS = "stream/expert_cache.cpp"
HEAT = "stream/expert_heat.cpp"

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
    Mutant(
        "attention: no sink", CPU + "attention_kernels.inc", "exp_lanes(&sum);\n        for", "sum -= sum;\n        for"
    ),
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
        "norm(s_.x, w.attn_norm, s_.normed, n, dim);",
        "norm(s_.x, {}, s_.normed, n, dim);",
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
        "uint64_t{n} * m_.shape.n_ff, m_.shape.swiglu_clamp}",
        "uint64_t{n} * m_.shape.n_ff, 1e9f}",
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
        "cache: F32 rows stored as F16",
        "session/session.cpp",
        "row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;\n    Placement",
        "row_type = DS4_ROW_F16;\n    Placement",
    ),
    Mutant(
        "cache: F16 rows stored as F32",
        "session/session.cpp",
        "row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;\n    Placement",
        "row_type = DS4_ROW_F32;\n    Placement",
    ),
    # state
    Mutant(
        "snapshot: ratio 4 forgets the previous group",
        "kv/cache.h",
        "return ratio == 4 && begin ? begin - 4 : begin;",
        "return begin;",
    ),
    Mutant(
        "rewind: to the checkpoint before",
        "session/checkpoints.cpp",
        "if (c->pos <= pos) return &*c;",
        "if (c->pos < pos) return &*c;",
    ),
    Mutant(
        "rewind: checkpoints behind it stay",
        "session/checkpoints.cpp",
        "if (c.pos > pos) c.why = 0;",
        "if (c.pos > pos + 1000000) c.why = 0;",
    ),
    Mutant(
        "rewind: compressors not put back",
        "session/tail.cpp",
        "        ops->upload(s.queue, part.place, tail, part.bytes);\n",
        "        if (part.kind != Segment::state) ops->upload(s.queue, part.place, tail, part.bytes);\n",
    ),
    Mutant(
        "rewind: MTP streams not put back",
        "session/tail.cpp",
        "    if (s.mtp_streams) ops->upload(s.queue, s.past.streams(pos - 1), tail, stream_bytes(s.model->shape));\n",
        "",
    ),
    Mutant(
        "rewind: logits not put back",
        "session/tail.cpp",
        "    memcpy(s.logits.data(), tail, s.logits.size() * 4);\n",
        "",
    ),
    Mutant("sync: the end of a turn not kept", "session/session.cpp", "if (st == DS4_OK) s.turn_end = n;", ""),
    Mutant(
        "checkpoints: chunks not cut",
        "session/checkpoints.h",
        "return last > pos ? last : end;",
        "(void)last, (void)pos; return end;",
    ),
    Mutant(
        "fork: MTP streams missing",
        "session/fork.cpp",
        "    if (pos) ops->copy(s.queue, made->past.streams(pos - 1), s.past.streams(pos - 1), stream_bytes(s.model->shape));\n",
        "",
    ),
    Mutant(
        "packing: a row that is no codes taken for codes",
        "session/pack.cpp",
        "return !(p.mantissa & 0xFFFFFu);",
        "return true;",
    ),
    Mutant("packing: small codes cut", "session/pack.cpp", "return !(full & ((1u << shift) - 1));", "return true;"),
    Mutant(
        "packing: sign of zero lost",
        "session/pack.cpp",
        "const uint32_t sign = p.sign << 7;",
        "const uint32_t sign = p.magnitude ? p.sign << 7 : 0;",
    ),
    Mutant(
        "packing: indexer codes in the other order",
        "session/pack.cpp",
        "static_cast<uint8_t>(low | high << 4)",
        "static_cast<uint8_t>(high | low << 4)",
    ),
    Mutant(
        "import: last row of a range missing",
        "session/portable.cpp",
        "const uint64_t last = std::min(h.stop, at) / r;",
        "const uint64_t last = (std::min(h.stop, at) - 1) / r;",
    ),
    Mutant(
        "import: other tokens accepted",
        "session/portable.cpp",
        "if (tokens_hash(tokens, h.stop) == h.tokens_hash) return DS4_OK;",
        "if (h.stop) return DS4_OK;",
    ),
    Mutant(
        "state as arrays: groups of ratio 4 exchanged",
        "session/float_state.cpp",
        "p >= open ? 4 : 0",
        "p < open ? 4 : 0",
    ),
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
    Mutant(
        "slack: compressor rings without it",
        "kv/cache.cpp",
        "return state_entries(ratio) + kSlack;",
        "return state_entries(ratio);",
    ),
    Mutant(
        "slack: window without it",
        "kv/cache.cpp",
        "return s.window - 1 + kSlack + chunk;",
        "return s.window - 1 + chunk;",
    ),
    Mutant(
        "slack: a stopped short chunk uses none",
        "session/session.cpp",
        "s_.past.reach(s_.tokens.size() + n);",
        "(void)n;",
    ),
    Mutant(
        "slack: one position too many",
        "session/past.h",
        "written_ > kSlack ? written_ - kSlack : 0",
        "written_ > kSlack + 1 ? written_ - kSlack - 1 : 0",
    ),
    Mutant("slack: a state from elsewhere has a past", "session/past.h", "floor_ = pos ? pos + 1 : 0;", "floor_ = 0;"),
    Mutant(
        "slack: logits of another position",
        "session/checkpoints.cpp",
        "s.past.streams(pos - 1), 1);",
        "s.past.streams(pos), 1);",
    ),
    Mutant(
        "ahead: any token takes it",
        "session/ahead.h",
        "return next < tokens.size() && tokens[next] == token;",
        "return next < tokens.size() && token >= 0;",
    ),
    Mutant(
        "ahead: logits of the token before",
        "session/session.cpp",
        "s.ahead.logits.data() + s.ahead.next * vocab, vocab",
        "s.ahead.logits.data() + (s.ahead.next - 1) * vocab, vocab",
    ),
    Mutant("ahead: kept when the timeline goes back", "session/checkpoints.cpp", "        s.ahead.drop();\n", ""),
    Mutant(
        "ahead: seen by those who look on", "session/session.cpp", "if (fit == 1 || observed(s) ||", "if (fit == 1 ||"
    ),
    Mutant(
        "draft: fed with the streams of the last position",
        "session/draft.cpp",
        "s.graph->mtp_input(s.scratch.streams, 1);",
        "s.graph->mtp_input(s.past.streams(pos), 1);",
    ),
    Mutant(
        "draft: all at one position",
        "session/draft.cpp",
        "pos + static_cast<uint32_t>(*n), s.cache.mtp",
        "pos, s.cache.mtp",
    ),
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
    # steering
    Mutant(
        "steering: added instead of taken out",
        CPU + "rows.cpp",
        "ptr(a->directions[i]), factor[i], dim);",
        "ptr(a->directions[i]), -factor[i], dim);",
        tests=STEERING,
    ),
    Mutant(
        "steering: a direction sees what the one before did",
        CPU + "rows.cpp",
        "q->rows->subtract(row, ptr(a->directions[i]), factor[i], dim);",
        "q->rows->subtract(row, ptr(a->directions[i]), a->scales[i] * q->kernels->dot(ptr(a->directions[i]), row, dim), dim);",
        tests=STEERING,
    ),
    Mutant(
        "steering: the first token of a share for all",
        CPU + "rows.cpp",
        "float *row = y + t * dim;\n            for (size_t i = 0; i < count; i++)\n                factor",
        "float *row = y + begin * dim;\n            for (size_t i = 0; i < count; i++)\n                factor",
        tests=STEERING,
    ),
    Mutant(
        "steering: attention by the scale of the FFN",
        GRAPH,
        "    steer(&SteeringDirection::attn, n);",
        "    steer(&SteeringDirection::ffn, n);",
        tests=STEERING,
    ),
    Mutant(
        "steering: the row of layer 0 for all layers",
        GRAPH,
        "advance(d.values, uint64_t{layer_} * dim * 4)",
        "advance(d.values, 0 * uint64_t{layer_} * dim * 4)",
        tests=STEERING,
    ),
    Mutant(
        "steering: the MTP block too",
        GRAPH,
        "    layer_ = kNoLayer;\n    layer(m_.mtp->block",
        "    layer_ = 0;\n    layer(m_.mtp->block",
        tests=STEERING,
    ),
    Mutant(
        "steering: after the residual streams were mixed",
        GRAPH,
        "    steer(&SteeringDirection::ffn, n);\n    hc_post(n);",
        "    hc_post(n);\n    steer(&SteeringDirection::ffn, n);",
        tests=STEERING,
    ),
    Mutant(
        "steering: guesses stay when it changes",
        "session/steering.cpp",
        "    s.ahead.drop();  // it was computed with what was before\n",
        "",
        tests=STEERING,
    ),
    Mutant(
        "steering: scales are no part of the digest",
        "session/steering.cpp",
        "h = hash_bytes(scales, sizeof(scales), hash_bytes(d.values, one, h));",
        "(void)scales, h = hash_bytes(d.values, one, h);",
        tests=STEERING,
    ),
    Mutant(
        "steering: a mixed state does not tell where it changed",
        "session/steering.cpp",
        "hash_mix(hash_mix(h, x->from), x->digest)",
        "hash_mix(h, x->digest)",
        tests=STEERING,
    ),
    Mutant(
        "steering: a state counts stretches behind it",
        "session/steering.cpp",
        "return x.from >= n; });",
        "return x.from > n; });",
        tests=STEERING,
    ),
    Mutant(
        "steering: states of other steering are taken",
        "session/steering.cpp",
        "if (history->identity(n) == identity) return DS4_OK;",
        "if (history->identity(n) == identity || identity) return DS4_OK;",
        tests=STEERING,
    ),
    Mutant(
        "steering: the history of another timeline",
        "session/steering.cpp",
        "if (n <= s.tokens.size() && s.steered",
        "if (s.steered",
        tests=STEERING,
    ),
    Mutant(
        "steering: how far it is uniform ignores the first stretch",
        "session/steering.cpp",
        "return first == digest ? x.from : 0;",
        "return x.from;",
        tests=STEERING,
    ),
    Mutant(
        "steering: a rewind keeps the history",
        "session/checkpoints.cpp",
        "        s.steered.cut(static_cast<uint32_t>(to));\n",
        "",
        tests=STEERING,
    ),
    Mutant(
        "steering: a fork is not steered",
        "session/fork.cpp",
        "    made->graph->steer(s.steering ? &s.steering->plan : nullptr);\n",
        "",
        tests=STEERING,
    ),
    Mutant(
        "steering: a fork has no history", "session/fork.cpp", "    made->steered = s.steered;\n", "", tests=STEERING
    ),
    Mutant(
        "steering: noted behind the chunk",
        "session/session.cpp",
        "s.steered.note(pos0, s.steering_digest());",
        "s.steered.note(pos0 + n, s.steering_digest());",
        tests=STEERING,
    ),
    Mutant(
        "steering: rows of other steering than the tail",
        "session/portable.cpp",
        "if (heads[i].steering != history.identity(reached))",
        "if (false && heads[i].steering != history.identity(reached))",
        tests=STEERING,
    ),
    # more of drafts and of what is computed ahead
    Mutant(
        "draft: the margin is ignored",
        "session/draft.cpp",
        "if (how.margin > 0 && ",
        "if (how.margin > 1e30f && ",
        tests=AHEAD,
    ),
    Mutant(
        "draft: the margin goes by the first logits",
        "session/draft.cpp",
        "            second = x;\n        }",
        "            (void)x;\n        }",
        tests=AHEAD,
    ),
    Mutant(
        "draft: drawn with the number after",
        "session/draft.cpp",
        "uint64_t rng = how.rng;",
        "uint64_t rng = how.rng + 1;",
        tests=AHEAD,
    ),
    Mutant(
        "draft: the known token for every guess",
        "session/draft.cpp",
        "s.scratch.tokens, &token, 4);",
        "s.scratch.tokens, &next_token, 4);",
        tests=AHEAD,
    ),
    Mutant(
        "draft: a stop is not seen",
        "session/draft.cpp",
        "if (s.phase.load() == Phase::stopping) return",
        "if (s.phase.load() == Phase::stopping && how.most > 99) return",
        tests=AHEAD,
    ),
    Mutant(
        "ahead: guesses after one that cannot be",
        "session/session.cpp",
        "while (ready < n && all_finite(logits + ready * vocab, vocab)) ready++;",
        "ready = n;",
        tests=AHEAD,
    ),
    Mutant(
        "ahead: the context may end before it",
        "session/session.cpp",
        "{n, s.options.chunk, s.options.n_ctx - s.tokens.size()}",
        "{n, s.options.chunk}",
        tests=AHEAD,
    ),
    Mutant(
        "ahead: a guess that came true leaves the one after behind",
        "session/session.cpp",
        "    s.ahead.next++;\n",
        "    s.ahead.next += 2;\n",
        tests=AHEAD,
    ),
    Mutant(
        "ahead: checkpoints are not taken",
        "session/session.cpp",
        "    if (st == DS4_OK && s.checkpoints.due(static_cast<uint32_t>(s.tokens.size())))\n        st = keep_checkpoint(s, Checkpoint::automatic, err);\n",
        "",
        tests=AHEAD + REWIND,
    ),
    Mutant(
        "slack: drafts have no room in the ring of the MTP block",
        "kv/cache.cpp",
        "return window_capacity(s, chunk) + kSlack; }",
        "return window_capacity(s, chunk); }",
        tests=AHEAD,
    ),
    Mutant(
        "slack: streams of one position less",
        "session/past.h",
        "uint64_t i = n > kSlack + 1 ? n - kSlack - 1 : 0;",
        "uint64_t i = n > kSlack ? n - kSlack : 0;",
        tests=AHEAD,
    ),
    Mutant(
        "slack: a long chunk leaves no trace",
        "session/past.h",
        "        reach(pos + n);\n",
        "        (void)pos;\n",
        tests=AHEAD,
    ),
    # more of checkpoints
    Mutant(
        "checkpoints: turns take the whole budget",
        "session/checkpoints.cpp",
        "bytes > budget_ / 2 && forget",
        "bytes > budget_ && forget",
        tests=REWIND,
    ),
    Mutant(
        "checkpoints: the distance stays doubled",
        "session/checkpoints.cpp",
        "    while (stride_ > every_ && bytes() <= budget_ / 4) stride_ /= 2;  // there is room again\n",
        "",
        tests=REWIND,
    ),
    Mutant(
        "checkpoints: a second reason replaces the first",
        "session/checkpoints.cpp",
        "c.why |= why;",
        "c.why = why;",
        tests=REWIND,
    ),
    Mutant(
        "checkpoints: thinned whatever else they are for",
        "session/checkpoints.cpp",
        "if (c.pos % stride_) c.why &= ~uint32_t{Checkpoint::automatic};",
        "if (c.pos % stride_) c.why = 0;",
        tests=REWIND,
    ),
    Mutant(
        "checkpoints: one more of a kind than there may be",
        "session/checkpoints.cpp",
        "count_if(all_.begin(), all_.end(), has)) > most)",
        "count_if(all_.begin(), all_.end(), has)) > most + 1)",
        tests=REWIND,
    ),
    Mutant(
        "checkpoints: bytes are not counted again",
        "session/checkpoints.cpp",
        "    bytes_.store(bytes, std::memory_order_relaxed);",
        "    bytes_.store(std::max(bytes, bytes_.load()), std::memory_order_relaxed);",
        tests=REWIND,
    ),
    Mutant(
        "rewind: an empty session has a past",
        "session/checkpoints.cpp",
        "        } else {\n            to = 0;\n            s.past.begin(0);",
        "        } else {\n            to = 0;",
        tests=REWIND,
    ),
    Mutant(
        "rewind: the end of a turn stays",
        "session/checkpoints.cpp",
        "        s.turn_end = 0;\n    }\n    if (reached)",
        "    }\n    if (reached)",
        tests=REWIND,
    ),
    Mutant(
        "rewind: guesses of a state that was replaced",
        "session/tail.cpp",
        "    s.ahead.drop();\n    memcpy",
        "    memcpy",
        tests=AHEAD + REWIND,
    ),
    Mutant(
        "rewind: a step back keeps the logits",
        "session/checkpoints.cpp",
        "    s.logits.swap(s.next_logits);\n    m.ops",
        "    m.ops",
        tests=REWIND,
    ),
    Mutant(
        "fork: checkpoints are not shared",
        "session/fork.cpp",
        "    made->checkpoints.share(s.checkpoints);\n",
        "",
        tests=REWIND,
    ),
    Mutant(
        "fork: has the past of the original",
        "session/fork.cpp",
        "    made->past.begin(pos);\n",
        "    made->past.reach(pos);\n",
        tests=REWIND,
    ),
    # more of parts of states
    Mutant(
        "import: rows that do not meet",
        "session/portable.cpp",
        "if (heads[i].start != reached || reached >= at)",
        "if (heads[i].start > reached || reached >= at)",
        tests=PARTS,
    ),
    Mutant(
        "import: rows with a gap",
        "session/portable.cpp",
        "if (heads[i].start != reached || reached >= at)",
        "if (heads[i].start < reached || reached >= at)",
        tests=PARTS,
    ),
    Mutant(
        "import: rows that end before the tail",
        "session/portable.cpp",
        "    if (reached < at) return fail",
        "    if (reached + 1 < at) return fail",
        tests=PARTS,
    ),
    Mutant(
        "import: a body that was changed",
        "session/portable.cpp",
        "h->body_bytes) != h->body_hash)",
        "h->body_bytes) == ~h->body_hash)",
        tests=PARTS,
    ),
    Mutant(
        "import: logits that are not finite",
        "session/portable.cpp",
        "if (!std::isfinite(logit)) return",
        "if (std::isinf(logit) && i > 1000000) return",
        tests=PARTS,
    ),
    Mutant(
        "import: the end of the turn is not kept",
        "session/portable.cpp",
        "    s.turn_end = at;\n    if (pos)",
        "    if (pos)",
        tests=PARTS,
    ),
    Mutant(
        "import: ids are not checked",
        "session/portable.cpp",
        "if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= s.model",
        "if (tokens[i] < -1000000 && static_cast<uint32_t>(tokens[i]) >= s.model",
        tests=PARTS,
    ),
    Mutant(
        "import: guesses and history stay",
        "session/portable.cpp",
        "    reset_session(s);\n    for",
        "    for",
        tests=PARTS + REWIND,
    ),
    Mutant(
        "export: groups that closed before the range",
        "session/portable.cpp",
        "for (uint64_t row = start / r; row < stop / r;)",
        "for (uint64_t row = start / r + (start % r ? 1 : 0); row < stop / r;)",
        tests=PARTS,
    ),
    Mutant(
        "packing: scale of the first block for all",
        "session/pack.cpp",
        "const float scale = scale_of(exponents[b / kBlockE4M3]);",
        "const float scale = scale_of(exponents[0]);",
        tests=PARTS,
    ),
    Mutant(
        "packing: negative exponents",
        "session/pack.cpp",
        "static_cast<int8_t>(exponent)); }",
        "exponent); }",
        tests=PARTS,
    ),
    Mutant(
        "packing: the smallest code",
        "session/pack.cpp",
        "static_cast<uint8_t>(sign | 1);",
        "static_cast<uint8_t>(sign | 2);",
        tests=PARTS,
    ),
    # streaming
    Mutant(
        "stream: a later wave replaces the sums",
        STREAMED,
        "(first ? 0u : uint32_t{DS4_EXPERTS_ADD})",
        "0u * first",
        tests=STREAM,
    ),
    Mutant(
        "stream: down of the last arrivals only",
        STREAMED,
        "    for (size_t i = 0; i < ticket.size(); i++) used_[ticket.expert(i)] = 1;",
        "    for (size_t i = ticket.size(); i-- > ticket.size() - 1;) used_[ticket.expert(i)] = 1;",
        tests=STREAM,
    ),
    Mutant(
        "stream: gate and up exchanged",
        STREAMED,
        "{p.part[0], p.part[1], p.part[2]}",
        "{p.part[1], p.part[0], p.part[2]}",
        tests=STREAM,
    ),
    Mutant(
        "stream: shared expert left out",
        STREAMED,
        "    ops_.add_rows(q_, &add);\n    return true;",
        "    (void)add;\n    return true;",
        tests=STREAM,
    ),
    Mutant(
        "stream: a wave too long for the cache",
        STREAMED,
        "const size_t wave = at_once ? experts.size() : half;",
        "const size_t wave = at_once ? experts.size() : half + slots;",
        tests=STREAM,
    ),
    Mutant(
        "stream: a failed read is forgotten",
        STREAMED,
        "    failure_ = st;\n    return false;",
        "    (void)st;\n    return false;",
        tests=STREAM,
    ),
    Mutant(
        "stream: a failure stays",
        STREAMED,
        "    failure_ = DS4_OK;\n    wishes_.clear();",
        "    wishes_.clear();",
        tests=STREAM,
    ),
    Mutant(
        "stream: a stop is not seen while it waits",
        EXPERTS,
        '        if (!go_on) return fail(err, DS4_E_CANCELLED, "stopped while experts were being read");',
        "        (void)go_on;",
        tests=STREAM,
    ),
    Mutant(
        "stream: hashed layers are not read ahead",
        STREAMED,
        "        cache.prefetch(layer, wanted_.data(), wanted_.size());\n",
        "",
        tests=STREAM + CACHE,
    ),
    Mutant(
        "stream: nothing is read for the next layer",
        STREAMED,
        "< kUsesOfAll * m_.shape.n_expert ||",
        "< 1000000 * kUsesOfAll * m_.shape.n_expert ||",
        tests=STREAM + CACHE,
    ),
    Mutant(
        "stream: short chunks read whole layers ahead",
        STREAMED,
        "constexpr uint64_t kUsesOfAll = 3;",
        "constexpr uint64_t kUsesOfAll = 0;",
        tests=STREAM + CACHE,
    ),
    Mutant(
        "stream: selections are not told", STREAMED, "    cache.selected(layer, ids_.data(), n, k);\n", "", tests=STREAM
    ),
    Mutant(
        "stream: hits are counted as late", STREAMED, "use_.late += t.late();", "use_.late += t.hits();", tests=STREAM
    ),
    Mutant(
        "cache: the one selected most goes",
        EXPERTS,
        "victims_.push_back({wishes_[k] != 0, heat_.worth(s.layer, k), i});",
        "victims_.push_back({wishes_[k] != 0, -heat_.worth(s.layer, k), i});",
        tests=CACHE,
    ),
    Mutant(
        "cache: selections keep their worth",
        HEAT,
        "rescale(layer, scales_[layer].near * (1 - near), scales_[layer].far * (1 - far));",
        "rescale(layer, 1, 1);",
        tests=CACHE,
    ),
    Mutant(
        "cache: wishes are not heard",
        EXPERTS,
        "victims_.push_back({wishes_[k] != 0,",
        "victims_.push_back({false,",
        tests=CACHE,
    ),
    Mutant(
        "cache: a pinned expert goes",
        EXPERTS,
        "if (s.pins || s.state == State::reading",
        "if (s.state == State::reading",
        tests=CACHE,
    ),
    Mutant(
        "cache: an expert goes for its neighbour",
        EXPERTS,
        " || s.stamp == stamp_) continue;",
        ") continue;",
        tests=CACHE + STREAM,
    ),
    Mutant("cache: a failed read stays", EXPERTS, "if (s.bad && !s.pins) c.clear(s);", "", tests=CACHE),
    Mutant(
        "cache: a failed read stays after its ticket",
        EXPERTS,
        "if (--s.pins == 0 && s.state == State::failed) clear(s);",
        "--s.pins;",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "cache: a full slot goes before an empty one",
        EXPERTS,
        "victims_.push_back({false, kNothing, i});",
        "victims_.push_back({false, 1e300, i});",
        tests=CACHE,
    ),
    Mutant(
        "cache: guesses take any slot",
        EXPERTS,
        "victims_[next].worth < chance) {",
        "victims_[next].worth < 1e300) {",
        tests=CACHE,
    ),
    Mutant("cache: prefetching takes wished slots", EXPERTS, "if (v.wished) return;", "(void)v.wished;", tests=CACHE),
    Mutant(
        "cache: whoever waits is overtaken",
        EXPERTS,
        "return waiting_.empty() && pin",
        "return pin",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "cache: heat that is set ages",
        HEAT,
        "        rescale(l, 1, 1);\n        for",
        "        for",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "cache: a chunk counts more than its tokens",
        HEAT,
        "sums_[first_[layer] + e].far += share * far / far_rate_ / s.far;",
        "sums_[first_[layer] + e].far += counts[e] / s.far;",
        tests=CACHE + STREAM,
    ),
    Mutant("cache: only the near average counts", HEAT, "options_.near_share * near_rate_", "near_rate_", tests=CACHE),
    Mutant(
        "cache: guesses leave no room",
        EXPERTS,
        "slots_.size() > loose + spare ? slots_.size() - loose - spare : 0;",
        "slots_.size();",
        tests=CACHE,
    ),
    Mutant(
        "cache: guesses are read for ever",
        EXPERTS,
        "if (chance >= kGuessPays && next",
        "if (next",
        tests=CACHE,
    ),
    Mutant(
        "cache: a wrong guess is read to its end",
        EXPERTS,
        "if (!right) cache_->give_up(e, layer_);",
        "",
        tests=CACHE,
    ),
    Mutant(
        "cache: what is left of a wrong guess is an expert",
        EXPERTS,
        "    where_[key(layer, e.expert)] = kNone;\n    s.dropped = s.left > 0;",
        "    s.dropped = s.left > 0;",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "reader: guesses take the whole depth",
        "stream/reader.cpp",
        "constexpr unsigned kGuessPart = 4;",
        "constexpr unsigned kGuessPart = 1;",
        tests=READER,
    ),
    Mutant(
        "cache: preloading takes the cold ones",
        EXPERTS,
        "a.worth > b.worth; });\n    uint32_t slot",
        "a.worth < b.worth; });\n    uint32_t slot",
        tests=CACHE,
    ),
    Mutant(
        "cache: a part is looked for at the start of its page",
        EXPERTS,
        "last->at + last->offset % kAlignment + (offset",
        "last->at + (offset",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "cache: parts that lie apart are read as one",
        EXPERTS,
        "- (last->offset + last->bytes) < kAlignment)",
        "- (last->offset + last->bytes) < 1000 * kAlignment)",
        tests=CACHE + STREAM,
        expected=False,
    ),
    Mutant(
        "cache: a trace has no end",
        EXPERTS,
        "if (trace_.size() >= trace_most_ * (k + 1))",
        "if (trace_.size() >= 1000000 + trace_most_ * (k + 1))",
        tests=STREAM,
    ),
    Mutant(
        "cache: only the last read of an expert is waited for",
        EXPERTS,
        "if (--s.left) return;",
        "if (--s.left > 1) return;",
        tests=CACHE + STREAM,
    ),
    Mutant(
        "reader: a short read is a whole one",
        "stream/reader.cpp",
        "if (here < piece_end || os_errno) r.got",
        "if (os_errno) r.got",
        tests=READER,
    ),
    Mutant(
        "reader: a file that changed",
        "stream/reader.cpp",
        "const bool changed = !r.file->unchanged();",
        "const bool changed = false;",
        tests=READER,
    ),
    Mutant(
        "reader: pieces that are still under way",
        "stream/reader.cpp",
        "if (--r.pieces || r.next < r.end) return;",
        "if (--r.pieces) return;",
        tests=READER,
    ),
    Mutant(
        "reader: urgent reads wait their turn",
        "stream/reader.cpp",
        "Read *r = lists_[0].first ? lists_[0].first : lists_[1].first;",
        "Read *r = lists_[1].first ? lists_[1].first : lists_[0].first;",
        tests=READER,
    ),
    Mutant(
        "resident: a gap of a page is kept",
        "model/expert_stream.cpp",
        "- (ranges_.back().offset + ranges_.back().bytes) < stream::kAlignment)",
        "- (ranges_.back().offset + ranges_.back().bytes) < 2 * stream::kAlignment)",
        tests=STREAM,
        expected=False,
    ),
    Mutant(
        "resident: the parts of a long range",
        "model/expert_stream.cpp",
        "constexpr uint64_t kReadAtOnce = uint64_t{64} << 20;",
        "constexpr uint64_t kReadAtOnce = uint64_t{1} << 16;",
        tests=STREAM,
        expected=False,
    ),
    Mutant(
        "resident: places from the start of a page",
        "model/expert_stream.cpp",
        "memory_.data() + r.at + (t.offset - r.offset)",
        "memory_.data() + r.at + (t.offset - r.offset) / 64 * 64",
        tests=STREAM,
        expected=False,
    ),
)
