// The table of tensor types and the choice of the functions of each.
#include "quant/quant.h"

#include <limits>

#include "base/checked.h"
#include "ds4/gguf.h"
#include "quant/formats.h"

namespace ds4 {
namespace {

// Sizes of every type of the file format, so that a file with types ds4 cannot compute with can still be listed.
// Holes are removed types (4, 5, 31-33, 36-38); Q8_1 and Q8_K occur as activations only.
constexpr TypeInfo kTypes[] = {
    /* 0 */ {"F32", 1, 4, true},
    /* 1 */ {"F16", 1, 2, true},
    /* 2 */ {"Q4_0", 32, 18, false},
    /* 3 */ {"Q4_1", 32, 20, false},
    /* 4 */ {},
    /* 5 */ {},
    /* 6 */ {"Q5_0", 32, 22, false},
    /* 7 */ {"Q5_1", 32, 24, false},
    /* 8 */ {"Q8_0", 32, 34, true},
    /* 9 */ {"Q8_1", 32, 36, false},
    /* 10 */ {"Q2_K", 256, 84, true},
    /* 11 */ {"Q3_K", 256, 110, false},
    /* 12 */ {"Q4_K", 256, 144, true},
    /* 13 */ {"Q5_K", 256, 176, false},
    /* 14 */ {"Q6_K", 256, 210, false},
    /* 15 */ {"Q8_K", 256, 292, false},
    /* 16 */ {"IQ2_XXS", 256, 66, true},
    /* 17 */ {"IQ2_XS", 256, 74, false},
    /* 18 */ {"IQ3_XXS", 256, 98, false},
    /* 19 */ {"IQ1_S", 256, 50, false},
    /* 20 */ {"IQ4_NL", 32, 18, false},
    /* 21 */ {"IQ3_S", 256, 110, false},
    /* 22 */ {"IQ2_S", 256, 82, false},
    /* 23 */ {"IQ4_XS", 256, 136, false},
    /* 24 */ {"I8", 1, 1, false},
    /* 25 */ {"I16", 1, 2, false},
    /* 26 */ {"I32", 1, 4, false},
    /* 27 */ {"I64", 1, 8, false},
    /* 28 */ {"F64", 1, 8, false},
    /* 29 */ {"IQ1_M", 256, 56, false},
    /* 30 */ {"BF16", 1, 2, true},
    /* 31 */ {},
    /* 32 */ {},
    /* 33 */ {},
    /* 34 */ {"TQ1_0", 256, 54, false},
    /* 35 */ {"TQ2_0", 256, 66, false},
    /* 36 */ {},
    /* 37 */ {},
    /* 38 */ {},
    /* 39 */ {"MXFP4", 32, 17, true},
    /* 40 */ {"NVFP4", 64, 36, false},
    /* 41 */ {"Q1_0", 128, 18, false},
};
constexpr uint32_t kTypeCount = sizeof kTypes / sizeof kTypes[0];

}  // namespace

const TypeInfo *type_info(uint32_t id) {
    if (id >= kTypeCount || !kTypes[id].name) return nullptr;
    return &kTypes[id];
}

bool is_removed_type(uint32_t id) { return id < kTypeCount && !kTypes[id].name; }

bool row_bytes(uint32_t type, uint64_t n, uint64_t *out) {
    const TypeInfo *info = type_info(type);
    if (!info || n % info->block != 0) return false;
    return mul(n / info->block, info->bytes, out);
}

void dequantize_row(uint32_t type, const void *src, float *dst, uint64_t n) {
    const uint8_t *bytes = static_cast<const uint8_t *>(src);
    switch (type) {
        case DS4_TYPE_F32: return quant::decode_f32(bytes, dst, n);
        case DS4_TYPE_F16: return quant::decode_f16(bytes, dst, n);
        case DS4_TYPE_BF16: return quant::decode_bf16(bytes, dst, n);
        case DS4_TYPE_Q8_0: return quant::decode_q8_0(bytes, dst, n);
        case DS4_TYPE_Q2_K: return quant::decode_q2_k(bytes, dst, n);
        case DS4_TYPE_Q4_K: return quant::decode_q4_k(bytes, dst, n);
        case DS4_TYPE_IQ2_XXS: return quant::decode_iq2_xxs(bytes, dst, n);
        case DS4_TYPE_MXFP4: return quant::decode_mxfp4(bytes, dst, n);
        default: return;
    }
}

uint32_t activation_kind(uint32_t type) {
    switch (type) {
        case DS4_TYPE_Q8_0:
        case DS4_TYPE_MXFP4: return kActivationQ8A;
        case DS4_TYPE_Q2_K:
        case DS4_TYPE_Q4_K:
        case DS4_TYPE_IQ2_XXS: return kActivationQ8K;
        default: return kActivationNone;
    }
}

uint64_t activation_bytes(uint32_t kind, uint64_t n) {
    if (kind == kActivationQ8K) return n / 256 * sizeof(BlockQ8K);
    if (kind == kActivationQ8A) return n / 32 * sizeof(BlockQ8A);
    return 0;
}

float vec_dot(uint32_t type, const void *w_row, const void *act, uint64_t n) {
    const uint8_t *w = static_cast<const uint8_t *>(w_row);
    const BlockQ8K *k = static_cast<const BlockQ8K *>(act);
    const BlockQ8A *a = static_cast<const BlockQ8A *>(act);
    switch (type) {
        case DS4_TYPE_Q8_0: return quant::dot_q8_0(w, a, n);
        case DS4_TYPE_MXFP4: return quant::dot_mxfp4(w, a, n);
        case DS4_TYPE_Q2_K: return quant::dot_q2_k(w, k, n);
        case DS4_TYPE_Q4_K: return quant::dot_q4_k(w, k, n);
        case DS4_TYPE_IQ2_XXS: return quant::dot_iq2_xxs(w, k, n);
        default: return std::numeric_limits<float>::quiet_NaN();
    }
}

}  // namespace ds4
