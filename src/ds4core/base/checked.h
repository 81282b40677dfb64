// Sums and products of sizes that come from files or callers. They answer false instead of wrapping; *out is only
// written on success.
#pragma once

#include <cstdint>

namespace ds4 {

[[nodiscard]] inline bool add(uint64_t a, uint64_t b, uint64_t *out) {
    if (a > UINT64_MAX - b) return false;
    *out = a + b;
    return true;
}

[[nodiscard]] inline bool mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

// Round x up to a multiple of `align`, a power of two.
[[nodiscard]] inline bool round_up(uint64_t x, uint64_t align, uint64_t *out) {
    uint64_t sum = 0;
    if (!add(x, align - 1, &sum)) return false;
    *out = sum & ~(align - 1);
    return true;
}

}  // namespace ds4
