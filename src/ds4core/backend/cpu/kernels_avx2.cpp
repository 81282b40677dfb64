// The kernels compiled for AVX2 (flags are set on this file only).
#if defined(__AVX2__)
#define DS4_VARIANT "avx2"
#include "backend/cpu/kernels.inc"
const ds4::cpu::Kernels *ds4::cpu::kernels_avx2() { return &table; }
#else
#include "backend/cpu/kernels.h"
const ds4::cpu::Kernels *ds4::cpu::kernels_avx2() { return nullptr; }
#endif
