// Statistics of the experts: sums in double precision, which the device has not. They are sums of squares, so all that is
// needed is the addition of two numbers without sign, rounded half to even; a square of a float32 is exact.
#pragma once

#include "experts.metal"

constant constexpr ulong kInfinite = 0x7ff0000000000000ul, kFraction = 0x000ffffffffffffful;

// The bits of x * x as a double.
inline ulong square(uint x) {
    const uint exponent = x >> 23 & 255, fraction = x & 0x007fffffu;
    if (exponent == 255) return fraction ? kInfinite | 0x0008000000000000ul : kInfinite;
    const ulong m = exponent ? fraction | 0x00800000u : fraction, product = m * m;
    if (product == 0) return 0;
    const uint top = 63 - uint(clz(product));
    const ulong power = ulong(1023 + top + 2 * (exponent ? exponent : 1) - 300);  // of the product's highest bit
    return power << 52 | (product << (52 - top) & kFraction);
}

// The bits of a + b, both without sign.
inline ulong add_doubles(ulong a, ulong b) {
    const ulong large = max(a, b), small = min(a, b);
    if (large >= kInfinite) return large;  // a NaN is above infinity
    const uint e = uint(large >> 52), f = uint(small >> 52), distance = (e ? e : 1) - (f ? f : 1);
    // Three bits more, the last of which says whether anything was lost.
    const ulong low = ((small & kFraction) | (f ? kFraction + 1 : 0)) << 3;
    const ulong shifted = distance > 60 ? ulong(low != 0) : (low >> distance) | ulong((low & ((1ul << distance) - 1)) != 0);
    ulong sum = (((large & kFraction) | (e ? kFraction + 1 : 0)) << 3) + shifted;
    uint exponent = e ? e : 1;
    if (sum >> 56) {
        sum = (sum >> 1) | (sum & 1);
        exponent++;
    }
    const uint rest = uint(sum & 7);
    sum >>= 3;
    sum += rest > 4 || (rest == 4 && (sum & 1)) ? 1 : 0;
    if (sum >> 53) {
        sum >>= 1;
        exponent++;
    }
    if (exponent >= 0x7ff) return kInfinite;
    return sum >> 52 ? ulong(exponent) << 52 | (sum & kFraction) : sum;
}

// A column a thread; group.y is the expert. Pairs are in token order.
kernel void add_squares(constant ds4_metal_importance &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint c = group.x * n_sg * kSimd + tid, expert = group.y, pairs = m.a.n * m.a.k;
    if (c >= m.width || !is_chosen(m.a, expert)) return;
    device const int *ids = at<int>(m.a.ids);
    device const uint *rows = at<uint>(m.rows) + c;
    device ulong *place = at<ulong>(m.sums) + ulong(expert) * m.width + c;
    ulong sum = *place, count = 0;
    for (uint p = 0; p < pairs; p++) {
        if (uint(ids[p]) != expert) continue;
        sum = add_doubles(sum, square(rows[ulong(m.per_token ? p / m.a.k : p) * m.width]));
        count++;
    }
    *place = sum;
    if (c == 0 && m.counts.buffer) at<ulong>(m.counts)[expert] += count;
}
