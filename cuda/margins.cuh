// The smallest gap at a selection boundary, kept on the device between the operations of a queue.
#pragma once

#include "values.cuh"

namespace ds4::gpu {

constexpr uint32_t kMarginThreads = 256;

// *margin becomes the smallest of itself and gaps[n]; a NaN (infinity less infinity) is no gap. One block.
static __global__ void __launch_bounds__(kMarginThreads) fold_gaps(const float *gaps, uint32_t n, float *margin) {
    DS4_SHARED(float, scratch, kMostWarps);
    float least = *margin;
    for (uint32_t i = threadIdx.x; i < n; i += kMarginThreads) least = lesser(least, gaps[i]);
    least = -block_max(-least, scratch);
    if (threadIdx.x == 0) *margin = least;
}

}  // namespace ds4::gpu
