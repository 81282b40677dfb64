// The weight types (docs/formats.md), one struct each:
//   decode8   n values of a row as float32: 1, or up to 8 from a multiple of 8 on
// and the quantized ones, which meet activations rounded to 8 bits,
//   product   what part `part` of 8 of a block gives to the integer sums of the block: products, and minimums
//   term      the block's float32 term of those sums
//   folded8   8 values of a block, from value i on, as whole numbers with the scale of their sub-block multiplied in;
//             exact in half precision, and in float32 when kChunk of them have met activations
//   minimum   the integer that the minimums of a block give
// Rows may begin at any multiple of 2 bytes (MXFP4: of 1).
#pragma once

#include "common.metal"

inline float half_at(device const uchar *p) { return float(*(device const half *)p); }
inline uint word_at(device const uchar *p) {  // at any multiple of 2
    device const ushort *h = (device const ushort *)p;
    return uint(h[0]) | uint(h[1]) << 16;
}

// Activation blocks, as quant/quant.h has them.
enum { kQ8KBytes = 292, kQ8KSums = 260, kQ8ABytes = 36, kActivationCodes = 4 };
inline float act_scale(device const uchar *block) { return *(device const float *)block; }
inline device const char *act_codes(device const uchar *block) { return (device const char *)(block + kActivationCodes); }
inline device const short *act_sums(device const uchar *block) { return (device const short *)(block + kQ8KSums); }

struct Sums {
    int products, minimums;
};

struct F32 {
    enum { kBlock = 1, kBytes = 4 };
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const float *p = (device const float *)row + i;
        for (uint j = 0; j < n; j++) out[j] = p[j];
    }
};

struct F16 {
    enum { kBlock = 1, kBytes = 2 };
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const half *p = (device const half *)row + i;
        for (uint j = 0; j < n; j++) out[j] = float(p[j]);
    }
};

struct BF16 {
    enum { kBlock = 1, kBytes = 2 };
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const ushort *p = (device const ushort *)row + i;
        for (uint j = 0; j < n; j++) out[j] = as_type<float>(uint(p[j]) << 16);
    }
};

struct Q8_0 {
    enum { kBlock = 32, kBytes = 34, kActBytes = kQ8ABytes, kChunk = 32, kMinimums = 0 };
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const uchar *p = row + i / kBlock * kBytes;
        device const char *q = (device const char *)(p + 2 + i % kBlock);
        const float d = half_at(p);
        for (uint j = 0; j < n; j++) out[j] = d * float(q[j]);
    }
    static Sums product(device const uchar *w, device const uchar *act, uint part) {
        device const char *q = (device const char *)(w + 2 + 4 * part), *a = act_codes(act) + 4 * part;
        return {q[0] * a[0] + q[1] * a[1] + q[2] * a[2] + q[3] * a[3], 0};
    }
    static float term(device const uchar *w, float d, Sums s) { return half_at(w) * d * float(s.products); }
    static void folded8(device const uchar *w, uint i, thread short *out) {
        device const char *q = (device const char *)(w + 2 + i);
        for (uint j = 0; j < 8; j++) out[j] = q[j];
    }
    static int minimum(device const uchar *, device const uchar *) { return 0; }
};

constant char kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct MXFP4 {
    enum { kBlock = 32, kBytes = 17, kActBytes = kQ8ABytes, kChunk = 32, kMinimums = 0 };
    // 2^(e - 128); e = 0 and 1 are subnormal
    static float scale(uchar e) { return as_type<float>(e < 2 ? 0x00200000u << e : uint(e - 1) << 23); }
    static int code(device const uchar *w, uint i) { return kFp4[i < 16 ? w[1 + i] & 15 : w[1 + i - 16] >> 4]; }
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const uchar *p = row + i / kBlock * kBytes;
        const float d = scale(p[0]);
        for (uint j = 0; j < n; j++) out[j] = d * float(code(p, i % kBlock + j));
    }
    static Sums product(device const uchar *w, device const uchar *act, uint part) {
        device const char *a = act_codes(act) + 4 * part;
        int sum = 0;
        for (uint j = 0; j < 4; j++) sum += code(w, 4 * part + j) * a[j];
        return {sum, 0};
    }
    static float term(device const uchar *w, float d, Sums s) { return scale(w[0]) * d * float(s.products); }
    static void folded8(device const uchar *w, uint i, thread short *out) {
        for (uint j = 0; j < 8; j++) out[j] = short(code(w, i + j));
    }
    static int minimum(device const uchar *, device const uchar *) { return 0; }
};

