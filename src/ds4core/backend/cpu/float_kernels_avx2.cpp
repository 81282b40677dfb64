// The float kernels compiled for AVX2 (flags are set on this file only).
#if defined(__AVX2__)
#define DS4_VARIANT "avx2"
#include "backend/cpu/float_kernels.inc"
const ds4::cpu::FloatKernels *ds4::cpu::float_kernels_avx2() { return &table; }
#else
#include "backend/cpu/float_kernels.h"
const ds4::cpu::FloatKernels *ds4::cpu::float_kernels_avx2() { return nullptr; }
#endif
