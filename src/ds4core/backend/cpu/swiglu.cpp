// The activation function of the experts.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu.h"

namespace ds4::cpu {

float swiglu_one(float g, float u, float clamp) {
    g = std::min(g, clamp);
    u = std::clamp(u, -clamp, clamp);
    return g / (1.0f + std::exp(-g)) * u;
}

void swiglu(ds4_queue *q, const ds4_args_swiglu *a) {
    float *x = ptr(a->a);
    const float *u = ptr(a->b);
    q->pool.run(a->count, a->count * 16, [&](size_t b, size_t e, unsigned) {
        for (size_t i = b; i < e; i++) x[i] = swiglu_one(x[i], u[i], a->clamp);
    });
}

void swiglu_rows(const Kernels *, const float *g, const float *u, float weight, float clamp, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = weight * swiglu_one(g[i], u[i], clamp);
}

}  // namespace ds4::cpu
