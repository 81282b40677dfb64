// Weight rows times many tokens with float32 activations: tiles of 32 rows and 16 tokens. 32 threads compute 8 rows times 8
// tokens, each thread the partial sums of the columns i with i % 32 = its place, as few_tokens.cuh defines them.
#pragma once

#include "few_tokens.cuh"

namespace ds4::gpu {

constexpr int kFloatTileRows = 32, kFloatTileTokens = 16, kFloatTileThreads = 256;
constexpr int kFloatTileColumns = 128;  // in shared memory at a time

// out(row, token, sum) for row < n_rows <= 32 and token < n_tokens <= 16; rows(r) is where a row begins, tokens(t) where the
// activations of a token begin.
template <class F, class Rows, class Tokens, class Out>
__device__ __forceinline__ void float_tile_products(int n_rows, int n_tokens, uint32_t n_in, const Rows &rows, const Tokens &tokens,
                                                    const Out &out) {
    DS4_SHARED(float, ws, kFloatTileRows * kFloatTileColumns);
    DS4_SHARED(float, xs, kFloatTileTokens * kFloatTileColumns);
    const int thread = static_cast<int>(threadIdx.x), group = thread / 32, l = thread % 32;
    const int row0 = group % 4 * 8, token0 = group / 4 * 8;
    const uint32_t whole = n_in / 32 * 32;
    float sums[64];  // [row][token]
#pragma unroll
    for (int i = 0; i < 64; i++) sums[i] = 0;
    for (uint32_t first = 0; first < whole; first += kFloatTileColumns) {
        const int here = static_cast<int>(whole - first < kFloatTileColumns ? whole - first : kFloatTileColumns);
        // A row or token that does not exist repeats the last one.
        for (int u = thread; u < kFloatTileRows * kFloatTileColumns; u += kFloatTileThreads) {
            const int r = u / kFloatTileColumns, c = u % kFloatTileColumns;
            if (c < here) ws[u] = F::value(rows(r < n_rows ? r : n_rows - 1), first + static_cast<uint32_t>(c));
        }
        for (int u = thread; u < kFloatTileTokens * kFloatTileColumns; u += kFloatTileThreads) {
            const int t = u / kFloatTileColumns, c = u % kFloatTileColumns;
            if (c < here) xs[u] = tokens(t < n_tokens ? t : n_tokens - 1)[first + static_cast<uint32_t>(c)];
        }
        sync_block();
        if (row0 < n_rows && token0 < n_tokens)
            for (int c = l; c < here; c += 32) {
                float x[8];
#pragma unroll
                for (int t = 0; t < 8; t++) x[t] = xs[(token0 + t) * kFloatTileColumns + c];
#pragma unroll
                for (int r = 0; r < 8; r++) {
                    const float w = ws[(row0 + r) * kFloatTileColumns + c];
#pragma unroll
                    for (int t = 0; t < 8; t++) sums[8 * r + t] = add(sums[8 * r + t], mul(w, x[t]));
                }
            }
        sync_block();
    }
    // 64 sums of 32 threads: every exchange halves the sums that a thread has, and adds the other thread's share to them.
    // In the end thread l has 2, of row bits 4..2 of l.
#pragma unroll
    for (int step = 0; step < 5; step++) {
        const int m = 16 >> step, n = 32 >> step;
        const bool upper = l & m;
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i < n) {
                const float kept = upper ? sums[n + i] : sums[i], given = upper ? sums[i] : sums[n + i];
                sums[i] = add(kept, warp_xor(given, m));
            }
    }
    const int r = row0 + l / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = token0 + l % 4 * 2 + i;
        if (r >= n_rows || t >= n_tokens) continue;
        float sum = sums[i];
        const uint8_t *row = rows(r);
        const float *x = tokens(t);
        for (uint32_t c = whole; c < n_in; c++) sum = add(sum, mul(F::value(row, c), x[c]));
        out(r, t, sum);
    }
}

}  // namespace ds4::gpu
