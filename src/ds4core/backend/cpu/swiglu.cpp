// The activation function of the experts.
#include "backend/cpu/cpu.h"

namespace ds4::cpu {

void swiglu(ds4_queue *q, const ds4_args_swiglu *a) {
    float *x = ptr(a->a);
    const float *u = ptr(a->b);
    q->pool.run(a->count, a->count * 4, [&](size_t b, size_t e, unsigned) {
        q->rows->swiglu(x + b, u + b, 1.0f, a->clamp, x + b, e - b);
    });
}

}  // namespace ds4::cpu
