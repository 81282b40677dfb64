// What Q2_K and Q4_K have in common: blocks of 256 values in sub-blocks, each with a scale and a minimum that are
// themselves codes times a float of the block. Blocks are encoded in batches, which fill the lanes of the searches.
#pragma once

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "quant/search.h"

namespace ds4::quant {

// The code nearest to x in 0..top, half to even; 0 for NaN.
inline float nearest_code(float x, float top) {
    constexpr float magic = 12582912.0f;  // 1.5 * 2^23: a sum has no bits below the integers
    const float clamped = x > 0.0f ? (x > top ? top : x) : 0.0f;
    return (clamped + magic) - magic;
}

// sums[b]: sum of squares of block b in order. Blocks side by side, as each sum waits for itself.
inline void block_squares(const float *x, unsigned blocks, float *sums) {
    constexpr unsigned kSide = 4;
    for (unsigned b = 0; b < blocks; b += kSide) {
        const unsigned side = blocks - b < kSide ? blocks - b : kSide;
        float sum[kSide] = {};
        for (unsigned i = 0; i < 256; ++i)
            for (unsigned s = 0; s < kSide; ++s) {
                const float value = x[256 * (b + (s < side ? s : 0)) + i];
                sum[s] += value * value;
            }
        for (unsigned s = 0; s < side; ++s) sums[b + s] = sum[s];
    }
}

// Some blocks, before their codes are packed.
template <unsigned Size> struct KBatch {
    static constexpr unsigned kMax = 8;            // blocks: their scales and minimums are 16 searches
    static constexpr unsigned kCount = 256 / Size; // sub-blocks of a block
    const Searches &searches;
    const float *x;
    unsigned blocks;
    float scale[kMax * kCount], min[kMax * kCount], weight[kMax * kCount];  // as fitted; weight of a sub-block
    uint8_t scale_code[kMax * kCount], min_code[kMax * kCount];
    uint8_t code[kMax * 256];
    uint16_t d[kMax], dmin[kMax];  // F16

    // Fit scale and minimum of every sub-block. Without importance the values are weighted by `plain`. `variance` has
    // a number for each block.
    void fit(const Search &search, Weighting plain, const float *importance, const float *variance) {
        AffineFit task;
        task.n = Size;
        task.search = search;
        task.weighting = importance ? Weighting::kImportance : plain;
        task.importance = nullptr;
        const unsigned total = blocks * kCount;
        for (unsigned first = 0; first < total; first += kLanes) {
            const unsigned count = total - first < kLanes ? total - first : kLanes;
            task.x = x + Size * first;
            if (importance) {
                task.importance = importance + Size * first;
                for (unsigned lane = 0; lane < kLanes; ++lane)
                    task.variance[lane] = lane < count ? variance[(first + lane) / kCount] : 0.0f;
            }
            task.count = count;
            searches.fit_affine(&task);
            std::memcpy(scale + first, task.scale, count * sizeof(float));
            std::memcpy(min + first, task.min, count * sizeof(float));
            std::memcpy(weight + first, task.weight, count * sizeof(float));
            for (unsigned j = 0; j < count; ++j)
                for (unsigned i = 0; i < Size; ++i)
                    code[Size * (first + j) + i] = static_cast<uint8_t>(task.codes[i][j]);
        }
    }

    // Scale and minimum codes in proportion to the largest of the block.
    void round_plainly(float top) {
        for (unsigned b = 0; b < blocks; ++b) {
            d[b] = proportional(scale + kCount * b, top, scale_code + kCount * b);
            dmin[b] = proportional(min + kCount * b, top, min_code + kCount * b);
        }
    }

    // The same by a weighted search.
    void round_weighted(float top) {
        ScaleFit task{};
        task.n = kCount;
        task.top = top;
        for (unsigned b = 0; b < blocks; ++b)
            for (unsigned j = 0; j < kCount; ++j) {
                const unsigned at = kCount * b + j;
                task.x[j][2 * b] = scale[at];
                task.x[j][2 * b + 1] = min[at];
                task.weight[j][2 * b] = task.weight[j][2 * b + 1] = weight[at];
            }
        searches.fit_scale(&task);
        // A fit of almost no weight may leave a scale below zero by rounding, whose code wraps. Such a code would run
        // into its neighbour in the block.
        const auto fitting = [top](float c) { return static_cast<uint8_t>(c > top ? 0.0f : c); };
        for (unsigned b = 0; b < blocks; ++b) {
            for (unsigned j = 0; j < kCount; ++j) {
                scale_code[kCount * b + j] = fitting(task.codes[j][2 * b]);
                min_code[kCount * b + j] = fitting(task.codes[j][2 * b + 1]);
            }
            d[b] = f32_to_f16(task.scale[2 * b]);
            dmin[b] = f32_to_f16(task.scale[2 * b + 1]);
        }
    }

    // Codes again, for scales and minimums as the decoder will see them. Where a scale became zero the codes are
    // without effect and stay.
    void final_codes(float top) {
        float s[kMax * kCount], m[kMax * kCount];
        uint8_t last[kMax * 256];
        const unsigned total = blocks * kCount;
        for (unsigned j = 0; j < total; ++j) {
            s[j] = f16_to_f32(d[j / kCount]) * static_cast<float>(scale_code[j]);
            m[j] = f16_to_f32(dmin[j / kCount]) * static_cast<float>(min_code[j]);
        }
        searches.affine_codes(x, Size, total, s, m, top, last);
        for (unsigned j = 0; j < total; ++j)
            if (s[j] != 0) std::memcpy(code + Size * j, last + Size * j, Size);
    }

  private:
    static uint16_t proportional(const float *values, float top, uint8_t *codes) {
        float peak = values[0];
        for (unsigned j = 1; j < kCount; ++j) peak = values[j] > peak ? values[j] : peak;
        const float factor = peak > 0 ? top / peak : 0.0f;
        for (unsigned j = 0; j < kCount; ++j) codes[j] = static_cast<uint8_t>(nearest_code(factor * values[j], top));
        return peak > 0 ? f32_to_f16(peak / top) : uint16_t{0};
    }
};

}  // namespace ds4::quant
