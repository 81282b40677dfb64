// Kernels of the operation matmul.
#pragma once

#include "few_tokens.cuh"
#include "float_tiles.cuh"
#include "tiles.cuh"

namespace ds4::gpu {

// A matrix product with groups: rows of group g meet the columns [g * n_in, (g + 1) * n_in) of the tokens.
struct MatmulArgs {
    ds4_args_matmul a;
    Rounded x;  // rows [token][group]

    __device__ __forceinline__ const uint8_t *row(uint32_t r) const { return at<const uint8_t>(a.w.data) + r * a.w.row_stride; }
    __device__ __forceinline__ void store(uint32_t r, uint32_t t, float sum) const {
        float *y = at(a.y) + uint64_t{t} * a.y_stride + r;
        *y = a.accumulate ? add(*y, sum) : sum;
    }
    __device__ __forceinline__ uint32_t per_group() const { return a.w.n_out / a.groups; }
};

// Up to N tokens, `rows_at_once` rows a thread block.
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) matmul_few(MatmulArgs m, int rows_at_once) {
    const uint32_t first = blockIdx.x * static_cast<uint32_t>(rows_at_once), per_group = m.per_group();
    few_products<F, N>(
        rows_at_once, m.a.w.n_in, static_cast<int>(m.a.n), m.x,
        [&](int v) { return first + static_cast<uint32_t>(v) < m.a.w.n_out ? m.row(first + static_cast<uint32_t>(v)) : nullptr; },
        [&](int v, int t) { return static_cast<uint32_t>(t) * m.a.groups + (first + static_cast<uint32_t>(v)) / per_group; },
        [&](int v, int t, float sum) { m.store(first + static_cast<uint32_t>(v), static_cast<uint32_t>(t), sum); });
}

// Tiles: blockIdx.x counts those of a group, and groups; blockIdx.y tokens.
template <class F, class Unit> __global__ void __launch_bounds__(kTileThreads) matmul_tiles(MatmulArgs m) {
    const uint32_t per_group = m.per_group(), tiles = (per_group + kTileRows - 1) / kTileRows;
    const uint32_t g = blockIdx.x / tiles, r0 = blockIdx.x % tiles * kTileRows, t0 = blockIdx.y * kTileTokens;
    const uint32_t n_rows = per_group - r0 < kTileRows ? per_group - r0 : kTileRows;
    const uint32_t n_tokens = m.a.n - t0 < kTileTokens ? m.a.n - t0 : kTileTokens;
    tile_products<F, Unit>(
        static_cast<int>(n_rows), static_cast<int>(n_tokens), m.a.w.n_in, m.x,
        [&](int r) { return m.row(g * per_group + r0 + static_cast<uint32_t>(r)); },
        [&](int t) { return (t0 + static_cast<uint32_t>(t)) * m.a.groups + g; },
        [&](int r, int t, float sum) { m.store(g * per_group + r0 + static_cast<uint32_t>(r), t0 + static_cast<uint32_t>(t), sum); });
}

// With float32 activations: 8 rows a thread block, or one.
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) matmul_few_float(MatmulArgs m) {
    const uint32_t first = blockIdx.x * (kFewThreads / 32), per_group = m.per_group();
    few_float_products<F, N>(
        m.a.w.n_in, static_cast<int>(m.a.n),
        [&](int v) { return first + static_cast<uint32_t>(v) < m.a.w.n_out ? m.row(first + static_cast<uint32_t>(v)) : nullptr; },
        [&](int v, int t) {
            return at(m.a.x) + uint64_t(t) * m.a.x_stride + uint64_t{(first + static_cast<uint32_t>(v)) / per_group} * m.a.w.n_in;
        },
        [&](int v, int t, float sum) { m.store(first + static_cast<uint32_t>(v), static_cast<uint32_t>(t), sum); });
}
template <class F, int N> __global__ void __launch_bounds__(kFewThreads) matmul_wide_float(MatmulArgs m) {
    const uint32_t r = blockIdx.x;
    const float *x = at(m.a.x) + uint64_t{r / m.per_group()} * m.a.w.n_in;
    wide_float_product<F, N>(
        m.row(r), m.a.w.n_in, static_cast<int>(m.a.n), [&](int t) { return x + uint64_t(t) * m.a.x_stride; },
        [&](int t, float sum) { m.store(r, static_cast<uint32_t>(t), sum); });
}

template <class F> __global__ void __launch_bounds__(kFloatTileThreads) matmul_float_tiles(MatmulArgs m) {
    const uint32_t per_group = m.per_group(), tiles = (per_group + kFloatTileRows - 1) / kFloatTileRows;
    const uint32_t g = blockIdx.x / tiles, r0 = blockIdx.x % tiles * kFloatTileRows, t0 = blockIdx.y * kFloatTileTokens;
    const uint32_t n_rows = per_group - r0 < kFloatTileRows ? per_group - r0 : kFloatTileRows;
    const uint32_t n_tokens = m.a.n - t0 < kFloatTileTokens ? m.a.n - t0 : kFloatTileTokens;
    float_tile_products<F>(
        static_cast<int>(n_rows), static_cast<int>(n_tokens), m.a.w.n_in,
        [&](int r) { return m.row(g * per_group + r0 + static_cast<uint32_t>(r)); },
        [&](int t) { return at(m.a.x) + uint64_t{t0 + static_cast<uint32_t>(t)} * m.a.x_stride + uint64_t{g} * m.a.w.n_in; },
        [&](int r, int t, float sum) { m.store(g * per_group + r0 + static_cast<uint32_t>(r), t0 + static_cast<uint32_t>(t), sum); });
}

}  // namespace ds4::gpu
