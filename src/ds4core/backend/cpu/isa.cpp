// Choosing the kernels.
#include "backend/cpu/isa.h"

namespace ds4::cpu {

const Kernels *active_kernels() {
    const IsaLevel level = active_isa();
    const Kernels *k = level >= kIsaAvx512 ? kernels_avx512() : nullptr;
    if (!k && level >= kIsaAvx2) k = kernels_avx2();
    return k ? k : kernels_base();
}

}  // namespace ds4::cpu
