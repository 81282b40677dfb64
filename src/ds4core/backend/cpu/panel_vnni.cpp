// Panels for AVX-512 with VNNI and VBMI (Ice Lake, Zen 4 and later). A lane of 32 bits belongs to one weight row.
//
// Unpacking works on the compressed words: 16 bytes of each of 16 rows are turned into four registers with a lane a
// row, and the codes of a lane are then spread where they are, so that nothing is moved across lanes any more.
#include "backend/cpu/panel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false alarms of GCC 12 about its own intrinsics
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace ds4::cpu {
namespace {

inline int32_t load_i32(const void *p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline uint16_t load_u16(const void *p) {
    uint16_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline float load_f32(const void *p) {
    float v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// ---- unpacking ----

struct alignas(64) Bytes {
    uint8_t v[64];
};
inline __m512i load(const void *p) { return _mm512_load_si512(p); }
inline void store(void *p, __m512i v) { _mm512_store_si512(p, v); }
inline __m512i all(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// The bytes at `offset` of rows q, 4 + q, 8 + q and 12 + q, in this order.
inline __m512i load_four(const uint8_t *const rows[], size_t offset, size_t q) {
    const auto bytes = [&](size_t r) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[r] + offset)); };
    __m512i z = _mm512_castsi128_si512(bytes(q));
    z = _mm512_mask_broadcast_i32x4(z, 0x00F0, bytes(4 + q));
    z = _mm512_mask_broadcast_i32x4(z, 0x0F00, bytes(8 + q));
    return _mm512_mask_broadcast_i32x4(z, 0xF000, bytes(12 + q));
}

// 16 bytes of each row: lane r of word[i] is dword i of row r.
struct Words {
    __m512i word[4];
};
inline Words load_words(const uint8_t *const rows[], size_t offset) {
    const __m512i a = load_four(rows, offset, 0), b = load_four(rows, offset, 1), c = load_four(rows, offset, 2),
                  d = load_four(rows, offset, 3);
    const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
    const __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    return {{_mm512_unpacklo_epi64(ab0, cd0), _mm512_unpackhi_epi64(ab0, cd0), _mm512_unpacklo_epi64(ab1, cd1),
             _mm512_unpackhi_epi64(ab1, cd1)}};
}

// Two bytes, or one dword, of each row.
struct alignas(64) Halves {
    uint16_t v[kPanelRows];
};
inline void load_halves(const uint8_t *const rows[], size_t offset, Halves *out) {
    for (size_t r = 0; r < kPanelRows; r++) out->v[r] = load_u16(rows[r] + offset);
}
inline __m512 to_float(const Halves &h) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(h.v)));
}
inline __m512i load_dwords(const uint8_t *const rows[], size_t offset) {
    alignas(64) int32_t v[kPanelRows];
    for (size_t r = 0; r < kPanelRows; r++) v[r] = load_i32(rows[r] + offset);
    return load(v);
}
// Two f16 a lane: the low one to a, the high one to b.
inline void store_two_f16(__m512i dwords, float *a, float *b) {
    _mm512_store_ps(a, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords)));
    _mm512_store_ps(b, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(dwords, 16))));
}

void unpack_q8_0(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    Halves d[8];
    const __m512i bias = all(0x80);
    for (size_t b = 0; b < n_blocks; b++, offset += 34) {
        load_halves(rows, offset, &d[b]);
        for (size_t half = 0; half < 2; half++) {
            const Words w = load_words(rows, offset + 2 + 16 * half);
            for (size_t i = 0; i < 4; i++)
                store(out->codes[8 * b + 4 * half + i], _mm512_xor_si512(w.word[i], bias));
        }
    }
    for (size_t b = 0; b < n_blocks; b++) _mm512_store_ps(out->scale[b], to_float(d[b]));
}

