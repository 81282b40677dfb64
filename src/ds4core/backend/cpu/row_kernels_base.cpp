// The row kernels for the instruction set every machine of the architecture has, and the choice between the variants.
#define DS4_VARIANT "base"
#include "backend/cpu/row_kernels.inc"

namespace ds4::cpu {

const RowKernels *row_kernels_base() { return &table; }

const RowKernels *active_row_kernels() {
    const IsaLevel level = active_isa();
    const RowKernels *k = level >= kIsaAvx512 ? row_kernels_avx512() : nullptr;
    if (!k && level >= kIsaAvx2) k = row_kernels_avx2();
    return k ? k : row_kernels_base();
}

}  // namespace ds4::cpu
