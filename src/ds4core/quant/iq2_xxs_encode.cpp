// Encoder of IQ2_XXS; the layout is described in iq2_xxs.cpp.
//
// A tuple of 8 values is stored as signs and one of 256 grid points with levels 0..2. In the search level l stands
// for 2l + 1: the lattice {1, 3, 5}, to which the true magnitudes 8, 25, 43 are nearly proportional.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "quant/encode.h"
#include "quant/formats.h"
#include "quant/k_batch.h"

namespace ds4::quant {
namespace {

constexpr unsigned kTuples = 6561;  // 3^8, numbered by their levels as digits in base 3

constexpr uint16_t kKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

using Levels = std::array<uint8_t, 8>;

constexpr std::array<Levels, 256> kPoints = [] {
    std::array<Levels, 256> points{};
    for (size_t row = 0; row < 256; ++row)
        for (size_t j = 0; j < 8; ++j) points[row][j] = kKeys[row] >> (2 * j) & 3;
    return points;
}();

// For each tuple of levels the grid points in the two smallest distinct distances from it, by distance and then
// index. A tuple on the grid has only itself, at distance zero.
class Neighbours {
  public:
    Neighbours() {
        Levels tuple{};
        for (unsigned number = 0; number < kTuples; ++number) {
            add(number, tuple);
            for (unsigned j = 0; j < 8 && ++tuple[j] == 3; ++j) tuple[j] = 0;
        }
    }

    GridTable table() const { return {start_.data(), count_.data(), keys_.data()}; }

  private:
    void add(unsigned number, const Levels &tuple) {
        std::array<uint8_t, 256> distance;
        unsigned nearest = 255, second = 255;
        for (unsigned p = 0; p < 256; ++p) {
            unsigned sum = 0;  // at most 8 * 2^2
            for (unsigned j = 0; j < 8; ++j) {
                const int difference = kPoints[p][j] - tuple[j];
                sum += static_cast<unsigned>(difference * difference);
            }
            distance[p] = static_cast<uint8_t>(sum);
            if (sum < nearest) {
                second = nearest;
                nearest = sum;
            } else if (sum > nearest && sum < second) {
                second = sum;
            }
        }
        start_[number] = static_cast<uint32_t>(keys_.size());
        for (const unsigned wanted : {nearest, nearest == 0 ? nearest : second}) {
            for (unsigned p = 0; p < 256; ++p)
                if (distance[p] == wanted) keys_.push_back(kKeys[p]);
            if (nearest == 0) break;
        }
        count_[number] = static_cast<uint16_t>(keys_.size() - start_[number]);
        keys_.resize((keys_.size() + 15) / 16 * 16, uint16_t{keys_.back()});
    }

    std::array<uint32_t, kTuples> start_{};
    std::array<uint16_t, kTuples> count_{};
    std::vector<uint16_t> keys_;
};

const Neighbours &neighbours() {
    static const Neighbours table;
    return table;
}

// The index of a grid point, from its key; keys ascend.
uint32_t index_of(uint16_t key) {
    return static_cast<uint32_t>(std::lower_bound(std::begin(kKeys), std::end(kKeys), key) - std::begin(kKeys));
}

// Magnitudes of 32 values and their signs, 7 bits a tuple. An odd number of minus signs cannot be stored: the value
// whose sign matters least then gets the other one, and a negative magnitude.
uint32_t split_signs(const float *x, const float *weight, float *v) {
    uint32_t signs = 0;
    for (unsigned k = 0; k < 4; ++k) {
        unsigned mask = 0, cheapest = 0;
        float least = INFINITY;
        for (unsigned j = 0; j < 8; ++j) {
            const unsigned i = 8 * k + j;
            v[i] = std::fabs(x[i]);
            if (x[i] < 0) mask |= 1u << j;
            const float cost = weight[i] * x[i] * x[i];
            if (cost < least) {
                least = cost;
                cheapest = j;
            }
        }
        if (std::popcount(mask) & 1) {
            v[8 * k + cheapest] = -v[8 * k + cheapest];
            mask ^= 1u << cheapest;
        }
        signs |= (mask & 127) << (7 * k);
    }
    return signs;
}

constexpr uint32_t kAllSigns = 0x0FFFFFFF;

// The words of a block and its scale. `fit` has the block's groups from `first` on.
void pack_block(const GridFit &fit, unsigned first, const uint32_t *signs, uint8_t *dst) {
    uint32_t words[8][2];
    float scales[8], peak = 0;
    for (unsigned n = 0; n < 8; ++n) {
        const float scale = fit.scale[first + n];
        words[n][0] = 0;
        for (unsigned k = 0; k < 4; ++k) words[n][0] |= index_of(fit.keys[first + n][k]) << (8 * k);
        words[n][1] = scale < 0 ? ~signs[n] & kAllSigns : signs[n];
        if (scale == 0) words[n][0] = words[n][1] = 0;
        scales[n] = std::fabs(scale);
        peak = scales[n] > peak ? scales[n] : peak;
    }
    std::memset(dst, 0, 66);
    if (peak == 0) return;
    const float d = peak / 31.0f, inverse = 1.0f / d;
    for (unsigned n = 0; n < 8; ++n) {
        const float nibble = nearest_code(0.5f * (inverse * scales[n] - 1.0f), 15.0f);
        words[n][1] |= static_cast<uint32_t>(nibble) << 28;
    }
    store_u16(dst, f32_to_f16(d));
    std::memcpy(dst + 2, words, sizeof words);
}

}  // namespace

void encode_batch_iq2_xxs(const Searches &searches, const float *x, const float *weights, uint8_t *dst,
                          unsigned blocks) {
    const GridTable table = neighbours().table();
    float squares[kBatch];
    block_squares(x, blocks, squares);
    constexpr unsigned kSide = kLanes / 8;  // blocks of one search
    for (unsigned b = 0; b < blocks; b += kSide) {
        GridFit fit;
        uint32_t signs[kLanes];
        fit.count = 8 * std::min(kSide, blocks - b);
        for (unsigned n = 0; n < fit.count; ++n) {
            const unsigned at = 256 * b + 32 * n;
            searches.importance_weights(x + at, weights + at, 32, squares[b + n / 8] / 256.0f, fit.weight[n],
                                        fit.root[n]);
            signs[n] = split_signs(x + at, fit.weight[n], fit.x[n]);
        }
        searches.fit_grid(&table, &fit);
        for (unsigned n = 0; n < fit.count; n += 8) pack_block(fit, n, signs + n, dst + 66 * (b + n / 8));
    }
}

}  // namespace ds4::quant
