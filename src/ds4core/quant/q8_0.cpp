// Q8_0: 32 values in 34 bytes. f16 d; i8 q[32]; x = d * q.
#include <cstring>
#include <limits>

#include "quant/formats.h"
#include "quant/search.h"

namespace ds4::quant {
namespace {
constexpr uint64_t kValues = 32, kBytes = 34;
}

void decode_q8_0(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / kValues; ++b, src += kBytes, dst += kValues) {
        const float d = load_f16(src);
        for (uint64_t i = 0; i < kValues; ++i) dst[i] = d * static_cast<float>(static_cast<int8_t>(src[2 + i]));
    }
}

// Weights round half away from zero, with the scale 1/d taken before d becomes f16. A block that holds a NaN or an
// infinity decodes to NaN throughout.
void encode_q8_0(const float *src, uint8_t *dst, uint64_t n) {
    const Searches &searches = active_searches();
    for (uint64_t b = 0; b < n / kValues; ++b, src += kValues, dst += kBytes) {
        const float peak = searches.peak(src);
        const bool finite = peak <= std::numeric_limits<float>::max();
        const float d = finite ? peak / 127.0f : std::numeric_limits<float>::quiet_NaN();
        const float inverse = 1.0f / d;
        // 1/d overflows only where d itself is below the smallest f16 and so is stored as zero.
        const bool usable = finite && d != 0 && inverse <= std::numeric_limits<float>::max();
        store_u16(dst, f32_to_f16(d));
        if (usable)
            searches.q8_codes(src, inverse, dst + 2);
        else
            std::memset(dst + 2, 0, kValues);
    }
}

float dot_q8_0(const uint8_t *w, const BlockQ8A *act, uint64_t n) {
    float sum = 0;
    for (uint64_t b = 0; b < n / kValues; ++b, w += kBytes, ++act) {
        int32_t products = 0;
        for (uint64_t i = 0; i < kValues; ++i) products += static_cast<int8_t>(w[2 + i]) * act->q[i];
        sum += load_f16(w) * act->d * static_cast<float>(products);
    }
    return sum;
}

}  // namespace ds4::quant
