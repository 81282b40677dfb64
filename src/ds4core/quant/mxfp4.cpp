// MXFP4: 32 values in 17 bytes. u8 e; u8 qs[16]. Byte j holds value j (low nibble) and value j + 16 (high nibble);
// x = 2^(e - 128) * code, where the codes are twice the FP4 values.
#include <algorithm>
#include <cmath>

#include "quant/formats.h"
#include "quant/search.h"

namespace ds4::quant {
namespace {

constexpr uint64_t kValues = 32, kBytes = 17;
constexpr int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// e = 0 and e = 1 give the subnormals 2^-128 and 2^-127.
inline float scale_of(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
    return std::bit_cast<float>(bits);
}

}  // namespace

float mxfp4_scale(uint8_t e) { return scale_of(e); }

void decode_mxfp4(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / kValues; ++b, src += kBytes, dst += kValues) {
        const float scale = scale_of(src[0]);
        for (uint64_t j = 0; j < 16; ++j) {
            dst[j] = scale * static_cast<float>(kCodes[src[1 + j] & 15]);
            dst[j + 16] = scale * static_cast<float>(kCodes[src[1 + j] >> 4]);
        }
    }
}

// The scale is the least power of two with which no value is above 6, the largest FP4 value. Halfway between two FP4
// values the one with the even code is taken. Zeros have no sign: the decoder gives them none.
void encode_mxfp4(const float *src, uint8_t *dst, uint64_t n) {
    const Searches &searches = active_searches();
    for (uint64_t b = 0; b < n / kValues; ++b, src += kValues, dst += kBytes) {
        const float peak = searches.peak(src);
        int exponent = -127;
        if (peak > 0) {
            const float part = std::frexp(peak, &exponent);  // peak = part * 2^exponent, and 6 = 0.75 * 2^3
            exponent = std::max(part > 0.75f ? exponent - 2 : exponent - 3, -127);
        }
        uint8_t code[kValues];
        searches.fp4_codes(src, std::ldexp(1.0f, -exponent), code);
        dst[0] = static_cast<uint8_t>(exponent + 127);
        for (uint64_t j = 0; j < 16; ++j) dst[1 + j] = static_cast<uint8_t>(code[j] | code[j + 16] << 4);
    }
}

float dot_mxfp4(const uint8_t *w, const BlockQ8A *act, uint64_t n) {
    float sum = 0;
    for (uint64_t b = 0; b < n / kValues; ++b, w += kBytes, ++act) {
        int32_t products = 0;
        for (uint64_t j = 0; j < 16; ++j) {
            products += kCodes[w[1 + j] & 15] * act->q[j];
            products += kCodes[w[1 + j] >> 4] * act->q[j + 16];
        }
        sum += scale_of(w[0]) * act->d * static_cast<float>(products);
    }
    return sum;
}

}  // namespace ds4::quant
