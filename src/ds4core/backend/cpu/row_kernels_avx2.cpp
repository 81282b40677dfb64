// The row kernels compiled for AVX2 (flags are set on this file only).
#if defined(__AVX2__)
#define DS4_VARIANT "avx2"
#include "backend/cpu/row_kernels.inc"
const ds4::cpu::RowKernels *ds4::cpu::row_kernels_avx2() { return &table; }
#else
#include "backend/cpu/row_kernels.h"
const ds4::cpu::RowKernels *ds4::cpu::row_kernels_avx2() { return nullptr; }
#endif