struct Q2_K {
    enum { kBlock = 256, kBytes = 84, kActBytes = kQ8KBytes, kChunk = 64, kMinimums = 1, kCodes = 16, kD = 80, kDmin = 82 };
    // Values i.. of a block lie in one sub-block of 16: their bytes, and the shift of their bits.
    static device const uchar *codes(device const uchar *w, uint i) { return w + kCodes + i / 128 * 32 + i % 32; }
    static uint shift(uint i) { return i % 128 / 32 * 2; }
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const uchar *w = row + i / kBlock * kBytes;
        const uint k = i % kBlock, s = w[k / 16];
        device const uchar *c = codes(w, k);
        const float d = half_at(w + kD) * float(s & 15), m = half_at(w + kDmin) * float(s >> 4);
        for (uint j = 0; j < n; j++) out[j] = d * float(c[j] >> shift(k) & 3) - m;
    }
    static Sums product(device const uchar *w, device const uchar *act, uint part) {
        device const char *a = act_codes(act) + 32 * part;
        device const uchar *c = codes(w, 32 * part);
        device const short *sums = act_sums(act) + 2 * part;
        int lower = 0, upper = 0;
        for (uint j = 0; j < 16; j++) {
            lower += (c[j] >> shift(32 * part) & 3) * a[j];
            upper += (c[16 + j] >> shift(32 * part) & 3) * a[16 + j];
        }
        const int s0 = w[2 * part], s1 = w[2 * part + 1];
        return {(s0 & 15) * lower + (s1 & 15) * upper, (s0 >> 4) * sums[0] + (s1 >> 4) * sums[1]};
    }
    static float term(device const uchar *w, float d, Sums s) {
        return d * (half_at(w + kD) * float(s.products) - half_at(w + kDmin) * float(s.minimums));
    }
    static void folded8(device const uchar *w, uint i, thread short *out) {
        device const uchar *c = codes(w, i);
        const int s = w[i / 16] & 15;
        for (uint j = 0; j < 8; j++) out[j] = short(s * (c[j] >> shift(i) & 3));
    }
    static int minimum(device const uchar *w, device const uchar *act) {
        device const short *sums = act_sums(act);
        int sum = 0;
        for (uint j = 0; j < 16; j++) sum += (w[j] >> 4) * sums[j];
        return sum;
    }
};

struct Q4_K {
    enum { kBlock = 256, kBytes = 144, kActBytes = kQ8KBytes, kChunk = 64, kMinimums = 1, kScales = 4, kCodes = 16 };
    static int scale(device const uchar *w, uint j) {
        device const uchar *k = w + kScales;
        return j < 4 ? k[j] & 63 : (k[j + 4] & 15) | (k[j - 4] >> 6) << 4;
    }
    static int low(device const uchar *w, uint j) {
        device const uchar *k = w + kScales;
        return j < 4 ? k[j + 4] & 63 : (k[j + 4] >> 4) | (k[j] >> 6) << 4;
    }
    static device const uchar *codes(device const uchar *w, uint i) { return w + kCodes + i / 64 * 32 + i % 32; }
    static uint shift(uint i) { return i / 32 % 2 * 4; }
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const uchar *w = row + i / kBlock * kBytes;
        const uint k = i % kBlock;
        device const uchar *c = codes(w, k);
        const float d = half_at(w) * float(scale(w, k / 32)), m = half_at(w + 2) * float(low(w, k / 32));
        for (uint j = 0; j < n; j++) out[j] = d * float(c[j] >> shift(k) & 15) - m;
    }
    static Sums product(device const uchar *w, device const uchar *act, uint part) {
        device const char *a = act_codes(act) + 32 * part;
        device const uchar *c = codes(w, 32 * part);
        device const short *sums = act_sums(act) + 2 * part;
        int sum = 0;
        for (uint j = 0; j < 32; j++) sum += (c[j] >> shift(32 * part) & 15) * a[j];
        return {scale(w, part) * sum, low(w, part) * (sums[0] + sums[1])};
    }
    static float term(device const uchar *w, float d, Sums s) {
        return d * (half_at(w) * float(s.products) - half_at(w + 2) * float(s.minimums));
    }
    static void folded8(device const uchar *w, uint i, thread short *out) {
        device const uchar *c = codes(w, i);
        const int s = scale(w, i / 32);
        for (uint j = 0; j < 8; j++) out[j] = short(s * (c[j] >> shift(i) & 15));
    }
    static int minimum(device const uchar *w, device const uchar *act) {
        device const short *sums = act_sums(act);
        int sum = 0;
        for (uint j = 0; j < 8; j++) sum += low(w, j) * (sums[2 * j] + sums[2 * j + 1]);
        return sum;
    }
};

