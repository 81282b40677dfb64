// Panels for AVX2 (and F16C). A lane of 32 bits belongs to one weight row, so the 16 rows are two registers.
//
// Products are vpmaddubsw: unsigned codes with signed activations, summed in pairs to 16 bits. What a type's largest
// code leaves room for is added up there before it is widened to 32 bits; activations are within +-127.
#include "backend/cpu/panel.h"

#if defined(__x86_64__)

#include <immintrin.h>

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

constexpr size_t kHalf = kPanelRows / 2;  // rows of a register

inline __m256i load(const void *p) { return _mm256_load_si256(static_cast<const __m256i *>(p)); }
inline void store(void *p, __m256i v) { _mm256_store_si256(static_cast<__m256i *>(p), v); }
inline __m256i all(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }

// ---- unpacking: eight rows at a time ----

inline __m256i load_two(const uint8_t *a, const uint8_t *b) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i *>(a));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(reinterpret_cast<const __m128i *>(b)), 1);
}

// 16 bytes of each of eight rows: lane r of word[i] is dword i of row r.
struct Words {
    __m256i word[4];
};
inline Words load_words(const uint8_t *const rows[], size_t offset) {
    const __m256i a = load_two(rows[0] + offset, rows[4] + offset), b = load_two(rows[1] + offset, rows[5] + offset),
                  c = load_two(rows[2] + offset, rows[6] + offset), d = load_two(rows[3] + offset, rows[7] + offset);
    const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    return {{_mm256_unpacklo_epi64(ab0, cd0), _mm256_unpackhi_epi64(ab0, cd0), _mm256_unpacklo_epi64(ab1, cd1),
             _mm256_unpackhi_epi64(ab1, cd1)}};
}

struct alignas(16) Halves {
    uint16_t v[kHalf];
};
inline Halves load_halves(const uint8_t *const rows[], size_t offset) {
    Halves h;
    for (size_t r = 0; r < kHalf; r++) h.v[r] = load_u16(rows[r] + offset);
    return h;
}
inline __m256 to_float(const Halves &h) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i *>(h.v)));
}

void unpack_q8_0(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    for (size_t first = 0; first < kPanelRows; first += kHalf) {
        size_t at = offset;
        for (size_t b = 0; b < n_blocks; b++, at += 34) {
            for (size_t half = 0; half < 2; half++) {
                const Words w = load_words(rows + first, at + 2 + 16 * half);
                for (size_t i = 0; i < 4; i++) store(out->codes[8 * b + 4 * half + i][first], w.word[i]);
            }
            _mm256_store_ps(out->scale[b] + first, to_float(load_halves(rows + first, at)));
        }
    }
}

constexpr int kFp4Bias = 12;

void unpack_mxfp4(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    // Twice the FP4 values, plus the bias.
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i low4 = all(15), two = _mm256_set1_epi32(2);
    for (size_t first = 0; first < kPanelRows; first += kHalf) {
        size_t at = offset;
        for (size_t b = 0; b < n_blocks; b++, at += 17) {
            const Words w = load_words(rows + first, at + 1);
            for (size_t i = 0; i < 4; i++) {
                const __m256i low = _mm256_and_si256(w.word[i], low4);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi32(w.word[i], 4), low4);
                store(out->codes[8 * b + i][first], _mm256_shuffle_epi8(table, low));
                store(out->codes[8 * b + 4 + i][first], _mm256_shuffle_epi8(table, high));
            }
            // 2^(e - 128); e = 0 and e = 1 give subnormals.
            alignas(32) int32_t e[kHalf];
            for (size_t r = 0; r < kHalf; r++) e[r] = rows[first + r][at];
            const __m256i x = load(e), normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
            const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);
            store(out->scale[b] + first, _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(two, x)));
        }
    }
}

