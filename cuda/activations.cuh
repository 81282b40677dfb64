// Activations rounded to 8 bits, with the bits of quant/activations.cpp. Kept as three arrays, so that values lie at
// multiples of 4 bytes: for each row the values, the factors of its blocks and, for Q8_K, the sums of 16 values.
#pragma once

#include "numbers.cuh"

namespace ds4::gpu {

struct Rounded {
    uint32_t *q;     // [row][n_in / 4], 4 values each
    float *d;        // [row][n_in / 32], or of 256 values
    uint32_t *sums;  // [row][n_in / 32], two sums as 16 bits each; Q8_K only
};

__host__ __device__ __forceinline__ uint64_t rounded_bytes(uint64_t n_rows, uint64_t n_in) { return n_rows * (n_in + n_in / 32 * 8); }
inline Rounded rounded_at(void *work, uint64_t n_rows, uint64_t n_in) {
    auto *q = static_cast<uint32_t *>(work);
    auto *d = reinterpret_cast<float *>(q + n_rows * (n_in / 4));
    return {q, d, reinterpret_cast<uint32_t *>(d + n_rows * (n_in / 32))};
}

// Half to even, as the CPU does it: |x| < 2^22 plus 1.5 * 2^23 has the integer in its low bits.
__device__ __forceinline__ uint32_t round_to_byte(float x) {
    const float clamped = x < -128.0f ? -128.0f : (x > 127.0f ? 127.0f : x);
    return static_cast<uint32_t>(static_cast<int>(add(add(clamped, 12582912.0f), -12582912.0f))) & 255;
}
__device__ __forceinline__ bool finite(float magnitude) { return magnitude <= 3.402823466e38f; }

constexpr int kRoundThreads = 256;
constexpr int kRoundBlocks = kRoundThreads / 32;  // blocks of activations that a thread block rounds

// Row r is groups * n_in values apart from row r - groups: rows [token][group], tokens x_stride floats apart.
struct RoundArgs {
    const float *x;
    uint64_t n_blocks;  // of all rows
    uint32_t n_in, x_stride, groups;

    template <int Values> __device__ __forceinline__ const float *block(uint64_t b) const {
        const uint32_t per_row = n_in / Values;
        const uint64_t row = b / per_row;
        return x + row / groups * x_stride + row % groups * n_in + b % per_row * Values;
    }
};

// 32 threads a block of 32 values.
static __global__ void __launch_bounds__(kRoundThreads) round_q8_a(RoundArgs a, Rounded out) {
    const uint64_t b = uint64_t{blockIdx.x} * kRoundBlocks + threadIdx.x / 32;
    const uint32_t i = threadIdx.x % 32;
    const float x = b < a.n_blocks ? a.block<32>(b)[i] : 0.0f;
    uint32_t most = as_bits(fabsf(x));  // the order of magnitudes is that of their bits; NaN and infinity on top
    for (int m = 16; m; m /= 2) {
        const uint32_t other = warp_xor(most, m);
        most = other > most ? other : most;
    }
    const float magnitude = as_float(most), d = divide(magnitude, 127.0f), factor = d > 0 ? divide(1.0f, d) : 0.0f;
    const bool known = finite(magnitude), zero = !known || d == 0 || !finite(factor);
    uint32_t word = zero ? 0 : round_to_byte(mul(factor, x)) << (8 * (i % 4));
    word |= warp_xor(word, 1);
    word |= warp_xor(word, 2);
    if (b >= a.n_blocks) return;
    if (i % 4 == 0) out.q[b * 8 + i / 4] = word;
    if (i == 0) out.d[b] = !known ? as_float(0x7fc00000) : zero ? 0.0f : d;
}

// 32 threads a block of 256 values, 8 each.
static __global__ void __launch_bounds__(kRoundThreads) round_q8_k(RoundArgs a, Rounded out) {
    const uint64_t b = uint64_t{blockIdx.x} * kRoundBlocks + threadIdx.x / 32;
    const uint32_t part = threadIdx.x % 32;
    float x[8];
    uint64_t most = 0;  // the first value of largest magnitude: magnitude, then the lower place; its sign in bit 0
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        x[i] = b < a.n_blocks ? a.block<256>(b)[8 * part + i] : 0.0f;
        const uint64_t bits = as_bits(fabsf(x[i]));
        const uint64_t key = bits << 32 | (255 - (8 * part + i)) << 1 | as_bits(x[i]) >> 31;
        most = key > most ? key : most;
    }
    for (int m = 16; m; m /= 2) {
        const uint64_t other = warp_xor(most, m);
        most = other > most ? other : most;
    }
    const float magnitude = as_float(static_cast<uint32_t>(most >> 32)), peak = most & 1 ? -magnitude : magnitude;
    const float factor = magnitude > 0 ? divide(-127.0f, peak) : 0.0f;
    const bool known = finite(magnitude), zero = !known || magnitude == 0 || !finite(fabsf(factor));
    uint32_t word[2] = {0, 0};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t q = zero ? 0 : round_to_byte(mul(factor, x[i]));
        word[i / 4] |= q << (8 * (i % 4));
        sum += static_cast<int8_t>(q);
    }
    sum += warp_xor(sum, 1);  // of 16 values
    const int next = warp_xor(sum, 2);
    if (b >= a.n_blocks) return;
    out.q[b * 64 + 2 * part] = word[0];
    out.q[b * 64 + 2 * part + 1] = word[1];
    if (part % 4 == 0)
        out.sums[b * 8 + part / 4] = (static_cast<uint32_t>(sum) & 0xffff) | static_cast<uint32_t>(next) << 16;
    if (part == 0) out.d[b] = !known ? as_float(0x7fc00000) : zero ? 0.0f : divide(1.0f, factor);
}

}  // namespace ds4::gpu
