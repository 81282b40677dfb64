// Formats without blocks: F32, F16, BF16.
#include "quant/formats.h"

namespace ds4::quant {

void decode_f32(const uint8_t *src, float *dst, uint64_t n) { std::memcpy(dst, src, n * 4); }

void decode_f16(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) dst[i] = load_f16(src + 2 * i);
}

void decode_bf16(const uint8_t *src, float *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) dst[i] = bf16_to_f32(load_u16(src + 2 * i));
}

void encode_f32(const float *src, uint8_t *dst, uint64_t n) { std::memcpy(dst, src, n * 4); }

void encode_f16(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) store_u16(dst + 2 * i, f32_to_f16(src[i]));
}

void encode_bf16(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) store_u16(dst + 2 * i, f32_to_bf16(src[i]));
}

}  // namespace ds4::quant
