// The weight types: what their blocks hold, as single values and as pieces for integer products. The layouts and
// formulas are those of docs/formats.md; float results have the bits of quant/*.cpp.
//
// A Format has
//   kValues, kBytes          values and bytes of a block
//   kInteger                 whether there is a product with activations of 8 bits; then also
//   kPieces, kWords, kRun    a block is cut into kPieces pieces, each made of kWords words of 4 signed 8-bit values
//   kSubScales, kMins        whether 32 values have an integer scale, and whether 16 values have an integer minimum
//   value(row, i)            value i of a row
//   piece(block, part, table)  words of a piece
//   place(part, i)           which word of the block word i of the piece is; kRun of them follow each other
//   scale_of(block, s)       integer scale of values 32 s .. 32 s + 31
//   mins_of(block, k)        the minimums of the 16-tuples 4 k .. 4 k + 3, a byte each
//   scales(block)            float factors
//   term(scales, d, products, mins)   what a block adds to a row's product: d is the activations' factor, products the
//                            sum of scale * word * activations, mins the sum of minimum * (sum of 16 activations)
#pragma once

#include "ds4/gguf.h"
#include "numbers.cuh"

namespace ds4::gpu {

// ---- loads from weights: rows begin at multiples of 4 bytes, blocks where their sizes put them ----

__device__ __forceinline__ uint32_t load_u16(const uint8_t *p) { return *reinterpret_cast<const uint16_t *>(p); }
__device__ __forceinline__ float load_half(const uint8_t *p) { return half_to_float(static_cast<uint16_t>(load_u16(p))); }
__device__ __forceinline__ uint32_t load_u32(const uint8_t *p) { return *reinterpret_cast<const uint32_t *>(p); }
__device__ __forceinline__ uint32_t load_u32_at_2(const uint8_t *p) { return load_u16(p) | load_u16(p + 2) << 16; }
// From anywhere. On a device two aligned words at most, both with a byte that is wanted.
__device__ __forceinline__ uint32_t load_u32_at_1(const uint8_t *p) {
#if DS4_ON_DEVICE
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const uint32_t *words = reinterpret_cast<const uint32_t *>(at & ~uintptr_t{3});
    const uint32_t shift = static_cast<uint32_t>(at & 3) * 8, low = words[0];
    return shift ? low >> shift | words[1] << (32 - shift) : low;
#else
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}

// `Run` words that lie at a multiple of their size.
template <int Run> __device__ __forceinline__ void load_run(const uint32_t *p, uint32_t *out) {
#if DS4_ON_DEVICE
    if constexpr (Run == 4) {
        const uint4 v = *reinterpret_cast<const uint4 *>(p);
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    } else if constexpr (Run == 2) {
        const uint2 v = *reinterpret_cast<const uint2 *>(p);
        out[0] = v.x, out[1] = v.y;
    } else {
        static_assert(Run == 1);
        out[0] = p[0];
    }
#else
    for (int i = 0; i < Run; i++) out[i] = p[i];
#endif
}

// ---- pieces ----

template <int Words> struct Piece {
    uint32_t w[Words];
};
struct Scales {
    float d, dmin;
};

template <uint32_t Type> struct Format;

template <> struct Format<DS4_TYPE_F32> {
    static constexpr int kValues = 1, kBytes = 4;
    static constexpr bool kInteger = false;
    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        return reinterpret_cast<const float *>(row)[i];
    }
};

template <> struct Format<DS4_TYPE_F16> {
    static constexpr int kValues = 1, kBytes = 2;
    static constexpr bool kInteger = false;
    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) { return load_half(row + 2 * i); }
};

template <> struct Format<DS4_TYPE_BF16> {
    static constexpr int kValues = 1, kBytes = 2;
    static constexpr bool kInteger = false;
    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        return bfloat_to_float(reinterpret_cast<const uint16_t *>(row)[i]);
    }
};

