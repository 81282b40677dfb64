// Filling a ds4_error. Every fallible function inside the core returns a ds4_status and ends a failure with one of
// these calls; `err` may be NULL everywhere, the status is returned all the same.
#pragma once

#include <cstdarg>
#include <string>
#include <string_view>

#include "ds4/status.h"

#if defined(__GNUC__)
#define DS4_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define DS4_PRINTF(fmt_index, first_arg)
#endif

namespace ds4 {

// Set status and message (offset = DS4_NO_OFFSET, os_errno = 0) and return `code`. A message that is too long is
// cut at a whole UTF-8 character.
ds4_status fail(ds4_error *err, ds4_status code, const char *fmt, ...) DS4_PRINTF(3, 4);
// The same, with the place in the file.
ds4_status fail_at(ds4_error *err, ds4_status code, uint64_t offset, const char *fmt, ...) DS4_PRINTF(4, 5);
// The same, with the errno of a failed system call; its text is appended after ": ".
ds4_status fail_errno(ds4_error *err, ds4_status code, int errnum, const char *fmt, ...) DS4_PRINTF(4, 5);
// For callers with their own variable arguments; errnum 0 appends nothing.
ds4_status vfail(ds4_error *err, ds4_status code, uint64_t offset, int errnum, const char *fmt, va_list args);

// A name that came from a file, made safe to print: control characters, backslashes, quotes and invalid UTF-8 bytes
// become \xNN, valid UTF-8 stays, and what exceeds `max` input bytes is cut and marked with "...".
std::string escape_name(std::string_view name, size_t max = 80);

}  // namespace ds4
