// Kernels on rows of activations. What they compute has the CPU's bits, but for sines and cosines (the device's).
#pragma once

#include "quant.cuh"
#include "round_trip.cuh"
#include "sums.cuh"

namespace ds4::gpu {

constexpr unsigned kRowThreads = 256;

// One block a row.
static __global__ void __launch_bounds__(kRowThreads) rms_norm_rows(ds4_args_rms_norm a) {
    DS4_SHARED(float, tile, kSumTile);
    const uint32_t dim = a.dim;
    const float *x = at(a.x) + uint64_t{blockIdx.x} * dim, *w = at(a.w);
    float *y = at(a.y) + uint64_t{blockIdx.x} * dim;
    const float sum = ordered_sum(dim, tile, [&](uint32_t i) { return mul(x[i], x[i]); });
    const float inverse = divide(1.0f, sqrtf(add(divide(sum, static_cast<float>(dim)), a.eps)));
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) y[i] = w ? mul(mul(x[i], inverse), w[i]) : mul(x[i], inverse);
}

// One row of blocks a token; a thread decodes one value for all copies.
template <class F> __global__ void __launch_bounds__(kRowThreads) embed_rows(ds4_args_embed a) {
    const uint32_t t = blockIdx.x, dim = a.table.n_in, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= dim) return;
    const uint64_t token = static_cast<uint32_t>(at<const int32_t>(a.tokens)[t]);
    const float value = F::value(at<const uint8_t>(a.table.data) + token * a.table.row_stride, i);
    float *out = at(a.out) + uint64_t{t} * a.copies * dim + i;
    for (uint32_t c = 0; c < a.copies; c++) out[uint64_t{c} * dim] = value;
}

// Sines and cosines of a token's position once a block, which then turns `kRopeHeads` heads.
constexpr uint32_t kRopeHeads = 8;
static __global__ void __launch_bounds__(kRowThreads) rope_rows(ds4_args_rope a) {
    DS4_DYNAMIC_SHARED(float, angles);
    const uint32_t t = blockIdx.x, pairs = a.n_rot / 2, first = blockIdx.y * kRopeHeads;
    const uint32_t heads = a.heads - first < kRopeHeads ? a.heads - first : kRopeHeads;
    const float *freqs = at<const float>(a.freqs), pos = static_cast<float>(a.pos0 + t);
    for (uint32_t i = threadIdx.x; i < pairs; i += blockDim.x) {
        const float angle = mul(pos, freqs[i]);
        angles[2 * i] = cosf(angle);
        angles[2 * i + 1] = mul(sinf(angle), a.sign);
    }
    sync_block();
    float *x = at(a.x) + (uint64_t{t} * a.heads + first) * a.dim + a.dim - a.n_rot;
    for (uint32_t i = threadIdx.x; i < heads * pairs; i += blockDim.x) {
        const uint32_t pair = i % pairs;
        float *place = x + uint64_t{i / pairs} * a.dim + 2 * pair;
        const float c = angles[2 * pair], s = angles[2 * pair + 1], u = place[0], v = place[1];
        place[0] = add(mul(u, c), mul(v, -s));
        place[1] = add(mul(v, c), mul(u, s));
    }
}

static __global__ void __launch_bounds__(kRowThreads) swiglu_values(ds4_args_swiglu a) {
    const uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < a.count) at(a.a)[i] = swiglu(at(a.a)[i], at(a.b)[i], 1.0f, a.clamp);
}

// One row of blocks a token.
static __global__ void __launch_bounds__(kRowThreads) add_to_rows(ds4_args_add_rows a) {
    const uint32_t t = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.dim) return;
    const float e = at<const float>(a.e)[uint64_t{t} * a.dim + i];
    float *x = at(a.x) + uint64_t{t} * a.copies * a.dim + i;
    for (uint32_t c = 0; c < a.copies; c++) x[uint64_t{c} * a.dim] = add(x[uint64_t{c} * a.dim], e);
}

// One block a token: all products of the row that came in, then the directions one after another.
static __global__ void __launch_bounds__(kRowThreads) steer_rows(ds4_args_steer a) {
    DS4_SHARED(float, tile, kSumTile);
    float *y = at(a.y) + uint64_t{blockIdx.x} * a.dim, factor[DS4_MAX_STEERING];
    for (uint32_t d = 0; d < DS4_MAX_STEERING; d++) {  // a constant number of rounds keeps `factor` in registers
        factor[d] = 0;
        if (d >= a.count) continue;
        const float *direction = at<const float>(a.directions[d]);
        factor[d] = mul(a.scales[d], ordered_sum(a.dim, tile, [&](uint32_t i) { return mul(direction[i], y[i]); }));
    }
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float value = y[i];
        for (uint32_t d = 0; d < DS4_MAX_STEERING; d++)
            if (d < a.count) value = add(value, -mul(factor[d], at<const float>(a.directions[d])[i]));
        y[i] = value;
    }
}

// One row of blocks a token, from token `skip` on: of more tokens than places the later ones stay.
static __global__ void __launch_bounds__(kRowThreads) store_cache_rows(ds4_args_store_rows a, uint32_t skip) {
    const uint32_t t = skip + blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.dim) return;
    const uint64_t row = (uint64_t{a.pos0} + t) % a.capacity;
    store_value(at<uint8_t>(a.rows) + row * row_bytes(a.row_type, a.dim), a.row_type, i,
                at<const float>(a.x)[uint64_t{t} * a.dim + i]);
}

// One block a row, which waits in shared memory.
static __global__ void __launch_bounds__(kRowThreads) round_trip_rows(ds4_args_round_rows a) {
    DS4_DYNAMIC_SHARED(float, row);
    float *x = at(a.x) + uint64_t{blockIdx.x} * a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) row[i] = x[i];
    sync_block();
    round_shared_row(row, a.dim, a.n_rot, a.mode);
    for (uint32_t i = threadIdx.x; i < a.dim; i += blockDim.x) x[i] = row[i];
}

}  // namespace ds4::gpu
