// The words of CUDA that the kernels use, for the host executor. cuda/portable.h includes it and says what they mean.
#pragma once

#include <cmath>
#include <cstdint>

#include "simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__

namespace simt {

// threadIdx and its like: objects whose members ask the executor.
template <dim3 (*Get)()> struct Axis {
    struct X { operator unsigned() const { return Get().x; } } x;
    struct Y { operator unsigned() const { return Get().y; } } y;
    struct Z { operator unsigned() const { return Get().z; } } z;
};
inline dim3 thread_index() { return current->self->index; }
inline dim3 block_index() { return current->index; }
inline dim3 block_size() { return current->block; }
inline dim3 grid_size() { return current->grid; }

}  // namespace simt

inline constexpr simt::Axis<simt::thread_index> threadIdx;
inline constexpr simt::Axis<simt::block_index> blockIdx;
inline constexpr simt::Axis<simt::block_size> blockDim;
inline constexpr simt::Axis<simt::grid_size> gridDim;
