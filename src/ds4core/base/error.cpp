// Formatting of error records. vsnprintf into the caller's buffer: no allocation, so that running out of memory
// can still be reported.
#include "base/error.h"

#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/utf8.h"

namespace ds4 {
namespace {

// A message cut by the buffer may end inside a character; drop the partial one.
void trim_to_whole_characters(char *text, size_t size) {
    size_t end = size;
    while (end > 0 && size - end < 4) {
        const uint8_t last = static_cast<uint8_t>(text[end - 1]);
        if ((last & 0xC0) == 0x80) {
            --end;
            continue;
        }
        if (last >= 0xC0 && utf8_step(std::string_view(text, size), end - 1) == 0) text[end - 1] = '\0';
        return;
    }
}

}  // namespace

ds4_status vfail(ds4_error *err, ds4_status code, uint64_t offset, int errnum, const char *fmt, va_list args) {
    if (!err) return code;
    err->status = code;
    err->os_errno = errnum;
    err->offset = offset;
    const size_t cap = sizeof err->message;
    const int written = vsnprintf(err->message, cap, fmt, args);
    if (written < 0) {
        err->message[0] = '\0';
        return code;
    }
    size_t used = static_cast<size_t>(written);
    if (used >= cap) {
        trim_to_whole_characters(err->message, cap - 1);
        return code;
    }
    if (errnum != 0 && used + 3 < cap) {
        // generic_category().message is the thread-safe strerror of the standard library; it may allocate.
        try {
            const std::string text = std::generic_category().message(errnum);
            snprintf(err->message + used, cap - used, ": %s", text.c_str());
        } catch (...) {
            snprintf(err->message + used, cap - used, ": errno %d", errnum);
        }
    }
    return code;
}

ds4_status fail(ds4_error *err, ds4_status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfail(err, code, DS4_NO_OFFSET, 0, fmt, args);
    va_end(args);
    return code;
}

ds4_status fail_at(ds4_error *err, ds4_status code, uint64_t offset, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfail(err, code, offset, 0, fmt, args);
    va_end(args);
    return code;
}

ds4_status fail_errno(ds4_error *err, ds4_status code, int errnum, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfail(err, code, DS4_NO_OFFSET, errnum, fmt, args);
    va_end(args);
    return code;
}

std::string escape_name(std::string_view name, size_t max) {
    static constexpr char hex[] = "0123456789abcdef";
    std::string out;
    size_t pos = 0;
    while (pos < name.size()) {
        const size_t step = utf8_step(name, pos);
        const size_t taken = step ? step : 1;
        if (pos + taken > max) {
            out += "...";
            break;
        }
        const uint8_t byte = static_cast<uint8_t>(name[pos]);
        const bool c1_control = step == 2 && byte == 0xC2 && static_cast<uint8_t>(name[pos + 1]) < 0xA0;
        if (step == 0 || byte < 0x20 || byte == 0x7F || byte == '"' || byte == '\\' || c1_control) {
            for (size_t i = 0; i < taken; ++i) {
                const uint8_t raw = static_cast<uint8_t>(name[pos + i]);
                out += "\\x";
                out += hex[raw >> 4];
                out += hex[raw & 15];
            }
        } else {
            out.append(name.substr(pos, taken));
        }
        pos += taken;
    }
    return out;
}

}  // namespace ds4
