// The two searches that the encoders share: a scale and a minimum for a sub-block, and a scale alone.
#pragma once

#include <cstdint>

namespace ds4::quant {

// Four sub-blocks side by side. Each lane is a search of its own with its sums in element order, so the result does
// not depend on the number of lanes.
using Lanes = float __attribute__((vector_size(16)));
using LaneMask = int32_t __attribute__((vector_size(16)));
constexpr unsigned kLanes = 4;

// 1.5 * 2^23: adding it leaves the integer part of a float below 2^22, rounded half to even, in the low mantissa bits.
constexpr float kRoundingMagic = 12582912.0f;

// The code nearest to x in 0..top, half to even; 0 for NaN.
inline float nearest_code(float x, float top) {
    const float clamped = x > 0.0f ? (x > top ? top : x) : 0.0f;
    return (clamped + kRoundingMagic) - kRoundingMagic;
}

inline Lanes nearest_codes(Lanes x, float top) {
    const Lanes zero{}, tops{top, top, top, top};
    Lanes clamped = x > zero ? x : zero;
    clamped = clamped > tops ? tops : clamped;
    return (clamped + kRoundingMagic) - kRoundingMagic;
}

// Candidate k of a search has the inverse scale (first + step * k + top) / range, k = 0..last.
struct Search {
    float first, step;
    int last;
    bool absolute;  // measure |error| instead of its square
};

// x ~ scale * code - min with codes 0..top and min >= 0.
struct AffineFit {
    Lanes scale, min;
};

// Fit n values a lane with their weights; codes has n entries.
AffineFit fit_affine(const Lanes *x, const Lanes *w, unsigned n, float top, const Search &search, Lanes *codes);

// x ~ scale * code with codes 0..top, n <= 32; returns the scale. The codes are bytes that wrap: a negative x, which
// only IQ2_XXS has, gets one modulo 256. Its caller does not use the codes, but they steer the search.
float fit_scale(const float *x, const float *w, unsigned n, float top, uint8_t *codes);

}  // namespace ds4::quant
