// What the files of the CPU backend share: the concrete buffer and queue, and access to both.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cache_view.h"
#include "backend/cpu/float_kernels.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/product.h"
#include "backend/cpu/row_kernels.h"
#include "base/pages.h"
#include "base/thread_pool.h"

struct ds4_buffer {
    uint8_t *base = nullptr;
    uint64_t bytes = 0;
    ds4::ZeroedMemory own;  // what base points to, unless it was imported
};

namespace ds4::cpu {

// Sines and cosines of the positions [pos0, pos0 + n), 2 * freqs.size() floats a position (see rope_angles).
struct RopeTable {
    std::vector<float> freqs, cosine, sine;
    size_t pos0 = 0, n = 0;
};

}  // namespace ds4::cpu

struct ds4_queue {
    ds4_queue(unsigned n_threads, const ds4::Placement &placement)
        : pool(n_threads, placement), scratch(n_threads), work(n_threads) {}
    ds4::ThreadPool pool;
    const ds4::cpu::Kernels *kernels = nullptr;
    const ds4::cpu::PanelKernels *panels = nullptr;
    const ds4::cpu::RowKernels *rows = nullptr;
    const ds4::cpu::FloatKernels *floats = nullptr;
    ds4_status status = DS4_OK;  // sticky
    char message[256] = {};
    ds4_margins margins{};
    uint64_t gate_up_ns = 0;  // of the last `experts`
    // Work space that grows to the largest need and stays: one for the queue, one a thread.
    std::vector<float> shared, shared2;
    std::vector<std::vector<float>> scratch;
    std::vector<ds4::cpu::ProductWork> work;
    std::vector<uint8_t> packed, blocks, blocks2;  // rounded rows; rows packed for the panels
    ds4::cpu::RopeTable rope[2];  // of the last two sets of frequencies
};

namespace ds4::cpu {

template <class T = float> inline T *ptr(ds4_ref r) {
    return r.buffer ? reinterpret_cast<T *>(reinterpret_cast<ds4_buffer *>(r.buffer)->base + r.offset) : nullptr;
}

// Work space of at least n floats; what it held is lost. It grows to what is asked for, in whole grains, so that it
// neither takes twice that (as a vector would) nor moves with every token of a growing context.
constexpr size_t kGrain = 4096;
inline float *grow(std::vector<float> &v, size_t n) {
    if (v.size() < n) {
        std::vector<float>().swap(v);
        v.resize((n + kGrain - 1) / kGrain * kGrain);
    }
    return v.data();
}

inline const uint8_t *weight_row(const ds4_weight &w, uint32_t matrix, uint32_t row) {
    return ptr<const uint8_t>(w.data) + matrix * w.matrix_stride + row * w.row_stride;
}

// Decode one row of a weight (or of a cache) with the queue's kernels.
void decode_row(const Kernels *k, uint32_t type, const void *src, float *dst, size_t n);

// Rows of a KV cache, stored as F32 or F16.
void load_row(const Kernels *k, uint32_t row_type, const uint8_t *rows, size_t index, size_t dim, float *dst);
void store_row(const RowKernels *k, uint32_t row_type, uint8_t *rows, size_t index, size_t dim, const float *src);

// Of the float32 angles pos * freqs[i], as RowKernels::rope wants them: every cosine twice, and -sin, sin.
void rope_angles(uint32_t pos, const float *freqs, size_t n_pairs, float *cosine, float *sine);

// The part of `matmul` whose activations stay float32; its work space, in floats a thread.
void matmul_float(ds4_queue *, const ds4_args_matmul *);
size_t float_product_work();

void embed(ds4_queue *, const ds4_args_embed *);
void rms_norm(ds4_queue *, const ds4_args_rms_norm *);
void matmul(ds4_queue *, const ds4_args_matmul *);
void hc_pre(ds4_queue *, const ds4_args_hc_pre *);
void hc_post(ds4_queue *, const ds4_args_hc_post *);
void hc_head(ds4_queue *, const ds4_args_hc_head *);
void rope(ds4_queue *, const ds4_args_rope *);
void round_rows(ds4_queue *, const ds4_args_round_rows *);
void store_rows(ds4_queue *, const ds4_args_store_rows *);
void compress(ds4_queue *, const ds4_args_compress *);
void indexer(ds4_queue *, const ds4_args_indexer *);
void attention(ds4_queue *, const ds4_args_attention *);
void router(ds4_queue *, const ds4_args_router *);
void experts(ds4_queue *, const ds4_args_experts *);
void swiglu(ds4_queue *, const ds4_args_swiglu *);
void add_rows(ds4_queue *, const ds4_args_add_rows *);
void steer(ds4_queue *, const ds4_args_steer *);

}  // namespace ds4::cpu
