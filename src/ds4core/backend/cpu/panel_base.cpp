// Panels for any machine, in plain C: what the variants for wide registers are compared with.
#include <cstring>

#include "backend/cpu/panel.h"
#include "quant/formats.h"

namespace ds4::cpu {
namespace {

constexpr int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the FP4 values

// Four codes of row r at columns column.. (a multiple of 4), as they lie in memory.
inline void put(Panel *p, size_t column, size_t r, const void *four) { std::memcpy(p->codes[column / 4][r], four, 4); }
inline void put(Panel *p, size_t column, size_t r, uint32_t four) { put(p, column, r, static_cast<const void *>(&four)); }

void unpack_q8_0(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        for (size_t b = 0; b < n_blocks; b++, w += 34) {
            out->scale[b][r] = quant::load_f16(w);
            for (size_t i = 0; i < 32; i += 4) put(out, 32 * b + i, r, w + 2 + i);
        }
    }
}

void unpack_mxfp4(const uint8_t *const rows[], size_t offset, size_t n_blocks, Panel *out) {
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        for (size_t b = 0; b < n_blocks; b++, w += 17) {
            out->scale[b][r] = quant::mxfp4_scale(w[0]);
            for (size_t i = 0; i < 16; i += 4) {
                uint32_t low = 0, high = 0;
                for (size_t l = 0; l < 4; l++) {
                    low |= static_cast<uint32_t>(static_cast<uint8_t>(kFp4[w[1 + i + l] & 15])) << 8 * l;
                    high |= static_cast<uint32_t>(static_cast<uint8_t>(kFp4[w[1 + i + l] >> 4])) << 8 * l;
                }
                put(out, 32 * b + i, r, low);
                put(out, 32 * b + 16 + i, r, high);
            }
        }
    }
}

void unpack_q2_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        for (size_t j = 0; j < 16; j++) {
            const uint8_t *codes = w + 16 + 32 * (j / 8) + 16 * (j % 2);
            const int shift = static_cast<int>(2 * (j % 8 / 2));
            const uint32_t scale = w[j] & 15;  // a product fits its byte
            for (size_t l = 0; l < 16; l += 4)
                put(out, 16 * j + l, r, (quant::load_u32(codes + l) >> shift & 0x03030303) * scale);
            out->mins[j / 2][r][j % 2] = static_cast<int16_t>(w[j] >> 4);
        }
        out->d[r] = quant::load_f16(w + 80);
        out->dmin[r] = quant::load_f16(w + 82);
    }
}

void unpack_q4_k(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        for (size_t j = 0; j < 8; j++) {
            const quant::ScaleMin s = quant::q4_k_scale_min(w + 4, j);
            const uint8_t *codes = w + 16 + 32 * (j / 2);
            for (size_t l = 0; l < 32; l += 4)
                put(out, 32 * j + l, r, quant::load_u32(codes + l) >> 4 * (j % 2) & 0x0F0F0F0F);
            out->factor[j][r] = s.scale;
            out->mins[j][r][0] = out->mins[j][r][1] = static_cast<int16_t>(s.min);
        }
        out->d[r] = quant::load_f16(w);
        out->dmin[r] = quant::load_f16(w + 2);
    }
}

void unpack_iq2_xxs(const uint8_t *const rows[], size_t offset, size_t, Panel *out) {
    int8_t values[kStep];  // a whole row, so that words are not read right behind the bytes that make them
    for (size_t r = 0; r < kPanelRows; r++) {
        const uint8_t *w = rows[r] + offset;
        for (size_t g = 0; g < 8; g++) {
            const uint32_t indices = quant::load_u32(w + 2 + 8 * g), signs = quant::load_u32(w + 6 + 8 * g);
            for (unsigned k = 0; k < 4; k++) quant::iq2_xxs_signed_row(indices, signs, k, values + 32 * g + 8 * k);
            out->factor[g][r] = static_cast<int32_t>(2 * (signs >> 28) + 1);
        }
        for (size_t i = 0; i < kStep; i += 4) put(out, i, r, values + i);
        out->d[r] = 0.125f * quant::load_f16(w);
    }
}

// 16 bytes as numbers, for the vector unit of any machine.
typedef int16_t Shorts __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