// Byte k of each lane, as two 16-bit numbers.
inline __m256i twice(__m256i v, size_t k) {
    const __m256i lane = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(static_cast<int>(0x80008000), static_cast<int>(0x80048004), static_cast<int>(0x80088008),
                       static_cast<int>(0x800C800C)));
    return _mm256_shuffle_epi8(v, _mm256_add_epi32(lane, _mm256_set1_epi32(static_cast<int>(k * 0x10001))));
}
// Bytes k and k + 1 of each lane, as 16-bit numbers.
inline __m256i pair(__m256i v, size_t k) {
    const __m256i lane = _mm256_broadcastsi128_si256(
        _mm_setr_epi32(static_cast<int>(0x80018000), static_cast<int>(0x80058004), static_cast<int>(0x80098008),
                       static_cast<int>(0x800D800C)));
    return _mm256_shuffle_epi8(v, _mm256_add_epi32(lane, _mm256_set1_epi32(static_cast<int>(k * 0x10001))));
}

void unpack_q2_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    const __m256i low2 = all(3), low4 = all(15);
    for (size_t first = 0; first < kPanelRows; first += kHalf) {
        const Words s = load_words(rows + first, offset);
        __m256i scales[4];
        for (size_t i = 0; i < 4; i++) {
            scales[i] = _mm256_and_si256(s.word[i], low4);
            const __m256i mins = _mm256_and_si256(_mm256_srli_epi32(s.word[i], 4), low4);
            store(out->mins[2 * i][first], pair(mins, 0));
            store(out->mins[2 * i + 1][first], pair(mins, 2));
        }
        // Sub-block 8h + 2t + half: bits 2t.. of 16 bytes. A product with the scale is at most 45.
        for (size_t h = 0; h < 2; h++)
            for (size_t half = 0; half < 2; half++) {
                const Words w = load_words(rows + first, offset + 16 + 32 * h + 16 * half);
                for (size_t t = 0; t < 4; t++) {
                    const __m256i scale = twice(scales[2 * h + t / 2], t % 2 * 2 + half);
                    for (size_t i = 0; i < 4; i++) {
                        const __m256i code = _mm256_and_si256(_mm256_srli_epi16(w.word[i], static_cast<int>(2 * t)), low2);
                        store(out->codes[32 * h + 8 * t + 4 * half + i][first], _mm256_mullo_epi16(code, scale));
                    }
                }
            }
        _mm256_store_ps(out->d + first, to_float(load_halves(rows + first, offset + 80)));
        _mm256_store_ps(out->dmin + first, to_float(load_halves(rows + first, offset + 82)));
    }
}

void unpack_q4_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    const __m256i low4 = all(15), low6 = all(63), bits45 = all(0x30);
    for (size_t first = 0; first < kPanelRows; first += kHalf) {
        _mm256_store_ps(out->d + first, to_float(load_halves(rows + first, offset)));
        _mm256_store_ps(out->dmin + first, to_float(load_halves(rows + first, offset + 2)));
        // Six bits of each sub-block; those of the last four lie in two places.
        const Words head = load_words(rows + first, offset);
        const __m256i *k = head.word + 1;
        const auto joined = [&](__m256i low, __m256i high) {
            return _mm256_or_si256(_mm256_and_si256(low, low4), _mm256_and_si256(_mm256_srli_epi32(high, 2), bits45));
        };
        const __m256i scales[2] = {_mm256_and_si256(k[0], low6), joined(k[2], k[0])};
        const __m256i mins[2] = {_mm256_and_si256(k[1], low6), joined(_mm256_srli_epi32(k[2], 4), k[1])};
        for (size_t j = 0; j < 8; j++) {
            const __m256i scale = _mm256_srli_epi32(scales[j / 4], static_cast<int>(8 * (j % 4)));
            store(out->factor[j] + first, _mm256_and_si256(scale, _mm256_set1_epi32(255)));
            store(out->mins[j][first], twice(mins[j / 4], j % 4));
        }
        for (size_t i = 0; i < 4; i++)  // sub-blocks 2i and 2i + 1: the low and the high nibbles of 32 bytes
            for (size_t half = 0; half < 2; half++) {
                const Words w = load_words(rows + first, offset + 16 + 32 * i + 16 * half);
                for (size_t l = 0; l < 4; l++) {
                    store(out->codes[16 * i + 4 * half + l][first], _mm256_and_si256(w.word[l], low4));
                    store(out->codes[16 * i + 8 + 4 * half + l][first],
                          _mm256_and_si256(_mm256_srli_epi32(w.word[l], 4), low4));
                }
            }
    }
}

constexpr int kIq2Bias = 43;

constexpr uint16_t kKeys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

