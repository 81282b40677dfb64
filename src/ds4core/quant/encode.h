// Encoders of the formats that need a search: Q2_K, Q4_K and IQ2_XXS. The others are in quant.h.
//
// The bytes are defined by the published quantizers of these formats, down to their quirks, so that a file made here
// can be compared with one made there: float32 throughout, sums in element order, no fused multiply-add.
#pragma once

#include <cstdint>

namespace ds4 {

// Encode n values, a multiple of 256. `importance` has one weight for each value (a column of the matrix); it may be
// NULL, but not for IQ2_XXS. A block of 256 in which no weight is positive says nothing about its values and is
// encoded as if all weights were one.
//
// False, with nothing written, for another type, a partial block, missing weights, a value that is not finite or
// larger than the largest F16 (scales are F16, and d would become infinite), or a weight that is negative, not finite
// or above 2^64.
bool encode_row(uint32_t type, const float *src, const float *importance, void *dst, uint64_t n);

// Weights for a matrix without measured ones: the sum of squares of each column. Start with zeros and add every row
// in order.
void add_synthetic_importance(const float *row, float *importance, uint64_t n);

namespace quant {

// One block of 256 values. Weights may be NULL where a default is given.
void encode_block_q2_k(const float *x, const float *weights, uint8_t *dst);
void encode_block_q4_k(const float *x, const float *weights, uint8_t *dst);
void encode_block_iq2_xxs(const float *x, const float *weights, uint8_t *dst);

}  // namespace quant
}  // namespace ds4
