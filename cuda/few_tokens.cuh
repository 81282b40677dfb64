// Weight rows times a few tokens, where reading the weights is the work. Two kinds of activations, as on the CPU:
//
// rounded to 8 bits: integer sums inside a block of weights. Many threads share a row, each with pieces of blocks; what
//   the blocks add to the product (a "term") is kept in shared memory, and one thread adds the terms of a row in order.
// float32: 32 partial sums, of the values i with the same i % 32, then halves of them added to each other. The last
//   n_in % 32 products are added one by one.
//
// Both are the sums of the CPU back end in its order, so the bits are the same, however many tokens come together.
#pragma once

#include "activations.cuh"
#include "quant.cuh"

namespace ds4::gpu {

constexpr int kFewTokens = 8;
constexpr int kFewThreads = 256;
constexpr int kFewTerms = 512;      // of one token: blocks of a stretch times rows
constexpr int kMostRowsAtOnce = 8;  // of a thread block

// n_rows (a power of two, up to kMostRowsAtOnce) rows times n <= N tokens. rows(v) is where row v begins or NULL,
// tokens(v, t) which row of `x` it meets; out(v, t, sum) is called once for each that exists, by one thread.
template <class F, int N, class Rows, class Tokens, class Out>
__device__ __forceinline__ void few_products(int n_rows, uint32_t n_in, int n, const Rounded &x, const Rows &rows, const Tokens &tokens,
                                             const Out &out) {
    DS4_SHARED(float, terms, N * (kFewTerms + kMostRowsAtOnce));
    DS4_SHARED(uint32_t, table, F::kTable ? kTableWords : 1);
    constexpr int kPieces = F::kPieces, kWordsOfBlock = F::kValues / 4;
    const int team = kFewThreads / n_rows, stretch = kFewTerms / n_rows, thread = static_cast<int>(threadIdx.x);
    const int v = thread / team, part = thread % kPieces;
    const int n_blocks = static_cast<int>(n_in) / F::kValues;
    const uint8_t *row = rows(v);
    fill_table<F>(table);
    if (F::kTable) sync_block();
    const int sum_row = thread / N, sum_token = thread % N;  // whose terms this thread adds
    const bool adds = sum_row < n_rows && sum_token < n && rows(sum_row);
    float sum = 0;
    for (int first = 0; first < n_blocks; first += stretch) {
        const int here = n_blocks - first < stretch ? n_blocks - first : stretch;
        for (int p0 = 0; p0 < here * kPieces; p0 += team) {
            const int b = (p0 + thread % team) / kPieces;  // in the stretch
            const bool on = row && b < here;
            int products[N], mins[N];
#pragma unroll
            for (int t = 0; t < N; t++) products[t] = mins[t] = 0;
            const uint8_t *block = row + static_cast<uint64_t>(first + b) * F::kBytes;
            if (on) {
                const Piece<F::kWords> w = F::piece(block, part, table);
                int scale[2] = {1, 1};  // of the first and the last words
                uint32_t min = 0;
                if constexpr (F::kSubScales) {
                    scale[0] = F::scale_of(block, F::place(part, 0) / 8);
                    scale[1] = F::scale_of(block, F::place(part, F::kWords - 1) / 8);
                }
                if constexpr (F::kMins) min = F::mins_of(block, part / 2) >> (16 * (part % 2));
#pragma unroll
                for (int t = 0; t < N; t++)
                    if (t < n) {
                        const uint64_t at = static_cast<uint64_t>(tokens(v, t)) * n_blocks + first + b;
                        const uint32_t *q = x.q + at * kWordsOfBlock;
                        int half[2] = {0, 0};
#pragma unroll
                        for (int i = 0; i < F::kWords; i += F::kRun) {
                            uint32_t run[F::kRun];
                            load_run<F::kRun>(q + F::place(part, i), run);
#pragma unroll
                            for (int j = 0; j < F::kRun; j++) {
                                int &sum_of_half = half[2 * (i + j) / F::kWords];
                                sum_of_half = dot4(static_cast<int>(w.w[i + j]), static_cast<int>(run[j]), sum_of_half);
                            }
                        }
                        products[t] = scale[0] * half[0] + scale[1] * half[1];
                        if constexpr (F::kMins) {
                            const uint32_t sums = x.sums[at * 8 + part];
                            mins[t] = static_cast<int>(min & 255) * static_cast<int16_t>(sums) +
                                      static_cast<int>(min >> 8 & 255) * static_cast<int16_t>(sums >> 16);
                        }
                    }
            }
#pragma unroll
            for (int t = 0; t < N; t++)
                for (int m = 1; m < kPieces && t < n; m *= 2) {
                    products[t] += warp_xor(products[t], m);
                    if (F::kMins) mins[t] += warp_xor(mins[t], m);
                }
            if (on && part == 0) {
                const Scales scales = F::scales(block);
#pragma unroll
                for (int t = 0; t < N; t++)
                    if (t < n) {
                        const float d = x.d[static_cast<uint64_t>(tokens(v, t)) * n_blocks + first + b];
                        terms[(v * N + t) * (stretch + 1) + b] = F::term(scales, d, products[t], mins[t]);
                    }
            }
        }
        sync_block();
        if (adds)
            for (int b = 0; b < here; b++) sum = add(sum, terms[thread * (stretch + 1) + b]);
        sync_block();
    }
    if (adds) out(sum_row, sum_token, sum);
}

// The sum of 32 neighbouring threads, in the CPU's order.
__device__ __forceinline__ float sum_of_32(float v) {
    for (int m = 16; m; m /= 2) v = add(v, warp_xor(v, m));
    return v;
}

// The same for float32 activations, 32 threads a row: as many rows as the thread block has groups of 32 threads. tokens(v, t)
// is where the activations begin.
template <class F, int N, class Rows, class Tokens, class Out>
__device__ __forceinline__ void few_float_products(uint32_t n_in, int n, const Rows &rows, const Tokens &tokens, const Out &out) {
    const int v = static_cast<int>(threadIdx.x) / 32, l = static_cast<int>(threadIdx.x) % 32;
    const uint8_t *row = rows(v);
    const uint32_t whole = n_in / 32 * 32;
    float sums[N];
#pragma unroll
    for (int t = 0; t < N; t++) sums[t] = 0;
    if (row) {
#pragma unroll 8
        for (uint32_t i = static_cast<uint32_t>(l); i < whole; i += 32) {
            const float w = F::value(row, i);
#pragma unroll
            for (int t = 0; t < N; t++)
                if (t < n) sums[t] = add(sums[t], mul(w, tokens(v, t)[i]));
        }
    }
#pragma unroll
    for (int t = 0; t < N; t++) {
        float sum = sum_of_32(sums[t]);
        if (!row || l != t || t >= n) continue;
        for (uint32_t i = whole; i < n_in; i++) sum = add(sum, mul(F::value(row, i), tokens(v, t)[i]));
        out(v, t, sum);
    }
}

constexpr int kWideProducts = 4096;

// One row by all threads of the block: products first, then sums. For matrices of few and long rows.
template <class F, int N, class Tokens, class Out>
__device__ __forceinline__ void wide_float_product(const uint8_t *row, uint32_t n_in, int n, const Tokens &tokens, const Out &out) {
    static_assert(N <= kFewThreads / 32, "32 threads a token");
    DS4_SHARED(float, products, kWideProducts);
    constexpr uint32_t kStretch = kWideProducts / N;
    const int group = static_cast<int>(threadIdx.x) / 32, l = static_cast<int>(threadIdx.x) % 32;
    const uint32_t whole = n_in / 32 * 32;
    float sum = 0;
    for (uint32_t first = 0; first < whole; first += kStretch) {
        const uint32_t here = whole - first < kStretch ? whole - first : kStretch;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < here; i += kFewThreads) {
            const float w = F::value(row, first + i);
#pragma unroll
            for (int t = 0; t < N; t++)
                if (t < n) products[static_cast<uint32_t>(t) * kStretch + i] = mul(w, tokens(t)[first + i]);
        }
        sync_block();
        if (group < n)
            for (uint32_t i = static_cast<uint32_t>(l); i < here; i += 32) sum = add(sum, products[static_cast<uint32_t>(group) * kStretch + i]);
        sync_block();
    }
    sum = sum_of_32(sum);
    if (group >= n || l != 0) return;
    for (uint32_t i = whole; i < n_in; i++) sum = add(sum, mul(F::value(row, i), tokens(group)[i]));
    out(group, sum);
}

}  // namespace ds4::gpu
