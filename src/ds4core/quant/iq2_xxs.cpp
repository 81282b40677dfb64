// IQ2_XXS: 256 values in 66 bytes. f16 d; 8 groups of 32 values, each two u32 words (A, B) that lie at 2 mod 4.
// A: four grid indices, each a row of 8 magnitudes. B: four 7-bit sign fields and a 4-bit scale in the top bits.
// x = d * (0.5 + (B >> 28)) * 0.25 * magnitude * sign.
#include <array>

#include "quant/formats.h"

namespace ds4::quant {
namespace {

constexpr uint64_t kValues = 256, kBytes = 66;

constexpr uint16_t kKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

// Magnitudes of each grid row, expanded from the keys (two bits a value: levels 8, 25, 43).
constexpr std::array<std::array<int8_t, 8>, 256> kGrid = [] {
    constexpr int8_t levels[4] = {8, 25, 43, 0};
    std::array<std::array<int8_t, 8>, 256> grid{};
    for (size_t row = 0; row < 256; ++row)
        for (size_t j = 0; j < 8; ++j) grid[row][j] = levels[kKeys[row] >> (2 * j) & 3];
    return grid;
}();

// Sign bits of a 7-bit field; bit 7 is the parity of the others, so that the number of minus signs is even.
constexpr std::array<uint8_t, 128> kSigns = [] {
    std::array<uint8_t, 128> signs{};
    for (unsigned field = 0; field < 128; ++field)
        signs[field] = static_cast<uint8_t>(field | (static_cast<unsigned>(std::popcount(field)) & 1u) << 7);
    return signs;
}();

// The 8 signed magnitudes of part k of a group.
inline void signed_row(uint32_t indices, uint32_t signs, unsigned k, int8_t out[8]) {
    const std::array<int8_t, 8> &row = kGrid[indices >> (8 * k) & 255];
    const unsigned mask = kSigns[signs >> (7 * k) & 127];
    for (unsigned j = 0; j < 8; ++j) out[j] = static_cast<int8_t>(mask >> j & 1 ? -row[j] : row[j]);
}

}  // namespace

const uint16_t kIq2XxsKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

void iq2_xxs_signed_row(uint32_t indices, uint32_t signs, unsigned k, int8_t out[8]) { signed_row(indices, signs, k, out); }

void decode_iq2_xxs(const uint8_t *src, float *dst, uint64_t n) {
    int8_t values[8];
    for (uint64_t b = 0; b < n / kValues; ++b, src += kBytes) {
        const float d = load_f16(src);
        for (uint64_t g = 0; g < 8; ++g) {
            const uint32_t indices = load_u32(src + 2 + 8 * g), signs = load_u32(src + 6 + 8 * g);
            const float scale = d * (0.5f + static_cast<float>(signs >> 28)) * 0.25f;
            for (unsigned k = 0; k < 4; ++k) {
                signed_row(indices, signs, k, values);
                for (unsigned j = 0; j < 8; ++j) *dst++ = scale * static_cast<float>(values[j]);
            }
        }
    }
}

// At most 43 * 128 * 256 * 31 < 2^26 a block.
float dot_iq2_xxs(const uint8_t *w, const BlockQ8K *act, uint64_t n) {
    float sum = 0;
    int8_t values[8];
    for (uint64_t b = 0; b < n / kValues; ++b, w += kBytes, ++act) {
        const int8_t *q = act->q;
        int32_t products = 0;
        for (uint64_t g = 0; g < 8; ++g) {
            const uint32_t indices = load_u32(w + 2 + 8 * g), signs = load_u32(w + 6 + 8 * g);
            int32_t part = 0;
            for (unsigned k = 0; k < 4; ++k, q += 8) {
                signed_row(indices, signs, k, values);
                for (unsigned j = 0; j < 8; ++j) part += values[j] * q[j];
            }
            products += static_cast<int32_t>(2 * (signs >> 28) + 1) * part;
        }
        sum += 0.125f * load_f16(w) * act->d * static_cast<float>(products);
    }
    return sum;
}

}  // namespace ds4::quant