constant ushort kIq2Keys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

struct IQ2_XXS {
    enum { kBlock = 256, kBytes = 66, kActBytes = kQ8KBytes, kChunk = 64, kMinimums = 0 };
    static uint indices(device const uchar *w, uint group) { return word_at(w + 2 + 8 * group); }
    static uint signs(device const uchar *w, uint group) { return word_at(w + 6 + 8 * group); }
    // Signed magnitudes of part k (of 4) of a group.
    static void row8(uint index_word, uint sign_word, uint k, thread short *out) {
        const uint key = kIq2Keys[index_word >> (8 * k) & 255], field = sign_word >> (7 * k) & 127;
        const uint mask = field | (popcount(field) & 1) << 7;
        for (uint j = 0; j < 8; j++) {
            const uint level = key >> (2 * j) & 3;
            const int magnitude = level == 0 ? 8 : level == 1 ? 25 : 43;
            out[j] = short(mask >> j & 1 ? -magnitude : magnitude);
        }
    }
    static void decode8(device const uchar *row, uint i, uint n, thread float *out) {
        device const uchar *w = row + i / kBlock * kBytes;
        const uint group = i % kBlock / 32, s = signs(w, group);
        const float d = half_at(w) * (0.5f + float(s >> 28)) * 0.25f;
        short v[8];
        row8(indices(w, group), s, i % 32 / 8, v);
        for (uint j = 0; j < n; j++) out[j] = d * float(v[i % 8 + j]);
    }
    static Sums product(device const uchar *w, device const uchar *act, uint part) {
        device const char *a = act_codes(act) + 32 * part;
        const uint index_word = indices(w, part), s = signs(w, part);
        int sum = 0;
        for (uint k = 0; k < 4; k++) {
            short v[8];
            row8(index_word, s, k, v);
            for (uint j = 0; j < 8; j++) sum += v[j] * a[8 * k + j];
        }
        return {int(2 * (s >> 28) + 1) * sum, 0};
    }
    static float term(device const uchar *w, float d, Sums s) { return 0.125f * half_at(w) * d * float(s.products); }
    static void folded8(device const uchar *w, uint i, thread short *out) {
        const uint s = signs(w, i / 32);
        row8(indices(w, i / 32), s, i % 32 / 8, out);
        const int scale = int(2 * (s >> 28) + 1);
        for (uint j = 0; j < 8; j++) out[j] = short(scale * out[j]);
    }
    static int minimum(device const uchar *, device const uchar *) { return 0; }
};

// decode8 of a type that is known only at run time (GGUF ids).
inline void decode_any(uint type, device const uchar *row, uint i, uint n, thread float *out) {
    switch (type) {
        case 0: F32::decode8(row, i, n, out); break;
        case 1: F16::decode8(row, i, n, out); break;
        case 30: BF16::decode8(row, i, n, out); break;
        case 8: Q8_0::decode8(row, i, n, out); break;
        case 10: Q2_K::decode8(row, i, n, out); break;
        case 12: Q4_K::decode8(row, i, n, out); break;
        case 16: IQ2_XXS::decode8(row, i, n, out); break;
        default: MXFP4::decode8(row, i, n, out); break;
    }
}
