"""Single mistakes in the native core, one mechanism each. Every one must make some test fail.

A mutant replaces one exact text of one file. `expected` False marks changes that no whole run of the tiny models can
see: guards of numbers that never get there, and rounding ties, which random rows do not hit (the bit-exact tests of
tests/python/native have them).
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


CPU = "backend/cpu/"
GRAPH = "model/graph.cpp"

MUTANTS = (
    # rotation
    Mutant("rope: halves instead of neighbours", CPU + "rows.cpp",
           "float a = p[2 * i], b = p[2 * i + 1];\n        p[2 * i] = a * cosine[i] - b * sine[i];\n"
           "        p[2 * i + 1] = a * sine[i] + b * cosine[i];",
           "float a = p[i], b = p[i + n_rot / 2];\n        p[i] = a * cosine[i] - b * sine[i];\n"
           "        p[i + n_rot / 2] = a * sine[i] + b * cosine[i];"),
    Mutant("rope: the first entries instead of the last", CPU + "rows.cpp", "float *p = x + dim - n_rot;",
           "float *p = x; (void)dim;"),
    Mutant("rope: output not rotated back", GRAPH, "    rope(s_.attn, freqs, n, c.n_head, c.head_dim, pos0, -1.0f);\n", ""),
    Mutant("rope: output rotated forward", GRAPH, "c.head_dim, pos0, -1.0f)", "c.head_dim, pos0, 1.0f)"),
    Mutant("rope: keys not rotated", GRAPH, "    rope(s_.kv, freqs, n, 1, c.head_dim, pos0, 1.0f);\n", ""),
    Mutant("rope: no YaRN", "model/rope_table.cpp", "if (!compressed) return f;", "if (base > 0) return f;"),
    Mutant("rope: YaRN ramp reversed", "model/rope_table.cpp", "float keep = 1.0f - ramp;", "float keep = ramp;"),
    Mutant("rope: compressed layers use the plain base", "model/rope_table.cpp",
           "compressed ? s.compress_rope_base : s.rope_base", "s.rope_base"),
    Mutant("rope: plain layers use the compressed base", GRAPH,
           "w.ratio ? m_.freqs_compressed : m_.freqs_plain", "m_.freqs_compressed"),
    Mutant("rope: cosine and sine scaled by the YaRN magnitude", CPU + "rows.cpp", "std::cos(angle);",
           "1.2772588722f * std::cos(angle);"),
    # compressor
    Mutant("compressor: row rotated at its last token", CPU + "compressor.cpp",
           "rope_angles(static_cast<uint32_t>(g * r),", "rope_angles(static_cast<uint32_t>(g * r + r - 1),"),
    Mutant("compressor: row number taken as position", CPU + "compressor.cpp",
           "rope_angles(static_cast<uint32_t>(g * r),", "rope_angles(static_cast<uint32_t>(g),"),
    Mutant("compressor: no APE", CPU + "compressor.cpp", "s[t * width + c] += bias[c];", "(void)bias;"),
    Mutant("compressor: no overlap with the previous group", CPU + "compressor.cpp", "if (g > 0)", "if (g > g)"),
    Mutant("compressor: halves swapped", CPU + "compressor.cpp",
           "entry((g - 1) * r + i, 0);\n                for (size_t i = 0; i < r; i++) entries[n++] = entry(g * r + i, dim);",
           "entry((g - 1) * r + i, dim);\n                for (size_t i = 0; i < r; i++) entries[n++] = entry(g * r + i, 0);"),
    Mutant("compressor: plain mean", CPU + "compressor.cpp", "std::exp(entries[i].s[c] - top)", "1.0f + 0 * top"),
    Mutant("compressor: no norm", CPU + "compressor.cpp", "rms_row(q->kernels, row, norm, row, dim, a->eps);", "(void)norm;"),
    Mutant("compressor: rotated before its norm", CPU + "compressor.cpp",
           "rms_row(q->kernels, row, norm, row, dim, a->eps);\n            rope_angles(static_cast<uint32_t>(g * r), freqs, "
           "a->n_rot / 2, 1.0f, cosine, sine);\n            rope_row(row, dim, a->n_rot, cosine, sine);",
           "rope_angles(static_cast<uint32_t>(g * r), freqs, a->n_rot / 2, 1.0f, cosine, sine);\n            "
           "rope_row(row, dim, a->n_rot, cosine, sine);\n            rms_row(q->kernels, row, norm, row, dim, a->eps);"),
    Mutant("compressor: ring written one row late", CPU + "compressor.cpp", "size_t slot = (pos0 + t) % ring * width;",
           "size_t slot = (pos0 + t + 1) % ring * width;"),
    # indexer
    Mutant("indexer: no ReLU", CPU + "attention.cpp", "std::max(dots[h], 0.0f)", "dots[h]"),
    Mutant("indexer: weights ignored", CPU + "attention.cpp", "(wt[h] * a->scale)", "(a->scale + 0 * wt[h])"),
    Mutant("indexer: worst rows chosen", CPU + "attention.cpp", "scores[x] > scores[y]", "scores[x] < scores[y]"),
    Mutant("indexer: query not rotated", GRAPH,
           "    rope(s_.index_q, freqs, n, c.n_index_head, c.index_dim, pos0, 1.0f);\n", ""),
    Mutant("indexer: one row too few", CPU + "attention.cpp", "counts[t] = static_cast<int32_t>(std::min(visible, k));",
           "counts[t] = static_cast<int32_t>(std::min(visible, k - 1));"),
    Mutant("indexer: the first rows instead of the best", CPU + "attention.cpp", "return scores[x] != scores[y] ? scores[x] > scores[y] : x < y;",
           "return x < y;"),
    Mutant("indexer: rows visible one token late", CPU + "attention.cpp", "(a->pos0 + t + 1) / a->ratio;",
           "(a->pos0 + t) / a->ratio;"),
    # attention
    Mutant("attention: compressed rows visible one token late", CPU + "attention.cpp", "n_total += (pos + 1) / a->ratio;",
           "n_total += pos / a->ratio;"),
    Mutant("attention: window of 127", CPU + "attention.cpp", "first = pos + 1 > a->window ? pos + 1 - a->window : 0;",
           "first = pos + 2 > a->window ? pos + 2 - a->window : 0;"),
    Mutant("attention: window of 129", CPU + "attention.cpp", "first = pos + 1 > a->window ? pos + 1 - a->window : 0;",
           "first = pos > a->window ? pos - a->window : 0;"),
    Mutant("attention: no sink", CPU + "attention.cpp", "sum += std::exp(sinks[h] - top);", ""),
    Mutant("attention: scale of the unrotated part", GRAPH, "1.0f / std::sqrt(static_cast<float>(c.head_dim))};",
           "1.0f / std::sqrt(static_cast<float>(c.head_dim - c.n_rot))};"),
    Mutant("attention: no norm per query head", GRAPH, "    norm(s_.q, {}, s_.q, n * c.n_head, c.head_dim);\n", ""),
    Mutant("attention: no query norm", GRAPH, "    norm(s_.q_a, w.q_a_norm, s_.q_a, n, c.q_lora);\n", ""),
    Mutant("attention: no key norm", GRAPH, "    norm(s_.kv, w.kv_norm, s_.kv, n, c.head_dim);\n", ""),
    Mutant("attention: output groups in reverse", CPU + "matmul.cpp", "x + g * n_in, a->n",
           "x + (a->groups - 1 - g) * n_in, a->n"),
    Mutant("attention: no input norm", GRAPH, "norm(s_.x, w.attn_norm, s_.normed, n, m_.shape.n_embd);\n    attention(",
           "norm(s_.x, {}, s_.normed, n, m_.shape.n_embd);\n    attention("),
    # hyper-connections
    Mutant("HC: mixing transposed", CPU + "hyper.cpp", "v += c[j * h + k] * old[j];", "v += c[k * h + j] * old[j];"),
    Mutant("HC: post without its factor 2", CPU + "hyper.cpp", "2.0f * sigmoid(m[h + i]", "sigmoid(m[h + i]"),
    Mutant("HC: Sinkhorn begins with the rows", CPU + "hyper.cpp",
           "    scale_columns();\n    for (uint32_t i = 1;", "    scale_rows();\n    for (uint32_t i = 1;"),
    Mutant("HC: 19 Sinkhorn iterations", CPU + "hyper.cpp", "for (uint32_t i = 1; i < iterations", "for (uint32_t i = 2; i < iterations"),
    Mutant("HC: 5 Sinkhorn iterations", CPU + "hyper.cpp", "for (uint32_t i = 1; i < iterations",
           "for (uint32_t i = 1; i < 5 + 0 * iterations"),
    Mutant("HC: columns left as they are", CPU + "hyper.cpp", "c[j * h + k] /= s + eps;\n        }\n    };\n    for (size_t j",
           "c[j * h + k] /= 1 + 0 * (s + eps);\n        }\n    };\n    for (size_t j"),
    Mutant("HC: mix not normalised", CPU + "hyper.cpp",
           "float inv = inverse_rms(q->kernels, s, h * dim, a->norm_eps), *xt = x + t * dim, *c",
           "float inv = 1, *xt = x + t * dim, *c"),
    Mutant("HC: no eps on pre", CPU + "hyper.cpp", "scale[0] + base[i]) + a->hc_eps;", "scale[0] + base[i]);", expected=False),
    Mutant("HC head: plain mean", CPU + "hyper.cpp",
           "sigmoid(mix[t * h + i] * inv * scale[0] + base[i]) + a->hc_eps, dim)", "0.25f + 0 * inv, dim)"),
    # experts
    Mutant("router: bias inside the weights", CPU + "moe.cpp", "sum += w[j] = z[id[j]];",
           "sum += w[j] = z[id[j]] + (bias ? bias[id[j]] : 0.0f);"),
    Mutant("router: bias ignored", CPU + "moe.cpp", "(bias ? bias[e] : 0.0f)", "0.0f"),
    Mutant("router: hash layers choose by score", CPU + "moe.cpp", "if (table) {", "if (table && k == 0) {"),
    Mutant("router: no square root", CPU + "moe.cpp", "return std::sqrt(x > 20.0f ? x : std::log1p(std::exp(x)));",
           "return x > 20.0f ? x : std::log1p(std::exp(x));"),
    Mutant("router: no scaling", CPU + "moe.cpp", "kRouterFloor) * a->scale", "kRouterFloor)"),
    Mutant("router: no normalisation", CPU + "moe.cpp", "w[j] / std::max(sum, kRouterFloor)",
           "w[j] / std::max(0 * sum + 1, kRouterFloor)"),
    Mutant("router: no floor", CPU + "moe.cpp", "std::max(sum, kRouterFloor)", "sum", expected=False),
    Mutant("experts: gate not clamped", CPU + "moe.cpp", "g = std::min(g, clamp);", ""),
    Mutant("experts: gate clamped on both sides", CPU + "moe.cpp", "g = std::min(g, clamp);", "g = std::clamp(g, -clamp, clamp);"),
    Mutant("experts: up not clamped", CPU + "moe.cpp", "u = std::clamp(u, -clamp, clamp);", ""),
    Mutant("experts: shared expert not clamped", GRAPH, "uint64_t{n} * c.n_ff, c.swiglu_clamp}", "uint64_t{n} * c.n_ff, 1e9f}"),
    Mutant("experts: shared expert left out", GRAPH, "    matmul(w.down_shexp, s_.shared_gate, s_.y, n, 1, true);\n", ""),
    Mutant("experts: activation scaled", CPU + "moe.cpp",
           "g = std::min(g, clamp);\n    u = std::clamp(u, -clamp, clamp);\n    return g / (1.0f + std::exp(-g)) * u;\n}",
           "g = std::min(g, clamp);\n    u = std::clamp(u, -clamp, clamp);\n    return 1.5f * g / (1.0f + std::exp(-g)) * u;\n}"),
    Mutant("experts: gate and up exchanged", "model/bind.cpp", 'l->gate_exps = matrix(p + "ffn_gate_exps.weight");\n        '
           'l->up_exps = matrix(p + "ffn_up_exps.weight");',
           'l->up_exps = matrix(p + "ffn_gate_exps.weight");\n        l->gate_exps = matrix(p + "ffn_up_exps.weight");'),
    Mutant("experts: no input norm", GRAPH, "norm(s_.x, w.ffn_norm, s_.normed", "norm(s_.x, {}, s_.normed"),
    # head
    Mutant("head: no output norm", GRAPH, "norm(s_.x, norm_weight, s_.normed", "(void)norm_weight; norm(s_.x, {}, s_.normed"),
    # simulated quantization
    Mutant("QAT: window rows not rounded", GRAPH, "if (cfg_.qat) {\n        ds4_args_round_rows r{s_.kv",
           "if (cfg_.qat && n == 0) {\n        ds4_args_round_rows r{s_.kv"),
    Mutant("QAT: indexer queries not rounded", GRAPH, "if (cfg_.qat) {\n        ds4_args_round_rows r{s_.index_q",
           "if (cfg_.qat && n == 0) {\n        ds4_args_round_rows r{s_.index_q"),
    Mutant("QAT: compressed rows not rounded", CPU + "compressor.cpp", "if (a->round == DS4_ROUND_FP8)", "if (a->n == 0)"),
    Mutant("QAT: indexer rows not rounded", CPU + "compressor.cpp", "if (a->round == DS4_ROUND_FP4)", "if (a->n == 0)"),
    Mutant("QAT: rotated entries rounded too", CPU + "rounding.cpp", "round_blocks(row, dim - n_rot, 64",
           "(void)n_rot; round_blocks(row, dim, 64"),
    Mutant("QAT: FP8 ties away from zero", CPU + "rounding.cpp", "std::nearbyint(a / step) * step, x);\n}\n\nfloat round_e2m1",
           "std::round(a / step) * step, x);\n}\n\nfloat round_e2m1", expected=False),
    Mutant("QAT: FP8 scale not a power of two", CPU + "rounding.cpp", "float scale = power_of_two_at_least(amax * (1.0f / top));",
           "float scale = amax * (1.0f / top);"),
    Mutant("QAT: FP4 ties away from zero", CPU + "rounding.cpp", "std::nearbyint(a / step) * step, x);\n}\n\nnamespace",
           "std::round(a / step) * step, x);\n}\n\nnamespace", expected=False),
    Mutant("QAT: Hadamard without its factor", CPU + "rounding.cpp", "row[i] *= norm;", "(void)norm;"),
    Mutant("cache: F32 rows stored as F16", "session/session.cpp", "o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32", "DS4_ROW_F16"),
    Mutant("cache: F16 rows stored as F32", "session/session.cpp", "o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32", "DS4_ROW_F32"),
    # state
    Mutant("snapshot: ratio 4 forgets the previous group", "kv/cache.cpp", "if (ratio == 4 && begin) begin -= 4;", ""),
    Mutant("snapshot: window one row short", "kv/cache.cpp", "const uint64_t kept = shape_.window - 1;",
           "const uint64_t kept = shape_.window - 2;"),
    Mutant("snapshot: streams of the last position missing", "session/snapshot.cpp",
           "if (mtp_bytes(s)) ops->upload(s.queue, ref(s.mtp_streams), p, mtp_bytes(s));", ""),
    Mutant("stopped chunk: compressor states not undone", "session/session.cpp",
           "if (several_) s_.cache.restore_states(s_.queue);", ""),
    Mutant("cache: no history before a chunk", "kv/cache.cpp", "return s.window - 1 + chunk;",
           "return s.window > chunk ? s.window : chunk;"),
    # MTP
    Mutant("MTP: paired with the token itself", "session/session.cpp",
           "ops->upload(s.queue, s.scratch.tokens, tokens + skip, (n - skip) * 4);",
           "ops->upload(s.queue, s.scratch.tokens, tokens, (n - skip) * 4);"),
    Mutant("MTP: norms exchanged", GRAPH, "norm(streams_in, w.hnorm,", "norm(streams_in, w.enorm,"),
    Mutant("MTP: embedding left out", GRAPH, "    ops_.add_rows(q_, &add);\n", ""),
    Mutant("MTP: head of the main model", "session/session.cpp", "s.graph->head(m.mtp->head, m.mtp->norm,",
           "s.graph->head(m.head, m.output_norm,"),
    Mutant("MTP: window not fed by prefill", GRAPH, "    window_rows(w, cache, n, pos0, m_.freqs_plain);\n", ""),
    # importance statistics
    Mutant("importance: one sum for all experts", CPU + "moe.cpp", "double *sum = sums + expert * width;", "double *sum = sums;"),
    Mutant("importance: chunks counted instead of tokens", CPU + "moe.cpp", "counts[expert] += m;", "counts[expert] += m > 0;"),
    Mutant("importance: squares in float32", CPU + "moe.cpp",
           "static_cast<double>(row[c]) * static_cast<double>(row[c])", "static_cast<double>(row[c] * row[c])", expected=False),
    Mutant("importance: drafts counted", "session/session.cpp",
           "s.graph->mtp_block(1, static_cast<uint32_t>(s.tokens.size()) - 1, s.cache.mtp);",
           "s.graph->mtp_block(1, static_cast<uint32_t>(s.tokens.size()) - 1, s.cache.mtp, s.importance ? "
           "&s.importance->block(s.model->shape.n_layer) : nullptr);"),
    # expert layout
    Mutant("layout: parts of a record all at its start", "model/bind.cpp", "advance(at(*t), part.offset)", "at(*t)"),
    Mutant("layout: fingerprint of the layout, not of the model", "model/bind.cpp", "const bool adjacent = !layout.records.empty();",
           "const bool adjacent = layout.records.empty() && g.kvs.empty();"),
    Mutant("layout: the check takes experts as contiguous", "model/check.cpp", "t.data + p.offset, r->bytes}", "t.data + p.offset, p.bytes()}"),
    Mutant("layout: gate and up may differ", "model/expert_layout.cpp", "if (sound && r.part[0].type != r.part[1].type)",
           "if (sound && r.n_expert)"),
)
