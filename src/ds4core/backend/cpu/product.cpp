// Rounding, packing and multiplying in panels.
#include "backend/cpu/product.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "quant/quant.h"

namespace ds4::cpu {
namespace {

void round_row(const RowKernels *k, uint32_t kind, const float *x, uint8_t *dst, size_t n) {
    if (kind == kActivationQ8K)
        k->quantize_q8_k(x, reinterpret_cast<BlockQ8K *>(dst), n);
    else
        k->quantize_q8_a(x, reinterpret_cast<BlockQ8A *>(dst), n);
}

// Places of rows of 8-bit values in q->packed and of packed tokens in `store`.
uint8_t *room(std::vector<uint8_t> &v, size_t bytes) {
    if (v.size() < bytes + 64) v.resize(bytes + 64);
    return v.data() + (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
}

// Up to so many tokens a weight is loaded and unpacked for hardly more work than that.
constexpr size_t kFewTokens = 8;

size_t last_token(const TokenBlocks &blocks) {
    size_t end = 0;
    for (const TokenBlocks::Block &b : blocks.list()) end = std::max(end, b.first + b.count);
    return end;
}

// Asks for a stretch of memory that is needed soon.
inline void fetch(const uint8_t *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

}  // namespace

PackedTokens PackedTokens::round(ds4_queue *q, uint32_t type, const TokenBlocks &blocks, const float *x, size_t x_stride,
                                 size_t n_in, std::vector<uint8_t> &store, size_t groups) {
    PackedTokens out(type, n_in);
    const uint32_t kind = activation_kind(type);
    const size_t row_bytes = activation_bytes(kind, n_in), n = last_token(blocks), n_blocks = blocks.list().size();
    out.group_bytes_ = n * out.token_bytes_;
    uint8_t *rows = room(q->packed, row_bytes * kMostTokens * q->pool.size()), *dst = room(store, groups * out.group_bytes_);
    const PanelFormat &format = q->panels->formats[out.type_];
    q->pool.run(groups * n_blocks, groups * n * n_in * 4, [&](size_t b, size_t e, unsigned thread) {
        uint8_t *own = rows + thread * kMostTokens * row_bytes;
        const uint8_t *tokens[kMostTokens];
        for (; b < e; b++) {
            const TokenBlocks::Block &block = blocks.list()[b % n_blocks];
            const size_t g = b / n_blocks;
            for (size_t t = 0; t < block.count; t++) {
                round_row(q->rows, kind, x + (block.first + t) * x_stride + g * n_in, own + t * row_bytes, n_in);
                tokens[t] = own + t * row_bytes;
            }
            pack_activations(out.type_, format, tokens, block.count, n_in,
                             dst + g * out.group_bytes_ + block.first * out.token_bytes_);
        }
    });
    out.data_ = dst;
    return out;
}

PackedTokens PackedTokens::gather(ds4_queue *q, uint32_t type, const TokenBlocks &blocks, const float *x, size_t n,
                                  size_t n_in, const uint32_t *index, std::vector<uint8_t> &store) {
    PackedTokens out(type, n_in);
    const uint32_t kind = activation_kind(type);
    const size_t row_bytes = activation_bytes(kind, n_in), n_tokens = last_token(blocks);
    uint8_t *rows = room(q->packed, row_bytes * n), *dst = room(store, n_tokens * out.token_bytes_);
    const PanelFormat &format = q->panels->formats[out.type_];
    std::vector<uint8_t> occurs(n);
    size_t n_occur = 0;
    for (const TokenBlocks::Block &block : blocks.list())
        for (size_t t = block.first; t < block.first + block.count; t++) {
            n_occur += !occurs[index[t]];
            occurs[index[t]] = 1;
        }
    q->pool.run(n, n_occur * n_in * 4, [&](size_t b, size_t e, unsigned) {
        for (; b < e; b++)
            if (occurs[b]) round_row(q->rows, kind, x + b * n_in, rows + b * row_bytes, n_in);
    });
    q->pool.run(blocks.list().size(), n_tokens * n_in, [&](size_t b, size_t e, unsigned) {
        const uint8_t *tokens[kMostTokens];
        for (; b < e; b++) {
            const TokenBlocks::Block &block = blocks.list()[b];
            for (size_t t = 0; t < block.count; t++) tokens[t] = rows + index[block.first + t] * row_bytes;
            pack_activations(out.type_, format, tokens, block.count, n_in, dst + block.first * out.token_bytes_);
        }
    });
    out.data_ = dst;
    return out;
}

void PackedTokens::multiply(ds4_queue *q, ProductWork &work, const ds4_weight &w, uint32_t m, size_t row, size_t n_rows,
                            size_t first, size_t n, float *sums, const uint8_t *ahead) const {
    if (n < kFewTokens && n_rows > kPanelRows) {
        // Little work a weight: one panel after the other, so that their rows are asked for in small portions.
        for (size_t r = 0; r < n_rows; r += kPanelRows) {
            const size_t next = r + kPanelRows;
            multiply(q, work, w, m, row + r, std::min(kPanelRows, n_rows - r), first, n, sums + r * n,
                     next < n_rows ? weight_row(w, m, static_cast<uint32_t>(row + next)) : ahead);
        }
        return;
    }
    const PanelFormat &f = q->panels->formats[type_];
    if (n == 1 && n_rows == kPanelRows && f.single) {
        f.single(weight_row(w, m, static_cast<uint32_t>(row)), w.row_stride, n_in_, data_ + first * token_bytes_, sums, ahead,
                 ahead ? n_rows * w.row_stride : 0);
        return;
    }
    const bool of_32 = is_block32(type_);
    const size_t block = q->panels->block, n_panels = (n_rows + kPanelRows - 1) / kPanelRows;
    const size_t n_blocks = n_in_ / (of_32 ? 32 : kStep), block_bytes = w.row_stride / n_blocks;
    const size_t token_bytes = of_32 ? kPackedBlock32 : kPackedBlock256;
    // Blocks unpacked together. For a few tokens the memory is the bound, and what is asked for ahead has to be spread
    // evenly between the computations: a burst fills the queues of the core, and then the computation waits.
    const size_t step = of_32 && (f.looks_ahead || n >= kFewTokens) ? kStep / 32 : 1;
    const uint8_t *rows[kPanelsAtOnce * kPanelRows];
    for (size_t r = 0; r < n_panels * kPanelRows; r++)
        rows[r] = weight_row(w, m, static_cast<uint32_t>(row + std::min(r, n_rows - 1)));
    memset(sums, 0, n_panels * n * kPanelRows * sizeof(float));
    const size_t portions = 2 * n_panels * ((n_blocks + step - 1) / step);
    const size_t portion = ahead ? (n_rows * w.row_stride + portions - 1) / portions : 0;
    for (size_t b = 0; b < n_blocks; b += step) {
        const size_t here = std::min(step, n_blocks - b);
        for (size_t p = 0; p < n_panels; p++) {
            work.panels[p].ahead = ahead;
            work.panels[p].ahead_bytes = 2 * portion;
            if (!f.looks_ahead) fetch(ahead, portion);
            f.unpack(rows + p * kPanelRows, b * block_bytes, here, work.panels + p);
            if (!f.looks_ahead) fetch(ahead + portion, portion);
            ahead += 2 * portion;
        }
        for (size_t t = 0; t < n; t += block) {
            const size_t count = std::min(block, n - t);
            const uint8_t *act = data_ + (first + t) * token_bytes_ + b * token_bytes * count;
            for (size_t p = 0; p < n_panels; p++)
                f.multiply[count - 1](work.panels + p, here, act, sums + (p * n + t) * kPanelRows);
        }
    }
}

}  // namespace ds4::cpu
