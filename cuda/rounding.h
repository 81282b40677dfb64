// What the operations with matrix products share on the host side.
#pragma once

#include "activations.cuh"
#include "backend.h"

namespace ds4::gpu {

// Whether the device of a queue has the matrix unit that mma.cuh was compiled for.
bool matrix_units(const ds4_queue *q);
#ifdef DS4_HOST_SIMT
extern uint32_t host_matrix_units;  // see simt_set_matrix_units
#endif

// Those of CUDA have it: nothing older than sm_80 is compiled for, and so the plain fallback need not be.
#if DS4_ON_DEVICE && !defined(__HIP__)
constexpr bool kAlwaysMatrixUnits = true;
#else
constexpr bool kAlwaysMatrixUnits = false;
#endif

// Thread blocks that keep all of a device busy; with fewer, more threads share a row. A small number on the executor, so
// that small matrices show what large ones do.
#ifdef DS4_HOST_SIMT
constexpr uint32_t kWanted = 4;
#else
constexpr uint32_t kWanted = 512;
#endif

// Rounds n_rows rows of n_in floats for weights of a format: rows [token][group], tokens x_stride floats apart. False when
// there is no memory for them; the queue has failed then.
template <class F>
bool round_rows_of(ds4_queue *q, WorkSlot slot, const float *x, uint64_t n_rows, uint32_t n_in, uint32_t x_stride, uint32_t groups,
                   Rounded *out) {
    void *work = work_space(q, slot, rounded_bytes(n_rows, n_in));
    if (!work) return false;
    *out = rounded_at(work, n_rows, n_in);
    const RoundArgs a{x, n_rows * (n_in / F::kValues), n_in, x_stride, groups};
    if constexpr (F::kValues == 256)
        DS4_LAUNCH(q, round_q8_k, blocks_for(a.n_blocks, kRoundBlocks), kRoundThreads, 0, a, *out);
    else
        DS4_LAUNCH(q, round_q8_a, blocks_for(a.n_blocks, kRoundBlocks), kRoundThreads, 0, a, *out);
    return true;
}

}  // namespace ds4::gpu
