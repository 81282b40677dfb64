// What the Metal back end asks of a device: memory, and a stream of dispatches. backend.mm answers with Metal, tests/simt
// with the host executor; everything else of the back end is the same for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ds4/status.h"

namespace ds4::metal {

struct Grid {
    uint32_t x = 1, y = 1, z = 1;  // threadgroups
};

// A buffer. Memory is shared with the host: `host` is its address here, `address` the one that kernels see.
struct Memory {
    void *handle = nullptr;  // the driver's own
    uint8_t *host = nullptr;
    uint64_t address = 0, bytes = 0;
};

// Dispatches in the order of the calls. Those between two barriers may run in any order or at the same time.
class Stream {
  public:
    virtual ~Stream() = default;
    // Enqueue a kernel; the record is copied. Failures are reported by wait().
    virtual void dispatch(const char *kernel, Grid grid, uint32_t threads, const void *record, size_t bytes) = 0;
    virtual void barrier() = 0;
    // Hand in what was enqueued, and return when it has run. DS4_OK, or what went wrong since the last wait.
    virtual ds4_status wait(std::string *message) = 0;
};

struct DeviceInfo {
    std::string name, arch;
    uint64_t memory = 0;     // that the device should use at most
    uint64_t used = 0;       // by this process
    uint64_t largest = 0;    // buffer
    uint64_t page = 16384;   // an imported range begins and ends at multiples of it
    bool matrices = false;   // simdgroup matrices
};

class Driver {
  public:
    virtual ~Driver() = default;
    virtual DeviceInfo info() = 0;
    virtual ds4_status allocate(uint64_t bytes, Memory *out, std::string *message) = 0;  // zeroed
    // Without a copy, over whole pages of the host that stay where they are.
    virtual ds4_status import(const void *host, uint64_t bytes, Memory *out, std::string *message) = 0;
    virtual void release(Memory &memory) = 0;  // nothing that was enqueued may use it
    virtual std::unique_ptr<Stream> stream(std::string *message) = 0;
};

// Of the one device; NULL and the reason where there is none.
std::unique_ptr<Driver> open_driver(std::string *message, ds4_status *status);
extern const char *const kBackendName;

}  // namespace ds4::metal
