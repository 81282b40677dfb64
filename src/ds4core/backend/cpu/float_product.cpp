// Matrix products with float32 activations. A piece of work is a block of weight rows and a slab of tokens; it goes
// through the columns in stretches, whose weights are decoded once for the slab, and keeps partial sums in between.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu.h"
#include "ds4/gguf.h"
#include "quant/quant.h"

namespace ds4::cpu {
namespace {

constexpr size_t kColumns = 1024;   // of a stretch; whole blocks of every type
constexpr size_t kBlockRows = 24;   // whole tiles of every variant
constexpr size_t kSlabTokens = 48;  // a slab's activations of a stretch stay in the L2 cache with the block's weights

struct Piece {
    size_t row, n_rows, token, n_tokens;
};

class Multiplier {
public:
    Multiplier(ds4_queue *q, const ds4_args_matmul *a, float *work)
        : kernels_(q->kernels), floats_(q->floats), a_(a), decoded_(work), partial_(work + kBlockRows * kColumns) {}

    // x: the group's columns of the activations.
    void multiply(const Piece &p, const float *x) {
        const size_t n_in = a_->w.n_in, tile_rows = floats_->rows, tile_tokens = floats_->tokens;
        const size_t row_tiles = (p.n_rows + tile_rows - 1) / tile_rows;
        const float *rows[kBlockRows];
        memset(partial_, 0, p.n_tokens * row_tiles * tile_rows * kPartialSums * sizeof(float));
        x += p.token * a_->x_stride;
        for (size_t c = 0; c < n_in; c += kColumns) {
            const size_t m = std::min(kColumns, n_in - c), whole = m / kPartialSums * kPartialSums;
            for (size_t r = 0; r < row_tiles * tile_rows; r++)  // a row that does not exist repeats the last one
                rows[r] = r < p.n_rows ? columns(p.row + r, c, m, decoded_ + r * kColumns) : rows[p.n_rows - 1];
            for (size_t t = 0; t < p.n_tokens; t += tile_tokens) {
                const size_t count = std::min(tile_tokens, p.n_tokens - t);
                for (size_t r = 0; r < row_tiles; r++)
                    floats_->tile[count - 1](rows + r * tile_rows, x + t * a_->x_stride + c, a_->x_stride, whole,
                                             partial_ + (t * row_tiles + r * count) * tile_rows * kPartialSums);
            }
            if (c + m == n_in) finish(p, row_tiles, x + c + whole, rows, whole, m);
        }
    }

private:
    // Columns [c, c + m) of a row as floats.
    const float *columns(size_t row, size_t c, size_t m, float *room) const {
        const uint8_t *src = weight_row(a_->w, 0, static_cast<uint32_t>(row));
        uint64_t offset = 0;
        row_bytes(a_->w.type, c, &offset);
        if (a_->w.type == DS4_TYPE_F32 && reinterpret_cast<uintptr_t>(src) % alignof(float) == 0)
            return reinterpret_cast<const float *>(src + offset);
        decode_row(kernels_, a_->w.type, src + offset, room, m);
        return room;
    }

    // Adds up the partial sums, and the products of the last columns [from, to) of the stretch.
    void finish(const Piece &p, size_t row_tiles, const float *tail, const float *const *rows, size_t from, size_t to) {
        const size_t tile_rows = floats_->rows, tile_tokens = floats_->tokens;
        for (size_t t = 0; t < p.n_tokens; t++) {
            const size_t first = t / tile_tokens * tile_tokens, count = std::min(tile_tokens, p.n_tokens - first);
            float *y = ptr(a_->y) + (p.token + t) * a_->y_stride + p.row;
            for (size_t r = 0; r < p.n_rows; r++) {
                const size_t tile = first * row_tiles + r / tile_rows * count;
                float sum = floats_->sum(partial_ + ((tile + t - first) * tile_rows + r % tile_rows) * kPartialSums);
                for (size_t i = from; i < to; i++) sum += rows[r][i] * tail[t * a_->x_stride + i - from];
                y[r] = a_->accumulate ? y[r] + sum : sum;
            }
        }
    }

    const Kernels *kernels_;
    const FloatKernels *floats_;
    const ds4_args_matmul *a_;
    float *decoded_, *partial_;
};

// One token: every row is read once, so nothing is gained from tiles.
void multiply_one(ds4_queue *q, const ds4_args_matmul *a) {
    const ds4_weight &w = a->w;
    const size_t n_in = w.n_in, per_group = w.n_out / a->groups;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], n_in);
    auto direct = w.type == DS4_TYPE_F16 ? q->floats->dot_f16 : w.type == DS4_TYPE_BF16 ? q->floats->dot_bf16 : nullptr;
    q->pool.run(w.n_out, uint64_t{w.n_out} * n_in / 4, [&](size_t b, size_t e, unsigned thread) {
        float *y = ptr(a->y), *tmp = q->scratch[thread].data();
        for (size_t r = b; r < e; r++) {
            const float *x = ptr(a->x) + r / per_group * n_in;
            const uint8_t *row = weight_row(w, 0, static_cast<uint32_t>(r));
            float sum;
            if (direct) {
                sum = direct(row, x, n_in);
            } else if (w.type == DS4_TYPE_F32 && reinterpret_cast<uintptr_t>(row) % alignof(float) == 0) {
                sum = q->kernels->dot(reinterpret_cast<const float *>(row), x, n_in);
            } else {
                decode_row(q->kernels, w.type, row, tmp, n_in);
                sum = q->kernels->dot(tmp, x, n_in);
            }
            y[r] = a->accumulate ? y[r] + sum : sum;
        }
    });
}

}  // namespace

size_t float_product_work() { return kBlockRows * (kColumns + kSlabTokens * kPartialSums); }

void matmul_float(ds4_queue *q, const ds4_args_matmul *a) {
    if (a->n == 1) return multiply_one(q, a);
    const ds4_weight &w = a->w;
    const size_t n = a->n, n_in = w.n_in, per_group = w.n_out / a->groups;
    // Few rows (the mixers of the hyper-connections) or few tokens: smaller pieces, so that all threads have some.
    const size_t slab = per_group <= 4 * kBlockRows ? kSlabTokens / 2 : kSlabTokens, n_slabs = (n + slab - 1) / slab;
    const size_t block = n <= kSlabTokens / 2 ? q->floats->rows : kBlockRows, n_blocks = (per_group + block - 1) / block;
    for (size_t p = 0; p < q->pool.size(); p++) grow(q->scratch[p], float_product_work());
    const uint64_t work = uint64_t{w.n_out} * n_in * (n + 1) / 8;
    q->pool.run(a->groups * n_slabs * n_blocks, work, [&](size_t b, size_t e, unsigned thread) {
        Multiplier m(q, a, q->scratch[thread].data());
        for (; b < e; b++) {
            const size_t g = b / n_blocks / n_slabs, t = b / n_blocks % n_slabs * slab, r = b % n_blocks * block;
            m.multiply({g * per_group + r, std::min(block, per_group - r), t, std::min(slab, n - t)},
                       ptr(a->x) + g * n_in);
        }
    });
}

}  // namespace ds4::cpu
