// The FP8 and FP4 round trips of cpu/rounding.cpp with the same bits: scales are powers of two, so all but the choice
// of the code is exact, and that is arithmetic on the value.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

// 2^ceil(log2(x)) for a normal x > 0, from its bits.
__device__ __forceinline__ float power_of_two_at_least(float x) {
    return as_float((as_bits(x) + 0x7fffffu) & 0x7f800000u);
}

__device__ __forceinline__ float with_sign_of(float magnitude, float x) {
    return as_float(as_bits(magnitude) | (as_bits(x) & 0x80000000u));
}

// |x| <= 448. The codes are 2^-9 apart below 2^-6, else an eighth of the binade.
__device__ __forceinline__ float round_e4m3(float x) {
    const float magnitude = as_float(as_bits(x) & 0x7fffffffu);
    float step = 0x1p-9f;
    if (magnitude >= 0x1p-6f) step = as_float((as_bits(magnitude) & 0x7f800000u) - (3u << 23));
    return with_sign_of(rintf(magnitude / step) * step, x);
}

// |x| <= 6.
__device__ __forceinline__ float round_e2m1(float x) {
    const float magnitude = as_float(as_bits(x) & 0x7fffffffu);
    const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
    return with_sign_of(rintf(magnitude / step) * step, x);
}

struct RoundTrip {
    uint32_t mode, end, block;  // blocks of the first `end` values
    float floor, top;

    __device__ __forceinline__ RoundTrip(uint32_t mode_, uint32_t dim, uint32_t n_rot) : mode(mode_) {
        const bool fp8 = mode == DS4_ROUND_FP8;
        end = fp8 ? dim - n_rot : dim;
        block = fp8 ? 64 : 32;
        floor = fp8 ? 1e-4f : 0x1.8p-124f;  // 6 * 2^-126
        top = fp8 ? 448.0f : 6.0f;
    }
    // x, of a block whose largest magnitude is `largest` (NaN left out), rounded.
    __device__ __forceinline__ float operator()(float x, float largest) const {
        largest = greater(floor, largest);
        if (!(largest <= kLargestFloat)) return as_float(0x7fc00000u);  // infinity has no scale: let the damage show
        const float scale = power_of_two_at_least(largest * (1.0f / top));
        float y = x / scale;  // a NaN stays one
        y = y < -top ? -top : top < y ? top : y;
        return (mode == DS4_ROUND_FP8 ? round_e4m3(y) : round_e2m1(y)) * scale;
    }
};

// 1 / sqrt(dim), dim a power of two, rounded once.
__device__ __forceinline__ float hadamard_norm(uint32_t dim) {
    float norm = 1.0f;
    for (; dim >= 4; dim /= 4) norm *= 0.5f;
    return dim == 2 ? norm * 0.707106781f : norm;
}

// A row in shared memory, by all threads of a block; the row is complete before, and after.
__device__ __forceinline__ void round_shared_row(Shared<float> row, uint32_t dim, uint32_t n_rot, uint32_t mode) {
    if (mode == DS4_ROUND_NONE) return;
    if (mode == DS4_ROUND_FP4) {
        for (uint32_t s = 1; s < dim; s *= 2) {
            for (uint32_t p = threadIdx.x; p < dim / 2; p += blockDim.x) {
                const uint32_t i = p / s * 2 * s + p % s;
                const float a = row[i], b = row[i + s];
                row[i] = a + b;
                row[i + s] = a - b;
            }
            sync_block();
        }
        const float norm = hadamard_norm(dim);
        for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) row[i] *= norm;
        sync_block();
    }
    const RoundTrip trip(mode, dim, n_rot);
    for (uint32_t base = 0; base < trip.end; base += blockDim.x) {
        // All of a block of values is read before any of it is written: a block never crosses a multiple of blockDim.x.
        const uint32_t i = base + threadIdx.x;
        float x = 0.0f, largest = 0.0f;
        if (i < trip.end) {
            const uint32_t begin = i / trip.block * trip.block;
            const uint32_t end = begin + trip.block < trip.end ? begin + trip.block : trip.end;
            for (uint32_t j = begin; j < end; j++) largest = greater(largest, fabsf(row[j]));
            x = trip(row[i], largest);
        }
        sync_block();
        if (i < trip.end) row[i] = x;
    }
    sync_block();
}

}  // namespace ds4::gpu
