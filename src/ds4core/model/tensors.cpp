// Names, shapes and allowed types of every tensor, and the comparison of a file with them.
#include "model/tensors.h"

#include <cstring>

#include "base/error.h"
#include "quant/quant.h"

namespace ds4 {

namespace {

void add(std::vector<TensorSpec> &v, std::string name, TensorKind kind, uint64_t a, uint64_t b = 1, uint64_t c = 1,
         bool optional = false) {
    v.push_back({std::move(name), kind, {a, b, c}, optional});
}

void hc_head(std::vector<TensorSpec> &v, const ds4_shape &s, const std::string &p, const char *suffix) {
    uint64_t h = s.n_hc;
    add(v, p + "fn" + suffix, TensorKind::matrix, h * s.n_embd, h);
    add(v, p + "scale" + suffix, TensorKind::vector, 1);
    add(v, p + "base" + suffix, TensorKind::vector, h);
}

void compressor(std::vector<TensorSpec> &v, const ds4_shape &s, const std::string &p, uint32_t ratio, uint64_t dim) {
    uint64_t width = ratio == 4 ? 2 * dim : dim;
    add(v, p + "_ape.weight", TensorKind::matrix, width, ratio);
    add(v, p + "_kv.weight", TensorKind::matrix, s.n_embd, width);
    add(v, p + "_gate.weight", TensorKind::matrix, s.n_embd, width);
    add(v, p + "_norm.weight", TensorKind::vector, dim);
}

}  // namespace

std::vector<TensorSpec> block_tensors(const ds4_shape &s, const std::string &p, uint32_t ratio, bool hashed) {
    std::vector<TensorSpec> v;
    const uint64_t e = s.n_embd, h = s.n_hc, mix = (2 + h) * h, heads = s.n_head, d = s.head_dim;
    for (const char *w : {"attn", "ffn"}) {
        std::string hc = p + "hc_" + w;
        add(v, hc + "_fn.weight", TensorKind::matrix, h * e, mix);
        add(v, hc + "_scale.weight", TensorKind::vector, 3);
        add(v, hc + "_base.weight", TensorKind::vector, mix);
        add(v, p + w + "_norm.weight", TensorKind::vector, e);
    }
    add(v, p + "attn_q_a.weight", TensorKind::matrix, e, s.q_lora);
    add(v, p + "attn_q_a_norm.weight", TensorKind::vector, s.q_lora);
    add(v, p + "attn_q_b.weight", TensorKind::matrix, s.q_lora, heads * d);
    add(v, p + "attn_kv.weight", TensorKind::matrix, e, d);
    add(v, p + "attn_kv_a_norm.weight", TensorKind::vector, d);
    add(v, p + "attn_sinks.weight", TensorKind::vector, heads);
    add(v, p + "attn_output_a.weight", TensorKind::matrix, d * heads / s.o_groups, uint64_t{s.o_groups} * s.o_lora);
    add(v, p + "attn_output_b.weight", TensorKind::matrix, uint64_t{s.o_groups} * s.o_lora, e);
    if (ratio) compressor(v, s, p + "attn_compressor", ratio, d);
    if (ratio == 4) {
        add(v, p + "indexer.attn_q_b.weight", TensorKind::matrix, s.q_lora, uint64_t{s.n_index_head} * s.index_dim);
        add(v, p + "indexer.proj.weight", TensorKind::matrix, e, s.n_index_head);
        compressor(v, s, p + "indexer_compressor", ratio, s.index_dim);
    }
    add(v, p + "ffn_gate_inp.weight", TensorKind::matrix, e, s.n_expert);
    if (hashed)
        add(v, p + "ffn_gate_tid2eid.weight", TensorKind::hash, s.n_expert_used, s.n_vocab);
    // A hash layer may carry a bias that nothing reads.
    add(v, p + "exp_probs_b.bias", TensorKind::vector, s.n_expert, 1, 1, hashed);
    add(v, p + "ffn_gate_exps.weight", TensorKind::expert, e, s.n_ff, s.n_expert);
    add(v, p + "ffn_up_exps.weight", TensorKind::expert, e, s.n_ff, s.n_expert);
    add(v, p + "ffn_down_exps.weight", TensorKind::expert, s.n_ff, e, s.n_expert);
    add(v, p + "ffn_gate_shexp.weight", TensorKind::matrix, e, s.n_ff);
    add(v, p + "ffn_up_shexp.weight", TensorKind::matrix, e, s.n_ff);
    add(v, p + "ffn_down_shexp.weight", TensorKind::matrix, s.n_ff, e);
    return v;
}

std::vector<TensorSpec> root_tensors(const ds4_shape &s) {
    std::vector<TensorSpec> v;
    add(v, "token_embd.weight", TensorKind::matrix, s.n_embd, s.n_vocab);
    add(v, "output.weight", TensorKind::matrix, s.n_embd, s.n_vocab);
    add(v, "output_norm.weight", TensorKind::vector, s.n_embd);
    hc_head(v, s, "output_hc_", ".weight");
    return v;
}

std::vector<TensorSpec> model_tensors(const ds4_shape &s) {
    std::vector<TensorSpec> v = root_tensors(s);
    for (uint32_t i = 0; i < s.n_layer; i++) {
        auto b = block_tensors(s, "blk." + std::to_string(i) + ".", s.compress_ratio[i], i < s.n_hash_layer);
        v.insert(v.end(), b.begin(), b.end());
    }
    return v;
}

std::vector<TensorSpec> mtp_tensors_ds4(const ds4_shape &s) {
    std::vector<TensorSpec> v = block_tensors(s, "mtp.0.", 0, false);
    add(v, "mtp.0.e_proj.weight", TensorKind::matrix, s.n_embd, s.n_embd);
    add(v, "mtp.0.h_proj.weight", TensorKind::matrix, s.n_embd, s.n_embd);
    for (const char *n : {"enorm", "hnorm", "norm"})
        add(v, std::string("mtp.0.") + n + ".weight", TensorKind::vector, s.n_embd);
    hc_head(v, s, "mtp.0.hc_head_", ".weight");
    return v;
}

std::vector<TensorSpec> mtp_tensors_llama(const ds4_shape &s) {
    std::string p = "blk." + std::to_string(s.n_layer) + ".";
    std::vector<TensorSpec> v = block_tensors(s, p, 0, false);
    add(v, p + "nextn.eh_proj.weight", TensorKind::matrix, 2 * uint64_t{s.n_embd}, s.n_embd);
    for (const char *n : {"enorm", "hnorm", "shared_head_norm"})
        add(v, p + "nextn." + n + ".weight", TensorKind::vector, s.n_embd);
    hc_head(v, s, "output_hc_", ".weight");
    return v;
}

namespace {

std::string dims(const uint64_t *ne, size_t n) {
    while (n > 1 && ne[n - 1] == 1) n--;  // trailing ones may be written or omitted
    std::string out = "[";
    for (size_t i = 0; i < n; i++) out += (i ? ", " : "") + std::to_string(ne[i]);
    return out + "]";
}

std::string type_text(uint32_t type) {
    const TypeInfo *t = type_info(type);
    return t ? t->name : "type " + std::to_string(type);
}

constexpr uint32_t kTypeI8 = 24;

bool type_allowed(TensorKind kind, uint32_t type) {
    switch (kind) {
        case TensorKind::vector: return type == DS4_TYPE_F32;
        case TensorKind::hash: return type == DS4_TYPE_I32;
        case TensorKind::record: return type == kTypeI8;
        default: {
            const TypeInfo *t = type_info(type);
            return t && t->computable;
        }
    }
}

// Every entry of a hash table is used as an index: none may point outside the experts.
void check_hash(const ds4_gguf_tensor &t, const TensorSpec &spec, uint64_t n_expert, Findings &out) {
    for (uint64_t i = 0; i < t.ne[0] * t.ne[1]; i++) {
        int32_t id;
        memcpy(&id, t.data + 4 * i, 4);
        if (id >= 0 && static_cast<uint64_t>(id) < n_expert) continue;
        out.add("tensor " + spec.name + ": entry " + std::to_string(i % t.ne[0]) + " of token " +
                std::to_string(i / t.ne[0]) + " is expert " + std::to_string(id) + ", outside 0.." +
                std::to_string(n_expert - 1));
        return;  // one damaged table is one finding
    }
}

}  // namespace

const char *wanted_types(TensorKind kind) {
    switch (kind) {
        case TensorKind::vector: return "F32";
        case TensorKind::hash: return "I32";
        case TensorKind::record: return "I8";
        default: return "F32, F16, BF16, Q8_0, Q2_K, Q4_K, IQ2_XXS or MXFP4";
    }
}

void check_tensors(const ds4_gguf &g, const std::vector<TensorSpec> &specs, Findings &out) {
    uint64_t n_expert = 0;
    for (const TensorSpec &s : specs) {
        if (s.kind == TensorKind::expert) n_expert = s.ne[2];
        if (s.kind == TensorKind::record) n_expert = s.ne[1];
    }
    const ds4_gguf_tensor *gate = nullptr;
    for (const TensorSpec &s : specs) {
        const ds4_gguf_tensor *t = g.find_tensor(s.name);
        if (!t) {
            if (!s.optional) out.add("tensor " + s.name + " is missing, wanted " + dims(s.ne, 3));
            if (s.kind == TensorKind::expert) gate = nullptr;  // nothing to compare the up projection with
            continue;
        }
        bool shape_ok = t->ne[0] == s.ne[0] && t->ne[1] == s.ne[1] && t->ne[2] == s.ne[2] && t->ne[3] == 1;
        if (!shape_ok) out.add("tensor " + s.name + " has shape " + dims(t->ne, 4) + ", wanted " + dims(s.ne, 3));
        bool type_ok = type_allowed(s.kind, t->type);
        if (!type_ok) out.add("tensor " + s.name + " is " + type_text(t->type) + ", wanted " + wanted_types(s.kind));
        if (s.kind == TensorKind::hash && shape_ok && type_ok) check_hash(*t, s, n_expert, out);
        if (s.kind == TensorKind::expert) {
            if (s.name.find("ffn_gate_exps") != std::string::npos) gate = t;
            if (s.name.find("ffn_up_exps") != std::string::npos && gate && gate->type != t->type)
                out.add("tensor " + s.name + " is " + type_text(t->type) + " and its gate is " +
                        type_text(gate->type) + ": they must share a type");
        }
    }
}

}  // namespace ds4