constexpr int kFp4Bias = 12;
// Twice the FP4 values, plus the bias. Lookups see six bits, of which the upper two belong to another value.
constexpr Bytes kFp4 = [] {
    constexpr int values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    Bytes b{};
    for (int i = 0; i < 64; i++) b.v[i] = static_cast<uint8_t>(kFp4Bias + values[i % 16]);
    return b;
}();

void unpack_mxfp4(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    alignas(64) uint8_t e[8][kPanelRows];
    const __m512i table = load(kFp4.v);
    for (size_t b = 0; b < n_blocks; b++, offset += 17) {
        for (size_t r = 0; r < kPanelRows; r++) e[b][r] = rows[r][offset];
        const Words w = load_words(rows, offset + 1);
        for (size_t i = 0; i < 4; i++) {
            store(out->codes[8 * b + i], _mm512_permutexvar_epi8(w.word[i], table));
            store(out->codes[8 * b + 4 + i], _mm512_permutexvar_epi8(_mm512_srli_epi32(w.word[i], 4), table));
        }
    }
    // 2^(e - 128); e = 0 and e = 1 give subnormals.
    for (size_t b = 0; b < n_blocks; b++) {
        const __m512i x = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i *>(e[b])));
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23);
        const __mmask16 small = _mm512_cmplt_epi32_mask(x, _mm512_set1_epi32(2));
        store(out->scale[b], _mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), x));
    }
}

// Byte k of each lane, as two 16-bit numbers.
inline __m512i twice(__m512i v, size_t k) {
    const __m512i lane = _mm512_set4_epi32(0x800C800C, 0x80088008, 0x80048004, 0x80008000);
    return _mm512_shuffle_epi8(v, _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(k * 0x10001))));
}

void unpack_q2_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    const __m512i low2 = all(3), low4 = all(15);
    const Words s = load_words(rows, offset);
    __m512i scales[4];
    for (size_t i = 0; i < 4; i++) {
        scales[i] = _mm512_and_si512(s.word[i], low4);
        const __m512i mins = _mm512_and_si512(_mm512_srli_epi32(s.word[i], 4), low4);
        const __m512i even = _mm512_set4_epi32(0x800D800C, 0x80098008, 0x80058004, 0x80018000);
        store(out->mins[2 * i], _mm512_shuffle_epi8(mins, even));
        store(out->mins[2 * i + 1], _mm512_shuffle_epi8(mins, _mm512_add_epi32(even, _mm512_set1_epi32(0x00020002))));
    }
    // Sub-block 8h + 2t + half: bits 2t.. of 16 bytes. Products with the scale stay below 256.
    for (size_t h = 0; h < 2; h++)
        for (size_t half = 0; half < 2; half++) {
            const Words w = load_words(rows, offset + 16 + 32 * h + 16 * half);
            for (size_t t = 0; t < 4; t++) {
                const __m512i scale = twice(scales[2 * h + t / 2], t % 2 * 2 + half);
                for (size_t i = 0; i < 4; i++) {
                    const __m512i code =
                        _mm512_and_si512(_mm512_srli_epi16(w.word[i], static_cast<unsigned>(2 * t)), low2);
                    store(out->codes[32 * h + 8 * t + 4 * half + i], _mm512_mullo_epi16(code, scale));
                }
            }
        }
    store_two_f16(load_dwords(rows, offset + 80), out->d, out->dmin);
}

