// The float kernels compiled for AVX-512 F, BW, VL and DQ (flags are set on this file only).
#if defined(__AVX512F__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // false alarms of GCC 12 about its own intrinsics
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define DS4_VARIANT "avx512"
#include "backend/cpu/float_kernels.inc"
const ds4::cpu::FloatKernels *ds4::cpu::float_kernels_avx512() { return &table; }
#else
#include "backend/cpu/float_kernels.h"
const ds4::cpu::FloatKernels *ds4::cpu::float_kernels_avx512() { return nullptr; }
#endif
