// Sums over a row in the order of the CPU: 32 partial sums, of every 32nd term each, a fixed tree over them, then what is
// left of the row. With the same terms the sum has the CPU's bits, so nothing that is rounded to 8 bits later comes out
// differently.
#pragma once

#include "numbers.cuh"

namespace ds4::gpu {

constexpr uint32_t kSumTile = 2048;  // terms that wait in shared memory

// The sum of term(i), i < n, to all threads of a block. tile: kSumTile elements, free for use again afterwards.
template <class Term> __device__ __forceinline__ float ordered_sum(uint32_t n, Shared<float> tile, const Term &term) {
    const uint32_t whole = n / 32 * 32, me = static_cast<uint32_t>(lane());
    float sum = 0.0f;
    for (uint32_t first = 0; first < whole; first += kSumTile) {
        const uint32_t here = whole - first < kSumTile ? whole - first : kSumTile;
        for (uint32_t i = threadIdx.x; i < here; i += blockDim.x) tile[i] = term(first + i);
        sync_block();
        if (warp_index() == 0 && me < 32)
            for (uint32_t i = me; i < here; i += 32) sum = add(sum, tile[i]);
        sync_block();
    }
    if (warp_index() == 0) {
        for (int half = 16; half; half /= 2) sum = add(sum, warp_xor(sum, half));
        for (uint32_t i = whole; i < n; i++) sum = add(sum, term(i));
        if (me == 0) tile[0] = sum;
    }
    sync_block();
    sum = tile[0];
    sync_block();
    return sum;
}

}  // namespace ds4::gpu
