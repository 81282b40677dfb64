// The functions of each block format, one source file a format. Callers use quant.h; this header is for the
// dispatcher there and for the format files.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "quant/quant.h"

namespace ds4::quant {

static_assert(std::endian::native == std::endian::little, "block formats are read as they lie in the file");

// Loads from places without alignment.
inline uint16_t load_u16(const uint8_t *p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline float load_f16(const uint8_t *p) { return f16_to_f32(load_u16(p)); }
inline void store_u16(uint8_t *p, uint16_t v) { std::memcpy(p, &v, sizeof v); }

void decode_f32(const uint8_t *src, float *dst, uint64_t n);
void decode_f16(const uint8_t *src, float *dst, uint64_t n);
void decode_bf16(const uint8_t *src, float *dst, uint64_t n);
void decode_q8_0(const uint8_t *src, float *dst, uint64_t n);
void decode_q2_k(const uint8_t *src, float *dst, uint64_t n);
void decode_q4_k(const uint8_t *src, float *dst, uint64_t n);
void decode_iq2_xxs(const uint8_t *src, float *dst, uint64_t n);
void decode_mxfp4(const uint8_t *src, float *dst, uint64_t n);

void encode_f32(const float *src, uint8_t *dst, uint64_t n);
void encode_f16(const float *src, uint8_t *dst, uint64_t n);
void encode_bf16(const float *src, uint8_t *dst, uint64_t n);
void encode_q8_0(const float *src, uint8_t *dst, uint64_t n);
void encode_mxfp4(const float *src, uint8_t *dst, uint64_t n);

// Parts of a block, for code that unpacks several rows together.
struct ScaleMin {
    int32_t scale, min;
};
ScaleMin q4_k_scale_min(const uint8_t *k, uint64_t j);  // k: the 12 bytes after dmin
float mxfp4_scale(uint8_t e);
void iq2_xxs_signed_row(uint32_t indices, uint32_t signs, unsigned k, int8_t out[8]);
extern const uint16_t kIq2XxsKeys[256];  // two bits a value: levels 8, 25, 43

float dot_q8_0(const uint8_t *w, const BlockQ8A *act, uint64_t n);
float dot_mxfp4(const uint8_t *w, const BlockQ8A *act, uint64_t n);
float dot_q2_k(const uint8_t *w, const BlockQ8K *act, uint64_t n);
float dot_q4_k(const uint8_t *w, const BlockQ8K *act, uint64_t n);
float dot_iq2_xxs(const uint8_t *w, const BlockQ8K *act, uint64_t n);

}  // namespace ds4::quant
