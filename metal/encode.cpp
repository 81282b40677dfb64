#include "encode.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "ds4/gguf.h"

namespace ds4::metal {
namespace {

constexpr uint32_t kThreads = 256;      // of a threadgroup where nothing speaks for another number
constexpr uint32_t kRowThreads = 128;   // DS4_METAL_ROWS simdgroups
constexpr uint32_t kTileThreads = 128;  // of the matrix forms
constexpr uint32_t kTileTokens = 16;    // from so many tokens on tiles are used
constexpr uint64_t kGrain = 64 << 10;   // work space is asked for in multiples of it

uint32_t groups_for(uint64_t items, uint32_t each) { return static_cast<uint32_t>((items + each - 1) / each); }

// The names of a kernel for the weight types, in the order of type_index().
struct Names {
    const char *of[8];
};
#define DS4_NAMES(prefix)                                                                                              \
    Names {                                                                                                            \
        { prefix "q8_0", prefix "q2_k", prefix "q4_k", prefix "iq2_xxs", prefix "mxfp4", prefix "f32", prefix "f16",   \
          prefix "bf16" }                                                                                              \
    }
constexpr Names kMatmulFloat = DS4_NAMES("matmul_float_"), kMatmulRounded = DS4_NAMES("matmul_rounded_");
constexpr Names kMatmulTile = DS4_NAMES("matmul_tile_"), kExpertsTile = DS4_NAMES("experts_tile_");
constexpr Names kInFloat = DS4_NAMES("experts_in_float_"), kInRounded = DS4_NAMES("experts_in_rounded_");
constexpr Names kDownFloat = DS4_NAMES("experts_down_float_"), kDownRounded = DS4_NAMES("experts_down_rounded_");

int type_index(uint32_t type) {
    switch (type) {
        case DS4_TYPE_Q8_0: return 0;
        case DS4_TYPE_Q2_K: return 1;
        case DS4_TYPE_Q4_K: return 2;
        case DS4_TYPE_IQ2_XXS: return 3;
        case DS4_TYPE_MXFP4: return 4;
        case DS4_TYPE_F32: return 5;
        case DS4_TYPE_F16: return 6;
        case DS4_TYPE_BF16: return 7;
        default: return -1;
    }
}
const char *name_for(const Names &names, uint32_t type) { return names.of[std::max(type_index(type), 0)]; }

// The blocks that activations are rounded in for a weight type (docs/formats.md).
enum Activations { kStayFloat, kQ8A, kQ8K };
Activations activations(uint32_t type) {
    switch (type) {
        case DS4_TYPE_Q8_0:
        case DS4_TYPE_MXFP4: return kQ8A;
        case DS4_TYPE_Q2_K:
        case DS4_TYPE_Q4_K:
        case DS4_TYPE_IQ2_XXS: return kQ8K;
        default: return kStayFloat;
    }
}
bool rounded(const ds4_weight &w, uint32_t quantized) { return quantized && activations(w.type) != kStayFloat; }

}  // namespace

Encoder::Encoder(ds4_device *device, std::unique_ptr<Stream> stream, const Memory &margins, bool matrices)
    : device_(device), stream_(std::move(stream)), margins_(margins), matrices_(matrices) {
    float *m = reinterpret_cast<float *>(margins_.host);
    m[0] = m[1] = std::numeric_limits<float>::infinity();
}

Encoder::~Encoder() {
    std::string ignored;
    stream_->wait(&ignored);
    for (Memory &m : works_)
        if (m.handle) device_->driver->release(m);
    for (Memory &m : retired_) device_->driver->release(m);
    device_->driver->release(margins_);
}

// ---- failures, work space ----

void Encoder::fail(ds4_status status, const char *format, ...) {
    if (status_ != DS4_OK) return;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    status_ = status;
    message_ = text;
}

bool Encoder::needs(const char *what, uint64_t value, uint64_t most) {
    if (value <= most) return true;
    fail(DS4_E_UNAVAILABLE, "the %s back end computes with at most %llu %s, this model has %llu; use cpu", kBackendName,
         static_cast<unsigned long long>(most), what, static_cast<unsigned long long>(value));
    return false;
}

ds4_ref Encoder::work(Work which, uint64_t bytes) {
    Memory &m = works_[which];
    if (m.bytes < bytes) {
        if (m.handle) retired_.push_back(m);
        m = Memory{};
        std::string why;
        const ds4_status st = device_->driver->allocate((bytes + kGrain - 1) / kGrain * kGrain, &m, &why);
        if (st != DS4_OK) {
            m = Memory{};
            fail(st, "work space: %s; use a smaller chunk or context", why.c_str());
            return {};
        }
    }
    return {m.address, 0};
}

void Encoder::drain() {
    std::string why;
    const ds4_status st = stream_->wait(&why);
    if (st != DS4_OK) fail(st, "%s", why.c_str());
    for (Memory &m : retired_) device_->driver->release(m);
    retired_.clear();
}

ds4_status Encoder::take_status(ds4_error *err) {
    if (status_ == DS4_OK) return DS4_OK;
    const ds4_status st = status_;
    status_ = DS4_OK;
    return ds4::fail(err, st, "%s", message_.c_str());
}

// ---- copies ----

void Encoder::copy(ds4_ref target, ds4_ref source, uint64_t bytes) {
    if (!usable() || !bytes) return;
    ds4_metal_copy c{};
    c.source = source;
    c.target = target;
    c.count = bytes;
    resolve_each(c.source, c.target);
    barrier();
    run("copy_bytes", {groups_for(bytes, 4 * kThreads)}, kThreads, c);
}

// A few bytes travel with the dispatch, so that nothing has to wait; more are written when all before has run.
void Encoder::upload(ds4_ref target, const void *source, uint64_t bytes) {
    if (!usable() || !bytes) return;
    if (bytes > DS4_METAL_INLINE) {
        drain();
        const ds4_buffer *b = reinterpret_cast<ds4_buffer *>(target.buffer);
        if (usable()) std::memcpy(b->memory.host + b->lead + target.offset, source, bytes);
        return;
    }
    ds4_metal_copy c{};
    c.target = target;
    c.count = bytes;
    std::memcpy(c.data, source, bytes);
    resolve(c.target);
    barrier();
    run("copy_bytes", {groups_for(bytes, 4 * kThreads)}, kThreads, c);
}

void Encoder::download(void *target, ds4_ref source, uint64_t bytes) {
    drain();
    const ds4_buffer *b = reinterpret_cast<ds4_buffer *>(source.buffer);
    if (usable()) std::memcpy(target, b->memory.host + b->lead + source.offset, bytes);
}

void Encoder::reset_margins() {
    drain();
    float *m = reinterpret_cast<float *>(margins_.host);
    m[0] = m[1] = std::numeric_limits<float>::infinity();
}

ds4_margins Encoder::margins() {
    drain();
    const float *m = reinterpret_cast<const float *>(margins_.host);
    return {m[0], m[1]};
}

void Encoder::fold_margin(uint32_t which, ds4_ref gaps, uint32_t n) {
    barrier();
    run("fold_margin", {}, kThreads, ds4_metal_margin{gaps, {margins_.address, which * sizeof(float)}, n});
}

// ---- rows ----

void Encoder::embed(const ds4_args_embed *args) {
    if (!usable() || !args->n) return;
    const auto a = resolved(args);
    if (type_index(a.table.type) < 0) return fail(DS4_E_UNAVAILABLE, "no embedding of tensor type %u", a.table.type);
    barrier();
    run("embed", {groups_for(a.table.n_in, 8 * kThreads), a.n}, kThreads, a);
}

void Encoder::rms_norm(const ds4_args_rms_norm *args) {
    if (!usable() || !args->n_rows) return;
    barrier();
    run("rms_norm", {args->n_rows}, args->dim > 1024 ? kThreads : kRowThreads, resolved(args));
}

void Encoder::rope(const ds4_args_rope *args) {
    if (!usable() || !args->n || !args->heads || args->n_rot < 2) return;
    barrier();
    run("rope", {groups_for(uint64_t{args->heads} * (args->n_rot / 2), kThreads), args->n}, kThreads, resolved(args));
}

void Encoder::round_rows(const ds4_args_round_rows *args) {
    if (!usable() || !args->n_rows || args->mode == DS4_ROUND_NONE) return;
    if (!needs("values of a cache row", args->dim, DS4_METAL_MAX_ROW)) return;
    barrier();
    run("round_rows", {args->n_rows}, kRowThreads, resolved(args));
}

void Encoder::store_rows(const ds4_args_store_rows *args) {
    if (!usable() || !args->n) return;
    barrier();
    run("store_rows", {groups_for(args->dim, kThreads), std::min(args->n, args->capacity)}, kThreads, resolved(args));
}

void Encoder::swiglu(const ds4_args_swiglu *args) {
    if (!usable() || !args->count) return;
    barrier();
    run("swiglu", {groups_for(args->count, kThreads)}, kThreads, resolved(args));
}

void Encoder::add_rows(const ds4_args_add_rows *args) {
    if (!usable() || !args->n) return;
    barrier();
    run("add_rows", {groups_for(args->dim, kThreads), args->n, args->copies}, kThreads, resolved(args));
}

void Encoder::steer(const ds4_args_steer *args) {
    if (!usable() || !args->n || !args->count) return;
    barrier();
    run("steer", {args->n}, kThreads, resolved(args));
}

// ---- hyper-connections ----

void Encoder::hc_pre(const ds4_args_hc_pre *args) {
    if (!usable() || !args->n || !needs("hyper-connections", args->n_hc, DS4_METAL_MAX_STREAMS)) return;
    barrier();
    run("hc_pre", {args->n}, kThreads, resolved(args));
}

void Encoder::hc_post(const ds4_args_hc_post *args) {
    if (!usable() || !args->n || !needs("hyper-connections", args->n_hc, DS4_METAL_MAX_STREAMS)) return;
    barrier();
    run("hc_post", {groups_for(args->dim, kThreads), args->n}, kThreads, resolved(args));
}

void Encoder::hc_head(const ds4_args_hc_head *args) {
    if (!usable() || !args->n || !needs("hyper-connections", args->n_hc, DS4_METAL_MAX_STREAMS)) return;
    barrier();
    run("hc_head", {args->n}, kThreads, resolved(args));
}

// ---- products ----

// The rows of x for weights of a type, rounded to 8 bits.
ds4_ref Encoder::round(uint32_t type, ds4_ref x, uint32_t x_stride, uint32_t n_rows, uint64_t n_values) {
    const bool q8_k = activations(type) == kQ8K;
    const uint32_t blocks = static_cast<uint32_t>(n_values / (q8_k ? 256 : 32));
    const ds4_ref out = work(kRounded, uint64_t{n_rows} * blocks * (q8_k ? 292 : 36));
    if (!usable()) return {};
    run(q8_k ? "round_q8_k" : "round_q8_a", {n_rows, groups_for(blocks, DS4_METAL_ROWS)}, kRowThreads,
        ds4_metal_round{x, out, n_rows, blocks, x_stride});
    return out;
}

void Encoder::matmul(const ds4_args_matmul *args) {
    if (!usable() || !args->n) return;
    ds4_metal_matmul m{resolved(args), {}};
    const ds4_weight &w = m.a.w;
    if (type_index(w.type) < 0) return fail(DS4_E_UNAVAILABLE, "no matrix products of tensor type %u", w.type);
    barrier();
    if (!rounded(w, m.a.quantized)) {
        run(name_for(kMatmulFloat, w.type), {groups_for(w.n_out, DS4_METAL_ROWS), groups_for(m.a.n, DS4_METAL_TOKENS)},
            kRowThreads, m);
        return;
    }
    m.act = round(w.type, m.a.x, m.a.x_stride, m.a.n, uint64_t{w.n_in} * m.a.groups);
    if (!usable()) return;
    barrier();
    if (matrices_ && m.a.n >= kTileTokens)
        run(name_for(kMatmulTile, w.type),
            {groups_for(w.n_out / m.a.groups, DS4_METAL_TILE), groups_for(m.a.n, DS4_METAL_TILE), m.a.groups}, kTileThreads, m);
    else
        run(name_for(kMatmulRounded, w.type), {groups_for(w.n_out, DS4_METAL_ROWS), m.a.n}, kRowThreads, m);
}

// ---- experts ----

// The middle rows: up first, then gate, which reads them.
void Encoder::experts_in(ds4_metal_experts &m, bool tiles) {
    const uint32_t n = m.a.n, pairs = n * m.a.k, width = m.a.gate.n_out;
    Activations last = kStayFloat;
    for (const uint32_t which : {DS4_METAL_UP, DS4_METAL_GATE}) {
        const ds4_weight &w = which == DS4_METAL_UP ? m.a.up : m.a.gate;
        m.which = which;
        if (!rounded(w, m.a.quantized)) {
            run(name_for(kInFloat, w.type), {pairs, groups_for(width, DS4_METAL_ROWS)}, kRowThreads, m);
        } else {
            if (activations(w.type) != last) {
                m.act = round(w.type, m.a.x, w.n_in, n, w.n_in);
                if (!usable()) return;
                last = activations(w.type);
                barrier();
            }
            if (tiles)
                run(name_for(kExpertsTile, w.type), {groups_for(width, DS4_METAL_TILE), m.max_tiles}, kTileThreads, m);
            else
                run(name_for(kInRounded, w.type), {pairs, groups_for(width, DS4_METAL_ROWS)}, kRowThreads, m);
        }
        barrier();
    }
}

void Encoder::experts_down(ds4_metal_experts &m, bool tiles) {
    const ds4_weight &w = m.a.down;
    const uint32_t n = m.a.n, pairs = n * m.a.k;
    m.which = DS4_METAL_DOWN;
    if (!rounded(w, m.a.quantized)) {
        run(name_for(kDownFloat, w.type), {n, groups_for(w.n_out, DS4_METAL_ROWS)}, kRowThreads, m);
        return;
    }
    m.act = round(w.type, m.mid, w.n_in, pairs, w.n_in);
    if (!usable()) return;
    barrier();
    if (!tiles) {
        run(name_for(kDownRounded, w.type), {n, groups_for(w.n_out, DS4_METAL_ROWS)}, kRowThreads, m);
        return;
    }
    const uint64_t fit = kSlabBytes / (uint64_t{pairs} * sizeof(float)) / DS4_METAL_TILE * DS4_METAL_TILE;
    const uint32_t slab = static_cast<uint32_t>(std::clamp<uint64_t>(fit, DS4_METAL_TILE, w.n_out));
    m.parts = work(kParts, uint64_t{pairs} * slab * sizeof(float));
    if (!usable()) return;
    for (m.first_row = 0; m.first_row < w.n_out; m.first_row += slab) {
        m.n_rows = std::min(slab, w.n_out - m.first_row);
        run(name_for(kExpertsTile, w.type), {groups_for(m.n_rows, DS4_METAL_TILE), m.max_tiles}, kTileThreads, m);
        barrier();
        run("experts_combine", {groups_for(m.n_rows, kThreads), n}, kThreads, m);
        barrier();
    }
}

void Encoder::importance(const ds4_metal_experts &m) {
    const ds4_importance &sums = m.a.importance;
    const uint32_t dim = m.a.gate.n_in, width = m.a.gate.n_out, n_expert = m.a.gate.n_matrices;
    run("add_squares", {groups_for(dim, kThreads), n_expert}, kThreads,
        ds4_metal_importance{m.a, m.a.x, sums.sum_in, sums.counts, dim, 1});
    run("add_squares", {groups_for(width, kThreads), n_expert}, kThreads,
        ds4_metal_importance{m.a, m.mid, sums.sum_mid, {}, width, 0});
}

void Encoder::experts(const ds4_args_experts *args) {
    if (!usable() || !args->n || !args->k) return;
    ds4_metal_experts m{};
    m.a = resolved(args);
    for (const ds4_weight *w : {&m.a.gate, &m.a.up, &m.a.down})
        if (type_index(w->type) < 0) return fail(DS4_E_UNAVAILABLE, "no experts of tensor type %u", w->type);
    if (!needs("experts", m.a.gate.n_matrices, DS4_METAL_MAX_EXPERTS) || !needs("experts of a token", m.a.k, DS4_METAL_MAX_CHOSEN))
        return;
    const uint64_t pairs = uint64_t{m.a.n} * m.a.k, middle = pairs * m.a.gate.n_out * sizeof(float);
    m.mid = work(kMiddle, middle);
    if (m.a.work & DS4_EXPERTS_GATE_UP) m.up = work(kUp, middle);
    const bool tiles = matrices_ && m.a.n >= kTileTokens;
    if (tiles) {
        m.max_tiles = static_cast<uint32_t>(std::min<uint64_t>(pairs, m.a.gate.n_matrices + pairs / DS4_METAL_TILE));
        m.slots = work(kSlots, pairs * sizeof(uint32_t));
        m.n_tiles = work(kTiles, (uint64_t{m.max_tiles} + 1) * sizeof(ds4_metal_tile));
        m.tiles = advance(m.n_tiles, sizeof(ds4_metal_tile));
    }
    if (!usable()) return;
    barrier();
    if (tiles) {
        run("experts_sort", {}, kThreads, m);
        barrier();
    }
    if (m.a.work & DS4_EXPERTS_GATE_UP) {
        experts_in(m, tiles);
        if (m.a.importance.sum_in.buffer && usable()) importance(m);
    }
    if (m.a.work & DS4_EXPERTS_DOWN && usable()) experts_down(m, tiles);
    // Experts at places of their own lie in memory that the host may soon fill with others.
    if (m.a.places.buffer) drain();
}

// ---- attention ----

void Encoder::compress(const ds4_args_compress *args) {
    if (!usable() || !args->n) return;
    const auto a = resolved(args);
    if (!needs("values of a cache row", a.dim, DS4_METAL_MAX_ROW) || !needs("positions of a group", a.ratio, DS4_METAL_MAX_GROUP))
        return;
    barrier();
    run("compress_add", {groups_for(a.width, kThreads), a.n}, kThreads, a);
    barrier();
    const uint32_t closing = (a.pos0 + a.n) / a.ratio - a.pos0 / a.ratio;
    if (closing) {
        run("compress_pool", {closing}, kRowThreads, a);
        barrier();
    }
    run("compress_keep", {groups_for(a.width, kThreads), std::min(a.n, a.ring)}, kThreads, a);
}

void Encoder::indexer(const ds4_args_indexer *args) {
    if (!usable() || !args->n) return;
    if (!needs("values of an indexer row", args->dim, DS4_METAL_INDEX_DIM)) return;
    ds4_metal_indexer m{};
    m.a = resolved(args);
    m.gaps = work(kGaps, m.a.n * sizeof(float));
    m.max_rows = (m.a.pos0 + m.a.n) / m.a.ratio;
    const bool scored = m.max_rows > m.a.top_k;
    uint32_t slab = m.a.n;
    if (scored) {
        const uint64_t row_bytes = uint64_t{m.max_rows} * sizeof(float);
        slab = static_cast<uint32_t>(std::clamp<uint64_t>(kSlabBytes / row_bytes, 1, m.a.n));
        m.scores = work(kScores, slab * row_bytes);
    }
    if (!usable()) return;
    for (m.first_token = 0; m.first_token < m.a.n; m.first_token += slab) {
        const uint32_t n = std::min(slab, m.a.n - m.first_token);
        barrier();
        if (scored) {
            run("indexer_scores", {groups_for(m.max_rows, DS4_METAL_INDEX_ROWS), n}, kRowThreads, m);
            barrier();
        }
        run("indexer_select", {n}, kThreads, m);
    }
    if (scored) fold_margin(0, m.gaps, m.a.n);
}

void Encoder::attention(const ds4_args_attention *args) {
    if (!usable() || !args->n) return;
    if (!needs("values of a cache row", args->dim, DS4_METAL_MAX_DIM)) return;
    ds4_metal_attention m{};
    m.a = resolved(args);
    const uint32_t pos_end = m.a.pos0 + m.a.n;
    uint64_t most = std::min(m.a.window, pos_end);
    if (m.a.ratio) most += m.a.selected.buffer ? std::min(m.a.top_k, pos_end / m.a.ratio) : pos_end / m.a.ratio;
    m.parts = groups_for(most, DS4_METAL_SPLIT);
    const uint64_t token_bytes = uint64_t{m.parts} * m.a.heads * (m.a.dim + 2) * sizeof(float);
    const uint32_t slab = static_cast<uint32_t>(std::clamp<uint64_t>(kSlabBytes / token_bytes, 1, m.a.n));
    m.partial = work(kPartial, slab * token_bytes);
    if (!usable()) return;
    for (m.first_token = 0; m.first_token < m.a.n; m.first_token += slab) {
        const uint32_t n = std::min(slab, m.a.n - m.first_token);
        barrier();
        run("attention_part", {groups_for(m.a.heads, DS4_METAL_HEADS), m.parts, n}, kRowThreads, m);
        barrier();
        run("attention_combine", {m.a.heads, n}, kRowThreads, m);
    }
}

void Encoder::router(const ds4_args_router *args) {
    if (!usable() || !args->n) return;
    if (!needs("experts", args->n_expert, DS4_METAL_MAX_EXPERTS) || !needs("experts of a token", args->k, DS4_METAL_MAX_CHOSEN))
        return;
    ds4_metal_router m{resolved(args), work(kGaps, args->n * sizeof(float))};
    if (!usable()) return;
    barrier();
    run("router", {args->n}, 32, m);
    if (!args->table.buffer) fold_margin(1, m.gaps, args->n);
}

uint64_t work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk) {
    const uint64_t n = chunk, pairs = n * s->n_expert_used;
    const uint64_t row = std::max<uint64_t>({uint64_t{s->n_head} * s->head_dim, uint64_t{s->n_hc} * s->n_embd,
                                             uint64_t{s->o_groups} * s->o_lora});
    const uint64_t rounded = std::max(n * row, pairs * s->n_ff) * 292 / 256 + n * row / 32 * 4;
    const uint64_t middle = 2 * pairs * s->n_ff * sizeof(float);
    const uint64_t parts = std::max<uint64_t>(std::min<uint64_t>(kSlabBytes, pairs * s->n_embd * sizeof(float)),
                                              pairs * DS4_METAL_TILE * sizeof(float));
    const uint64_t keys = s->window + std::max<uint64_t>(s->index_top_k, n_ctx / 128);
    const uint64_t token = (keys / DS4_METAL_SPLIT + 1) * s->n_head * (s->head_dim + 2) * sizeof(float);
    const uint64_t partial = std::max(token, std::min(kSlabBytes, n * token));
    const uint64_t score_row = uint64_t{n_ctx / 4} * sizeof(float);
    const uint64_t scores = std::max(score_row, std::min(kSlabBytes, n * score_row));
    const uint64_t lists = pairs * sizeof(uint32_t) + (pairs / DS4_METAL_TILE + s->n_expert + 1) * sizeof(ds4_metal_tile);
    return rounded + middle + parts + partial + scores + lists + n * sizeof(float) + kWorks * kGrain;
}

}  // namespace ds4::metal
