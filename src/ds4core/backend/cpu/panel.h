// Products of quantized weights with activations rounded to 8 bits: 16 weight rows meet a block of tokens.
//
// A step is 256 columns (the last one of a row may be shorter for formats of 32-value blocks). Its 16 rows are unpacked
// once into a panel of bytes, which then multiplies every token of the chunk. One lane of a vector register belongs to
// one weight row, and all sums over columns run inside a lane: integers inside a block, then float32 across blocks in
// order. That is the order of ds4::vec_dot (quant/quant.h), so every variant gives the bits of that definition,
// whatever the instruction set, the number of tokens and their grouping.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace ds4::cpu {

constexpr size_t kPanelRows = 16;
constexpr size_t kStep = 256;           // columns of a step
constexpr size_t kMostTokens = 12;      // upper bound of PanelKernels::block

// The weights of one step. A code is the value in units of its block's scale plus the bias of the type and variant
// (PanelFormat::bias), so that dot instructions of unsigned with signed bytes can be used.
struct alignas(64) Panel {
    uint8_t codes[64][kPanelRows][4];   // [quad][row][value of the quad]; quads: see Quads
    union {
        float scale[8][kPanelRows];     // Q8_0, MXFP4: of each 32 columns
        int32_t factor[8][kPanelRows];  // IQ2_XXS (2s + 1), Q4_K (six bits): of each 32 columns; Q2_K: unused, its
    };                                  // scales are multiplied into the codes (at most 45)
    int16_t mins[8][kPanelRows][2];     // Q2_K: of columns 32j.. and 32j + 16..; Q4_K: the same value twice
    float d[kPanelRows], dmin[kPanelRows];  // IQ2_XXS: d = 0.125 * the block's scale
    // Memory that will be needed soon. An unpack of a format that looks ahead asks for it in small portions between its
    // loads: a burst would fill the queue of outstanding lines, and the loads would wait behind it.
    const uint8_t *ahead = nullptr;
    size_t ahead_bytes = 0;
};

// Activations of T tokens for one step, T <= block. Written by pack_activations, read by multiply.
//   32-value formats, for each of the step's blocks:  int32 quads[8][T]; int32 start[T]; float d[T]
//   256-value formats:       int32 quads[64][T]; int32 start[8][T]; int32 sums[8][T]; float d[T]
// quads: four int8 that meet codes[i]; start: -bias * (sum of the 32 values), where a sum of products begins; sums: the
// pair of int16 sums of columns 32j.. and 32j + 16.. (BlockQ8K::bsums).
constexpr size_t kPackedBlock32 = 40;    // bytes a token
constexpr size_t kPackedBlock256 = 324;

// Which columns of 32 quad i = 0..7 holds: 4i..4i+3, or i, 8 + i, 16 + i, 24 + i (for lookups that yield one value of
// each of several grid rows). Integer sums do not depend on it.
enum class Quads : uint8_t { kRun, kEighth };

// The weight types that have panels, as indices.
enum PanelType : uint32_t { kPanelQ8_0, kPanelMxfp4, kPanelQ2K, kPanelQ4K, kPanelIq2Xxs, kPanelTypes };

struct PanelFormat {
    // Unpack n_blocks blocks (one of 256 values, or up to 8 of 32) that begin `offset` bytes into each of the 16 rows.
    // Rows that do not exist are given as repetitions of a row that does.
    void (*unpack)(const uint8_t *const rows[kPanelRows], size_t offset, size_t n_blocks, Panel *out);
    // sums[t][r] += products of the step, for each of T tokens: multiply[T - 1].
    void (*multiply[kMostTokens])(const Panel *panel, size_t n_blocks, const void *packed, float *sums);
    int32_t bias;
    Quads quads = Quads::kRun;
    bool looks_ahead = false;  // unpack asks for Panel::ahead
    // sums[r] = products of one token with 16 rows, `stride` bytes apart, without a panel; or NULL. packed: the token.
    // ahead_bytes from `ahead` on are asked for on the way.
    void (*single)(const uint8_t *first, size_t stride, size_t n_in, const void *packed, float *sums, const uint8_t *ahead,
                   size_t ahead_bytes) = nullptr;
};

struct PanelKernels {
    const char *name;
    size_t block;  // tokens of a block that suit the registers of the variant
    PanelFormat formats[kPanelTypes];
};

const PanelKernels *panels_base();
const PanelKernels *panels_avx2();    // NULL when not compiled for x86-64
const PanelKernels *panels_avx512();
const PanelKernels *panels_vnni();    // AVX-512 with VNNI and VBMI
const PanelKernels *panels_neon();    // NULL when not compiled for arm64
const PanelKernels *panels_dotprod();
const PanelKernels *panels_i8mm();
const PanelKernels *panels_of(IsaLevel level);
const PanelKernels *active_panels();

// Index of a GGUF tensor type, or kPanelTypes when it has no panels.
PanelType panel_type(uint32_t type);
inline bool is_block32(PanelType t) { return t == kPanelQ8_0 || t == kPanelMxfp4; }

// Bytes of one packed token of n_in columns.
size_t packed_bytes(PanelType t, size_t n_in);
// Pack n_tokens <= kMostTokens tokens, given as rows of BlockQ8A or BlockQ8K, into one block: step s of T tokens lies
// at s * (T * bytes of a whole step).
void pack_activations(PanelType t, const PanelFormat &format, const uint8_t *const *tokens, size_t n_tokens,
                      size_t n_in, void *out);

}  // namespace ds4::cpu
