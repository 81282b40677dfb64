// Which kernel variant this machine may run.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels.h"
#include "ds4/status.h"

namespace ds4::cpu {

// What the processor says and what the operating system has enabled. Both are needed: a flag without the
// register state saved by the system means a crash at the first wide instruction.
struct CpuFeatures {
    bool avx2 = false, fma = false, f16c = false;
    bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false;
    uint64_t xcr0 = 0;  // enabled register states; 0 without OSXSAVE
};

CpuFeatures detect_features();
// 0 base, 1 avx2, 2 avx512; pure, so that tests can feed any machine.
int best_level(const CpuFeatures &f);

const Kernels *active_kernels();
ds4_status limit_isa(const char *name, ds4_error *err);

}  // namespace ds4::cpu
