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
#include "quant/fit.h"
#include "quant/formats.h"

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
// index. A tuple on the grid has itself as its first candidate, at distance zero.
class Neighbours {
  public:
    Neighbours() {
        Levels tuple{};
        for (unsigned number = 0; number < kTuples; ++number) {
            add(number, tuple);
            for (unsigned j = 0; j < 8 && ++tuple[j] == 3; ++j) tuple[j] = 0;
        }
        start_[kTuples] = static_cast<uint32_t>(points_.size());
    }

    const uint8_t *begin(unsigned tuple) const { return points_.data() + start_[tuple]; }
    const uint8_t *end(unsigned tuple) const { return points_.data() + start_[tuple + 1]; }
    bool on_grid(unsigned tuple) const { return on_grid_[tuple]; }

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
        start_[number] = static_cast<uint32_t>(points_.size());
        on_grid_[number] = nearest == 0;
        for (const unsigned wanted : {nearest, second})
            for (unsigned p = 0; p < 256; ++p)
                if (distance[p] == wanted) points_.push_back(static_cast<uint8_t>(p));
    }

    std::array<uint32_t, kTuples + 1> start_{};
    std::array<bool, kTuples> on_grid_{};
    std::vector<uint8_t> points_;
};

const Neighbours &neighbours() {
    static const Neighbours table;
    return table;
}

// The grid point for 8 values whose nearest levels are `levels`. Off the grid it is the candidate of least error at
// this scale.
unsigned grid_point(const Neighbours &table, const uint8_t *levels, const float *v, const float *w, float scale) {
    unsigned tuple = 0;
    for (unsigned j = 8; j-- > 0;) tuple = 3 * tuple + levels[j];
    const uint8_t *const candidate = table.begin(tuple), *const end = table.end(tuple);
    if (table.on_grid(tuple)) return *candidate;

    float cost[8][3];
    for (unsigned j = 0; j < 8; ++j)
        for (unsigned level = 0; level < 3; ++level) {
            const float difference = scale * static_cast<float>(2 * level + 1) - v[j];
            cost[j][level] = w[j] * difference * difference;
        }
    // Costs are not negative, so their bits order like them. With the place below them the least number is the first
    // of the least costs, found without branches, which no processor could foresee.
    uint64_t least = UINT64_MAX;
    for (const uint8_t *place = candidate; place != end; ++place) {
        const Levels &point = kPoints[*place];
        float sum = 0;
        for (unsigned j = 0; j < 8; ++j) sum += cost[j][point[j]];
        const uint64_t number = static_cast<uint64_t>(std::bit_cast<uint32_t>(sum)) << 32 |
                                static_cast<uint64_t>(place - candidate);
        least = number < least ? number : least;
    }
    return candidate[least & UINT32_MAX];
}

struct Group {
    float v[32], w[32], root[32];  // magnitudes, weights and their square roots
    unsigned signs[4];             // seven bits each
};

// Magnitudes and signs. An odd number of minus signs cannot be stored: the value whose sign matters least then gets
// the other one, and a negative magnitude.
void split_signs(const float *x, Group &g) {
    for (unsigned k = 0; k < 4; ++k) {
        unsigned mask = 0, cheapest = 0;
        float least = INFINITY;
        for (unsigned j = 0; j < 8; ++j) {
            const unsigned i = 8 * k + j;
            g.v[i] = std::fabs(x[i]);
            if (x[i] < 0) mask |= 1u << j;
            const float cost = g.w[i] * x[i] * x[i];
            if (cost < least) {
                least = cost;
                cheapest = j;
            }
        }
        if (std::popcount(mask) & 1) {
            g.v[8 * k + cheapest] = -g.v[8 * k + cheapest];
            mask ^= 1u << cheapest;
        }
        g.signs[k] = mask & 127;
    }
}

// Four grid points at a scale, and how well they fit: the best scale for them is xq / qq.
struct Points {
    unsigned index[4];
    float xq, qq;
};

Points choose_points(const Neighbours &table, const Group &g, float inverse, float scale) {
    Points out{};
    for (unsigned k = 0; k < 4; ++k) {
        const float *v = g.v + 8 * k, *w = g.w + 8 * k;
        uint8_t levels[8];
        for (unsigned j = 0; j < 8; j += kLanes) {
            Lanes part;
            std::memcpy(&part, v + j, sizeof part);
            part = nearest_codes(0.5f * (inverse * part - 1.0f), 2.0f);
            for (unsigned lane = 0; lane < kLanes; ++lane) levels[j + lane] = static_cast<uint8_t>(part[lane]);
        }
        out.index[k] = grid_point(table, levels, v, g.root + 8 * k, scale);
        for (unsigned j = 0; j < 8; ++j) {
            const float q = static_cast<float>(2 * kPoints[out.index[k]][j] + 1);
            out.xq += w[j] * v[j] * q;
            out.qq += w[j] * q * q;
        }
    }
    return out;
}

// Writes the group's words, without the scale in the top bits; returns its scale.
float encode_group(const Neighbours &table, Group &g, uint32_t words[2]) {
    words[0] = words[1] = 0;
    float peak = g.v[0];
    for (const float v : g.v) peak = v > peak ? v : peak;
    if (peak < 1e-15f) return 0;
    uint8_t unused[32];
    float scale = fit_scale(g.v, g.w, 32, 4, unused);
    const float whole = scale * 3.0f;
    if (!(whole > 0)) return 0;

    float best = 0;
    Points found{};
    for (int step = -6; step <= 6; ++step) {
        const float inverse = (5.0f + static_cast<float>(step) * 0.1f) / whole;
        const Points trial = choose_points(table, g, inverse, 1.0f / inverse);
        if (trial.qq > 0 && trial.xq * trial.xq > best * trial.qq) {
            scale = trial.xq / trial.qq;
            best = scale * trial.xq;
            found = trial;
        }
    }
    if (scale > 0) {
        found = choose_points(table, g, 1.0f / scale, scale);
        if (found.qq > 0) scale = found.xq / found.qq;
    }
    const bool turned = scale < 0;  // then every sign is the other one
    for (unsigned k = 0; k < 4; ++k) {
        words[0] |= found.index[k] << (8 * k);
        words[1] |= (turned ? ~g.signs[k] & 127u : g.signs[k]) << (7 * k);
    }
    return turned ? -scale : scale;
}

}  // namespace

void encode_block_iq2_xxs(const float *x, const float *weights, uint8_t *dst) {
    const Neighbours &table = neighbours();
    float squares = 0;
    for (unsigned i = 0; i < 256; ++i) squares += x[i] * x[i];
    const float variance = squares / 256.0f;

    uint32_t words[8][2];
    float scales[8], peak = 0;
    for (unsigned n = 0; n < 8; ++n) {
        Group g;
        const float *values = x + 32 * n;
        for (unsigned i = 0; i < 32; ++i) {
            g.w[i] = weights[32 * n + i] * std::sqrt(variance + values[i] * values[i]);
            g.root[i] = std::sqrt(g.w[i]);
        }
        split_signs(values, g);
        scales[n] = encode_group(table, g, words[n]);
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

}  // namespace ds4::quant
