// Q4_K: 256 values in 144 bytes. f16 d; f16 dmin; u8 k[12]; u8 qs[128].
// Sub-block j of 32 values: x = d * sc(j) * code - dmin * m(j), with six-bit sc and m packed in k. Each 32 bytes of
// qs hold two sub-blocks: low nibbles the even one, high nibbles the odd one.
#include "quant/formats.h"

namespace ds4::quant {
namespace {

constexpr uint64_t kValues = 256, kBytes = 144, kScales = 4, kCodes = 16;

ScaleMin scale_min(const uint8_t *k, uint64_t j) {
    if (j < 4) return {k[j] & 63, k[j + 4] & 63};
    return {(k[j + 4] & 15) | (k[j - 4] >> 6) << 4, (k[j + 4] >> 4) | (k[j] >> 6) << 4};
}

}  // namespace

ScaleMin q4_k_scale_min(const uint8_t *k, uint64_t j) { return scale_min(k, j); }

void decode_q4_k(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / kValues; ++b, src += kBytes, dst += kValues) {
        const float d = load_f16(src), dmin = load_f16(src + 2);
        for (uint64_t j = 0; j < 8; ++j) {
            const ScaleMin s = scale_min(src + kScales, j);
            const float scale = d * static_cast<float>(s.scale);
            const float min = dmin * static_cast<float>(s.min);
            const uint8_t *codes = src + kCodes + 32 * (j / 2);
            const int shift = j % 2 ? 4 : 0;
            for (uint64_t l = 0; l < 32; ++l)
                dst[32 * j + l] = scale * static_cast<float>(codes[l] >> shift & 15) - min;
        }
    }
}

float dot_q4_k(const uint8_t *w, const BlockQ8K *act, uint64_t n) {
    float sum = 0;
    for (uint64_t b = 0; b < n / kValues; ++b, w += kBytes, ++act) {
        int32_t products = 0, mins = 0;
        for (uint64_t j = 0; j < 8; ++j) {
            const ScaleMin s = scale_min(w + kScales, j);
            const uint8_t *codes = w + kCodes + 32 * (j / 2);
            const int shift = j % 2 ? 4 : 0;
            int32_t part = 0;
            for (uint64_t l = 0; l < 32; ++l) part += (codes[l] >> shift & 15) * act->q[32 * j + l];
            products += s.scale * part;
            mins += s.min * (act->bsums[2 * j] + act->bsums[2 * j + 1]);
        }
        const float d = load_f16(w), dmin = load_f16(w + 2);
        sum += act->d * (d * static_cast<float>(products) - dmin * static_cast<float>(mins));
    }
    return sum;
}

}  // namespace ds4::quant
