// Kernels on rows of activations.
#pragma once

#include "portable.h"

namespace ds4::gpu {

// One block a row.
__global__ void __launch_bounds__(256) rms_norm_rows(ds4_args_rms_norm a) {
    DS4_SHARED(float, parts, kMostWarps);
    const uint32_t dim = a.dim;
    const float *x = at(a.x) + uint64_t{blockIdx.x} * dim, *w = at(a.w);
    float *y = at(a.y) + uint64_t{blockIdx.x} * dim;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) sum += x[i] * x[i];
    sum = block_sum<float>(sum, parts);
    const float inverse = 1.0f / sqrtf(sum / static_cast<float>(dim) + a.eps);
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) y[i] = w ? x[i] * inverse * w[i] : x[i] * inverse;
}

}  // namespace ds4::gpu
