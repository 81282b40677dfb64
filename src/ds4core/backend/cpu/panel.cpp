// Choosing the panel kernels, and packing activations for them.
#include "backend/cpu/panel.h"

#include <cstring>

#include "backend/cpu/isa.h"
#include "ds4/gguf.h"
#include "quant/quant.h"

namespace ds4::cpu {

const PanelKernels *panels_of(IsaLevel level) {
#if defined(__aarch64__)
    const PanelKernels *arm = level >= kIsaI8mm ? panels_i8mm() : level >= kIsaDotprod ? panels_dotprod() : nullptr;
    return arm ? arm : panels_neon();
#endif
    const PanelKernels *p = level >= kIsaAvx512Vnni ? panels_vnni() : nullptr;
    if (!p && level >= kIsaAvx512) p = panels_avx512();
    if (!p && level >= kIsaAvx2) p = panels_avx2();
    return p ? p : panels_base();
}

const PanelKernels *active_panels() { return panels_of(active_isa()); }

PanelType panel_type(uint32_t type) {
    switch (type) {
        case DS4_TYPE_Q8_0: return kPanelQ8_0;
        case DS4_TYPE_MXFP4: return kPanelMxfp4;
        case DS4_TYPE_Q2_K: return kPanelQ2K;
        case DS4_TYPE_Q4_K: return kPanelQ4K;
        case DS4_TYPE_IQ2_XXS: return kPanelIq2Xxs;
        default: return kPanelTypes;
    }
}

size_t packed_bytes(PanelType t, size_t n_in) {
    return is_block32(t) ? n_in / 32 * kPackedBlock32 : n_in / kStep * kPackedBlock256;
}

namespace {

inline void put(uint8_t *dst, size_t index, int32_t value) { std::memcpy(dst + 4 * index, &value, 4); }
inline void put(uint8_t *dst, size_t index, float value) { std::memcpy(dst + 4 * index, &value, 4); }

// 32 values as quads i = 0..7 of token t of T, and their sum.
inline int32_t put_quads(const int8_t *q, Quads quads, uint8_t *dst, size_t T, size_t t) {
    int32_t sum = 0;
    for (size_t i = 0; i < 8; i++) {
        const int8_t eighth[4] = {q[i], q[8 + i], q[16 + i], q[24 + i]};
        std::memcpy(dst + 4 * (i * T + t), quads == Quads::kEighth ? eighth : q + 4 * i, 4);
    }
    for (size_t i = 0; i < 32; i++) sum += q[i];
    return sum;
}

}  // namespace

void pack_activations(PanelType type, const PanelFormat &format, const uint8_t *const *tokens, size_t T, size_t n_in,
                      void *out) {
    for (size_t t = 0; t < T; t++) {
        uint8_t *dst = static_cast<uint8_t *>(out);
        if (is_block32(type)) {
            const BlockQ8A *src = reinterpret_cast<const BlockQ8A *>(tokens[t]);
            for (size_t b = 0; b < n_in / 32; b++, dst += kPackedBlock32 * T) {
                const int32_t sum = put_quads(src[b].q, format.quads, dst, T, t);
                put(dst, 8 * T + t, -format.bias * sum);
                put(dst, 9 * T + t, src[b].d);
            }
            continue;
        }
        const BlockQ8K *src = reinterpret_cast<const BlockQ8K *>(tokens[t]);
        for (size_t b = 0; b < n_in / kStep; b++, dst += kPackedBlock256 * T) {
            for (size_t j = 0; j < 8; j++) {
                const int32_t sum = put_quads(src[b].q + 32 * j, format.quads, dst + 32 * T * j, T, t);
                put(dst, 64 * T + j * T + t, -format.bias * sum);
                std::memcpy(dst + 4 * (72 * T + j * T + t), src[b].bsums + 2 * j, 4);
            }
            put(dst, 80 * T + t, src[b].d);
        }
    }
}

}  // namespace ds4::cpu
