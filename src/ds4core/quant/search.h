// The inner loops of the encoders, compiled once per instruction set and chosen at run time.
//
// Everything here is 16 searches side by side. Each lane has its own sums in element order and no multiply-add is
// fused, so the bytes depend neither on the width of the registers nor on what the other lanes hold.
#pragma once

#include <cstdint>

namespace ds4::quant {

constexpr unsigned kLanes = 16;

// Candidate k of a search has the inverse scale (first + step * k + top) / range, k = 0..last.
struct Search {
    float first, step, top;
    int last;
    bool absolute;  // measure |error| instead of its square
};

// How much the error of a value counts.
enum class Weighting {
    kMagnitude,     // |x|
    kRmsMagnitude,  // root mean square of the sub-block + |x|
    kImportance,    // importance * sqrt(variance + x^2)
};

// x ~ scale * code - min with codes 0..top and min >= 0, for up to 16 sub-blocks of n values (16 or 32).
struct AffineFit {
    // In. Sub-block j is at x + n * j, its importance at importance + n * j.
    const float *x, *importance;
    unsigned n, count;
    Search search;
    Weighting weighting;
    float variance[kLanes];
    // Out. Codes are not in the order of x: value i of sub-block j is codes[i][j].
    float scale[kLanes], min[kLanes], weight[kLanes];  // weight: the sum of a sub-block
    float codes[32][kLanes];
};

// x ~ scale * code with codes 0..top, n <= 32 values a lane; value i of lane j is x[i][j]. The codes are bytes that
// wrap: a negative x, which only IQ2_XXS has, gets one modulo 256. Its caller does not use the codes, but they steer
// the search.
struct ScaleFit {
    float x[32][kLanes], weight[32][kLanes];
    unsigned n;
    float top;
    float scale[kLanes], codes[32][kLanes];
};

// Candidates of the IQ2_XXS grid for each of the 3^8 tuples of levels, numbered with the first level as the lowest
// digit. A grid point is its key: level j in bits 2j and 2j + 1. Lists are filled up to a multiple of 16 with their
// last candidate, so that wide loads see no other; `count` is without those. A tuple on the grid is its only
// candidate.
struct GridTable {
    const uint32_t *start;   // [6561], place in keys
    const uint16_t *count;   // [6561]
    const uint16_t *keys;
};

// Up to 16 groups of 32 values for IQ2_XXS.
struct GridFit {
    // In: values (all positive but for one in a tuple with an odd number of minus signs), their weights, and the
    // square roots of the weights.
    float x[kLanes][32], weight[kLanes][32], root[kLanes][32];
    unsigned count;
    // Out: scale and the keys of four grid points. A scale below zero turns every sign; zero: nothing to store.
    float scale[kLanes];
    uint16_t keys[kLanes][4];
};

struct Searches {
    const char *name;
    void (*fit_affine)(AffineFit *task);
    void (*fit_scale)(ScaleFit *task);
    void (*fit_grid)(const GridTable *table, GridFit *task);
    // codes[i] = (x[i] + min) / scale, the nearest in 0..top, for `count` sub-blocks of n values.
    void (*affine_codes)(const float *x, unsigned n, unsigned count, const float *scale, const float *min, float top,
                         uint8_t *codes);
    // out[i] = importance[i] * sqrt(variance + x[i]^2), root[i] = sqrt(out[i])
    void (*importance_weights)(const float *x, const float *importance, unsigned n, float variance, float *out,
                               float *root);
    // The largest magnitude of 32 values; NaN if there is one.
    float (*peak)(const float *x);
    // Codes of 32 values: round(x * inverse), half away from zero, of at most 127; FP4 codes of x * inverse.
    void (*q8_codes)(const float *x, float inverse, uint8_t *codes);
    void (*fp4_codes)(const float *x, float inverse, uint8_t *nibbles);
};

const Searches *searches_base();
const Searches *searches_avx2();  // NULL when not compiled for x86-64
const Searches *searches_avx512();

// The variant that this process uses (base/isa.h).
const Searches &active_searches();

}  // namespace ds4::quant
