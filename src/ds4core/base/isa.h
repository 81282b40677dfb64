// Which instruction set this process uses where code exists in several variants.
#pragma once

#include <cstdint>

#include "ds4/status.h"

namespace ds4 {

// What the processor says and what the operating system has enabled. Both are needed: a flag without the
// register state saved by the system means a crash at the first wide instruction.
struct CpuFeatures {
    bool avx2 = false, fma = false, f16c = false;
    bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false, avx512vnni = false, avx512vbmi = false;
    uint64_t xcr0 = 0;  // enabled register states; 0 without OSXSAVE
};

enum IsaLevel : int { kIsaBase = 0, kIsaAvx2 = 1, kIsaAvx512 = 2, kIsaAvx512Vnni = 3 };

CpuFeatures detect_features();
// Pure, so that tests can feed any machine.
IsaLevel best_level(const CpuFeatures &f);

// "base", "avx2", "avx512" or "avx512vnni".
const char *isa_name(IsaLevel level);
// The level in use: the machine's best one, or what limit_isa has set.
IsaLevel active_isa();
ds4_status limit_isa(const char *name, ds4_error *err);

}  // namespace ds4