// Eight codes of four bits in a word: values 0..3 in the low halves of its bytes, 4..7 in the high ones. A code is a
// level, or 7 - level for a minus sign, so that signs are put on by one exclusive or.
constexpr unsigned nibble(unsigned i) { return 8 * (i % 4) + 4 * (i / 4); }
struct Iq2Tables {
    uint32_t levels[256], signs[128];
};
constexpr Iq2Tables kIq2 = [] {
    Iq2Tables t{};
    for (unsigned row = 0; row < 256; row++)
        for (unsigned i = 0; i < 8; i++) t.levels[row] |= (static_cast<uint32_t>(kKeys[row]) >> 2 * i & 3) << nibble(i);
    for (unsigned field = 0; field < 128; field++) {
        unsigned parity = 0;
        for (unsigned i = 0; i < 7; i++) {
            parity ^= field >> i & 1;
            t.signs[field] |= (field >> i & 1) * 7u << nibble(i);
        }
        t.signs[field] |= parity * 7u << nibble(7);
    }
    return t;
}();

void unpack_iq2_xxs(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    // Words first for the whole step, so that no wide load waits for narrow stores just before it.
    alignas(32) uint32_t words[8][4][kPanelRows], packed[8][kPanelRows];
    alignas(16) uint16_t d[kPanelRows];
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        d[r] = load_u16(w);
        w += 2;
        for (size_t g = 0; g < 8; g++, w += 8) {
            const uint32_t signs = static_cast<uint32_t>(load_i32(w + 4));
            words[g][0][r] = kIq2.levels[w[0]] ^ kIq2.signs[signs & 127];
            words[g][1][r] = kIq2.levels[w[1]] ^ kIq2.signs[signs >> 7 & 127];
            words[g][2][r] = kIq2.levels[w[2]] ^ kIq2.signs[signs >> 14 & 127];
            words[g][3][r] = kIq2.levels[w[3]] ^ kIq2.signs[signs >> 21 & 127];
            packed[g][r] = signs;
        }
    }
    // Value plus bias of a code; 3 and 4 do not occur.
    const __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(51, 68, 86, 43, 43, 0, 18, 35, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i low4 = all(15), one = _mm256_set1_epi32(1);
    for (size_t g = 0; g < 8; g++)
        for (size_t first = 0; first < kPanelRows; first += kHalf) {
            for (size_t k = 0; k < 4; k++) {
                const __m256i w = load(words[g][k] + first);
                const __m256i low = _mm256_and_si256(w, low4), high = _mm256_and_si256(_mm256_srli_epi32(w, 4), low4);
                store(out->codes[8 * g + 2 * k][first], _mm256_shuffle_epi8(values, low));
                store(out->codes[8 * g + 2 * k + 1][first], _mm256_shuffle_epi8(values, high));
            }
            const __m256i s = _mm256_srli_epi32(load(packed[g] + first), 28);
            const __m256i factor = _mm256_or_si256(_mm256_slli_epi32(s, 1), one);
            store(out->factor[g] + first, factor);
            store(out->mins[g][first], _mm256_or_si256(factor, _mm256_slli_epi32(factor, 16)));  // for multiply_iq2
        }
    for (size_t first = 0; first < kPanelRows; first += kHalf) {
        const __m256 scale = _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i *>(d + first)));
        _mm256_store_ps(out->d + first, _mm256_mul_ps(_mm256_set1_ps(0.125f), scale));
    }
}

// ---- products ----

inline __m256i each_i32(const uint8_t *p, size_t index) { return _mm256_set1_epi32(load_i32(p + 4 * index)); }
inline __m256 each_f32(const uint8_t *p, size_t index) { return _mm256_set1_ps(load_f32(p + 4 * index)); }
inline __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// Products of 4 * kQuads columns, 16-bit sums. Codes times 127 times 2 * kQuads must fit.
template <size_t T, size_t kQuads>
inline void short_sums(const Panel *p, size_t quad, const uint8_t *act, __m256i acc[T][2]) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kQuads; i++) {
        const __m256i c0 = load(p->codes[quad + i][0]), c1 = load(p->codes[quad + i][kHalf]);
#pragma GCC unroll 4
        for (size_t t = 0; t < T; t++) {
            const __m256i a = each_i32(act, i * T + t);
            const __m256i x0 = _mm256_maddubs_epi16(c0, a), x1 = _mm256_maddubs_epi16(c1, a);
            acc[t][0] = i ? _mm256_add_epi16(acc[t][0], x0) : x0;
            acc[t][1] = i ? _mm256_add_epi16(acc[t][1], x1) : x1;
        }
    }
}

