// Tensor types: sizes, decoding of rows, and integer dot products with 8-bit activations.
//
// All values follow docs/formats.md bit for bit: float32 products in the stated order, no fused multiply-add. This
// scalar code is the definition; faster variants are compared with it. Pointers into files may have any alignment.
#pragma once

#include <cstdint>

namespace ds4 {

struct TypeInfo {
    const char *name;
    uint32_t block;   // values of one block
    uint32_t bytes;   // bytes of one block
    bool computable;  // dequantize_row decodes it
};

// NULL for an id that the format does not define, or has removed.
const TypeInfo *type_info(uint32_t id);
// True for an id that the format once defined and took back.
bool is_removed_type(uint32_t id);

// Bytes of a row of n values. False when the type is unknown, n is not a multiple of its block, or the size wraps.
bool row_bytes(uint32_t type, uint64_t n, uint64_t *out);

// Decode n values, a multiple of the block. The type must be computable; for another one nothing is written.
void dequantize_row(uint32_t type, const void *src, float *dst, uint64_t n);

// ---- activations rounded to 8 bits ----

// 256 values with one scale. The value of largest magnitude becomes -127 (so d carries the opposite of its sign);
// bsums[j] is the sum of q[16j .. 16j+15]. A block with a NaN or an infinity gets d = NaN, q = 0.
struct BlockQ8K {
    float d;
    int8_t q[256];
    int16_t bsums[16];
};

// 32 values with one scale, which unlike that of a Q8_0 weight stays float32. NaN and infinity as above.
struct BlockQ8A {
    float d;
    int8_t q[32];
};

enum : uint32_t { kActivationNone = 0, kActivationQ8K = 1, kActivationQ8A = 2 };

// Which activation format vec_dot of this weight type takes; kActivationNone when it has no integer product.
uint32_t activation_kind(uint32_t type);
// Bytes of n quantized activations (n a multiple of 256 or 32).
uint64_t activation_bytes(uint32_t kind, uint64_t n);

void quantize_q8_k(const float *src, BlockQ8K *dst, uint64_t n);  // n a multiple of 256
void quantize_q8_a(const float *src, BlockQ8A *dst, uint64_t n);  // n a multiple of 32

// The product of a weight row of n values with n activations of activation_kind(type). Integer sums inside a block,
// float32 across blocks in order. NaN when the type has no integer product.
float vec_dot(uint32_t type, const void *w_row, const void *act, uint64_t n);

}  // namespace ds4
