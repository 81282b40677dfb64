// Device, buffers and queue of this back end, and its table.
#include "backend.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/error.h"

#ifndef DS4_BACKEND_NAME
#error "DS4_BACKEND_NAME: the name that the table gives"
#endif

namespace ds4::gpu {

void set_failed(ds4_queue *q, ds4_status status, const char *format, ...) {
    if (q->status != DS4_OK) return;
    q->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(q->message, sizeof q->message, format, args);
    va_end(args);
}

void launched(ds4_queue *q, const char *kernel, rt::Result result) {
    if (result) set_failed(q, DS4_E_INTERNAL, "%s: kernel %s was not launched: %s", DS4_BACKEND_NAME, kernel, rt::text(result));
}

namespace {

// What happened to a call of the runtime.
void checked(ds4_queue *q, const char *what, rt::Result r) {
    if (r) set_failed(q, r == rt::kOutOfMemory ? DS4_E_MEMORY : DS4_E_INTERNAL, "%s: %s: %s", DS4_BACKEND_NAME, what, rt::text(r));
}

void finish(ds4_queue *q) {
    const rt::Result r = rt::wait(q->stream);
    if (r) set_failed(q, DS4_E_DEVICE, "%s: %s", DS4_BACKEND_NAME, rt::explain(q->stream, r));
}

template <class T = uint8_t> T *host_view(ds4_ref r) {
    return reinterpret_cast<T *>(static_cast<uint8_t *>(reinterpret_cast<ds4_buffer *>(r.buffer)->base) + r.offset);
}

}  // namespace

void *work_space(ds4_queue *q, WorkSlot slot, uint64_t bytes) {
    auto &w = q->work[slot];
    if (w.bytes >= bytes) return w.base;
    finish(q);  // what was enqueued may still use the old one
    rt::release(w.base);
    w.base = nullptr;
    w.bytes = 0;
    const uint64_t wanted = (bytes + kWorkGrain - 1) / kWorkGrain * kWorkGrain;
    const rt::Result r = rt::allocate(&w.base, wanted);
    if (r) {
        set_failed(q, r == rt::kOutOfMemory ? DS4_E_MEMORY : DS4_E_INTERNAL,
                   "%s: %llu bytes of work space were refused (%s); use a smaller chunk or context", DS4_BACKEND_NAME,
                   static_cast<unsigned long long>(wanted), rt::text(r));
        return nullptr;
    }
    w.bytes = wanted;
    return w.base;
}

void device_copy(ds4_queue *q, void *dst, const void *src, uint64_t bytes) {
    if (usable(q) && bytes) checked(q, "copy", rt::copy(q->stream, dst, src, bytes));
}
void device_fill(ds4_queue *q, void *dst, int value, uint64_t bytes) {
    if (usable(q) && bytes) checked(q, "fill", rt::fill(q->stream, dst, value, bytes));
}

namespace {

ds4_status device_open(ds4_device **out, ds4_error *err) {
    auto *d = new (std::nothrow) ds4_device;
    if (!d) return fail(err, DS4_E_MEMORY, "out of memory while opening the %s device", DS4_BACKEND_NAME);
    const rt::Result r = rt::open(0, &d->info);
    if (r) {
        delete d;
        return fail(err, DS4_E_UNAVAILABLE, "backend '%s': no device can be used: %s", DS4_BACKEND_NAME, rt::text(r));
    }
    *out = d;
    return DS4_OK;
}
void device_close(ds4_device *d) { delete d; }

ds4_status buffer_alloc(ds4_device *, uint64_t bytes, ds4_buffer **out, ds4_error *err) {
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b) return fail(err, DS4_E_MEMORY, "out of memory while making a buffer");
    rt::Result r = rt::allocate(&b->base, bytes ? bytes : 1);
    if (!r) r = rt::clear(b->base, bytes ? bytes : 1);
    if (r) {
        rt::release(b->base);
        delete b;
        return fail(err, DS4_E_MEMORY, "%s: a buffer of %llu bytes was refused (%s); use a smaller context", DS4_BACKEND_NAME,
                    static_cast<unsigned long long>(bytes), rt::text(r));
    }
    b->bytes = bytes;
    *out = b;
    return DS4_OK;
}

ds4_status buffer_import_host(ds4_device *d, const void *host, uint64_t bytes, ds4_buffer **out, ds4_error *err) {
    ds4_status st = buffer_alloc(d, bytes, out, err);
    if (st != DS4_OK) return st;
    const rt::Result r = rt::upload_now((*out)->base, host, bytes);
    if (r) {
        rt::release((*out)->base);
        delete *out;
        return fail(err, DS4_E_INTERNAL, "%s: upload of %llu bytes: %s", DS4_BACKEND_NAME,
                    static_cast<unsigned long long>(bytes), rt::text(r));
    }
    return DS4_OK;
}

void buffer_free(ds4_buffer *b) {
    if (!b) return;
    rt::release(b->base);
    delete b;
}

uint64_t work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk, uint32_t) {
    return product_work_bytes(s, chunk) + attention_work_bytes(s, n_ctx) + choice_work_bytes(s, n_ctx, chunk);
}