// Add the float32 product of a block of 32: scale * d * sum.
template <size_t T>
inline void add_block(const Panel *p, size_t b, const uint8_t *act, const __m256i acc[T][2], float *sums) {
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < 2; h++) {
            float *s = sums + t * kPanelRows + h * kHalf;
            const __m256 scale = _mm256_mul_ps(_mm256_load_ps(p->scale[b] + h * kHalf), each_f32(act, 9 * T + t));
            _mm256_storeu_ps(s, _mm256_add_ps(_mm256_loadu_ps(s), _mm256_mul_ps(scale, _mm256_cvtepi32_ps(acc[t][h]))));
        }
}

// Q8_0: |w| as unsigned meets a with the sign of w. At most 128 * 127 * 2, which fits 16 bits once.
template <size_t T> void multiply_q8_0(const Panel *p, size_t n_blocks, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    for (size_t b = 0; b < n_blocks; b++, act += kPackedBlock32 * T) {
        __m256i acc[T][2];
        for (size_t t = 0; t < T; t++) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
        for (size_t i = 0; i < 8; i++)
#pragma GCC unroll 2
            for (size_t h = 0; h < 2; h++) {
                const __m256i w = load(p->codes[8 * b + i][h * kHalf]), size = _mm256_abs_epi8(w);
#pragma GCC unroll 4
                for (size_t t = 0; t < T; t++) {
                    const __m256i a = _mm256_sign_epi8(each_i32(act, i * T + t), w);
                    acc[t][h] = _mm256_add_epi32(acc[t][h], widen(_mm256_maddubs_epi16(size, a)));
                }
            }
        add_block<T>(p, b, act, acc, sums);
    }
}

// MXFP4: codes to 24, so four quads (24384) fit 16 bits.
template <size_t T> void multiply_mxfp4(const Panel *p, size_t n_blocks, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    for (size_t b = 0; b < n_blocks; b++, act += kPackedBlock32 * T) {
        __m256i acc[T][2], part[T][2];
        short_sums<T, 4>(p, 8 * b, act, part);
        for (size_t t = 0; t < T; t++)
            for (size_t h = 0; h < 2; h++) acc[t][h] = _mm256_add_epi32(each_i32(act, 8 * T + t), widen(part[t][h]));
        short_sums<T, 4>(p, 8 * b + 4, act + 16 * T, part);
        for (size_t t = 0; t < T; t++)
            for (size_t h = 0; h < 2; h++) acc[t][h] = _mm256_add_epi32(acc[t][h], widen(part[t][h]));
        add_block<T>(p, b, act, acc, sums);
    }
}

// Of each row the sum over j of mins[j] . (sums of columns 32j.. and 32j + 16..).
template <size_t T> inline __m256i minimums(const Panel *p, const uint8_t *act, size_t t, size_t h) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; j++)
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load(p->mins[j][h * kHalf]), each_i32(act, 72 * T + j * T + t)));
    return sum;
}

inline void add_to(float *s, __m256 y) { _mm256_storeu_ps(s, _mm256_add_ps(_mm256_loadu_ps(s), y)); }

template <size_t T>
inline void add_with_minimums(const Panel *p, const uint8_t *act, const __m256i acc[T][2], float *sums) {
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < 2; h++) {
            const __m256 x = _mm256_mul_ps(_mm256_load_ps(p->d + h * kHalf), _mm256_cvtepi32_ps(acc[t][h]));
            const __m256 m = _mm256_mul_ps(_mm256_load_ps(p->dmin + h * kHalf), _mm256_cvtepi32_ps(minimums<T>(p, act, t, h)));
            add_to(sums + t * kPanelRows + h * kHalf, _mm256_mul_ps(each_f32(act, 80 * T + t), _mm256_sub_ps(x, m)));
        }
}