// acc[r] += the products of 4 * n_quads columns with token t of T. Even and odd bytes are multiplied apart, in 16 bits:
// two products are at most 2 * 128 * 127.
inline void dot_quads(const uint8_t (*codes)[kPanelRows][4], size_t n_quads, const uint8_t *quads, size_t T, size_t t,
                      int32_t acc[kPanelRows]) {
    Ints sum[4];
    std::memcpy(sum, acc, sizeof sum);
    for (size_t i = 0; i < n_quads; i++) {
        int32_t a;
        std::memcpy(&a, quads + 4 * (i * T + t), 4);
        const Shorts both = reinterpret_cast<Shorts>(Ints{a, a, a, a}), even = both << 8 >> 8, odd = both >> 8;
        for (size_t k = 0; k < 4; k++) {  // four rows
            Shorts c;
            std::memcpy(&c, codes[i][4 * k], sizeof c);
            const Ints pairs = reinterpret_cast<Ints>((c << 8 >> 8) * even + (c >> 8) * odd);
            sum[k] += (pairs << 16 >> 16) + (pairs >> 16);
        }
    }
    std::memcpy(acc, sum, sizeof sum);
}

template <size_t T> void multiply_32(const Panel *p, size_t n_blocks, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    for (size_t b = 0; b < n_blocks; b++, act += kPackedBlock32 * T)
        for (size_t t = 0; t < T; t++) {
            int32_t acc[kPanelRows] = {};
            dot_quads(p->codes + 8 * b, 8, act, T, t, acc);
            float d;
            std::memcpy(&d, act + 4 * (9 * T + t), 4);
            for (size_t r = 0; r < kPanelRows; r++)
                sums[t * kPanelRows + r] += p->scale[b][r] * d * static_cast<float>(acc[r]);
        }
}

enum Kind { kFactors, kMins, kFactorsAndMins };

template <Kind K, size_t T> void multiply_256(const Panel *p, size_t, const void *packed, float *sums) {
    const uint8_t *act = static_cast<const uint8_t *>(packed);
    for (size_t t = 0; t < T; t++) {
        int32_t products[kPanelRows] = {}, mins[kPanelRows] = {};
        for (size_t j = 0; j < 8; j++) {
            int32_t acc[kPanelRows] = {};
            dot_quads(p->codes + 8 * j, 8, act + 32 * T * j, T, t, acc);
            int16_t s[2];
            std::memcpy(s, act + 4 * (72 * T + j * T + t), 4);
            for (size_t r = 0; r < kPanelRows; r++) {
                products[r] += K == kMins ? acc[r] : p->factor[j][r] * acc[r];
                if (K != kFactors) mins[r] += p->mins[j][r][0] * s[0] + p->mins[j][r][1] * s[1];
            }
        }
        float d;
        std::memcpy(&d, act + 4 * (80 * T + t), 4);
        for (size_t r = 0; r < kPanelRows; r++) {
            const float x = static_cast<float>(products[r]);
            sums[t * kPanelRows + r] +=
                K == kFactors ? p->d[r] * d * x : d * (p->d[r] * x - p->dmin[r] * static_cast<float>(mins[r]));
        }
    }
}

#define DS4_MULTIPLY_32 {multiply_32<1>, multiply_32<2>, multiply_32<3>, multiply_32<4>}
#define DS4_MULTIPLY_256(K) {multiply_256<K, 1>, multiply_256<K, 2>, multiply_256<K, 3>, multiply_256<K, 4>}

const PanelKernels table = {"base",
                            4,
                            {{unpack_q8_0, DS4_MULTIPLY_32, 0, Quads::kRun},
                             {unpack_mxfp4, DS4_MULTIPLY_32, 0, Quads::kRun},
                             {unpack_q2_k, DS4_MULTIPLY_256(kMins), 0, Quads::kRun},
                             {unpack_q4_k, DS4_MULTIPLY_256(kFactorsAndMins), 0, Quads::kRun},
                             {unpack_iq2_xxs, DS4_MULTIPLY_256(kFactors), 0, Quads::kRun}}};

}  // namespace

const PanelKernels *panels_base() { return &table; }

}  // namespace ds4::cpu
