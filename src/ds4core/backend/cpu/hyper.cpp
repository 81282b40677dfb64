// Hyper-connections: mixing the residual streams before and after a sublayer (docs/model.md, hyper-connections).
#include <cmath>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

namespace {

constexpr size_t kMaxStreams = 8;  // every registered shape has 4

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float inverse_rms(const Kernels *k, const float *x, size_t n, float eps) {
    return 1.0f / std::sqrt(k->sum_squares(x, n) / static_cast<float>(n) + eps);
}

// Rows to softmax + eps, then alternately column and row sums to 1: the published order begins with the columns and
// ends with them, so `iterations` column passes and one row pass less.
void sinkhorn(float *c, size_t h, uint32_t iterations, float eps) {
    auto scale_rows = [&] {
        for (size_t j = 0; j < h; j++) {
            float s = 0;
            for (size_t k = 0; k < h; k++) s += c[j * h + k];
            for (size_t k = 0; k < h; k++) c[j * h + k] /= s + eps;
        }
    };
    auto scale_columns = [&] {
        for (size_t k = 0; k < h; k++) {
            float s = 0;
            for (size_t j = 0; j < h; j++) s += c[j * h + k];
            for (size_t j = 0; j < h; j++) c[j * h + k] /= s + eps;
        }
    };
    for (size_t j = 0; j < h; j++) {
        float *row = c + j * h, top = row[0], s = 0;
        for (size_t k = 1; k < h; k++) top = row[k] > top ? row[k] : top;
        for (size_t k = 0; k < h; k++) s += row[k] = std::exp(row[k] - top);
        for (size_t k = 0; k < h; k++) row[k] = row[k] / s + eps;
    }
    scale_columns();
    for (uint32_t i = 1; i < iterations; i++) {
        scale_rows();
        scale_columns();
    }
}

}  // namespace

void hc_pre(ds4_queue *q, const ds4_args_hc_pre *a) {
    const float *mix = ptr(a->mix), *streams = ptr(a->streams), *scale = ptr(a->scale), *base = ptr(a->base);
    float *x = ptr(a->x), *post = ptr(a->post), *comb = ptr(a->comb);
    size_t h = a->n_hc, dim = a->dim, width = (2 + h) * h;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * dim * 2, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) {
            const float *m = mix + t * width, *s = streams + t * h * dim;
            float inv = inverse_rms(q->kernels, s, h * dim, a->norm_eps), *xt = x + t * dim, *c = comb + t * h * h;
            for (size_t i = 0; i < dim; i++) xt[i] = 0;
            for (size_t i = 0; i < h; i++) {
                float pre = sigmoid(m[i] * inv * scale[0] + base[i]) + a->hc_eps;
                q->kernels->axpy(xt, s + i * dim, pre, dim);
                post[t * h + i] = 2.0f * sigmoid(m[h + i] * inv * scale[1] + base[h + i]);
            }
            for (size_t i = 0; i < h * h; i++) c[i] = m[2 * h + i] * inv * scale[2] + base[2 * h + i];
            sinkhorn(c, h, a->iterations, a->hc_eps);
        }
    });
}

void hc_post(ds4_queue *q, const ds4_args_hc_post *a) {
    const float *y = ptr(a->y), *post = ptr(a->post), *comb = ptr(a->comb);
    float *streams = ptr(a->streams);
    size_t h = a->n_hc, dim = a->dim;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * h * dim, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) {
            float *s = streams + t * h * dim;
            const float *c = comb + t * h * h, *p = post + t * h, *yt = y + t * dim;
            for (size_t i = 0; i < dim; i++) {
                float old[kMaxStreams];
                for (size_t j = 0; j < h; j++) old[j] = s[j * dim + i];
                for (size_t k = 0; k < h; k++) {
                    float v = p[k] * yt[i];
                    for (size_t j = 0; j < h; j++) v += c[j * h + k] * old[j];
                    s[k * dim + i] = v;
                }
            }
        }
    });
}

void hc_head(ds4_queue *q, const ds4_args_hc_head *a) {
    const float *mix = ptr(a->mix), *streams = ptr(a->streams), *scale = ptr(a->scale), *base = ptr(a->base);
    float *x = ptr(a->x);
    size_t h = a->n_hc, dim = a->dim;
    q->pool.run(a->n, static_cast<uint64_t>(a->n) * h * dim * 2, [&](size_t b, size_t e, unsigned) {
        for (size_t t = b; t < e; t++) {
            const float *s = streams + t * h * dim;
            float inv = inverse_rms(q->kernels, s, h * dim, a->norm_eps), *xt = x + t * dim;
            for (size_t i = 0; i < dim; i++) xt[i] = 0;
            for (size_t i = 0; i < h; i++)
                q->kernels->axpy(xt, s + i * dim, sigmoid(mix[t * h + i] * inv * scale[0] + base[i]) + a->hc_eps, dim);
        }
    });
}

}  // namespace ds4::cpu
