// The KV rows of one layer as the graph and the operations see them. Owned by kv/; made once per session.
#pragma once

#include "backend/kernel_args.h"

namespace ds4 {

// Bytes of one cache row.
inline uint64_t cache_row_bytes(uint32_t row_type, uint64_t dim) { return dim * (row_type == DS4_ROW_F16 ? 2 : 4); }

// A compressor's rings of projected rows: width floats each, row of a position at pos % ring.
struct CompressorState {
    ds4_ref k{}, s{};
    uint32_t ring = 0, width = 0;
};

struct LayerCache {
    ds4_ref window;          // ring of `capacity` rows [head_dim]
    ds4_ref compressed;      // [n_ctx / ratio] rows [head_dim]; absent for ratio 0
    ds4_ref index_rows;      // [n_ctx / 4] rows [index_dim]; ratio 4 only
    CompressorState attn, index;
    uint32_t ratio = 0;
    uint32_t capacity = 0;
};

}  // namespace ds4
