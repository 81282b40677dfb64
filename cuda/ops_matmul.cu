// Matrix products: which kernel.
#include <cstring>

#include "backend.h"
#include "formats.h"
#include "matmul.cuh"
#include "rounding.h"

namespace ds4::gpu {

#ifdef DS4_HOST_SIMT
uint32_t host_matrix_units = 1;
#endif

namespace {

template <class F> int rows_at_once(uint32_t n_out, uint32_t n_in) {
    int rows = kMostRowsAtOnce;
    const uint32_t pieces = n_in / F::kValues * F::kPieces;
    while (rows > 1 && n_out / static_cast<uint32_t>(rows) < kWanted && kFewThreads / static_cast<uint32_t>(rows) < pieces) rows /= 2;
    return rows;
}

template <class F, int N> void few(ds4_queue *q, const MatmulArgs &m) {
    const int rows = rows_at_once<F>(m.a.w.n_out, m.a.w.n_in);
    DS4_LAUNCH(q, (matmul_few<F, N>), blocks_for(m.a.w.n_out, static_cast<unsigned>(rows)), kFewThreads, 0, m, rows);
}

template <class F> void rounded_product(ds4_queue *q, MatmulArgs m) {
    const uint32_t n = m.a.n, per_group = m.a.w.n_out / m.a.groups;
    if (!round_rows_of<F>(q, kWorkRounded, at(m.a.x), uint64_t{n} * m.a.groups, m.a.w.n_in, m.a.x_stride, m.a.groups, &m.x)) return;
    if (n == 1) return few<F, 1>(q, m);
    if (n == 2) return few<F, 2>(q, m);
    if (n <= 4) return few<F, 4>(q, m);
    if (n <= kFewTokens) return few<F, kFewTokens>(q, m);
    const dim3 grid(blocks_for(per_group, kTileRows) * m.a.groups, blocks_for(n, kTileTokens));
#if defined(DS4_HOST_SIMT) && DS4_WARP == 32
    if (host_matrix_units == 2) return DS4_LAUNCH(q, (matmul_tiles<F, MatrixUnit<Int8Gfx11>>), grid, kTileThreads, 0, m);
    if (host_matrix_units == 3) return DS4_LAUNCH(q, (matmul_tiles<F, MatrixUnit<Int8Gfx12>>), grid, kTileThreads, 0, m);
#endif
    if (kAlwaysMatrixUnits || matrix_units(q))
        DS4_LAUNCH(q, (matmul_tiles<F, MatrixUnit<Int8Unit>>), grid, kTileThreads, 0, m);
    else if constexpr (!kAlwaysMatrixUnits)
        DS4_LAUNCH(q, (matmul_tiles<F, PlainUnit>), grid, kTileThreads, 0, m);
}

template <class F, int N> void few_float(ds4_queue *q, const MatmulArgs &m) {
    if (m.a.w.n_out < kWanted && m.a.w.n_in >= 1024)
        DS4_LAUNCH(q, (matmul_wide_float<F, N>), m.a.w.n_out, kFewThreads, 0, m);
    else
        DS4_LAUNCH(q, (matmul_few_float<F, N>), blocks_for(m.a.w.n_out, kFewThreads / 32), kFewThreads, 0, m);
}

template <class F> void float_product(ds4_queue *q, const MatmulArgs &m) {
    const uint32_t n = m.a.n;
    if (n == 1) return few_float<F, 1>(q, m);
    if (n <= 4) return few_float<F, 4>(q, m);
    if (n <= kFewTokens) return few_float<F, kFewTokens>(q, m);
    const dim3 grid(blocks_for(m.a.w.n_out / m.a.groups, kFloatTileRows) * m.a.groups, blocks_for(n, kFloatTileTokens));
    DS4_LAUNCH(q, (matmul_float_tiles<F>), grid, kFloatTileThreads, 0, m);
}

}  // namespace

#ifdef DS4_HOST_SIMT
bool matrix_units(const ds4_queue *) { return host_matrix_units != 0; }
#elif defined(__HIP__)
bool matrix_units(const ds4_queue *q) {
    const char *arch = q->device->info.arch;
    if (kWarp == 64) return strncmp(arch, "gfx942", 6) == 0;
    return strncmp(arch, "gfx11", 5) == 0 || strncmp(arch, "gfx12", 5) == 0;
}
#else
bool matrix_units(const ds4_queue *) { return true; }
#endif

void matmul(ds4_queue *q, const ds4_args_matmul *args) {
    if (args->n == 0 || args->w.n_out == 0) return;
    const MatmulArgs m{resolved(args), {}};
    const bool known = with_format(m.a.w.type, [&](auto format) {
        using F = decltype(format);
        if constexpr (F::kInteger)
            if (m.a.quantized) return rounded_product<F>(q, m);
        float_product<F>(q, m);
    });
    if (!known) set_failed(q, DS4_E_UNSUPPORTED, "matmul: weights of tensor type %u", m.a.w.type);
}

}  // namespace ds4::gpu

#ifdef DS4_HOST_SIMT
// For tests, how tiles are multiplied: 0 by the plain fallback, 1 by the matrix unit that belongs to the warp size, and
// with warps of 32 by that of gfx11 (2) or gfx12 (3).
extern "C" __attribute__((visibility("default"))) void simt_set_matrix_units(uint32_t unit);
void simt_set_matrix_units(uint32_t unit) { ds4::gpu::host_matrix_units = unit; }
#endif