// Q2_K: codes times scales to 45, so two quads (22860) fit 16 bits.
template <size_t T> void multiply_q2_k(const Panel *p, size_t, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m256i acc[T][2], part[T][2];
    for (size_t t = 0; t < T; t++) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    for (size_t i = 0; i < 64; i += 2) {
        short_sums<T, 2>(p, i, act + 4 * T * i, part);
#pragma GCC unroll 4
        for (size_t t = 0; t < T; t++) {
            acc[t][0] = _mm256_add_epi32(acc[t][0], widen(part[t][0]));
            acc[t][1] = _mm256_add_epi32(acc[t][1], widen(part[t][1]));
        }
    }
    add_with_minimums<T>(p, act, acc, sums);
}

// Q4_K: codes to 15, so all 32 columns of a factor (30480) fit 16 bits, and widening multiplies with the factor.
template <size_t T> void multiply_q4_k(const Panel *p, size_t, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m256i acc[T][2], part[T][2];
    for (size_t t = 0; t < T; t++) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    for (size_t j = 0; j < 8; j++) {
        short_sums<T, 8>(p, 8 * j, act + 32 * T * j, part);
#pragma GCC unroll 2
        for (size_t h = 0; h < 2; h++) {
            const __m256i f = load(p->factor[j] + h * kHalf), both = _mm256_or_si256(f, _mm256_slli_epi32(f, 16));
#pragma GCC unroll 4
            for (size_t t = 0; t < T; t++) acc[t][h] = _mm256_add_epi32(acc[t][h], _mm256_madd_epi16(part[t][h], both));
        }
    }
    add_with_minimums<T>(p, act, acc, sums);
}

// IQ2_XXS: codes to 86 (21844 a pair); widening multiplies with the factor, which unpack_iq2_xxs left in mins too.
// There the bias is taken back with the sums of the activations, and PanelFormat's start is not used.
template <size_t T> void multiply_iq2_xxs(const Panel *p, size_t, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    __m256i acc[T][2];
    for (size_t t = 0; t < T; t++) acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    for (size_t j = 0; j < 8; j++) {
        const __m256i f0 = load(p->mins[j][0]), f1 = load(p->mins[j][kHalf]);
        for (size_t i = 8 * j; i < 8 * j + 8; i++) {
            const __m256i c0 = load(p->codes[i][0]), c1 = load(p->codes[i][kHalf]);
#pragma GCC unroll 4
            for (size_t t = 0; t < T; t++) {
                const __m256i a = each_i32(act, i * T + t);
                acc[t][0] = _mm256_add_epi32(acc[t][0], _mm256_madd_epi16(_mm256_maddubs_epi16(c0, a), f0));
                acc[t][1] = _mm256_add_epi32(acc[t][1], _mm256_madd_epi16(_mm256_maddubs_epi16(c1, a), f1));
            }
        }
    }
    const __m256i bias = _mm256_set1_epi32(kIq2Bias);
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < 2; h++) {
            const __m256i products = _mm256_sub_epi32(acc[t][h], _mm256_mullo_epi32(bias, minimums<T>(p, act, t, h)));
            const __m256 scale = _mm256_mul_ps(_mm256_load_ps(p->d + h * kHalf), each_f32(act, 80 * T + t));
            add_to(sums + t * kPanelRows + h * kHalf, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(products)));
        }
}

#define DS4_EACH_COUNT(F) {F<1>, F<2>, F<3>, F<4>}

// Four tokens: eight sums, the codes, an activation and what is between fill the sixteen registers.
const PanelKernels table = {"avx2",
                            4,
                            {{unpack_q8_0, DS4_EACH_COUNT(multiply_q8_0), 0, Quads::kRun},
                             {unpack_mxfp4, DS4_EACH_COUNT(multiply_mxfp4), kFp4Bias, Quads::kRun},
                             {unpack_q2_k, DS4_EACH_COUNT(multiply_q2_k), 0, Quads::kRun},
                             {unpack_q4_k, DS4_EACH_COUNT(multiply_q4_k), 0, Quads::kRun},
                             {unpack_iq2_xxs, DS4_EACH_COUNT(multiply_iq2_xxs), kIq2Bias, Quads::kRun}}};

}  // namespace

const PanelKernels *panels_avx2() { return &table; }

}  // namespace ds4::cpu

#else

namespace ds4::cpu {
const PanelKernels *panels_avx2() { return nullptr; }
}  // namespace ds4::cpu

#endif
