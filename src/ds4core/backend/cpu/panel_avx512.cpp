// Panels for AVX-512 F/BW/VL/DQ (Skylake-X), without VNNI and VBMI.
#include "backend/cpu/panel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms of GCC 12 about its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace ds4::cpu {
namespace {

#include "backend/cpu/each_512.inc"

// vpmaddubsw adds two products of uint8 with int8 in 16 bits. Codes up to kMost leave room for several such sums before
// they are widened; codes beyond 128 are int8 (bias 0), whose signs are moved to the activations.
template <size_t T, int kMost, size_t kChains>
inline void dot(__m512i (&acc)[kChains][T], const uint8_t (*codes)[kPanelRows][4], const uint8_t *quads) {
    constexpr size_t kRoom = 32767 / (2 * 127 * kMost), kTogether = kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
    const __m512i ones = _mm512_set1_epi16(1);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i += kTogether) {
        __m512i c[kTogether];
        for (size_t k = 0; k < kTogether; k++) c[k] = _mm512_load_si512(codes[i + k]);
        const __mmask64 minus = kMost > 128 ? _mm512_movepi8_mask(c[0]) : 0;
        if (kMost > 128) c[0] = _mm512_abs_epi8(c[0]);
        for (size_t t = 0; t < T; t++) {
            __m512i a = each_i32(quads, i * T + t);
            if (kMost > 128) a = _mm512_mask_sub_epi8(a, minus, _mm512_setzero_si512(), a);
            __m512i pairs = _mm512_maddubs_epi16(c[0], a);
            for (size_t k = 1; k < kTogether; k++)
                pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(c[k], each_i32(quads, (i + k) * T + t)));
            __m512i &sum = acc[i / kTogether % kChains][t];
            sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, ones));
        }
    }
}
inline __m512i dot_pairs(__m512i acc, __m512i a, __m512i b) { return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b)); }

struct alignas(16) Bytes16 {
    uint8_t v[16];
};
inline __m512i four_times(const Bytes16 &b) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i *>(b.v)));
}

constexpr int kFp4Bias = 12;
// Twice the FP4 values, plus the bias.
constexpr Bytes16 kFp4 = {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};

struct Fp4Lookup {
    __m512i table = four_times(kFp4), low4 = _mm512_set1_epi8(15);
    __m512i codes(__m512i low_nibbles) const { return _mm512_shuffle_epi8(table, _mm512_and_si512(low_nibbles, low4)); }
};

constexpr int kIq2Bias = 43;

struct alignas(64) Keys {
    uint16_t v[256];
};
constexpr Keys kKeys = {{
#include "quant/iq2_xxs_grid.inc"
}};

// The signs of 8 values from the lower four and the upper three bits of a field, each where unpack_iq2_xxs wants it.
// The last one makes the number of minus signs even; the parities of both parts meet there by xor.
constexpr Bytes16 sign_bytes(int shift) {
    constexpr int place[8] = {2, 3, 6, 7, 0, 1, 4, 5};
    Bytes16 b{};
    for (int field = 0; field < 16; field++) {
        int parity = 0, byte = 0;
        for (int i = 0; i < (shift ? 3 : 4); i++) {
            parity ^= field >> i & 1;
            byte |= (field >> i & 1) << place[shift + i];
        }
        b.v[field] = static_cast<uint8_t>(byte | parity << place[7]);
    }
    return b;
}
constexpr Bytes16 kLowerSigns = sign_bytes(0), kUpperSigns = sign_bytes(4);
// Value plus bias of a code: the level in two bits (8, 25, 43), the sign above it.
constexpr Bytes16 kIq2Values = {{51, 68, 86, 43, 35, 18, 0, 43, 51, 68, 86, 43, 35, 18, 0, 43}};

