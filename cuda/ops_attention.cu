// Attention: one block for all keys of a token, or a block for each piece of them; with matrix units where the device
// has them and rows are halves.
#include "attention.cuh"
#include "attention_units.cuh"
#include "backend.h"
#include "rounding.h"

#include <algorithm>

namespace ds4::gpu {

namespace {

// Tokens are split while they make fewer blocks than this and their pieces fit the space; a token alone always is.
constexpr uint32_t kEnoughBlocks = 256;
constexpr uint64_t kMostSplitBytes = 32ull << 20;

uint64_t piece_count(uint64_t keys) { return (keys + kPieceKeys - 1) / kPieceKeys; }
uint64_t rows_bytes(uint64_t heads, uint64_t dim) { return heads * (dim * sizeof(float) + sizeof(Softmax)); }

template <bool kSplit> void launch(ds4_queue *q, const ds4_args_attention &a, const Pieces &pieces, bool units,
                                   unsigned blocks) {
    const dim3 grid(blocks, kSplit ? pieces.most : 1);
    const size_t bytes = unit_words(a.dim) * sizeof(uint32_t);
#if defined(DS4_HOST_SIMT) && DS4_WARP == 32
    if (host_matrix_units == 2 && units)
        return DS4_LAUNCH(q, (attention_units<HalfGfx11, kSplit>), grid, kUnitThreads, bytes, a, pieces);
    if (host_matrix_units == 3 && units)
        return DS4_LAUNCH(q, (attention_units<HalfGfx12, kSplit>), grid, kUnitThreads, bytes, a, pieces);
#endif
    if (units)
        DS4_LAUNCH(q, (attention_units<HalfUnit, kSplit>), grid, kUnitThreads, bytes, a, pieces);
    else if (a.row_type == DS4_ROW_F16)
        DS4_LAUNCH(q, (attention_kernel<DS4_ROW_F16, kSplit>), grid, kAttentionThreads, 0, a, pieces);
    else
        DS4_LAUNCH(q, (attention_kernel<DS4_ROW_F32, kSplit>), grid, kAttentionThreads, 0, a, pieces);
}

}  // namespace

void attention(ds4_queue *q, const ds4_args_attention *args) {
    if (!args->n) return;
    if (args->dim % 4 || args->dim > kMostHeadDim)
        return set_failed(q, DS4_E_UNSUPPORTED, "attention: heads of %u dims; multiples of 4 up to %u can be computed",
                          args->dim, kMostHeadDim);
    const ds4_args_attention a = resolved(args);
    // Which kernel it is must not depend on the tokens, so that a token has the same bits in every chunk.
    const bool units = matrix_units(q) && a.row_type == DS4_ROW_F16 && a.dim % 8 == 0;
    const unsigned blocks = a.n * blocks_for(a.heads, units ? kUnitHeads : kBlockHeads);
    const uint64_t end = uint64_t{a.pos0} + a.n;
    uint64_t keys = std::min<uint64_t>(a.window, end);
    if (a.ratio) keys += a.selected.buffer ? std::min<uint64_t>(a.top_k, end / a.ratio) : end / a.ratio;
    Pieces pieces{nullptr, nullptr, static_cast<uint32_t>(piece_count(keys))};
    const uint64_t count = uint64_t{a.n} * pieces.most, bytes = count * rows_bytes(a.heads, a.dim);
    const bool split = pieces.most > 1 && (a.n == 1 || (blocks < kEnoughBlocks && bytes <= kMostSplitBytes));
    if (!split) return launch<false>(q, a, pieces, units, blocks);
    pieces.rows = work_space<float>(q, kWorkPartial, bytes / sizeof(float));
    if (!pieces.rows) return;
    pieces.softmax = reinterpret_cast<Softmax *>(pieces.rows + count * a.heads * a.dim);
    launch<true>(q, a, pieces, units, blocks);
    DS4_LAUNCH(q, attention_join, a.n * a.heads, kAttentionThreads, 0, a, pieces);
}

uint64_t attention_work_bytes(const ds4_shape *s, uint32_t n_ctx) {
    const uint64_t pieces = piece_count(s->window + std::max<uint64_t>(s->index_top_k, n_ctx / 128));
    if (pieces <= 1) return 0;
    const uint64_t one = pieces * rows_bytes(s->n_head, s->head_dim);
    // Tokens that are split together make fewer than kEnoughBlocks blocks.
    const uint64_t most = one * kEnoughBlocks / blocks_for(s->n_head, kUnitHeads);
    return std::max(one, std::min(most, kMostSplitBytes)) + kWorkGrain;
}

}  // namespace ds4::gpu