template <> struct Format<DS4_TYPE_Q8_0> {
    static constexpr int kValues = 32, kBytes = 34, kPieces = 4, kWords = 2, kRun = 2;
    static constexpr bool kInteger = true, kSubScales = false, kMins = false, kTable = false;

    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        const uint8_t *block = row + i / 32 * kBytes;
        return mul(load_half(block), static_cast<float>(static_cast<int8_t>(block[2 + i % 32])));
    }
    template <class Table> static __device__ __forceinline__ Piece<2> piece(const uint8_t *block, int part, const Table &) {
        return {{load_u32_at_2(block + 2 + 8 * part), load_u32_at_2(block + 6 + 8 * part)}};
    }
    static __device__ __forceinline__ int place(int part, int i) { return 2 * part + i; }
    static __device__ __forceinline__ Scales scales(const uint8_t *block) { return {load_half(block), 0.0f}; }
    static __device__ __forceinline__ float term(Scales s, float d, int products, int) {
        return mul(mul(s.d, d), static_cast<float>(products));
    }
};

template <> struct Format<DS4_TYPE_MXFP4> {
    static constexpr int kValues = 32, kBytes = 17, kPieces = 4, kWords = 2, kRun = 1;
    static constexpr bool kInteger = true, kSubScales = false, kMins = false, kTable = false;

    static __device__ __forceinline__ float scale(uint32_t e) {  // 2^(e - 128); e = 0 and e = 1 give subnormals
        return as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
    // 4 codes, a byte each, as signed values.
    static __device__ __forceinline__ uint32_t values(uint32_t codes) {
        const uint32_t size = pick4(0x03020100, 0x0c080604, codes), minus = (codes >> 3 & 0x01010101) * 255;
        // A zero with the sign set would carry into the next byte.
        const uint32_t one = minus & ((size + 0x7f7f7f7f) >> 7 & 0x01010101);
        return (size ^ (one * 255)) + one;
    }
    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        const uint8_t *block = row + i / 32 * kBytes;
        const uint32_t byte = block[1 + i % 16], code = i % 32 < 16 ? byte & 15 : byte >> 4;
        return mul(scale(block[0]), static_cast<float>(static_cast<int8_t>(values(code))));
    }
    template <class Table> static __device__ __forceinline__ Piece<2> piece(const uint8_t *block, int part, const Table &) {
        const uint32_t codes = load_u32_at_1(block + 1 + 4 * part);
        return {{values(codes & 0x0f0f0f0f), values(codes >> 4 & 0x0f0f0f0f)}};
    }
    static __device__ __forceinline__ int place(int part, int i) { return part + 4 * i; }
    static __device__ __forceinline__ Scales scales(const uint8_t *block) { return {scale(block[0]), 0.0f}; }
    static __device__ __forceinline__ float term(Scales s, float d, int products, int) {
        return mul(mul(s.d, d), static_cast<float>(products));
    }
};

