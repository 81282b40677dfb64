// The table through which the graph reaches a device. One table per backend; a backend holds no globals.
//
// Operations are enqueued and may run later; a failure is sticky on the queue and reported by queue_wait.
// What the CPU backend computes is the definition of every operation.
#pragma once

#include <string>
#include <vector>

#include "backend/kernel_args.h"
#include "base/machine.h"
#include "ds4/model.h"
#include "ds4/status.h"

struct ds4_device;
struct ds4_buffer;
struct ds4_queue;

// Smallest gap at a selection boundary since margins_reset: tells a wrong engine from an undecidable input.
struct ds4_margins {
    float indexer, router;
};

// A device as it is now. total 0: memory that nobody needs to count beforehand (the host's).
struct ds4_device_info {
    char name[128], arch[64];
    uint64_t total_bytes, free_bytes;
    uint32_t unified;  // the device computes in the host's memory: importing copies nothing
};

// Told by a long import, at most every 50 ms; non-zero stops it (DS4_E_CANCELLED).
typedef int (*ds4_import_progress)(void *ud, uint64_t done, uint64_t total);

enum { DS4_CAP_IMPORTANCE = 1 };  // `experts` adds to statistics, in float64

struct ds4_backend_ops {
    uint32_t abi_version;
    uint32_t struct_size;
    const char *name;
    uint32_t capabilities;  // DS4_CAP_*

    ds4_status (*device_open)(ds4_device **out, ds4_error *err);
    void (*device_close)(ds4_device *);
    void (*device_info)(ds4_device *, ds4_device_info *out);

    // alloc gives zeroed memory; import_host makes a read-only buffer over host memory that outlives it: the same memory
    // where the device reaches it, else a copy, of which `refresh` brings `bytes` up to date when the host's have changed.
    // lazy: only refreshed parts will be read, so a copy begins empty. progress may be NULL.
    ds4_status (*buffer_alloc)(ds4_device *, uint64_t bytes, ds4_buffer **out, ds4_error *err);
    ds4_status (*buffer_import_host)(ds4_device *, const void *host, uint64_t bytes, int lazy, ds4_import_progress progress,
                                     void *ud, ds4_buffer **out, ds4_error *err);
    void (*buffer_free)(ds4_buffer *);

    // An upper bound of the work space that the operations of one queue come to hold, for the memory plan.
    uint64_t (*work_bytes)(const ds4_shape *, uint32_t n_ctx, uint32_t chunk, uint32_t n_threads);
    // placement: of the threads, where a backend computes with threads of the host; NULL leaves it to the system.
    ds4_status (*queue_create)(ds4_device *, uint32_t n_threads, const ds4::Placement *placement, ds4_queue **out,
                               ds4_error *err);
    void (*queue_destroy)(ds4_queue *);
    ds4_status (*queue_wait)(ds4_queue *, ds4_error *err);
    void (*upload)(ds4_queue *, ds4_ref dst, const void *src, uint64_t bytes);
    void (*download)(ds4_queue *, void *dst, ds4_ref src, uint64_t bytes);  // complete on return
    void (*copy)(ds4_queue *, ds4_ref dst, ds4_ref src, uint64_t bytes);
    void (*refresh)(ds4_queue *, ds4_ref imported, uint64_t bytes);  // complete on return
    void (*margins_reset)(ds4_queue *);
    ds4_margins (*margins)(ds4_queue *);
    // For profiles. drain returns when all that was enqueued has run, and leaves a sticky failure for queue_wait.
    // gate_up_ns: of the time of the last `experts`, what went by until the down projections began; 0 if unknown.
    void (*drain)(ds4_queue *);
    uint64_t (*gate_up_ns)(ds4_queue *);

    void (*embed)(ds4_queue *, const ds4_args_embed *);
    void (*rms_norm)(ds4_queue *, const ds4_args_rms_norm *);
    void (*matmul)(ds4_queue *, const ds4_args_matmul *);
    void (*hc_pre)(ds4_queue *, const ds4_args_hc_pre *);
    void (*hc_post)(ds4_queue *, const ds4_args_hc_post *);
    void (*hc_head)(ds4_queue *, const ds4_args_hc_head *);
    void (*rope)(ds4_queue *, const ds4_args_rope *);
    void (*round_rows)(ds4_queue *, const ds4_args_round_rows *);
    void (*store_rows)(ds4_queue *, const ds4_args_store_rows *);
    void (*compress)(ds4_queue *, const ds4_args_compress *);
    void (*indexer)(ds4_queue *, const ds4_args_indexer *);
    void (*attention)(ds4_queue *, const ds4_args_attention *);
    void (*router)(ds4_queue *, const ds4_args_router *);
    void (*experts)(ds4_queue *, const ds4_args_experts *);
    void (*swiglu)(ds4_queue *, const ds4_args_swiglu *);
    void (*add_rows)(ds4_queue *, const ds4_args_add_rows *);
    void (*steer)(ds4_queue *, const ds4_args_steer *);
};

#define DS4_BACKEND_ABI 6

namespace ds4 {

// "auto" and "cpu" give the CPU table, "cuda", "hip" and "metal" that of libds4_<name> beside this library, other names
// what load_backend has brought. DS4_E_UNAVAILABLE says why there is none.
ds4_status find_backend(const char *name, const ds4_backend_ops **out, ds4_error *err);
// Names that find_backend knows: cpu, cuda, hip, metal, then what was loaded.
std::vector<std::string> backend_names();
// The table of another shared object (its ds4_backend_entry), from now on known under the name that it gives itself.
ds4_status load_backend(const char *path, const ds4_backend_ops **out, ds4_error *err);
const ds4_backend_ops *cpu_backend();

inline ds4_ref ref(ds4_buffer *b, uint64_t offset = 0) { return {reinterpret_cast<uint64_t>(b), offset}; }
inline ds4_ref advance(ds4_ref r, uint64_t bytes) { return {r.buffer, r.offset + bytes}; }

}  // namespace ds4
