// Panels for AVX-512 with VNNI and VBMI (Ice Lake, Zen 4 and later).
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

// Any code fits: products of uint8 with int8 are added up in 32 bits.
template <size_t T, int kMost, size_t kChains>
inline void dot(__m512i (&acc)[kChains][T], const uint8_t (*codes)[kPanelRows][4], const uint8_t *quads) {
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const __m512i c = _mm512_load_si512(codes[i]);
        for (size_t t = 0; t < T; t++)
            acc[i % kChains][t] = _mm512_dpbusd_epi32(acc[i % kChains][t], c, each_i32(quads, i * T + t));
    }
}
inline __m512i dot_pairs(__m512i acc, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(acc, a, b); }

struct alignas(64) Bytes {
    uint8_t v[64];
};

constexpr int kFp4Bias = 12;
// Twice the FP4 values, plus the bias. Lookups see six bits, of which the upper two belong to another value.
constexpr Bytes kFp4 = [] {
    constexpr int values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    Bytes b{};
    for (int i = 0; i < 64; i++) b.v[i] = static_cast<uint8_t>(kFp4Bias + values[i % 16]);
    return b;
}();

struct Fp4Lookup {
    __m512i table = _mm512_load_si512(kFp4.v);
    __m512i codes(__m512i low_nibbles) const { return _mm512_permutexvar_epi8(low_nibbles, table); }
};

constexpr int kIq2Bias = 43;

constexpr uint16_t kKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

struct alignas(64) Iq2Tables {
    uint8_t low[256], high[256];  // of each grid row: the levels of values 0..3 and 4..7, two bits a value
    // Of each 7-bit field: the signs of 8 values (the last one makes the number of minus signs even), each where
    // unpack_iq2_xxs wants it.
    uint8_t signs[128];
    // Value plus bias of a code: the level in two bits, the sign above it; the upper bits of a lookup mean nothing.
    uint8_t values[64];
};
constexpr Iq2Tables kIq2 = [] {
    constexpr int place[8] = {2, 3, 6, 7, 0, 1, 4, 5}, levels[4] = {8, 25, 43, 0};
    Iq2Tables t{};
    for (int i = 0; i < 256; i++) {
        t.low[i] = kKeys[i] & 255;
        t.high[i] = kKeys[i] >> 8;
    }
    for (int field = 0; field < 128; field++) {
        int parity = 0, byte = 0;
        for (int i = 0; i < 7; i++) {
            parity ^= field >> i & 1;
            byte |= (field >> i & 1) << place[i];
        }
        t.signs[field] = static_cast<uint8_t>(byte | parity << place[7]);
    }
    for (int i = 0; i < 64; i++)
        t.values[i] = static_cast<uint8_t>(i & 4 ? kIq2Bias - levels[i & 3] : kIq2Bias + levels[i & 3]);
    return t;
}();

class Iq2Lookup {
  public:
    void levels(__m512i index, __m512i *low, __m512i *high) const {
        const __mmask64 upper = _mm512_movepi8_mask(index);
        *low = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(low_[0], index, low_[1]),
                                      _mm512_permutex2var_epi8(low_[2], index, low_[3]));
        *high = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(high_[0], index, high_[1]),
                                       _mm512_permutex2var_epi8(high_[2], index, high_[3]));
    }
    __m512i signs(__m512i packed) const {
        return _mm512_permutex2var_epi8(signs_[0], _mm512_multishift_epi64_epi8(fields_, packed), signs_[1]);
    }
    __m512i code(__m512i x) const { return x; }
    __m512i values(__m512i code) const { return _mm512_permutexvar_epi8(code, values_); }

  private:
    static __m512i part(const uint8_t *table, size_t i) { return _mm512_load_si512(table + 64 * i); }
    __m512i low_[4] = {part(kIq2.low, 0), part(kIq2.low, 1), part(kIq2.low, 2), part(kIq2.low, 3)};
    __m512i high_[4] = {part(kIq2.high, 0), part(kIq2.high, 1), part(kIq2.high, 2), part(kIq2.high, 3)};
    __m512i signs_[2] = {part(kIq2.signs, 0), part(kIq2.signs, 1)};
    __m512i values_ = part(kIq2.values, 0);
    __m512i fields_ = _mm512_set1_epi64(0x352E2720150E0700);  // where the 7-bit fields of two lanes begin
};

#include "backend/cpu/panel_512.inc"
#include "backend/cpu/single_vnni.inc"

#define DS4_EACH_COUNT(F) {F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12)}
#define DS4_BLOCKS_32(T) multiply_32<T, 255>
#define DS4_FACTORS(T) multiply_factors<T, 2 * kIq2Bias, false>
#define DS4_FACTORS_AND_MINS(T) multiply_factors<T, 15, true>
#define DS4_SCALED(T) multiply_scaled<T>

const PanelKernels table = {
    "avx512vnni",
    12,
    {{unpack_q8_0<128>, DS4_EACH_COUNT(DS4_BLOCKS_32), 128, Quads::kRun, true},
     {unpack_mxfp4, DS4_EACH_COUNT(DS4_BLOCKS_32), kFp4Bias, Quads::kRun},
     {unpack_q2_k, DS4_EACH_COUNT(DS4_SCALED), 0, Quads::kRun, true, single_q2_k},
     {unpack_q4_k, DS4_EACH_COUNT(DS4_FACTORS_AND_MINS), 0, Quads::kRun},
     {unpack_iq2_xxs, DS4_EACH_COUNT(DS4_FACTORS), kIq2Bias, Quads::kEighth, true, single_iq2_xxs}}};

}  // namespace

const PanelKernels *panels_vnni() { return &table; }

}  // namespace ds4::cpu

#else

namespace ds4::cpu {
const PanelKernels *panels_vnni() { return nullptr; }
}  // namespace ds4::cpu

#endif