// The scales of 16 values are small enough to be multiplied into the codes: 15 * 3 fits a byte.
template <> struct Format<DS4_TYPE_Q2_K> {
    static constexpr int kValues = 256, kBytes = 84, kPieces = 8, kWords = 8, kRun = 2;
    static constexpr bool kInteger = true, kSubScales = false, kMins = true, kTable = false;

    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        const uint8_t *block = row + i / 256 * kBytes;
        const uint32_t at = i % 256, half = at / 128, s = block[at / 16];
        const uint32_t code = block[16 + 32 * half + at % 32] >> (2 * (at % 128 / 32)) & 3;
        const float scale = mul(load_half(block + 80), static_cast<float>(s & 15));
        const float min = mul(load_half(block + 82), static_cast<float>(s >> 4));
        return add(mul(scale, static_cast<float>(code)), -min);
    }
    // Part 4 h + c: bytes 8 c .. 8 c + 7 of half h, with four values each.
    template <class Table> static __device__ __forceinline__ Piece<8> piece(const uint8_t *block, int part, const Table &) {
        const int half = part / 4, c = part % 4;
        const uint32_t low = load_u32(block + 16 + 32 * half + 8 * c), high = load_u32(block + 20 + 32 * half + 8 * c);
        const uint32_t s0 = load_u32(block + 8 * half), s1 = load_u32(block + 8 * half + 4);  // of the half
        Piece<8> p;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t scale = (t < 2 ? s0 : s1) >> (16 * (t % 2) + 8 * (c / 2)) & 15;
            p.w[2 * t] = (low >> (2 * t) & 0x03030303) * scale;
            p.w[2 * t + 1] = (high >> (2 * t) & 0x03030303) * scale;
        }
        return p;
    }
    static __device__ __forceinline__ int place(int part, int i) { return 32 * (part / 4) + 8 * (i / 2) + 2 * (part % 4) + i % 2; }
    static __device__ __forceinline__ uint32_t mins_of(const uint8_t *block, int k) {
        return load_u32(block + 4 * k) >> 4 & 0x0f0f0f0f;
    }
    static __device__ __forceinline__ Scales scales(const uint8_t *block) { return {load_half(block + 80), load_half(block + 82)}; }
    static __device__ __forceinline__ float term(Scales s, float d, int products, int mins) {
        return mul(d, add(mul(s.d, static_cast<float>(products)), -mul(s.dmin, static_cast<float>(mins))));
    }
};

template <> struct Format<DS4_TYPE_Q4_K> {
    static constexpr int kValues = 256, kBytes = 144, kPieces = 8, kWords = 8, kRun = 4;
    static constexpr bool kInteger = true, kSubScales = true, kMins = true, kTable = false;

    // Six-bit numbers of 32 values: k the 12 bytes after dmin.
    static __device__ __forceinline__ int scale_of(const uint8_t *block, int j) {
        const uint8_t *k = block + 4;
        return j < 4 ? k[j] & 63 : (k[j + 4] & 15) | (k[j - 4] >> 6) << 4;
    }
    static __device__ __forceinline__ int min_of(const uint8_t *block, int j) {
        const uint8_t *k = block + 4;
        return j < 4 ? k[j + 4] & 63 : (k[j + 4] >> 4) | (k[j] >> 6) << 4;
    }
    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        const uint8_t *block = row + i / 256 * kBytes;
        const uint32_t at = i % 256, byte = block[16 + at / 64 * 32 + at % 32];
        const int j = static_cast<int>(at / 32);
        const float scale = mul(load_half(block), static_cast<float>(scale_of(block, j)));
        const float min = mul(load_half(block + 2), static_cast<float>(min_of(block, j)));
        return add(mul(scale, static_cast<float>(j % 2 ? byte >> 4 : byte & 15)), -min);
    }
    // Part 2 g + h: bytes 16 h .. 16 h + 15 of the 32 of values 64 g .. 64 g + 63.
    template <class Table> static __device__ __forceinline__ Piece<8> piece(const uint8_t *block, int part, const Table &) {
        Piece<8> p;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t codes = load_u32(block + 16 + 16 * part + 4 * i);
            p.w[i] = codes & 0x0f0f0f0f;
            p.w[4 + i] = codes >> 4 & 0x0f0f0f0f;
        }
        return p;
    }
    static __device__ __forceinline__ int place(int part, int i) { return 16 * (part / 2) + 8 * (i / 4) + 4 * (part % 2) + i % 4; }
    static __device__ __forceinline__ uint32_t mins_of(const uint8_t *block, int k) {
        const uint32_t a = static_cast<uint32_t>(min_of(block, 2 * k)), b = static_cast<uint32_t>(min_of(block, 2 * k + 1));
        return a * 0x0101 | b * 0x01010000;
    }
    static __device__ __forceinline__ Scales scales(const uint8_t *block) { return {load_half(block), load_half(block + 2)}; }
    static __device__ __forceinline__ float term(Scales s, float d, int products, int mins) {
        return mul(d, add(mul(s.d, static_cast<float>(products)), -mul(s.dmin, static_cast<float>(mins))));
    }
};

