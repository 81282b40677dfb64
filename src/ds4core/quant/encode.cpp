// What each type can hold, and the choice of its encoder.
#include "quant/encode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ds4/gguf.h"
#include "quant/formats.h"
#include "quant/search.h"

namespace ds4 {
namespace {

constexpr uint64_t kValues = 256;  // of a block with weights
constexpr float kLargestF16 = 65504.0f, kLargestWeight = 0x1p64f;

template <class Encode>
void each_batch(Encode encode, uint64_t bytes, const float *src, const float *weights, uint8_t *dst, uint64_t n) {
    const quant::Searches &searches = quant::active_searches();
    for (uint64_t begin = 0; begin < n; begin += quant::kBatch * kValues) {
        const unsigned blocks = static_cast<unsigned>(std::min<uint64_t>((n - begin) / kValues, quant::kBatch));
        encode(searches, src + begin, weights ? weights + begin : nullptr, dst + begin / kValues * bytes, blocks);
    }
}

bool any_positive(const float *weights, uint64_t n) {
    return std::any_of(weights, weights + std::min(n, kValues), [](float w) { return w > 0; });
}

}  // namespace

bool has_encoder(uint32_t type) {
    switch (type) {
        case DS4_TYPE_F32:
        case DS4_TYPE_F16:
        case DS4_TYPE_BF16:
        case DS4_TYPE_Q8_0:
        case DS4_TYPE_MXFP4: return true;
        default: return takes_weights(type);
    }
}

bool takes_weights(uint32_t type) {
    return type == DS4_TYPE_Q2_K || type == DS4_TYPE_Q4_K || type == DS4_TYPE_IQ2_XXS;
}

bool is_weight(float w) { return w >= 0.0f && w <= kLargestWeight; }  // false for NaN

uint64_t count_unweighted_blocks(const float *weights, uint64_t n) {
    uint64_t count = 0;
    for (uint64_t b = 0; b < n; b += kValues) count += !any_positive(weights + b, n - b);
    return count;
}

void fill_unweighted_blocks(float *weights, uint64_t n) {
    for (uint64_t b = 0; b < n; b += kValues)
        if (!any_positive(weights + b, n - b)) std::fill_n(weights + b, kValues, 1.0f);
}

float largest_value(uint32_t type) {
    switch (type) {
        case DS4_TYPE_F16: return 0x1.ffdffep15f;   // below 65520, from which on F16 rounds to infinity
        case DS4_TYPE_BF16: return 0x1.fefffep127f; // the same of BF16
        case DS4_TYPE_Q8_0: return 127.0f * kLargestF16;
        case DS4_TYPE_MXFP4: return 0x1.8p127f;     // 6 times a power of two; what comes next decodes to infinity
        case DS4_TYPE_Q2_K:
        case DS4_TYPE_Q4_K:
        case DS4_TYPE_IQ2_XXS: return kLargestF16;
        default: return std::numeric_limits<float>::max();
    }
}

uint64_t first_unstorable(uint32_t type, const float *src, uint64_t n, bool allow_nonfinite) {
    if (allow_nonfinite && (type == DS4_TYPE_F32 || type == DS4_TYPE_F16 || type == DS4_TYPE_BF16)) return n;
    const float limit = largest_value(type);
    constexpr uint64_t kRun = 256;  // looked at as a whole first, without branches
    for (uint64_t begin = 0; begin < n; begin += kRun) {
        const uint64_t end = std::min(begin + kRun, n);
        unsigned good = 1;
        for (uint64_t i = begin; i < end; ++i) good &= std::fabs(src[i]) <= limit;  // false for NaN
        if (good) continue;
        for (uint64_t i = begin; i < end; ++i)
            if (!(std::fabs(src[i]) <= limit)) return i;
    }
    return n;
}

void encode_values(uint32_t type, const float *src, const float *weights, void *dst, uint64_t n) {
    uint8_t *out = static_cast<uint8_t *>(dst);
    switch (type) {
        case DS4_TYPE_F32: return quant::encode_f32(src, out, n);
        case DS4_TYPE_F16: return quant::encode_f16(src, out, n);
        case DS4_TYPE_BF16: return quant::encode_bf16(src, out, n);
        case DS4_TYPE_Q8_0: return quant::encode_q8_0(src, out, n);
        case DS4_TYPE_MXFP4: return quant::encode_mxfp4(src, out, n);
        case DS4_TYPE_Q2_K: return each_batch(quant::encode_batch_q2_k, 84, src, weights, out, n);
        case DS4_TYPE_Q4_K: return each_batch(quant::encode_batch_q4_k, 144, src, weights, out, n);
        case DS4_TYPE_IQ2_XXS: return each_batch(quant::encode_batch_iq2_xxs, 66, src, weights, out, n);
        default: return;
    }
}

}  // namespace ds4