void unpack_q4_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    const __m512i low4 = all(15), low6 = all(63), bits45 = all(0x30);
    const Words head = load_words(rows, offset);
    store_two_f16(head.word[0], out->d, out->dmin);
    // Six bits of each sub-block; those of the last four lie in two places.
    const __m512i *k = head.word + 1;
    const auto joined = [&](__m512i low, __m512i high) {
        return _mm512_or_si512(_mm512_and_si512(low, low4), _mm512_and_si512(_mm512_srli_epi32(high, 2), bits45));
    };
    const __m512i scales[2] = {_mm512_and_si512(k[0], low6), joined(k[2], k[0])};
    const __m512i mins[2] = {_mm512_and_si512(k[1], low6), joined(_mm512_srli_epi32(k[2], 4), k[1])};
    for (size_t j = 0; j < 8; j++) {
        const __m512i scale = _mm512_srli_epi32(scales[j / 4], static_cast<unsigned>(8 * (j % 4)));
        store(out->factor[j], _mm512_and_si512(scale, _mm512_set1_epi32(255)));
        store(out->mins[j], twice(mins[j / 4], j % 4));
    }
    for (size_t i = 0; i < 4; i++)  // sub-blocks 2i and 2i + 1: the low and the high nibbles of 32 bytes
        for (size_t half = 0; half < 2; half++) {
            const Words w = load_words(rows, offset + 16 + 32 * i + 16 * half);
            for (size_t l = 0; l < 4; l++) {
                store(out->codes[16 * i + 4 * half + l], _mm512_and_si512(w.word[l], low4));
                store(out->codes[16 * i + 8 + 4 * half + l],
                      _mm512_and_si512(_mm512_srli_epi32(w.word[l], 4), low4));
            }
        }
}

constexpr int kIq2Bias = 43;

constexpr uint16_t kKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

// Of each grid row: the levels of values 0..3 and 4..7, two bits a value.
struct alignas(64) KeyBytes {
    uint8_t low[256], high[256];
};
constexpr KeyBytes kKeyBytes = [] {
    KeyBytes k{};
    for (int i = 0; i < 256; i++) k.low[i] = kKeys[i] & 255, k.high[i] = kKeys[i] >> 8;
    return k;
}();

// Of each 7-bit field: the signs of 8 values (the last one makes the number of minus signs even), each where the codes
// below want it: bits 2 and 6 after a shift.
struct alignas(64) SignBytes {
    uint8_t v[128];
};
constexpr SignBytes kSigns = [] {
    constexpr int place[8] = {2, 3, 6, 7, 0, 1, 4, 5};
    SignBytes s{};
    for (int field = 0; field < 128; field++) {
        int parity = 0, byte = 0;
        for (int i = 0; i < 7; i++) {
            parity ^= field >> i & 1;
            byte |= (field >> i & 1) << place[i];
        }
        s.v[field] = static_cast<uint8_t>(byte | parity << place[7]);
    }
    return s;
}();

// Value plus bias of a code: the level in two bits, the sign above it; the lookup's upper bits mean nothing.
constexpr Bytes kIq2Values = [] {
    constexpr int levels[4] = {8, 25, 43, 0};
    Bytes b{};
    for (int i = 0; i < 64; i++)
        b.v[i] = static_cast<uint8_t>(i & 4 ? kIq2Bias - levels[i & 3] : kIq2Bias + levels[i & 3]);
    return b;
}();

