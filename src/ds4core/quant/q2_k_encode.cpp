// Encoder of Q2_K; the layout is described in q2_k.cpp.
#include "quant/encode.h"
#include "quant/formats.h"
#include "quant/k_block.h"

namespace ds4::quant {
namespace {
constexpr unsigned kSize = 16;
constexpr float kTop = 3, kTopScale = 15;
constexpr Search kPlain{-0.5f, 0.1f, 15, true};
constexpr Search kWeighted{-0.9f, 0.05f, 36, false};
}  // namespace

void encode_block_q2_k(const float *x, const float *weights, uint8_t *dst) {
    KBlock<kSize> block;
    if (weights) {
        const float variance = sum_of_squares(x, 256) / 256.0f;
        block.fit(x, kTop, kWeighted, [&](unsigned j, float *w) {
            scaled_weights(x + kSize * j, weights + kSize * j, kSize, variance, w);
        });
        block.round_weighted(kTopScale);
    } else {
        block.fit(x, kTop, kPlain, [&](unsigned j, float *w) {
            for (unsigned i = 0; i < kSize; ++i) w[i] = std::fabs(x[kSize * j + i]);
        });
        block.round_plainly(kTopScale);
    }
    block.final_codes(x, kTop);

    for (unsigned j = 0; j < 16; ++j) dst[j] = static_cast<uint8_t>(block.scale_code[j] | block.min_code[j] << 4);
    for (unsigned half = 0; half < 2; ++half) {
        const uint8_t *code = block.code + 128 * half;
        for (unsigned l = 0; l < 32; ++l)
            dst[16 + 32 * half + l] =
                static_cast<uint8_t>(code[l] | code[l + 32] << 2 | code[l + 64] << 4 | code[l + 96] << 6);
    }
    store_u16(dst + 80, block.d);
    store_u16(dst + 82, block.dmin);
}

}  // namespace ds4::quant
