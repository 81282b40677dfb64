// The FP8 and FP4 round trips that the released weights were trained with (docs/model.md, simulated quantization).
#pragma once

#include <cstddef>

namespace ds4::cpu {

// 2^ceil(log2(q)) for q > 0, from the exponent bits (no logarithm, so exact at powers of two).
float power_of_two_at_least(float q);

// The first dim - n_rot entries in blocks of 64: scale 2^ceil(log2(max(amax, 1e-4) / 448)), E4M3, ties to even.
void round_fp8(float *row, size_t dim, size_t n_rot);

// Hadamard rotation (Sylvester order, / sqrt(dim)) of a row of a power-of-two length, then E2M1 in blocks of 32 with
// scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6)), ties to the even code.
void round_fp4(float *row, size_t dim);

float round_e4m3(float x);  // |x| <= 448
float round_e2m1(float x);  // |x| <= 6

}  // namespace ds4::cpu