// Byte k of a lane belongs to part k of the row's group: its grid index, then the keys and signs looked up with it,
// then value i of the part. So quad i holds every eighth column.
void unpack_iq2_xxs(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    Halves d;
    load_halves(rows, offset, &d);
    const __m512i low0 = load(kKeyBytes.low), low1 = load(kKeyBytes.low + 64), low2 = load(kKeyBytes.low + 128),
                  low3 = load(kKeyBytes.low + 192), high0 = load(kKeyBytes.high), high1 = load(kKeyBytes.high + 64),
                  high2 = load(kKeyBytes.high + 128), high3 = load(kKeyBytes.high + 192);
    const __m512i signs0 = load(kSigns.v), signs1 = load(kSigns.v + 64), values = load(kIq2Values.v);
    const __m512i fields = _mm512_set1_epi64(0x352E2720150E0700), sign_bits = all(0x44), one = _mm512_set1_epi32(1);
    constexpr int kSelect = 0xCA;  // a ? b : c
    for (size_t pair = 0; pair < 4; pair++) {
        const Words w = load_words(rows, offset + 2 + 16 * pair);
        for (size_t i = 0; i < 2; i++) {
            const size_t g = 2 * pair + i;
            const __m512i index = w.word[2 * i], packed = w.word[2 * i + 1];
            const __mmask64 upper = _mm512_movepi8_mask(index);
            const __m512i low = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(low0, index, low1),
                                                       _mm512_permutex2var_epi8(low2, index, low3));
            const __m512i high = _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(high0, index, high1),
                                                        _mm512_permutex2var_epi8(high2, index, high3));
            const __m512i signs =
                _mm512_permutex2var_epi8(signs0, _mm512_multishift_epi64_epi8(fields, packed), signs1);
            const auto put = [&](size_t first, __m512i levels, __m512i moved) {  // values first and first + 2
                const __m512i code = _mm512_ternarylogic_epi32(sign_bits, moved, levels, kSelect);
                store(out->codes[8 * g + first], _mm512_permutexvar_epi8(code, values));
                store(out->codes[8 * g + first + 2], _mm512_permutexvar_epi8(_mm512_srli_epi32(code, 4), values));
            };
            put(0, low, signs);
            put(1, _mm512_srli_epi32(low, 2), _mm512_srli_epi32(signs, 1));
            put(4, high, _mm512_slli_epi32(signs, 2));
            put(5, _mm512_srli_epi32(high, 2), _mm512_slli_epi32(signs, 1));
            store(out->factor[g], _mm512_or_si512(_mm512_slli_epi32(_mm512_srli_epi32(packed, 28), 1), one));
        }
    }
    _mm512_store_ps(out->d, _mm512_mul_ps(_mm512_set1_ps(0.125f), to_float(d)));
}

// ---- products ----

inline __m512i each_i32(const uint8_t *p, size_t index) { return _mm512_set1_epi32(load_i32(p + 4 * index)); }
inline __m512 each_f32(const uint8_t *p, size_t index) { return _mm512_set1_ps(load_f32(p + 4 * index)); }

template <size_t T> void multiply_32(const Panel *p, size_t n_blocks, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m512 sum[T];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_loadu_ps(sums + t * kPanelRows);
    for (size_t b = 0; b < n_blocks; b++, act += kPackedBlock32 * T) {
        __m512i acc[T];
        for (size_t t = 0; t < T; t++) acc[t] = each_i32(act, 8 * T + t);
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            const __m512i codes = load(p->codes[8 * b + i]);
            for (size_t t = 0; t < T; t++) acc[t] = _mm512_dpbusd_epi32(acc[t], codes, each_i32(act, i * T + t));
        }
        const __m512 scale = _mm512_load_ps(p->scale[b]);
        for (size_t t = 0; t < T; t++)
            sum[t] = _mm512_add_ps(sum[t], _mm512_mul_ps(_mm512_mul_ps(scale, each_f32(act, 9 * T + t)),
                                                         _mm512_cvtepi32_ps(acc[t])));
    }
    for (size_t t = 0; t < T; t++) _mm512_storeu_ps(sums + t * kPanelRows, sum[t]);
}

// sum of d * (weight d * products - dmin * mins), mins left out when the type has none.
template <bool kMins, size_t T>
inline void add_products(const Panel *p, const uint8_t *act, const __m512i products[T], float *sums) {
    const __m512 d = _mm512_load_ps(p->d), dmin = kMins ? _mm512_load_ps(p->dmin) : d;
    for (size_t t = 0; t < T; t++) {
        const __m512 x = _mm512_cvtepi32_ps(products[t]), d_act = each_f32(act, 80 * T + t);
        __m512 y;
        if (kMins) {
            __m512i mins = _mm512_setzero_si512();
#pragma GCC unroll 8
            for (size_t j = 0; j < 8; j++)
                mins = _mm512_dpwssd_epi32(mins, load(p->mins[j]), each_i32(act, 72 * T + j * T + t));
            y = _mm512_mul_ps(d_act, _mm512_sub_ps(_mm512_mul_ps(d, x), _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(mins))));
        } else {
            y = _mm512_mul_ps(_mm512_mul_ps(d, d_act), x);
        }
        float *s = sums + t * kPanelRows;
        _mm512_storeu_ps(s, _mm512_add_ps(_mm512_loadu_ps(s), y));
    }
}

