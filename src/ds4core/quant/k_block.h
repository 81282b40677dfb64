// What Q2_K and Q4_K have in common: a block of 256 values in sub-blocks, each with a scale and a minimum that are
// themselves codes times a float of the block.
#pragma once

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "quant/fit.h"

namespace ds4::quant {

// One block, before its codes are packed.
template <unsigned Size> struct KBlock {
    static constexpr unsigned kCount = 256 / Size;
    float scale[kCount], min[kCount], weight[kCount];  // as fitted; total weight of each sub-block
    uint8_t scale_code[kCount], min_code[kCount];
    uint8_t code[256];
    uint16_t d, dmin;  // F16

    // Fit every sub-block. `weights(j, out)` writes the Size weights of sub-block j.
    template <class Weights> void fit(const float *x, float top, const Search &search, Weights weights) {
        for (unsigned j = 0; j < kCount; j += kLanes) {
            Lanes values[Size], lane_weights[Size], codes[Size];
            float w[Size];
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                weights(j + lane, w);
                float sum = 0;
                for (unsigned i = 0; i < Size; ++i) {
                    values[i][lane] = x[Size * (j + lane) + i];
                    lane_weights[i][lane] = w[i];
                    sum += w[i];
                }
                weight[j + lane] = sum;
            }
            const AffineFit found = fit_affine(values, lane_weights, Size, top, search, codes);
            for (unsigned lane = 0; lane < kLanes; ++lane) {
                scale[j + lane] = found.scale[lane];
                min[j + lane] = found.min[lane];
                for (unsigned i = 0; i < Size; ++i)
                    code[Size * (j + lane) + i] = static_cast<uint8_t>(codes[i][lane]);
            }
        }
    }

    // Scale and minimum codes in proportion to the largest.
    void round_plainly(float top) {
        d = proportional(scale, top, scale_code);
        dmin = proportional(min, top, min_code);
    }

    // The same by a weighted search.
    void round_weighted(float top) {
        d = searched(scale, weight, top, scale_code);
        dmin = searched(min, weight, top, min_code);
    }

    // Codes again, for scales and minimums as the decoder will see them. Where a scale became zero the codes are
    // without effect and stay.
    void final_codes(const float *x, float top) {
        for (unsigned j = 0; j < kCount; ++j) {
            const float s = f16_to_f32(d) * static_cast<float>(scale_code[j]);
            const float m = f16_to_f32(dmin) * static_cast<float>(min_code[j]);
            if (s == 0) continue;
            for (unsigned i = Size * j; i < Size * (j + 1); ++i)
                code[i] = static_cast<uint8_t>(nearest_code((x[i] + m) / s, top));
        }
    }

  private:
    static uint16_t proportional(const float *values, float top, uint8_t *codes) {
        float peak = values[0];
        for (unsigned j = 1; j < kCount; ++j) peak = values[j] > peak ? values[j] : peak;
        const float factor = peak > 0 ? top / peak : 0.0f;
        for (unsigned j = 0; j < kCount; ++j) codes[j] = static_cast<uint8_t>(nearest_code(factor * values[j], top));
        return peak > 0 ? f32_to_f16(peak / top) : uint16_t{0};
    }

    static uint16_t searched(const float *values, const float *weights, float top, uint8_t *codes) {
        const float unit = fit_scale(values, weights, kCount, top, codes);
        // A fit of almost no weight may leave a scale below zero by rounding, whose code wraps. Such a code would
        // run into its neighbour in the block.
        for (unsigned j = 0; j < kCount; ++j)
            if (static_cast<float>(codes[j]) > top) codes[j] = 0;
        return f32_to_f16(unit);
    }
};

inline float sum_of_squares(const float *x, unsigned n) {
    float sum = 0;
    for (unsigned i = 0; i < n; ++i) sum += x[i] * x[i];
    return sum;
}

// Importance grows with the size of the value, but no value counts for nothing.
inline void scaled_weights(const float *x, const float *importance, unsigned n, float variance, float *out) {
    for (unsigned i = 0; i < n; ++i) out[i] = importance[i] * std::sqrt(variance + x[i] * x[i]);
}

}  // namespace ds4::quant
