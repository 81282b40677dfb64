// The compressor.
#include "backend.h"
#include "compress.cuh"

namespace ds4::gpu {

void compress(ds4_queue *q, const ds4_args_compress *args) {
    if (!args->n) return;
    if (args->dim > kMostCompressDim)
        return set_failed(q, DS4_E_UNSUPPORTED, "compressor: rows of %u dims; up to %u can be made", args->dim,
                          kMostCompressDim);
    const ds4_args_compress a = resolved(args);
    const uint32_t groups = (a.pos0 + a.n) / a.ratio - a.pos0 / a.ratio, kept = a.n < a.ring ? a.n : a.ring;
    if (groups) DS4_LAUNCH(q, compress_groups, groups, kCompressThreads, 0, a);
    DS4_LAUNCH(q, compress_keep, kept, kCompressThreads, 0, a, a.n - kept);
}

}  // namespace ds4::gpu
