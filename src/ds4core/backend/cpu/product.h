// Weight rows times the tokens of a chunk, over the panels of panel.h: what matmul and the experts are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/kernel_args.h"
#include "backend/cpu/panel.h"

struct ds4_queue;

namespace ds4::cpu {

// Panels unpacked together, so that a block of tokens is read once for all of them. One is enough for few tokens.
constexpr size_t kPanelsAtOnce = 4;
// Tokens whose sums are kept at a time.
constexpr size_t kSlab = 504;

// What a thread works with.
struct ProductWork {
    Panel panels[kPanelsAtOnce];
    std::vector<float> sums;
};

// Runs of consecutive tokens, cut into blocks for the kernels. Tokens are packed one after the other; a run begins a
// block, so runs are multiplied apart from each other.
class TokenBlocks {
public:
    explicit TokenBlocks(size_t block) : block_(block) {}
    void add_run(size_t first, size_t n) {
        for (size_t i = 0; i < n; i += block_) list_.push_back({first + i, n - i < block_ ? n - i : block_});
    }
    struct Block {
        size_t first, count;
    };
    const std::vector<Block> &list() const { return list_; }

private:
    size_t block_;
    std::vector<Block> list_;
};

// Activations of a chunk, rounded to 8 bits and packed for one weight type.
class PackedTokens {
public:
    // Whether rows of this weight type are multiplied in panels.
    static bool supports(uint32_t type) { return panel_type(type) != kPanelTypes; }

    // Round rows of n_in floats, x_stride apart: one for each token of `blocks`. With groups > 1 a token has that many
    // rows, one after the other; they become independent sets of tokens, see group().
    static PackedTokens round(ds4_queue *q, uint32_t type, const TokenBlocks &blocks, const float *x, size_t x_stride,
                              size_t n_in, std::vector<uint8_t> &store, size_t groups = 1);
    PackedTokens group(size_t g) const {
        PackedTokens one = *this;
        one.data_ += g * group_bytes_;
        return one;
    }
    // The same for tokens that are rows `index[i]` of n rows: a row that occurs is rounded once, however often.
    static PackedTokens gather(ds4_queue *q, uint32_t type, const TokenBlocks &blocks, const float *x, size_t n,
                               size_t n_in, const uint32_t *index, std::vector<uint8_t> &store);

    // sums[panel][token][16] = rows [row, row + n_rows) of matrix `m` of w times tokens [first, first + n), which lie in
    // one run and begin a block. n_rows <= 16 * kPanelsAtOnce; rows beyond it are undefined. `ahead`: the place that will
    // be read next, or NULL.
    void multiply(ds4_queue *q, ProductWork &work, const ds4_weight &w, uint32_t m, size_t row, size_t n_rows, size_t first,
                  size_t n, float *sums, const uint8_t *ahead) const;

    PackedTokens() = default;  // of nothing

private:
    PackedTokens(uint32_t type, size_t n_in)
        : type_(panel_type(type)), n_in_(n_in), token_bytes_(packed_bytes(type_, n_in)) {}

    PanelType type_ = kPanelTypes;
    size_t n_in_ = 0, token_bytes_ = 0, group_bytes_ = 0;
    const uint8_t *data_ = nullptr;
};

}  // namespace ds4::cpu
