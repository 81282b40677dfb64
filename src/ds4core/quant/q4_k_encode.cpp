// Encoder of Q4_K; the layout is described in q4_k.cpp.
#include "quant/encode.h"
#include "quant/formats.h"
#include "quant/k_batch.h"

namespace ds4::quant {
namespace {

constexpr float kTop = 15, kTopScale = 63;
constexpr Search kPlain{-1.0f, 0.1f, kTop, 20, false};
constexpr Search kWeighted{-0.9f, 0.05f, kTop, 36, false};

// Eight scales and eight minimums of six bits in 12 bytes.
void pack_scales(const uint8_t *scale, const uint8_t *min, uint8_t *k) {
    for (unsigned j = 0; j < 4; ++j) {
        k[j] = static_cast<uint8_t>(scale[j] | scale[j + 4] >> 4 << 6);
        k[j + 4] = static_cast<uint8_t>(min[j] | min[j + 4] >> 4 << 6);
        k[j + 8] = static_cast<uint8_t>((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

}  // namespace

void encode_batch_q4_k(const Searches &searches, const float *x, const float *weights, uint8_t *dst, unsigned blocks) {
    KBatch<32> batch{searches, x, blocks, {}, {}, {}, {}, {}, {}, {}, {}};
    if (weights) {
        float variance[kBatch] = {};
        block_squares(x, blocks, variance);
        for (float &v : variance) v = 2.0f * v / 256.0f;
        batch.fit(kWeighted, Weighting::kImportance, weights, variance);
        batch.round_weighted(kTopScale);
    } else {
        batch.fit(kPlain, Weighting::kRmsMagnitude, nullptr, nullptr);
        batch.round_plainly(kTopScale);
    }
    batch.final_codes(kTop);

    for (unsigned b = 0; b < blocks; ++b, dst += 144) {
        store_u16(dst, batch.d[b]);
        store_u16(dst + 2, batch.dmin[b]);
        pack_scales(batch.scale_code + 8 * b, batch.min_code + 8 * b, dst + 4);
        for (unsigned pair = 0; pair < 4; ++pair) {
            const uint8_t *code = batch.code + 256 * b + 64 * pair;
            for (unsigned l = 0; l < 32; ++l)
                dst[16 + 32 * pair + l] = static_cast<uint8_t>(code[l] | code[l + 32] << 4);
        }
    }
}

}  // namespace ds4::quant
