// Hyper-connections: mixing the residual streams before and after a sublayer (docs/model.md, hyper-connections).
#include "backend/cpu/cpu.h"

namespace ds4::cpu {

void hc_pre(ds4_queue *q, const ds4_args_hc_pre *a) {
    const float *mix = ptr(a->mix), *streams = ptr(a->streams), *scale = ptr(a->scale), *base = ptr(a->base);
    float *x = ptr(a->x), *post = ptr(a->post), *comb = ptr(a->comb);
    const size_t h = a->n_hc, dim = a->dim, width = (2 + h) * h;
    const RowKernels *k = q->rows;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * dim * 2, [&](size_t b, size_t e, unsigned) {
        float pre[kMaxStreams];
        for (size_t t = b; t < e; t++) {
            const float *s = streams + t * h * dim;
            k->hc_coefficients(mix + t * width, k->inverse_rms(s, h * dim, a->norm_eps), scale, base, h, a->iterations,
                               a->hc_eps, pre, post + t * h, comb + t * h * h);
            k->hc_gather(s, dim, pre, h, x + t * dim, dim);
        }
    });
}

void hc_post(ds4_queue *q, const ds4_args_hc_post *a) {
    const float *y = ptr(a->y), *post = ptr(a->post), *comb = ptr(a->comb);
    float *streams = ptr(a->streams);
    const size_t h = a->n_hc, dim = a->dim;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * dim * 2, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++)
            q->rows->hc_scatter(streams + t * h * dim, dim, y + t * dim, post + t * h, comb + t * h * h, h, dim);
    });
}

void hc_head(ds4_queue *q, const ds4_args_hc_head *a) {
    const float *mix = ptr(a->mix), *streams = ptr(a->streams), *scale = ptr(a->scale), *base = ptr(a->base);
    float *x = ptr(a->x);
    const size_t h = a->n_hc, dim = a->dim;
    const RowKernels *k = q->rows;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * dim * 2, [&](size_t b, size_t e, unsigned) {
        float gate[kMaxStreams];
        for (size_t t = b; t < e; t++) {
            const float *s = streams + t * h * dim;
            k->hc_gates(mix + t * h, k->inverse_rms(s, h * dim, a->norm_eps), scale[0], base, h, a->hc_eps, gate);
            k->hc_gather(s, dim, gate, h, x + t * dim, dim);
        }
    });
}

}  // namespace ds4::cpu
