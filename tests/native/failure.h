// A status of the core as an exception: in Python a RuntimeError with (status, errno, offset, message).
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "ds4/status.h"

class Failure : public std::exception {
public:
    explicit Failure(const ds4_error &e) : status(e.status), os_errno(e.os_errno), offset(e.offset), message(e.message) {}
    int status, os_errno;
    uint64_t offset;
    std::string message;
};

inline void need(ds4_status status, const ds4_error &err) {
    if (status != DS4_OK) throw Failure(err);
}
