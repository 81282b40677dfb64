// A 64-bit hash for fingerprints and checksums of our own data: detects damage, resists no attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ds4 {

constexpr uint64_t kHashSeed = 0x9E3779B97F4A7C15ull;

// Eight bytes a step: multiply, fold the high half down (the finaliser idea of splitmix64).
inline uint64_t hash_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0xBF58476D1CE4E5B9ull;
    h ^= h >> 29;
    h *= 0x94D049BB133111EBull;
    return h ^ (h >> 32);
}

inline uint64_t hash_bytes(const void *data, size_t n, uint64_t h = kHashSeed) {
    const unsigned char *p = static_cast<const unsigned char *>(data);
    h = hash_mix(h, n);
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = hash_mix(h, v);
    }
    uint64_t tail = 0;
    if (n) memcpy(&tail, p, n);
    return hash_mix(h, tail);
}

}  // namespace ds4
