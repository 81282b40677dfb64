// Device, memory and stream under one set of names (namespace ds4::gpu::rt): CUDA's, HIP's, or the host executor's.
//
// rt::Stream             what is enqueued in it runs in order, later
// rt::Result             0, or what rt::text() explains
// rt::open, rt::memory   choose a device and say what it is; its memory
// rt::explain_open       why there is none
// rt::allocate, rt::release, rt::allocate_pinned, rt::release_pinned
// rt::copy, rt::fill     enqueued; host memory must stay until the stream has been waited for
// rt::map_host           the device's view of host memory, where it can have one
// rt::clear, rt::upload_now   at once
// rt::capture_begin, rt::capture_end, rt::graph_run   record what is enqueued, and run it as one
// rt::wait               until all that was enqueued has run
// rt::launch             a kernel
#pragma once

#include <cstdint>

namespace ds4::gpu::rt {

struct Info {
    char name[128], arch[32];
    uint64_t total, free;
    bool unified;
};

}  // namespace ds4::gpu::rt

#ifdef DS4_HOST_SIMT
#include "runtime_simt.h"
#elif defined(__HIP__)
#include "runtime_hip.h"
#else
#include "runtime_cuda.h"
#endif
