// Comparing a file's metadata with the registered shapes, whole: every difference is reported, not the first.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "model/shape.h"

namespace ds4 {

namespace {

// "0-2,5" for {0, 1, 2, 5}.
std::string ranges(const std::vector<unsigned long> &sorted) {
    std::string out;
    for (size_t i = 0, j; i < sorted.size(); i = j) {
        for (j = i + 1; j < sorted.size() && sorted[j] == sorted[j - 1] + 1;) j++;
        if (!out.empty()) out += ',';
        out += std::to_string(sorted[i]);
        if (j - i > 1) out += '-' + std::to_string(sorted[j - 1]);
    }
    return out;
}

struct Joined {
    std::string before, after;  // the text around the layer number, or the whole line in `before`
    std::vector<unsigned long> layers;
};

}  // namespace

std::string Findings::text(size_t limit) const {
    const std::string mark = "tensor blk.";
    std::vector<Joined> joined;
    std::map<std::string, size_t> place;
    for (const std::string &line : lines_) {
        Joined j{line, "", {}};
        if (line.compare(0, mark.size(), mark) == 0) {
            char *end = nullptr;
            const unsigned long layer = strtoul(line.c_str() + mark.size(), &end, 10);
            j = {mark, std::string(end), {layer}};
        }
        auto [at, fresh] = place.emplace(j.before + '*' + j.after, joined.size());
        if (fresh)
            joined.push_back(std::move(j));
        else if (!j.layers.empty())
            joined[at->second].layers.push_back(j.layers[0]);
    }
    std::string all;
    for (size_t i = 0; i < joined.size(); i++) {
        const Joined &j = joined[i];
        const std::string layers = ranges(j.layers);
        const std::string line = j.before + (j.layers.size() > 1 ? '{' + layers + '}' : layers) + j.after;
        if (all.size() + line.size() > limit) return all + "\n... and " + std::to_string(joined.size() - i) + " more";
        all += (all.empty() ? "" : "\n") + line;
    }
    return all;
}

namespace {

std::string number(double v) {
    char buf[40];
    snprintf(buf, sizeof(buf), "%.9g", v);
    return buf;
}

// One scalar of the metadata and where it lives in a shape.
struct Field {
    const char *key;
    double (*get)(const ds4_shape &);
    bool optional;
    bool exact;  // counts are equal or not; floats may carry the rounding of their writer
};

#define FIELD(key, member, optional) \
    {key, [](const ds4_shape &s) { return static_cast<double>(s.member); }, optional, \
     std::is_integral_v<decltype(ds4_shape::member)>}
// The same in every member of the family.
#define FIXED(key, value, optional) {key, [](const ds4_shape &) -> double { return value; }, optional, true}

const Field fields[] = {
    FIELD("embedding_length", n_embd, false),
    FIELD("attention.head_count", n_head, false),
    FIXED("attention.head_count_kv", 1, false),
    FIELD("attention.key_length", head_dim, false),
    FIELD("attention.value_length", head_dim, false),
    FIELD("rope.dimension_count", n_rot, false),
    FIELD("attention.q_lora_rank", q_lora, false),
    FIELD("attention.output_lora_rank", o_lora, false),
    FIELD("attention.output_group_count", o_groups, false),
    FIELD("expert_count", n_expert, false),
    FIELD("expert_used_count", n_expert_used, false),
    FIELD("expert_shared_count", n_expert_shared, false),
    FIELD("expert_feed_forward_length", n_ff, false),
    FIELD("hash_layer_count", n_hash_layer, false),
    FIELD("attention.sliding_window", window, false),
    FIELD("attention.indexer.head_count", n_index_head, false),
    FIELD("attention.indexer.key_length", index_dim, false),
    FIELD("attention.indexer.top_k", index_top_k, false),
    FIELD("hyper_connection.count", n_hc, false),
    FIELD("hyper_connection.sinkhorn_iterations", sinkhorn_iterations, false),
    FIELD("expert_weights_scale", expert_scale, false),
    FIELD("attention.layer_norm_rms_epsilon", norm_eps, false),
    FIELD("hyper_connection.epsilon", hc_eps, false),
    FIELD("rope.freq_base", rope_base, false),
    FIELD("attention.compress_rope_freq_base", compress_rope_base, false),
    FIELD("rope.scaling.factor", yarn_factor, true),
    FIELD("rope.scaling.original_context_length", yarn_original_ctx, true),
    FIELD("rope.scaling.yarn_beta_fast", yarn_beta_fast, true),
    FIELD("rope.scaling.yarn_beta_slow", yarn_beta_slow, true),
    FIXED("expert_group_count", 0, true),
    FIXED("expert_group_used_count", 0, true),
    FIXED("expert_gating_func", 4, true),  // 4 = sqrt(softplus) in llama.cpp's numbering
};

const std::string prefix = "deepseek4.";

// Writers store the same number as u32, u64, f32 or f64: equal within a float32's precision.
bool same(double a, double b, bool exact) {
    if (exact || !std::isfinite(a) || !std::isfinite(b)) return a == b;
    return std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b));
}

void compare_field(const ds4_gguf &g, const Field &f, const ds4_shape &s, Findings &out) {
    std::string key = prefix + f.key;
    double want = f.get(s), found;
    if (!g.find_kv(key)) {
        if (!f.optional) out.add("metadata " + key + " is missing (" + s.name + " has " + number(want) + ")");
    } else if (!g.kv_f64(key, &found)) {
        out.add("metadata " + key + " is not a number (" + s.name + " has " + number(want) + ")");
    } else if (!same(found, want, f.exact)) {
        out.add("metadata " + key + " is " + number(found) + ", " + s.name + " has " + number(want));
    }
}

