// Encoders of every type that ds4 writes. Those of F32, F16, BF16, Q8_0 and MXFP4 round value by value; Q2_K, Q4_K and
// IQ2_XXS need a search.
//
// The bytes are defined by the published quantizers of these formats, down to their quirks, so that a file made here
// can be compared with one made there: float32 throughout, sums in element order, no fused multiply-add.
#pragma once

#include <cstdint>

namespace ds4 {

bool has_encoder(uint32_t type);
// Q2_K, Q4_K and IQ2_XXS: the error of a value may be weighted. IQ2_XXS needs weights.
bool takes_weights(uint32_t type);

// Finite, not negative, at most 2^64: up to there every fit ends in finite scales.
bool is_weight(float w);
// A block of 256 in which no weight is positive says nothing about its values.
uint64_t count_unweighted_blocks(const float *weights, uint64_t n);
// Sets the weights of such blocks to one; n a multiple of 256.
void fill_unweighted_blocks(float *weights, uint64_t n);

// The largest magnitude that a type holds. Where a block has F16 scales it follows from theirs.
float largest_value(uint32_t type);
// The first of n values that the type cannot hold, or n. With allow_nonfinite F32, F16 and BF16 hold everything.
uint64_t first_unstorable(uint32_t type, const float *src, uint64_t n, bool allow_nonfinite);

// Encode n values, whole blocks of a type that has an encoder. Values must be storable; weights, one for each value,
// must be weights, with a positive one in every block, and may be NULL but for IQ2_XXS.
void encode_values(uint32_t type, const float *src, const float *weights, void *dst, uint64_t n);

namespace quant {

struct Searches;

constexpr unsigned kBatch = 8;

// Up to kBatch blocks of 256 values. Weights may be NULL but for IQ2_XXS.
void encode_batch_q2_k(const Searches &searches, const float *x, const float *weights, uint8_t *dst, unsigned blocks);
void encode_batch_q4_k(const Searches &searches, const float *x, const float *weights, uint8_t *dst, unsigned blocks);
void encode_batch_iq2_xxs(const Searches &searches, const float *x, const float *weights, uint8_t *dst,
                          unsigned blocks);

}  // namespace quant
}  // namespace ds4
