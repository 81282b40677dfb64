// Finding the codes of rounded rows from the bits of their values, and back.
#include "session/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "backend/cache_view.h"
#include "base/half.h"

namespace ds4 {

namespace {

enum Form : uint8_t { kPlain = 0, kE4M3 = 1, kE2M1 = 2 };

constexpr size_t kBlockE4M3 = 64, kBlockE2M1 = 32;
constexpr size_t kMostDim = 512;  // of any shape; packing falls back to plain rows beyond it

// A float32 in parts. `exponent` is that of 1.m * 2^exponent.
struct Parts {
    uint32_t sign, magnitude, mantissa;
    int exponent;
};

inline Parts parts_of(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFFu;
    return {bits >> 31, magnitude, bits & 0x7FFFFFu, static_cast<int>(magnitude >> 23) - 127};
}

// The exponent of a block whose largest magnitude has these bits, so that the largest code is in the top binade of the
// format: `top` is the largest code as 1.m * 2^top_exponent. False: no exponent that is stored (also for subnormal
// values, infinity and NaN).
inline bool block_exponent(uint32_t magnitude, uint32_t top_mantissa, int top_exponent, int *exponent) {
    *exponent = 0;
    if (magnitude == 0) return true;
    const int e = static_cast<int>(magnitude >> 23) - 127;
    if (e == -127 || e == 128) return false;
    *exponent = e - top_exponent + ((magnitude & 0x7FFFFFu) > top_mantissa ? 1 : 0);
    return *exponent >= -126 && *exponent <= 127;
}

// The code of x / 2^exponent, exactly; false when there is none. No x is beyond the largest code of its block.
inline bool code_e4m3(float x, int exponent, uint8_t *code) {
    const Parts p = parts_of(x);
    const uint32_t sign = p.sign << 7;
    if (p.magnitude == 0) {
        *code = static_cast<uint8_t>(sign);
        return true;
    }
    const int e = p.exponent - exponent;
    if (p.exponent == -127 || e < -9 || e > 8) return false;
    if (e >= -6) {
        *code = static_cast<uint8_t>(sign | static_cast<uint32_t>(e + 7) << 3 | p.mantissa >> 20);
        return !(p.mantissa & 0xFFFFFu);
    }
    const int shift = 14 - e;  // 21 to 23: multiples of 2^-9 below 2^-6
    const uint32_t full = 0x800000u | p.mantissa;
    *code = static_cast<uint8_t>(sign | (full >> shift));
    return !(full & ((1u << shift) - 1));
}

inline bool code_e2m1(float x, int exponent, uint8_t *code) {
    const Parts p = parts_of(x);
    const uint32_t sign = p.sign << 3;
    if (p.magnitude == 0) {
        *code = static_cast<uint8_t>(sign);
        return true;
    }
    const int e = p.exponent - exponent;
    if (p.exponent == -127 || e < -1 || e > 2) return false;
    if (e == -1) {
        *code = static_cast<uint8_t>(sign | 1);
        return p.mantissa == 0;
    }
    *code = static_cast<uint8_t>(sign | static_cast<uint32_t>(2 + 2 * e) | (p.mantissa >> 22));
    return !(p.mantissa & 0x3FFFFFu);
}

// The values of all codes. The NaN codes of E4M3 are never written; a forged one gives NaN.
constexpr std::array<float, 256> values_e4m3() {
    std::array<float, 256> out{};
    for (uint32_t code = 0; code < 256; code++) {
        const uint32_t e = (code >> 3) & 15, m = code & 7;
        uint32_t bits = (e + 120) << 23 | m << 20;
        float value = std::bit_cast<float>(bits);
        if (e == 0) value = static_cast<float>(m) * 0x1p-9f;
        if (e == 15 && m == 7) value = std::bit_cast<float>(0x7FC00000u);
        bits = std::bit_cast<uint32_t>(value) | (code & 0x80) << 24;
        out[code] = std::bit_cast<float>(bits);
    }
    return out;
}
constexpr std::array<float, 256> kE4M3Values = values_e4m3();
constexpr float kE2M1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

size_t value_bytes(const RowKind &kind) { return kind.row_type == DS4_ROW_F16 ? 2 : 4; }
size_t coded(const RowKind &kind) { return kind.index ? kind.dim : kind.dim - kind.n_rot; }
size_t n_exponents(const RowKind &kind) {
    const size_t block = kind.index ? kBlockE2M1 : kBlockE4M3;
    return (coded(kind) + block - 1) / block;
}

// Bytes of a row of codes, its form included.
size_t coded_bytes(const RowKind &kind) {
    if (kind.index) return 1 + kind.dim / 2 + n_exponents(kind);
    return 1 + coded(kind) + n_exponents(kind) + kind.n_rot * value_bytes(kind);
}

uint32_t largest(const float *x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
    return most;
}

bool pack_e4m3(const float *x, size_t n, uint8_t *codes, uint8_t *exponents) {
    for (size_t b = 0; b < n; b += kBlockE4M3) {
        const size_t end = std::min(b + kBlockE4M3, n);
        int exponent;
        if (!block_exponent(largest(x + b, end - b), 0x600000u, 8, &exponent)) return false;  // 448 = 1.75 * 2^8
        bool exact = true;
        for (size_t i = b; i < end; i++) exact &= code_e4m3(x[i], exponent, codes + i);
        if (!exact) return false;
        exponents[b / kBlockE4M3] = static_cast<uint8_t>(exponent);
    }
    return true;
}

bool pack_e2m1(const float *x, size_t n, uint8_t *codes, uint8_t *exponents) {
    for (size_t b = 0; b < n; b += kBlockE2M1) {
        const size_t end = std::min(b + kBlockE2M1, n);
        int exponent;
        if (!block_exponent(largest(x + b, end - b), 0x400000u, 2, &exponent)) return false;  // 6 = 1.5 * 2^2
        for (size_t i = b; i < end; i += 2) {
            uint8_t low = 0, high = 0;
            if (!code_e2m1(x[i], exponent, &low) || !code_e2m1(x[i + 1], exponent, &high)) return false;
            codes[i / 2] = static_cast<uint8_t>(low | high << 4);
        }
        exponents[b / kBlockE2M1] = static_cast<uint8_t>(exponent);
    }
    return true;
}

float scale_of(uint8_t exponent) { return std::ldexp(1.0f, static_cast<int8_t>(exponent)); }

}  // namespace

void to_floats(uint32_t row_type, const uint8_t *row, size_t n, float *out) {
    if (row_type == DS4_ROW_F32) {
        memcpy(out, row, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, row + 2 * i, 2);
        out[i] = f16_to_f32(half);
    }
}

void from_floats(uint32_t row_type, const float *values, size_t n, uint8_t *row) {
    if (row_type == DS4_ROW_F32) {
        memcpy(row, values, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = f32_to_f16(values[i]);
        memcpy(row + 2 * i, &half, 2);
    }
}

size_t row_bytes(const RowKind &kind) { return cache_row_bytes(kind.row_type, kind.dim); }

size_t pack_row(const RowKind &kind, const uint8_t *row, uint8_t *out) {
    float x[kMostDim];
    const size_t n = coded(kind);
    if (n <= kMostDim && n % 2 == 0) {
        to_floats(kind.row_type, row, n, x);
        uint8_t *codes = out + 1, *exponents = codes + (kind.index ? n / 2 : n);
        if (kind.index ? pack_e2m1(x, n, codes, exponents) : pack_e4m3(x, n, codes, exponents)) {
            out[0] = kind.index ? kE2M1 : kE4M3;
            if (!kind.index)
                memcpy(exponents + n_exponents(kind), row + n * value_bytes(kind), kind.n_rot * value_bytes(kind));
            return coded_bytes(kind);
        }
    }
    out[0] = kPlain;
    memcpy(out + 1, row, row_bytes(kind));
    return most_packed_bytes(kind);
}

size_t packed_bytes(const RowKind &kind, const uint8_t *in, uint64_t left) {
    if (!left) return 0;
    size_t bytes = 0;
    if (in[0] == kPlain) bytes = most_packed_bytes(kind);
    if (in[0] == (kind.index ? kE2M1 : kE4M3) && coded(kind) <= kMostDim) bytes = coded_bytes(kind);
    return bytes <= left ? bytes : 0;
}

void unpack_row(const RowKind &kind, const uint8_t *in, uint8_t *row) {
    if (in[0] == kPlain) {
        memcpy(row, in + 1, row_bytes(kind));
        return;
    }
    float x[kMostDim];
    const size_t n = coded(kind);
    const uint8_t *codes = in + 1, *exponents = codes + (kind.index ? n / 2 : n);
    if (kind.index) {
        for (size_t b = 0; b < n; b += kBlockE2M1) {
            const float scale = scale_of(exponents[b / kBlockE2M1]);
            for (size_t i = b; i < std::min(b + kBlockE2M1, n); i += 2) {
                x[i] = kE2M1Values[codes[i / 2] & 15] * scale;
                x[i + 1] = kE2M1Values[codes[i / 2] >> 4] * scale;
            }
        }
    } else {
        for (size_t b = 0; b < n; b += kBlockE4M3) {
            const float scale = scale_of(exponents[b / kBlockE4M3]);
            for (size_t i = b; i < std::min(b + kBlockE4M3, n); i++) x[i] = kE4M3Values[codes[i]] * scale;
        }
        memcpy(row + n * value_bytes(kind), exponents + n_exponents(kind), kind.n_rot * value_bytes(kind));
    }
    from_floats(kind.row_type, x, n, row);
}

}  // namespace ds4
