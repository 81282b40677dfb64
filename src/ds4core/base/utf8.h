// One step of UTF-8 decoding, strict: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ds4 {

// Bytes of the well-formed character at `pos` (1..4), or 0 when the bytes there are not one.
inline size_t utf8_step(std::string_view text, size_t pos) {
    const size_t left = text.size() - pos;
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
    const auto tail = [&](size_t i) { return i < left && (byte(i) & 0xC0) == 0x80; };
    const uint8_t b0 = byte(0);
    if (b0 < 0x80) return 1;
    if (b0 >= 0xC2 && b0 <= 0xDF) return tail(1) ? 2 : 0;
    if (b0 >= 0xE0 && b0 <= 0xEF) {
        if (!tail(1) || !tail(2)) return 0;
        if (b0 == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
        if (b0 == 0xED && byte(1) > 0x9F) return 0;  // surrogate
        return 3;
    }
    if (b0 >= 0xF0 && b0 <= 0xF4) {
        if (!tail(1) || !tail(2) || !tail(3)) return 0;
        if (b0 == 0xF0 && byte(1) < 0x90) return 0;  // overlong
        if (b0 == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
        return 4;
    }
    return 0;
}

}  // namespace ds4
