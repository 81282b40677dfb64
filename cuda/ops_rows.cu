// Operations on rows of activations.
#include "backend.h"
#include "formats.h"
#include "rows.cuh"

namespace ds4::gpu {

void rms_norm(ds4_queue *q, const ds4_args_rms_norm *a) {
    if (a->n_rows) DS4_LAUNCH(q, rms_norm_rows, a->n_rows, kRowThreads, 0, resolved(a));
}

void embed(ds4_queue *q, const ds4_args_embed *a) {
    if (!a->n) return;
    const dim3 grid(a->n, blocks_for(a->table.n_in, kRowThreads));
    const bool known = with_format(a->table.type, [&](auto format) {
        DS4_LAUNCH(q, embed_rows<decltype(format)>, grid, kRowThreads, 0, resolved(a));
    });
    if (!known) set_failed(q, DS4_E_UNSUPPORTED, "embed: a table of tensor type %u", a->table.type);
}

void rope(ds4_queue *q, const ds4_args_rope *a) {
    if (!a->n || !a->heads || a->n_rot < 2) return;
    const dim3 grid(a->n, blocks_for(a->heads, kRopeHeads));
    DS4_LAUNCH(q, rope_rows, grid, kRowThreads, a->n_rot / 2 * 2 * sizeof(float), resolved(a));
}

void swiglu(ds4_queue *q, const ds4_args_swiglu *a) {
    if (a->count) DS4_LAUNCH(q, swiglu_values, blocks_for(a->count, kRowThreads), kRowThreads, 0, resolved(a));
}

void add_rows(ds4_queue *q, const ds4_args_add_rows *a) {
    const dim3 grid(a->n, blocks_for(a->dim, kRowThreads));
    if (a->n && a->copies) DS4_LAUNCH(q, add_to_rows, grid, kRowThreads, 0, resolved(a));
}

void steer(ds4_queue *q, const ds4_args_steer *a) {
    if (a->n && a->count) DS4_LAUNCH(q, steer_rows, a->n, kRowThreads, 0, resolved(a));
}

void store_rows(ds4_queue *q, const ds4_args_store_rows *a) {
    if (!a->n) return;
    const uint32_t skip = a->n > a->capacity ? a->n - a->capacity : 0;
    const dim3 grid(a->n - skip, blocks_for(a->dim, kRowThreads));
    DS4_LAUNCH(q, store_cache_rows, grid, kRowThreads, 0, resolved(a), skip);
}

void round_rows(ds4_queue *q, const ds4_args_round_rows *a) {
    if (!a->n_rows || a->mode == DS4_ROUND_NONE) return;
    DS4_LAUNCH(q, round_trip_rows, a->n_rows, kRowThreads, a->dim * sizeof(float), resolved(a));
}

}  // namespace ds4::gpu
