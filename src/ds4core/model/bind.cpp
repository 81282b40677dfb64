// Opening a model: check the whole file against the registry, then bind every tensor without copying it.
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "model/device_memory.h"
#include "model/model.h"
#include "model/rope_table.h"
#include "model/tensors.h"
#include "quant/quant.h"

ds4_model::~ds4_model() {
    if (ops)
        for (ds4_buffer *b : buffers) ops->buffer_free(b);
    if (device) ops->device_close(device);
}

namespace ds4 {

namespace {

constexpr const char *kWeightsAdvice =
    "stream the experts (expert_cache), take a file with smaller weights, close other models, or use the cpu";

int report(void *ud, uint64_t done, uint64_t total) {
    const auto *o = static_cast<const ds4_model_options *>(ud);
    const ds4_progress p{done, total};
    return o->pulse(o->ud, &p);
}

// Binds the tensors of one file. Everything it looks up was checked before, so a miss is a bug of ours.
class Binder {
public:
    Binder(ds4_model &m, const ds4_gguf &g, const ExpertLayout &layout, const ds4_model_options &o)
        : m_(m), g_(g), layout_(layout), options_(o) {}
    ~Binder() {
        if (uploads_) m_.ops->queue_destroy(uploads_);
    }
    Binder(const Binder &) = delete;

    ds4_status import(ds4_error *err) {
        const uint8_t *data = g_.file.data();
        uint64_t bytes = g_.info.file_bytes;
        if (m_.stream) {
            resident_ = &m_.stream->resident(g_);
            data = resident_->data();
            bytes = resident_->mapped_bytes();
        }
        ds4_status st = check_room(m_, "the weights", bytes, kWeightsAdvice, err);
        if (st != DS4_OK) return st;
        st = m_.ops->buffer_import_host(m_.device, data, bytes, m_.stream != nullptr, options_.pulse ? report : nullptr,
                                        const_cast<ds4_model_options *>(&options_), keep(), err);
        file_buffer_ = m_.buffers.back();
        if (st == DS4_OK && m_.stream) m_.resident.emplace_back(file_buffer_, bytes);
        return st == DS4_OK ? m_.ops->queue_create(m_.device, 1, nullptr, &uploads_, err) : st;
    }

    ds4_ref vector(const std::string &name) const {
        const ds4_gguf_tensor *t = g_.find_tensor(name);
        return t ? at(*t) : ds4_ref{};
    }

    ds4_weight matrix(const std::string &name) const {
        const ds4_gguf_tensor *t = g_.find_tensor(name);
        if (!t) return {};
        ds4_weight w{};
        w.data = at(*t);
        w.type = t->type;
        w.n_in = static_cast<uint32_t>(t->ne[0]);
        w.n_out = static_cast<uint32_t>(t->ne[1]);
        w.n_matrices = static_cast<uint32_t>(t->ne[2]);
        row_bytes(t->type, t->ne[0], &w.row_stride);
        w.matrix_stride = w.row_stride * w.n_out;
        return w;
    }

    // Columns [first, first + n) of a matrix, in whole blocks.
    ds4_weight columns(ds4_weight w, uint32_t first, uint32_t n) const {
        uint64_t skip = 0;
        row_bytes(w.type, first, &skip);
        w.data.offset += skip;
        w.n_in = n;
        return w;
    }

    // Small tables that may be F16 in the file are decoded once.
    ds4_status decoded(const std::string &name, ds4_ref *out, ds4_error *err) {
        const ds4_gguf_tensor *t = g_.find_tensor(name);
        if (!t) return DS4_OK;
        std::vector<float> v(t->ne[0] * t->ne[1]);
        dequantize_row(t->type, t->data, v.data(), v.size());
        return owned(v, out, err);
    }

    ds4_status owned(const std::vector<float> &v, ds4_ref *out, ds4_error *err) {
        ds4_buffer **slot = keep();
        ds4_status st = m_.ops->buffer_alloc(m_.device, v.size() * 4, slot, err);
        if (st != DS4_OK) return st;
        *out = ref(*slot);
        m_.ops->upload(uploads_, *out, v.data(), v.size() * 4);
        return m_.ops->queue_wait(uploads_, err);
    }

    HyperWeights hyper(const std::string &p) const {
        return {matrix(p + "fn.weight"), vector(p + "scale.weight"), vector(p + "base.weight")};
    }

    ds4_status compressor(const std::string &p, CompressorWeights *c, ds4_error *err) {
        c->kv = matrix(p + "_kv.weight");
        c->gate = matrix(p + "_gate.weight");
        c->norm = vector(p + "_norm.weight");
        return decoded(p + "_ape.weight", &c->ape, err);
    }

