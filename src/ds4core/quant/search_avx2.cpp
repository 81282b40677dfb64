// The searches compiled for AVX2 (flags are set on this file only).
#if defined(__AVX2__)
#define DS4_VARIANT "avx2"
#define DS4_WIDTH 8
#include "quant/search.inc"
const ds4::quant::Searches *ds4::quant::searches_avx2() { return &table; }
#else
#include "quant/search.h"
const ds4::quant::Searches *ds4::quant::searches_avx2() { return nullptr; }
#endif
