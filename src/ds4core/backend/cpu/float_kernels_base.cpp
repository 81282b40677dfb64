// The float kernels for the instruction set every machine of the architecture has, and the choice between the variants.
#define DS4_VARIANT "base"
#include "backend/cpu/float_kernels.inc"

namespace ds4::cpu {

const FloatKernels *float_kernels_base() { return &table; }

const FloatKernels *active_float_kernels() {
    const IsaLevel level = active_isa();
    const FloatKernels *k = level >= kIsaAvx512 ? float_kernels_avx512() : nullptr;
    if (!k && level >= kIsaAvx2) k = float_kernels_avx2();
    return k ? k : float_kernels_base();
}

}  // namespace ds4::cpu