    // hashed, ratio: decide which tensors were checked. One that does not belong here must stay unbound. name: in messages.
    ds4_status layer(const std::string &p, const std::string &name, uint32_t ratio, bool hashed, LayerWeights *l,
                     ds4_error *err) {
        l->ratio = ratio;
        l->hc_attn = hyper(p + "hc_attn_");
        l->hc_ffn = hyper(p + "hc_ffn_");
        l->attn_norm = vector(p + "attn_norm.weight");
        l->ffn_norm = vector(p + "ffn_norm.weight");
        l->q_a_norm = vector(p + "attn_q_a_norm.weight");
        l->kv_norm = vector(p + "attn_kv_a_norm.weight");
        l->sinks = vector(p + "attn_sinks.weight");
        l->q_a = matrix(p + "attn_q_a.weight");
        l->q_b = matrix(p + "attn_q_b.weight");
        l->kv = matrix(p + "attn_kv.weight");
        l->out_a = matrix(p + "attn_output_a.weight");
        l->out_b = matrix(p + "attn_output_b.weight");
        l->router = matrix(p + "ffn_gate_inp.weight");
        if (hashed)
            l->hash_table = vector(p + "ffn_gate_tid2eid.weight");
        else
            l->router_bias = vector(p + "exp_probs_b.bias");
        experts(p, l);
        if (m_.stream) {
            l->stream = m_.stream->add_layer(g_, layout_, p, name);
            const ds4_gguf_tensor *host = g_.find_tensor(p + (hashed ? "ffn_gate_tid2eid.weight" : "exp_probs_b.bias"));
            const uint8_t *const values = host ? resident_->find(*host) : nullptr;
            if (hashed)
                l->hash_ids = reinterpret_cast<const int32_t *>(values);
            else
                l->bias = reinterpret_cast<const float *>(values);
        }
        l->gate_shexp = matrix(p + "ffn_gate_shexp.weight");
        l->up_shexp = matrix(p + "ffn_up_shexp.weight");
        l->down_shexp = matrix(p + "ffn_down_shexp.weight");
        ds4_status st = DS4_OK;
        if (ratio) st = compressor(p + "attn_compressor", &l->compressor, err);
        if (st != DS4_OK || ratio != 4) return st;
        l->index_q = matrix(p + "indexer.attn_q_b.weight");
        l->index_weights = matrix(p + "indexer.proj.weight");
        return compressor(p + "indexer_compressor", &l->index_compressor, err);
    }

private:
    void experts(const std::string &p, LayerWeights *l) const {
        ds4_weight *const weights[kExpertParts] = {&l->gate_exps, &l->up_exps, &l->down_exps};
        const ExpertRecord *r = layout_.find(p);
        const ds4_gguf_tensor *t = r ? g_.find_tensor(record_name(p)) : nullptr;
        for (int i = 0; i < kExpertParts; i++) {
            if (!t) {
                *weights[i] = matrix(p + "ffn_" + expert_part_name(i) + "_exps.weight");
                continue;
            }
            const ExpertPart &part = r->part[i];
            *weights[i] = {advance(at(*t), part.offset), part.row_stride, part.type, part.n_in, part.n_out, r->n_expert,
                           r->bytes};
        }
    }

    // Streamed experts have no place here: they get the slab's when the cache stands.
    ds4_ref at(const ds4_gguf_tensor &t) const {
        if (!resident_) return ref(file_buffer_, t.offset);
        const uint8_t *place = resident_->find(t);
        return place ? ref(file_buffer_, static_cast<uint64_t>(place - resident_->data())) : ds4_ref{};
    }
    ds4_buffer **keep() {
        m_.buffers.push_back(nullptr);
        return &m_.buffers.back();
    }

