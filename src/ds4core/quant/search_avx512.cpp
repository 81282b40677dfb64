// The searches compiled for AVX-512 F, BW, VL and DQ (flags are set on this file only).
#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand in its own intrinsics for a mistake (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define DS4_VARIANT "avx512"
#define DS4_WIDTH 16
#include "quant/search.inc"
const ds4::quant::Searches *ds4::quant::searches_avx512() { return &table; }
#else
#include "quant/search.h"
const ds4::quant::Searches *ds4::quant::searches_avx512() { return nullptr; }
#endif