// IQ2_XXS and Q4_K: a factor for each 32 columns.
template <bool kMins, size_t T> void multiply_factors(const Panel *p, size_t, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m512i products[T];
    for (size_t t = 0; t < T; t++) products[t] = _mm512_setzero_si512();
    for (size_t j = 0; j < 8; j++) {
        const uint8_t *quads = act + 32 * T * j;
        __m512i acc[T];
        for (size_t t = 0; t < T; t++) acc[t] = each_i32(act, 64 * T + j * T + t);
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            const __m512i codes = load(p->codes[8 * j + i]);
            for (size_t t = 0; t < T; t++) acc[t] = _mm512_dpbusd_epi32(acc[t], codes, each_i32(quads, i * T + t));
        }
        const __m512i factor = load(p->factor[j]);
        for (size_t t = 0; t < T; t++)
            products[t] = _mm512_add_epi32(products[t], _mm512_mullo_epi32(factor, acc[t]));
    }
    add_products<kMins, T>(p, act, products, sums);
}

// Q2_K: the scales are in the codes. Few tokens take several chains of sums, so that they need not wait for each other.
template <size_t T> void multiply_scaled(const Panel *p, size_t, const void *packed, float *sums) {
    constexpr size_t kChains = T == 1 ? 8 : T <= 3 ? 4 : T <= 6 ? 2 : 1;
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m512i acc[kChains][T];
    for (size_t c = 0; c < kChains; c++)
        for (size_t t = 0; t < T; t++) acc[c][t] = _mm512_setzero_si512();
    for (size_t j = 0; j < 8; j++) {
        const uint8_t *quads = act + 32 * T * j;
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            const __m512i codes = load(p->codes[8 * j + i]);
            for (size_t t = 0; t < T; t++)
                acc[i % kChains][t] = _mm512_dpbusd_epi32(acc[i % kChains][t], codes, each_i32(quads, i * T + t));
        }
    }
    for (size_t c = 1; c < kChains; c++)
        for (size_t t = 0; t < T; t++) acc[0][t] = _mm512_add_epi32(acc[0][t], acc[c][t]);
    add_products<true, T>(p, act, acc[0], sums);
}

#define DS4_EACH_COUNT(F) {F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12)}
#define DS4_BLOCKS_32(T) multiply_32<T>
#define DS4_FACTORS(T) multiply_factors<false, T>
#define DS4_FACTORS_AND_MINS(T) multiply_factors<true, T>
#define DS4_SCALED(T) multiply_scaled<T>

const PanelKernels table = {
    "avx512vnni",
    12,
    {{unpack_q8_0, DS4_EACH_COUNT(DS4_BLOCKS_32), 128, Quads::kRun},
     {unpack_mxfp4, DS4_EACH_COUNT(DS4_BLOCKS_32), kFp4Bias, Quads::kRun},
     {unpack_q2_k, DS4_EACH_COUNT(DS4_SCALED), 0, Quads::kRun},
     {unpack_q4_k, DS4_EACH_COUNT(DS4_FACTORS_AND_MINS), 0, Quads::kRun},
     {unpack_iq2_xxs, DS4_EACH_COUNT(DS4_FACTORS), kIq2Bias, Quads::kEighth}}};

}  // namespace

const PanelKernels *panels_vnni() { return &table; }

}  // namespace ds4::cpu

#else

namespace ds4::cpu {
const PanelKernels *panels_vnni() { return nullptr; }
}  // namespace ds4::cpu

#endif
