// The checks before the encoders, and the choice between them.
#include "quant/encode.h"

#include <algorithm>
#include <array>

#include "ds4/gguf.h"

namespace ds4 {
namespace {

constexpr uint64_t kValues = 256;
constexpr float kLargestValue = 65504.0f, kLargestWeight = 0x1p64f;  // up to these every fit ends in finite scales

constexpr std::array<float, kValues> kOnes = [] {
    std::array<float, kValues> ones{};
    for (float &one : ones) one = 1.0f;
    return ones;
}();

// Both are false for NaN.
bool storable(float x) { return x >= -kLargestValue && x <= kLargestValue; }
bool is_weight(float w) { return w >= 0.0f && w <= kLargestWeight; }

}  // namespace

bool encode_row(uint32_t type, const float *src, const float *importance, void *dst, uint64_t n) {
    void (*encode)(const float *, const float *, uint8_t *);
    uint64_t bytes;
    switch (type) {
        case DS4_TYPE_Q2_K: encode = quant::encode_block_q2_k, bytes = 84; break;
        case DS4_TYPE_Q4_K: encode = quant::encode_block_q4_k, bytes = 144; break;
        case DS4_TYPE_IQ2_XXS: encode = quant::encode_block_iq2_xxs, bytes = 66; break;
        default: return false;
    }
    if (n % kValues || (type == DS4_TYPE_IQ2_XXS && !importance)) return false;
    if (!std::all_of(src, src + n, storable)) return false;
    if (importance && !std::all_of(importance, importance + n, is_weight)) return false;

    uint8_t *out = static_cast<uint8_t *>(dst);
    for (uint64_t b = 0; b < n; b += kValues, out += bytes) {
        const float *weights = importance ? importance + b : nullptr;
        if (weights && std::none_of(weights, weights + kValues, [](float w) { return w > 0; }))
            weights = kOnes.data();
        encode(src + b, weights, out);
    }
    return true;
}

void add_synthetic_importance(const float *row, float *importance, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) importance[i] += row[i] * row[i];
}

}  // namespace ds4