void queue_destroy(ds4_queue *q) {
    if (!q) return;
    if (q->stream) {
        rt::wait(q->stream);
        rt::stream_destroy(q->stream);
    }
    for (auto &w : q->work) rt::release(w.base);
    rt::release(q->margins);
    delete q;
}

ds4_status queue_create(ds4_device *d, uint32_t n_threads, const Placement *, ds4_queue **out, ds4_error *err) {
    auto *q = new (std::nothrow) ds4_queue;
    if (!q) return fail(err, DS4_E_MEMORY, "out of memory while making a queue");
    q->device = d;
    void *margins = nullptr;
    rt::Result r = rt::stream_create(&q->stream, n_threads);
    if (!r) r = rt::allocate(&margins, 2 * sizeof(float));
    if (r) {
        queue_destroy(q);
        return fail(err, r == rt::kOutOfMemory ? DS4_E_MEMORY : DS4_E_UNAVAILABLE, "%s: no queue: %s", DS4_BACKEND_NAME, rt::text(r));
    }
    q->margins = static_cast<float *>(margins);
    *out = q;
    return DS4_OK;
}

ds4_status queue_wait(ds4_queue *q, ds4_error *err) {
    finish(q);
    if (q->status == DS4_OK) return DS4_OK;
    const ds4_status status = q->status;
    q->status = DS4_OK;
    return fail(err, status, "%s", q->message);
}

void upload(ds4_queue *q, ds4_ref dst, const void *src, uint64_t bytes) {
    if (!usable(q) || !bytes) return;
    checked(q, "upload", rt::copy(q->stream, host_view(dst), src, bytes));
    finish(q);  // `src` is the caller's again
}
void download(ds4_queue *q, void *dst, ds4_ref src, uint64_t bytes) {
    if (!usable(q) || !bytes) return;
    checked(q, "download", rt::copy(q->stream, dst, host_view(src), bytes));
    finish(q);
}
void copy(ds4_queue *q, ds4_ref dst, ds4_ref src, uint64_t bytes) { device_copy(q, host_view(dst), host_view(src), bytes); }

void margins_reset(ds4_queue *q) {
    const float infinite[2] = {INFINITY, INFINITY};
    checked(q, "margins", rt::copy(q->stream, q->margins, infinite, sizeof infinite));
    finish(q);
}
ds4_margins margins(ds4_queue *q) {
    ds4_margins m{INFINITY, INFINITY};
    if (!usable(q)) return m;
    checked(q, "margins", rt::copy(q->stream, &m, q->margins, sizeof m));
    finish(q);
    return m;
}
void drain(ds4_queue *q) { finish(q); }
uint64_t gate_up_ns(ds4_queue *) { return 0; }

// A failed queue does nothing until queue_wait has told.
template <class Args, void (*Op)(ds4_queue *, const Args *)> void guarded(ds4_queue *q, const Args *a) {
    if (usable(q)) Op(q, a);
}

const ds4_backend_ops table = {
    DS4_BACKEND_ABI,
    sizeof(ds4_backend_ops),
    DS4_BACKEND_NAME,
    device_open,
    device_close,
    buffer_alloc,
    buffer_import_host,
    buffer_free,
    work_bytes,
    queue_create,
    queue_destroy,
    queue_wait,
    upload,
    download,
    copy,
    margins_reset,
    margins,
    drain,
    gate_up_ns,
    guarded<ds4_args_embed, embed>,
    guarded<ds4_args_rms_norm, rms_norm>,
    guarded<ds4_args_matmul, matmul>,
    guarded<ds4_args_hc_pre, hc_pre>,
    guarded<ds4_args_hc_post, hc_post>,
    guarded<ds4_args_hc_head, hc_head>,
    guarded<ds4_args_rope, rope>,
    guarded<ds4_args_round_rows, round_rows>,
    guarded<ds4_args_store_rows, store_rows>,
    guarded<ds4_args_compress, compress>,
    guarded<ds4_args_indexer, indexer>,
    guarded<ds4_args_attention, attention>,
    guarded<ds4_args_router, router>,
    guarded<ds4_args_experts, experts>,
    guarded<ds4_args_swiglu, swiglu>,
    guarded<ds4_args_add_rows, add_rows>,
    guarded<ds4_args_steer, steer>,
};

}  // namespace
}  // namespace ds4::gpu

extern "C" __attribute__((visibility("default"))) const ds4_backend_ops *ds4_backend_entry(void);
const ds4_backend_ops *ds4_backend_entry(void) { return &ds4::gpu::table; }
