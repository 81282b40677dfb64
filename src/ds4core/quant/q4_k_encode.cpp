// Encoder of Q4_K; the layout is described in q4_k.cpp.
#include "quant/encode.h"
#include "quant/formats.h"
#include "quant/k_block.h"

namespace ds4::quant {
namespace {

constexpr unsigned kSize = 32;
constexpr float kTop = 15, kTopScale = 63;
constexpr Search kPlain{-1.0f, 0.1f, 20, false};
constexpr Search kWeighted{-0.9f, 0.05f, 36, false};

// Eight scales and eight minimums of six bits in 12 bytes.
void pack_scales(const uint8_t *scale, const uint8_t *min, uint8_t *k) {
    for (unsigned j = 0; j < 4; ++j) {
        k[j] = static_cast<uint8_t>(scale[j] | scale[j + 4] >> 4 << 6);
        k[j + 4] = static_cast<uint8_t>(min[j] | min[j + 4] >> 4 << 6);
        k[j + 8] = static_cast<uint8_t>((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

}  // namespace

void encode_block_q4_k(const float *x, const float *weights, uint8_t *dst) {
    KBlock<kSize> block;
    if (weights) {
        const float variance = 2.0f * sum_of_squares(x, 256) / 256.0f;
        block.fit(x, kTop, kWeighted, [&](unsigned j, float *w) {
            scaled_weights(x + kSize * j, weights + kSize * j, kSize, variance, w);
        });
        block.round_weighted(kTopScale);
    } else {
        block.fit(x, kTop, kPlain, [&](unsigned j, float *w) {
            const float rms = std::sqrt(sum_of_squares(x + kSize * j, kSize) / 32.0f);
            for (unsigned i = 0; i < kSize; ++i) w[i] = rms + std::fabs(x[kSize * j + i]);
        });
        block.round_plainly(kTopScale);
    }
    block.final_codes(x, kTop);

    store_u16(dst, block.d);
    store_u16(dst + 2, block.dmin);
    pack_scales(block.scale_code, block.min_code, dst + 4);
    for (unsigned pair = 0; pair < 4; ++pair) {
        const uint8_t *code = block.code + 64 * pair;
        for (unsigned l = 0; l < 32; ++l)
            dst[16 + 32 * pair + l] = static_cast<uint8_t>(code[l] | code[l + 32] << 4);
    }
}

}  // namespace ds4::quant
