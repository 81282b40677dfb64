// Operations on rows of activations.
#include "backend.h"
#include "rows.cuh"

namespace ds4::gpu {

void rms_norm(ds4_queue *q, const ds4_args_rms_norm *a) {
    if (a->n_rows) DS4_LAUNCH(q, rms_norm_rows, a->n_rows, kBlock, 0, resolved(a));
}

}  // namespace ds4::gpu