// Rows of 8 magnitudes of IQ2_XXS by two bits a value: levels 8, 25, 43.
static __device__ const uint16_t kIq2Keys[256] = {
#include "quant/iq2_xxs_grid.inc"
};

__device__ __forceinline__ uint32_t iq2_magnitudes(uint32_t key) {  // of four values
    const uint32_t level = (key & 3) | (key & 12) << 6 | (key & 48) << 12 | (key & 192) << 18;
    return 0x08080808 + 17 * level + (level >> 1 & 0x01010101);
}
// Seven bits and their parity, so that the number of minus signs is even.
__device__ __forceinline__ uint32_t iq2_signs(uint32_t words, int k) {
    const uint32_t field = words >> (7 * k) & 127;
    uint32_t parity = field ^ field >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return field | (parity & 1) << 7;
}
// Four magnitudes, none of them 0, with the signs of the low four bits.
__device__ __forceinline__ uint32_t with_signs(uint32_t magnitudes, uint32_t signs) {
    const uint32_t one = ((signs & 15) * 0x00204081u) & 0x01010101;
    return (magnitudes ^ one * 255) + one;
}

template <> struct Format<DS4_TYPE_IQ2_XXS> {
    static constexpr int kValues = 256, kBytes = 66, kPieces = 8, kWords = 8, kRun = 4;
    static constexpr bool kInteger = true, kSubScales = true, kMins = false, kTable = true;

    static __device__ __forceinline__ float value(const uint8_t *row, uint32_t i) {
        const uint8_t *block = row + i / 256 * kBytes, *group = block + 2 + i % 256 / 32 * 8;
        const uint32_t k = i % 32 / 8, signs = load_u32_at_2(group + 4), key = kIq2Keys[group[k]];
        const uint32_t four = with_signs(iq2_magnitudes(i % 8 < 4 ? key & 255 : key >> 8),
                                         iq2_signs(signs, static_cast<int>(k)) >> (i % 8 / 4 * 4));
        const float scale = mul(mul(load_half(block), 0.5f + static_cast<float>(signs >> 28)), 0.25f);
        return mul(scale, static_cast<float>(static_cast<int8_t>(four >> (i % 4 * 8))));
    }
    // Table: 512 words, the magnitudes of all rows (fill_table).
    template <class Table> static __device__ __forceinline__ Piece<8> piece(const uint8_t *block, int part, const Table &table) {
        const uint32_t rows = load_u32_at_2(block + 2 + 8 * part), words = load_u32_at_2(block + 6 + 8 * part);
        Piece<8> p;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t row = rows >> (8 * k) & 255, signs = iq2_signs(words, k);
            p.w[2 * k] = with_signs(uint32_t(table[2 * row]), signs);
            p.w[2 * k + 1] = with_signs(uint32_t(table[2 * row + 1]), signs >> 4);
        }
        return p;
    }
    static __device__ __forceinline__ int place(int part, int i) { return 8 * part + i; }
    static __device__ __forceinline__ int scale_of(const uint8_t *block, int s) {
        return static_cast<int>(2 * (load_u16(block + 8 + 8 * s) >> 12) + 1);
    }
    static __device__ __forceinline__ Scales scales(const uint8_t *block) { return {mul(0.125f, load_half(block)), 0.0f}; }
    static __device__ __forceinline__ float term(Scales s, float d, int products, int) {
        return mul(mul(s.d, d), static_cast<float>(products));
    }
};

constexpr int kTableWords = 512;

// The block's copy of the table that the pieces of a format need; a barrier has to follow.
template <class F> __device__ __forceinline__ void fill_table(Shared<uint32_t> table) {
    if constexpr (F::kTable)
        for (uint32_t i = threadIdx.x; i < kTableWords; i += blockDim.x)
            table[i] = iq2_magnitudes(kIq2Keys[i / 2] >> (i % 2 * 8) & 255);
}

}  // namespace ds4::gpu
