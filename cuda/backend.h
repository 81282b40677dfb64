// What the files of this back end share: device, buffer and queue, resolved argument records, launches.
//
// An operation is a function (ds4_queue *, const ds4_args_*) in namespace ds4::gpu. It asks usable(q) first, launches
// kernels with DS4_LAUNCH and returns; it never waits. Kernels take the record by value, resolved.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/resolved.h"
#include "portable.h"
#include "runtime.h"

struct ds4_device {
    int index = 0;
    ds4::gpu::rt::Info info{};
};

struct ds4_buffer {
    void *base = nullptr;  // on the device
    uint64_t bytes = 0;
    const void *mapped = nullptr;    // the host memory that `base` is a view of
    const uint8_t *host = nullptr;   // the host memory that it is a copy of
};
inline uint64_t device_address(const ds4_buffer &b) { return reinterpret_cast<uint64_t>(b.base); }

namespace ds4::gpu {

// Work space of a queue: grows to the largest need and stays. What it held is lost when another operation asks for it.
enum WorkSlot {
    kWorkRounded,    // activations rounded to 8 bits
    kWorkMiddle,     // middle rows of the experts; they stay for the next call with other `work`
    kWorkSorted,     // (token, choice) pairs by expert
    kWorkScores,     // of the indexer
    kWorkPartial,    // partial results that a second kernel adds up
    kWorkExtra,
    kWorkSlots
};

}  // namespace ds4::gpu

struct ds4_queue {
    ds4_device *device = nullptr;
    ds4::gpu::rt::Stream stream{};
    ds4_status status = DS4_OK;  // sticky
    char message[512] = {};
    struct {
        void *base = nullptr;
        uint64_t bytes = 0;
    } work[ds4::gpu::kWorkSlots];
    float *margins = nullptr;  // on the device: indexer, router
    // One token is recorded and submitted as a whole; see backend.cu.
    bool open = false, capturing = false;
    ds4::gpu::rt::GraphExec graph{};
    uint8_t *staging = nullptr;  // pinned: small uploads wait here until they have run
    uint64_t staged = 0;
};

namespace ds4::gpu {

// Keep the first failure of a queue; operations that come later do nothing.
void set_failed(ds4_queue *q, ds4_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
inline bool usable(const ds4_queue *q) { return q->status == DS4_OK; }

constexpr uint64_t kWorkGrain = 65536;  // bytes, to whole ones of which work space grows

// At least `bytes` of work space, not cleared; NULL and a failed queue when there is no memory.
void *work_space(ds4_queue *q, WorkSlot slot, uint64_t bytes);
template <class T> T *work_space(ds4_queue *q, WorkSlot slot, uint64_t count) {
    return static_cast<T *>(work_space(q, slot, count * sizeof(T)));
}

// Enqueued copies and fills on the device (of work space, say).
void device_copy(ds4_queue *q, void *dst, const void *src, uint64_t bytes);
void device_fill(ds4_queue *q, void *dst, int value, uint64_t bytes);

// ---- launches ----

void launched(ds4_queue *q, const char *kernel, rt::Result result);

#define DS4_LAUNCH(queue, kernel, grid, block, dynamic_bytes, ...)                                                   \
    ::ds4::gpu::launched((queue), #kernel,                                                                           \
                         ::ds4::gpu::rt::launch((queue)->stream, #kernel, kernel, dim3(grid), dim3(block), dynamic_bytes, \
                                                __VA_ARGS__))

constexpr unsigned kBlock = 256;  // threads of a block where nothing speaks for another number
inline unsigned blocks_for(uint64_t items, unsigned each) { return static_cast<unsigned>((items + each - 1) / each); }

// An upper bound of the bytes of work space that matmul and experts come to hold for chunks of so many tokens.
uint64_t product_work_bytes(const ds4_shape *s, uint32_t chunk);
// The same of attention, and of indexer and router.
uint64_t attention_work_bytes(const ds4_shape *s, uint32_t n_ctx);
uint64_t choice_work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk);

// ---- operations (ops_*.cu) ----

void embed(ds4_queue *, const ds4_args_embed *);
void rms_norm(ds4_queue *, const ds4_args_rms_norm *);
void matmul(ds4_queue *, const ds4_args_matmul *);
void hc_pre(ds4_queue *, const ds4_args_hc_pre *);
void hc_post(ds4_queue *, const ds4_args_hc_post *);
void hc_head(ds4_queue *, const ds4_args_hc_head *);
void rope(ds4_queue *, const ds4_args_rope *);
void round_rows(ds4_queue *, const ds4_args_round_rows *);
void store_rows(ds4_queue *, const ds4_args_store_rows *);
void compress(ds4_queue *, const ds4_args_compress *);
void indexer(ds4_queue *, const ds4_args_indexer *);
void attention(ds4_queue *, const ds4_args_attention *);
void router(ds4_queue *, const ds4_args_router *);
void experts(ds4_queue *, const ds4_args_experts *);
void swiglu(ds4_queue *, const ds4_args_swiglu *);
void add_rows(ds4_queue *, const ds4_args_add_rows *);
void steer(ds4_queue *, const ds4_args_steer *);

}  // namespace ds4::gpu
