// Cache rows in the precision that they really carry. With the round trips of the released model (qat) an attention
// row holds E4M3 codes times powers of two beside its rotated values, an indexer row E2M1 codes; such a row is stored
// as codes and exponents, any other as it is. Nothing is ever changed: unpacking gives the bits that were packed.
//
// A packed row begins with its form:
//   0   the row as it is: dim values of the row type
//   1   E4M3 [dim - n_rot]; exponents int8, one for 64 of them; the last n_rot values of the row type
//   2   E2M1 [dim / 2], two a byte, the first in the low half; exponents int8, one for 32
// The value of a code is code * 2^exponent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4 {

// What is common to all rows of one kind.
struct RowKind {
    uint32_t row_type, dim, n_rot;
    bool index;  // an indexer row
};

// Bytes of a row in memory.
size_t row_bytes(const RowKind &kind);
// The most bytes of a packed one.
inline size_t most_packed_bytes(const RowKind &kind) { return 1 + row_bytes(kind); }
// Pack a row; returns the bytes written to `out`.
size_t pack_row(const RowKind &kind, const uint8_t *row, uint8_t *out);
// Bytes of the packed row at `in`, of which `left` are readable; 0 when that is no row of this kind.
size_t packed_bytes(const RowKind &kind, const uint8_t *in, uint64_t left);
// Unpack a row that packed_bytes accepts.
void unpack_row(const RowKind &kind, const uint8_t *in, uint8_t *row);

// n values of the row type to float32 and back; F32 to F16 rounds half to even.
void to_floats(uint32_t row_type, const uint8_t *row, size_t n, float *out);
void from_floats(uint32_t row_type, const float *values, size_t n, uint8_t *row);

}  // namespace ds4
