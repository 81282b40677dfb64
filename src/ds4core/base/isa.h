// Which instruction set this process uses where code exists in several variants.
#pragma once

#include <cstdint>

#include "ds4/status.h"

namespace ds4 {

// What the processor says and, on x86-64, what the operating system has enabled. Both are needed: a flag without the
// register state saved by the system means a crash at the first wide instruction. On arm64 the system itself reports.
struct CpuFeatures {
    bool avx2 = false, fma = false, f16c = false;
    bool avx512f = false, avx512bw = false, avx512vl = false, avx512dq = false, avx512vnni = false, avx512vbmi = false;
    uint64_t xcr0 = 0;  // enabled register states; 0 without OSXSAVE
    bool dotprod = false, i8mm = false;  // arm64
};

// In ascending order inside an architecture: those with AVX are of x86-64, the last two of arm64. The base level has
// SSE2 or NEON, which every machine of the architecture has.
enum IsaLevel : int {
    kIsaBase = 0,
    kIsaAvx2 = 1,
    kIsaAvx512 = 2,
    kIsaAvx512Vnni = 3,
    kIsaDotprod = 4,
    kIsaI8mm = 5,
};

CpuFeatures detect_features();
// Pure, so that tests can feed any machine.
IsaLevel best_level(const CpuFeatures &f);

// "base", "avx2", "avx512", "avx512vnni", "dotprod" or "i8mm".
const char *isa_name(IsaLevel level);
// The level in use: the machine's best one, or what limit_isa has set.
IsaLevel active_isa();
ds4_status limit_isa(const char *name, ds4_error *err);

}  // namespace ds4