class Iq2Lookup {
  public:
    void levels(__m512i index, __m512i *low, __m512i *high) const {
        constexpr int kMerge = 0xD8;  // c ? b : a
        const __m512i even = keys(index), odd = keys(_mm512_srli_epi16(index, 8));
        const __m512i odd_bytes = _mm512_set1_epi16(static_cast<int16_t>(0xFF00));
        *low = _mm512_ternarylogic_epi32(even, _mm512_slli_epi16(odd, 8), odd_bytes, kMerge);
        *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, odd_bytes, kMerge);
    }
    __m512i signs(__m512i packed) const {
        __m512i fields = _mm512_and_si512(packed, _mm512_set1_epi32(0x7F));
        fields = place(fields, _mm512_slli_epi32(packed, 1), 0x7F00);
        fields = place(fields, _mm512_slli_epi32(packed, 2), 0x7F0000);
        fields = place(fields, _mm512_slli_epi32(packed, 3), 0x7F000000);
        const __m512i low4 = _mm512_set1_epi8(15);
        return _mm512_xor_si512(
            _mm512_shuffle_epi8(lower_, _mm512_and_si512(fields, low4)),
            _mm512_shuffle_epi8(upper_, _mm512_and_si512(_mm512_srli_epi32(fields, 4), low4)));
    }
    __m512i code(__m512i x) const { return _mm512_and_si512(x, _mm512_set1_epi8(0x77)); }
    __m512i values(__m512i code) const { return _mm512_shuffle_epi8(values_, code); }

  private:
    static __m512i part(size_t i) { return _mm512_load_si512(kKeys.v + 32 * i); }
    static __m512i place(__m512i fields, __m512i moved, int mask) {
        constexpr int kMerge = 0xD8;  // c ? b : a
        return _mm512_ternarylogic_epi32(fields, moved, _mm512_set1_epi32(mask), kMerge);
    }
    // The keys of the lower bytes of 16-bit lanes.
    __m512i keys(__m512i index) const {
        const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40));
        const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x80));
        const auto half = [&](size_t i) {
            return _mm512_mask_blend_epi16(bit6, _mm512_permutex2var_epi16(keys_[i], index, keys_[i + 1]),
                                           _mm512_permutex2var_epi16(keys_[i + 2], index, keys_[i + 3]));
        };
        return _mm512_mask_blend_epi16(bit7, half(0), half(4));
    }
    __m512i keys_[8] = {part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)};
    __m512i lower_ = four_times(kLowerSigns), upper_ = four_times(kUpperSigns), values_ = four_times(kIq2Values);
};

#include "backend/cpu/panel_512.inc"

#define DS4_EACH_COUNT(F) {F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8)}
#define DS4_SIGNED_32(T) multiply_32<T, 255>
#define DS4_FP4_32(T) multiply_32<T, 2 * kFp4Bias>
#define DS4_FACTORS(T) multiply_factors<T, 2 * kIq2Bias, false>
#define DS4_FACTORS_AND_MINS(T) multiply_factors<T, 15, true>
#define DS4_SCALED(T) multiply_scaled<T>

const PanelKernels table = {
    "avx512",
    8,
    {{unpack_q8_0<0>, DS4_EACH_COUNT(DS4_SIGNED_32), 0, Quads::kRun, true},
     {unpack_mxfp4, DS4_EACH_COUNT(DS4_FP4_32), kFp4Bias, Quads::kRun},
     {unpack_q2_k, DS4_EACH_COUNT(DS4_SCALED), 0, Quads::kRun, true},
     {unpack_q4_k, DS4_EACH_COUNT(DS4_FACTORS_AND_MINS), 0, Quads::kRun},
     {unpack_iq2_xxs, DS4_EACH_COUNT(DS4_FACTORS), kIq2Bias, Quads::kEighth, true}}};

}  // namespace

const PanelKernels *panels_avx512() { return &table; }

}  // namespace ds4::cpu

#else

namespace ds4::cpu {
const PanelKernels *panels_avx512() { return nullptr; }
}  // namespace ds4::cpu

#endif
