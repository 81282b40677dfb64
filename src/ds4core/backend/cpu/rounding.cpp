// E4M3 and E2M1 by arithmetic on the value, so that ties and binade borders are exact.
#include "backend/cpu/rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ds4::cpu {

float power_of_two_at_least(float q) {
    int e;
    float m = std::frexp(q, &e);  // q = m * 2^e, 0.5 <= m < 1
    return std::ldexp(1.0f, m == 0.5f ? e - 1 : e);
}

float round_e4m3(float x) {
    float a = std::fabs(x);
    // Spacing of the codes: 2^-9 below 2^-6, then an eighth of the binade.
    int e = -6;
    if (a >= 0.015625f) {
        std::frexp(a, &e);
        e -= 1;
    }
    float step = std::ldexp(1.0f, e - 3);
    return std::copysign(std::nearbyint(a / step) * step, x);
}

float round_e2m1(float x) {
    float a = std::fabs(x);
    float step = a < 2.0f ? 0.5f : a < 4.0f ? 1.0f : 2.0f;
    return std::copysign(std::nearbyint(a / step) * step, x);
}

namespace {

// The exponent is taken of the float32 product amax * (1 / top): the released code's form, which differs from a
// true division only within an ulp of top * 2^k.
template <class Round>
void round_blocks(float *x, size_t n, size_t block, float floor, float top, Round round) {
    for (size_t b = 0; b < n; b += block) {
        size_t end = std::min(b + block, n);
        float amax = floor;
        for (size_t i = b; i < end; i++) amax = std::max(amax, std::fabs(x[i]));
        if (!(amax <= std::numeric_limits<float>::max())) {  // infinity has no scale: let the damage show
            std::fill(x + b, x + end, std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        float scale = power_of_two_at_least(amax * (1.0f / top));
        for (size_t i = b; i < end; i++) x[i] = round(std::clamp(x[i] / scale, -top, top)) * scale;
    }
}

}  // namespace

void round_fp8(float *row, size_t dim, size_t n_rot) {
    round_blocks(row, dim - n_rot, 64, 1e-4f, 448.0f, round_e4m3);
}

void round_fp4(float *row, size_t dim) {
    for (size_t s = 1; s < dim; s *= 2)
        for (size_t i = 0; i < dim; i += 2 * s)
            for (size_t j = i; j < i + s; j++) {
                float a = row[j], b = row[j + s];
                row[j] = a + b;
                row[j + s] = a - b;
            }
    const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    for (size_t i = 0; i < dim; i++) row[i] *= norm;
    round_blocks(row, dim, 32, std::ldexp(6.0f, -126), 6.0f, round_e2m1);
}

}  // namespace ds4::cpu
