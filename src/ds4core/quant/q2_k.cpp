// Q2_K: 256 values in 84 bytes. u8 s[16]; u8 qs[64]; f16 d; f16 dmin - the scales come first, unlike Q4_K.
// Sub-block j of 16 values: x = d * (s[j] & 15) * code - dmin * (s[j] >> 4). Two halves of 128 values use 32 bytes
// each; bits 2t..2t+1 of byte l hold value 32t + l of the half.
#include "quant/formats.h"

namespace ds4::quant {
namespace {
constexpr uint64_t kValues = 256, kBytes = 84, kCodes = 16, kD = 80, kDmin = 82;
}

void decode_q2_k(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / kValues; ++b, src += kBytes, dst += kValues) {
        const float d = load_f16(src + kD), dmin = load_f16(src + kDmin);
        for (uint64_t j = 0; j < 16; ++j) {  // 16 values, all with the same shift
            const float scale = d * static_cast<float>(src[j] & 15);
            const float min = dmin * static_cast<float>(src[j] >> 4);
            const uint8_t *codes = src + kCodes + 32 * (j / 8) + 16 * (j % 2);
            const int shift = static_cast<int>(2 * (j % 8 / 2));
            for (uint64_t l = 0; l < 16; ++l)
                dst[16 * j + l] = scale * static_cast<float>(codes[l] >> shift & 3) - min;
        }
    }
}

// At most 16 * 3 * 128 * 15 a sub-block: everything fits an i32 with ease.
float dot_q2_k(const uint8_t *w, const BlockQ8K *act, uint64_t n) {
    float sum = 0;
    for (uint64_t b = 0; b < n / kValues; ++b, w += kBytes, ++act) {
        int32_t products = 0, mins = 0;
        for (uint64_t j = 0; j < 16; ++j) {
            const uint8_t *codes = w + kCodes + 32 * (j / 8) + 16 * (j % 2);
            const int shift = static_cast<int>(2 * (j % 8 / 2));
            int32_t part = 0;
            for (uint64_t l = 0; l < 16; ++l) part += (codes[l] >> shift & 3) * act->q[16 * j + l];
            products += (w[j] & 15) * part;
            mins += (w[j] >> 4) * act->bsums[j];
        }
        const float d = load_f16(w + kD), dmin = load_f16(w + kDmin);
        sum += act->d * (d * static_cast<float>(products) - dmin * static_cast<float>(mins));
    }
    return sum;
}

}  // namespace ds4::quant
