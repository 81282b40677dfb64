// The kernels compiled for AVX-512 F, BW, VL and DQ (flags are set on this file only).
#if defined(__AVX512F__)
#define DS4_VARIANT "avx512"
#include "backend/cpu/kernels.inc"
const ds4::cpu::Kernels *ds4::cpu::kernels_avx512() { return &table; }
#else
#include "backend/cpu/kernels.h"
const ds4::cpu::Kernels *ds4::cpu::kernels_avx512() { return nullptr; }
#endif