// Per-layer arrays: at least one value a layer; what follows (MTP layers) is not ours to judge.
template <class Want>
void compare_array(const ds4_gguf &g, const char *name, const ds4_shape &s, bool optional, Want want, Findings &out) {
    std::string key = prefix + name;
    std::vector<double> v;
    if (!g.find_kv(key)) {
        if (!optional) out.add("metadata " + key + " is missing (an array of " + number(s.n_layer) + " values)");
        return;
    }
    if (!g.kv_f64_array(key, &v)) {
        double one;  // a scalar stands for "the same in every layer"
        if (!g.kv_f64(key, &one)) {
            out.add("metadata " + key + " is not an array of numbers");
            return;
        }
        v.assign(s.n_layer, one);
    }
    if (v.size() < s.n_layer) {
        out.add("metadata " + key + " has " + number(static_cast<double>(v.size())) + " values, " + s.name + " has " +
                number(s.n_layer) + " layers");
        return;
    }
    for (uint32_t i = 0; i < s.n_layer; i++)
        if (!same(v[i], want(i), false))
            out.add("metadata " + key + "[" + number(i) + "] is " + number(v[i]) + ", " + s.name + " has " +
                    number(want(i)));
}

Findings compare(const ds4_gguf &g, const ds4_shape &s, uint32_t n_nextn) {
    Findings out;
    std::string key = prefix + "block_count";
    uint64_t blocks = 0;
    if (!g.kv_u64(key, &blocks))
        out.add("metadata " + key + " is missing or not a count (" + s.name + " has " + number(s.n_layer) + ")");
    else if (blocks != s.n_layer + n_nextn)
        out.add("metadata " + key + " is " + number(static_cast<double>(blocks)) + ", " + s.name + " has " +
                number(s.n_layer) + (n_nextn ? " plus the MTP layers" : ""));
    // vocab_size may be absent: then the embedding's rows count, which the tensor check compares.
    compare_field(g, FIELD("vocab_size", n_vocab, true), s, out);
    for (const Field &f : fields) compare_field(g, f, s, out);
    compare_array(g, "attention.compress_ratios", s, false,
                  [&](uint32_t i) { return static_cast<double>(s.compress_ratio[i]); }, out);
    auto clamp = [&](uint32_t) { return static_cast<double>(s.swiglu_clamp); };
    compare_array(g, "swiglu_clamp_exp", s, false, clamp, out);
    compare_array(g, "swiglu_clamp_shexp", s, true, clamp, out);
    std::string norm_key = prefix + "expert_weights_norm";
    bool norm = true;
    if (g.find_kv(norm_key) && (!g.kv_bool(norm_key, &norm) || !norm))
        out.add("metadata " + norm_key + " is not true");
    std::string_view scaling;
    std::string scaling_key = prefix + "rope.scaling.type";
    if (g.kv_string(scaling_key, &scaling) && scaling != "yarn")
        out.add("metadata " + scaling_key + " is '" + escape_name(scaling) + "', ds4 knows yarn");
    return out;
}

}  // namespace

ds4_status check_architecture(const ds4_gguf &g, ds4_error *err) {
    std::string_view arch;
    if (!g.kv_string("general.architecture", &arch)) {
        std::string_view type;
        if (g.kv_string("general.type", &type))
            return fail(err, DS4_E_UNSUPPORTED, "this is a GGUF of type '%s', not a model", escape_name(type).c_str());
        return fail(err, DS4_E_UNSUPPORTED, "metadata general.architecture is missing: not a model file");
    }
    if (arch == "deepseek4") return DS4_OK;
    const char *hint = "ds4 runs DeepSeek V4 Flash and Pro (architecture deepseek4) and no other family";
    if (arch.substr(0, 11) == "deepseek4.1" || arch.substr(0, 11) == "deepseek_v4" || arch == "deepseek41" ||
        arch == "deepseek4-1" || arch == "deepseek_v41")
        hint = "V4.1 is a different architecture (Engram tables, shared compressors); ds4 runs V4 Flash and Pro";
    else if (arch == "deepseek4-dspark" || arch == "dflash")
        hint = "this is a DSpark draft module, not a main model; this version of ds4 does not run it";
    else if (arch.substr(0, 8) == "deepseek")
        hint = "an earlier DeepSeek family; ds4 runs V4 Flash and Pro (architecture deepseek4)";
    return fail(err, DS4_E_UNSUPPORTED, "architecture '%s' is not supported: %s", escape_name(arch).c_str(), hint);
}

ds4_status read_shape(const ds4_gguf &g, FileShape *out, ds4_error *err) {
    ds4_status st = check_architecture(g, err);
    if (st != DS4_OK) return st;
    uint64_t nextn = 0;
    if (g.kv_u64(prefix + "nextn_predict_layers", &nextn) && nextn > 1)
        return fail(err, DS4_E_UNSUPPORTED, "metadata deepseek4.nextn_predict_layers is %llu; ds4 knows 0 and 1",
                    static_cast<unsigned long long>(nextn));
    // llama.cpp counts the MTP layer in block_count only in its MTP files; tell them by the tensors they carry.
    uint64_t blocks = 0;
    g.kv_u64(prefix + "block_count", &blocks);
    const std::string last = "blk." + std::to_string(blocks ? blocks - 1 : 0) + ".nextn.enorm.weight";
    const uint32_t n_nextn = nextn && g.find_tensor(last) ? 1 : 0;
    bool first = true;
    for (const ds4_shape &s : known_shapes()) {
        Findings f = compare(g, s, n_nextn);
        if (first || f.size() < out->problems.size()) {
            out->shape = s;
            out->problems = std::move(f);
            first = false;
        }
    }
    return DS4_OK;
}

}  // namespace ds4
