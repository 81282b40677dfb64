// Rounding activations to 8 bits, half to even (docs/formats.md, "Activation formats").
#include <cmath>
#include <limits>

#include "quant/formats.h"

namespace ds4 {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();

// rint without a library call: for |x| < 2^22 adding 1.5 * 2^23 leaves the integer part, rounded half to even, in
// the low mantissa bits. The clamp comes first; its bounds are integers, so the order does not matter.
inline int8_t round_to_i8(float x) {
    constexpr float magic = 12582912.0f;
    const float clamped = x < -128.0f ? -128.0f : (x > 127.0f ? 127.0f : x);
    return static_cast<int8_t>(static_cast<int32_t>((clamped + magic) - magic));
}

// Whether a factor may be applied: a peak so small that its inverse overflows counts as zero.
inline bool usable(float factor) { return std::fabs(factor) <= kMax; }

}  // namespace

void quantize_q8_k(const float *src, BlockQ8K *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / 256; ++b, src += 256, ++dst) {
        float peak = 0, magnitude = 0;  // the first value of largest magnitude, with its sign
        bool finite = true;
        for (unsigned i = 0; i < 256; ++i) {
            const float a = std::fabs(src[i]);
            finite = finite && a <= kMax;
            if (a > magnitude) {
                magnitude = a;
                peak = src[i];
            }
        }
        const float factor = magnitude > 0 ? -127.0f / peak : 0.0f;
        if (!finite || magnitude == 0 || !usable(factor)) {
            *dst = BlockQ8K{};
            if (!finite) dst->d = std::numeric_limits<float>::quiet_NaN();
            continue;
        }
        dst->d = 1.0f / factor;
        for (unsigned i = 0; i < 256; ++i) dst->q[i] = round_to_i8(factor * src[i]);
        for (unsigned j = 0; j < 16; ++j) {
            int32_t sum = 0;
            for (unsigned i = 0; i < 16; ++i) sum += dst->q[16 * j + i];
            dst->bsums[j] = static_cast<int16_t>(sum);
        }
    }
}

void quantize_q8_a(const float *src, BlockQ8A *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / 32; ++b, src += 32, ++dst) {
        float magnitude = 0;
        bool finite = true;
        for (unsigned i = 0; i < 32; ++i) {
            const float a = std::fabs(src[i]);
            finite = finite && a <= kMax;
            if (a > magnitude) magnitude = a;
        }
        const float d = magnitude / 127.0f;
        const float factor = d > 0 ? 1.0f / d : 0.0f;
        if (!finite || d == 0 || !usable(factor)) {
            *dst = BlockQ8A{};
            if (!finite) dst->d = std::numeric_limits<float>::quiet_NaN();
            continue;
        }
        dst->d = d;
        for (unsigned i = 0; i < 32; ++i) dst->q[i] = round_to_i8(factor * src[i]);
    }
}

}  // namespace ds4