    ds4_model &m_;
    const ds4_gguf &g_;
    const ExpertLayout &layout_;
    const ds4_model_options &options_;
    const ResidentWeights *resident_ = nullptr;
    ds4_buffer *file_buffer_ = nullptr;
    ds4_queue *uploads_ = nullptr;  // for the small tables
};

enum class MtpNames { none, ds4, llama };

MtpNames mtp_names(const ds4_gguf &g, const ds4_shape &s) {
    // Any tensor of the block counts: an incomplete one is then reported tensor by tensor.
    const std::string llama = "blk." + std::to_string(s.n_layer) + ".";
    for (const ds4_gguf_tensor &t : g.tensors) {
        if (name_of(t).substr(0, 6) == "mtp.0.") return MtpNames::ds4;
        if (name_of(t).substr(0, llama.size()) == llama) return MtpNames::llama;
    }
    return MtpNames::none;
}

std::vector<TensorSpec> mtp_specs(MtpNames names, const ds4_shape &s) {
    if (names == MtpNames::none) return {};
    return names == MtpNames::ds4 ? mtp_tensors_ds4(s) : mtp_tensors_llama(s);
}

// The main model and, when the file carries it, the MTP block.
std::vector<TensorSpec> wanted_tensors(const ds4_gguf &g, const ds4_shape &s) {
    std::vector<TensorSpec> specs = model_tensors(s);
    for (TensorSpec &t : mtp_specs(mtp_names(g, s), s))  // llama.cpp's block uses the root's HC head: listed already
        if (t.name.substr(0, 10) != "output_hc_") specs.push_back(std::move(t));
    return specs;
}

ds4_status bind_mtp(ds4_model &m, Binder &b, MtpNames names, ds4_error *err) {
    auto w = std::make_unique<MtpWeights>();
    std::string p = names == MtpNames::ds4 ? "mtp.0." : "blk." + std::to_string(m.shape.n_layer) + ".";
    ds4_status st = b.layer(p, "the MTP block", 0, false, &w->block, err);
    if (st != DS4_OK) return st;
    if (names == MtpNames::ds4) {
        w->e_proj = b.matrix(p + "e_proj.weight");
        w->h_proj = b.matrix(p + "h_proj.weight");
        w->enorm = b.vector(p + "enorm.weight");
        w->hnorm = b.vector(p + "hnorm.weight");
        w->norm = b.vector(p + "norm.weight");
        w->head = b.hyper(p + "hc_head_");
    } else {
        ds4_weight both = b.matrix(p + "nextn.eh_proj.weight");
        w->e_proj = b.columns(both, 0, m.shape.n_embd);
        w->h_proj = b.columns(both, m.shape.n_embd, m.shape.n_embd);
        w->enorm = b.vector(p + "nextn.enorm.weight");
        w->hnorm = b.vector(p + "nextn.hnorm.weight");
        w->norm = b.vector(p + "nextn.shared_head_norm.weight");
        w->head = b.hyper("output_hc_");
    }
    m.mtp = std::move(w);
    return DS4_OK;
}

// Vocabulary arrays against the embedding: an id that has no text, or a text that has no row, is refused.
void check_vocabulary(const ds4_gguf &g, const ds4_shape &s, Findings &out) {
    const ds4_gguf_kv *tokens = g.find_kv("tokenizer.ggml.tokens");
    if (!tokens) return;  // a model without a tokenizer still computes; the tokenizer says what is missing
    auto count = [](const ds4_gguf_kv *kv) { return kv->type == DS4_KV_ARRAY ? kv->count : 0; };
    if (count(tokens) != s.n_vocab)
        out.add("metadata tokenizer.ggml.tokens has " + std::to_string(count(tokens)) + " entries, the vocabulary has " +
                std::to_string(s.n_vocab));
    for (const char *key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"}) {
        const ds4_gguf_kv *kv = g.find_kv(key);
        if (kv && count(kv) != count(tokens))
            out.add(std::string("metadata ") + key + " has " + std::to_string(count(kv)) +
                    " entries, tokenizer.ggml.tokens has " + std::to_string(count(tokens)));
    }
    for (const char *key : {"bos", "eos", "padding", "unknown", "eot"}) {
        std::string name = std::string("tokenizer.ggml.") + key + "_token_id";
        double id;
        const bool number = g.kv_f64(name, &id);
        if (number && (id == -1 || id == 4294967295.0)) continue;  // writers' way of saying "none"
        if (g.find_kv(name) && (!number || id < 0 || id >= s.n_vocab))
            out.add("metadata " + name + " is not an id below " + std::to_string(s.n_vocab));
    }
}

std::string extra_tensors(const ds4_gguf &g, const std::vector<TensorSpec> &specs) {
    std::set<std::string_view> known;
    for (const TensorSpec &s : specs) known.insert(s.name);
    std::string text;
    size_t n = 0;
    for (const ds4_gguf_tensor &t : g.tensors) {
        std::string_view name(t.name, t.name_len);
        if (known.count(name)) continue;
        if (n++ < 8) text += (text.empty() ? "" : ", ") + escape_name(name);
    }
    if (!n) return "";
    return std::to_string(n) + " tensor(s) that the model does not use: " + text + (n > 8 ? ", ..." : "");
}

// Leaves room in a ds4_error for the sentence before the list.
constexpr size_t kReportBytes = 30000;

ds4_status refuse(const char *path, const ds4_shape &s, const Findings &f, ds4_error *err) {
    return fail(err, DS4_E_UNSUPPORTED, "%s is not a model that ds4 can run: %zu difference(s) from the nearest shape '%s'\n%s",
                escape_name(path, 1024).c_str(), f.size(), s.name, f.text(kReportBytes).c_str());
}

// Metadata, directory and the first bytes of every tensor, all as the standard layout has them: tells files apart
// without reading gigabytes, and gives one value for both layouts, because they compute the same bits.
void fingerprint(const ds4_model &m, uint8_t out[16]) {
    uint64_t h[2] = {kHashSeed, ~kHashSeed};
    auto hash_file = [&h](const ds4_gguf &g, const ExpertLayout &layout) {
        const bool adjacent = !layout.records.empty();
        const uint32_t alignment = static_cast<uint32_t>(layout.standard_alignment);
        for (const ds4_gguf_kv &kv : g.kvs) {
            const bool is_alignment = adjacent && key_of(kv) == "general.alignment";
            if (adjacent && (is_layout_key(key_of(kv)) || (is_alignment && !alignment))) continue;
            const void *data = is_alignment ? static_cast<const void *>(&alignment) : kv.data;
            for (uint64_t &x : h) x = hash_bytes(data, kv.n_bytes, hash_bytes(kv.key, kv.key_len, x));
        }
        for (const DirectoryEntry &t : standard_directory(g, layout))
            for (uint64_t &x : h) {
                x = hash_bytes(t.name.data(), t.name.size(), x);
                x = hash_bytes(&t.type, sizeof(t.type), hash_bytes(t.ne, sizeof(t.ne), x));
                x = hash_bytes(t.data, t.n_bytes < 64 ? t.n_bytes : 64, x);
            }
    };
    hash_file(*m.file, m.layout);
    if (m.mtp_file) hash_file(*m.mtp_file, m.mtp_layout);
    memcpy(out, h, 16);
}

// Lets the reads begin: from here on the experts are the slab's.
ds4_status start_stream(ds4_model &m, const ds4_model_options &o, ds4_error *err) {
    ds4_status st = m.stream->start(o, err);
    if (st != DS4_OK) return st;
    stream::ExpertCache &cache = m.stream->cache();
    m.buffers.push_back(nullptr);
    st = check_room(m, "the expert cache", cache.slab_bytes(), "use a smaller one (expert_cache)", err);
    if (st != DS4_OK) return st;
    st = m.ops->buffer_import_host(m.device, cache.slab(), cache.slab_bytes(), 1, nullptr, nullptr, &m.buffers.back(), err);
    if (st != DS4_OK) return st;
    ds4_device_info info{};
    m.ops->device_info(m.device, &info);
    if (!info.unified) {
        m.mirror = std::make_unique<SlotMirror>(cache.n_slots(), cache.slot_bytes());
        ds4_queue *uploads = nullptr;
        st = m.ops->queue_create(m.device, 1, nullptr, &uploads, err);
        if (st != DS4_OK) return st;
        for (const auto &[buffer, bytes] : m.resident) m.ops->refresh(uploads, ref(buffer), bytes);
        st = m.ops->queue_wait(uploads, err);
        m.ops->queue_destroy(uploads);
        if (st != DS4_OK) return st;
    }
    const ds4_ref slab = ref(m.buffers.back());
    auto place = [&](LayerWeights &l) { l.gate_exps.data = l.up_exps.data = l.down_exps.data = slab; };
    for (LayerWeights &l : m.layers) place(l);
    if (m.mtp) place(m.mtp->block);
    return DS4_OK;
}

ds4_status open_mtp(ds4_model &m, const ds4_model_options &o, ds4_error *err) {
    const char *path = o.mtp_path;
    m.mtp_file = std::make_unique<ds4_gguf>();
    ds4_status st = read_gguf(path, m.mtp_file.get(), err);
    if (st != DS4_OK) return st;
    st = check_architecture(*m.mtp_file, err);
    if (st != DS4_OK) return st;
    MtpNames names = mtp_names(*m.mtp_file, m.shape);
    if (names == MtpNames::none)
        return fail(err, DS4_E_UNSUPPORTED, "%s holds no MTP block: no tensor is named mtp.0.* or blk.%u.*",
                    escape_name(path, 1024).c_str(), m.shape.n_layer);
    Findings f;
    std::vector<TensorSpec> specs = mtp_specs(names, m.shape);
    m.mtp_layout = read_expert_layout(*m.mtp_file, &specs, f);
    check_tensors(*m.mtp_file, specs, f);
    if (!f.empty()) return refuse(path, m.shape, f, err);
    if (m.stream) st = m.stream->add_file(path, *m.mtp_file, !o.read_cached, err);
    if (st != DS4_OK) return st;
    Binder b(m, *m.mtp_file, m.mtp_layout, o);
    st = b.import(err);
    if (st != DS4_OK) return st;
    return bind_mtp(m, b, names, err);
}

ds4_status bind_main(ds4_model &m, const ds4_model_options &o, ds4_error *err) {
    Binder b(m, *m.file, m.layout, o);
    ds4_status st = b.import(err);
    if (st != DS4_OK) return st;
    m.token_embd = b.matrix("token_embd.weight");
    m.output = b.matrix("output.weight");
    m.output_norm = b.vector("output_norm.weight");
    m.head = b.hyper("output_hc_");
    m.layers.resize(m.shape.n_layer);
    for (uint32_t i = 0; i < m.shape.n_layer; i++) {
        const std::string number = std::to_string(i);
        st = b.layer("blk." + number + ".", "layer " + number, m.shape.compress_ratio[i], i < m.shape.n_hash_layer,
                     &m.layers[i], err);
        if (st != DS4_OK) return st;
    }
    st = b.owned(rope_frequencies(m.shape, false), &m.freqs_plain, err);
    if (st == DS4_OK) st = b.owned(rope_frequencies(m.shape, true), &m.freqs_compressed, err);
    MtpNames names = mtp_names(*m.file, m.shape);
    if (st == DS4_OK && names != MtpNames::none) st = bind_mtp(m, b, names, err);
    return st;
}

// What a file is to hold, and how it differs.
struct Examined {
    ds4_shape shape{};
    std::vector<TensorSpec> specs;
    ExpertLayout layout;
    Findings problems;
};

ds4_status examine(const ds4_gguf &g, Examined *out, ds4_error *err) {
    FileShape fs;
    ds4_status st = read_shape(g, &fs, err);
    if (st != DS4_OK) return st;
    out->shape = fs.shape;
    out->problems = std::move(fs.problems);
    out->specs = wanted_tensors(g, out->shape);
    out->layout = read_expert_layout(g, &out->specs, out->problems);
    check_tensors(g, out->specs, out->problems);
    check_vocabulary(g, out->shape, out->problems);
    return DS4_OK;
}

}  // namespace

ds4_status find_problems(const ds4_gguf &g, ds4_shape *shape, Findings *out, ds4_error *err) {
    Examined e;
    ds4_status st = examine(g, &e, err);
    if (st != DS4_OK) return st;
    *shape = e.shape;
    *out = std::move(e.problems);
    return DS4_OK;
}

ds4_status open_model(const char *path, const ds4_model_options &o, ds4_model **out, ds4_error *err) {
    auto m = std::make_unique<ds4_model>();
    m->file = std::make_unique<ds4_gguf>();
    ds4_status st = find_backend(o.backend, &m->ops, err);
    if (st == DS4_OK) st = read_gguf(path, m->file.get(), err);
    Examined e;
    if (st == DS4_OK) st = examine(*m->file, &e, err);
    if (st == DS4_OK && !e.problems.empty()) st = refuse(path, e.shape, e.problems, err);
    m->shape = e.shape;
    m->layout = std::move(e.layout);
    if (st == DS4_OK) st = m->ops->device_open(&m->device, err);
    if (st == DS4_OK && o.expert_cache_bytes) {
        m->stream = std::make_unique<ExpertStream>();
        st = m->stream->add_file(path, *m->file, !o.read_cached, err);
    }
    if (st == DS4_OK) st = bind_main(*m, o, err);
    if (st == DS4_OK && o.mtp_path) st = open_mtp(*m, o, err);
    if (st == DS4_OK && m->stream) st = start_stream(*m, o, err);
    if (st != DS4_OK) return st;
    m->warnings = extra_tensors(*m->file, e.specs);
    fingerprint(*m, m->fingerprint);
    if (m->stream) {
        const std::string notices = m->stream->notices();
        if (!notices.empty()) m->warnings += (m->warnings.empty() ? "" : "\n") + notices;
    } else {
        // From here on files are read in long runs; the checks above touch a few bytes of every tensor.
        m->file->file.use_huge_pages();
        if (m->mtp_file) m->mtp_file->file.use_huge_pages();
    }
    *out = m.release();
    return DS4_OK;
}

void release_model(ds4_model *m) {
    if (!m || m->references.fetch_sub(1) != 1) return;
    // After a fork the threads that read do not exist here: waiting for them would not end, so the memory is left alone.
    if (m->stream && m->owner != getpid()) return;
    delete m;
}

}  // namespace ds4
