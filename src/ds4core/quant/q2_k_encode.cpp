// Encoder of Q2_K; the layout is described in q2_k.cpp.
#include "quant/encode.h"
#include "quant/formats.h"
#include "quant/k_batch.h"

namespace ds4::quant {
namespace {

constexpr float kTop = 3, kTopScale = 15;
constexpr Search kPlain{-0.5f, 0.1f, kTop, 15, true};
constexpr Search kWeighted{-0.9f, 0.05f, kTop, 36, false};

}  // namespace

void encode_batch_q2_k(const Searches &searches, const float *x, const float *weights, uint8_t *dst, unsigned blocks) {
    KBatch<16> batch{searches, x, blocks, {}, {}, {}, {}, {}, {}, {}, {}};
    if (weights) {
        float variance[kBatch] = {};
        block_squares(x, blocks, variance);
        for (float &v : variance) v = v / 256.0f;
        batch.fit(kWeighted, Weighting::kImportance, weights, variance);
        batch.round_weighted(kTopScale);
    } else {
        batch.fit(kPlain, Weighting::kMagnitude, nullptr, nullptr);
        batch.round_plainly(kTopScale);
    }
    batch.final_codes(kTop);

    for (unsigned b = 0; b < blocks; ++b, dst += 84) {
        for (unsigned j = 0; j < 16; ++j)
            dst[j] = static_cast<uint8_t>(batch.scale_code[16 * b + j] | batch.min_code[16 * b + j] << 4);
        for (unsigned half = 0; half < 2; ++half) {
            const uint8_t *code = batch.code + 256 * b + 128 * half;
            for (unsigned l = 0; l < 32; ++l)
                dst[16 + 32 * half + l] =
                    static_cast<uint8_t>(code[l] | code[l + 32] << 2 | code[l + 64] << 4 | code[l + 96] << 6);
        }
        store_u16(dst + 80, batch.d[b]);
        store_u16(dst + 82, batch.dmin[b]);
    }
}

}  // namespace ds4::quant
