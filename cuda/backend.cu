// Device, buffers and queue of this back end, and its table.
#include "backend.h"

#include <algorithm>
#include <chrono>
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
    if (result) set_failed(q, DS4_E_DEVICE, "%s: kernel %s was not launched: %s", DS4_BACKEND_NAME, kernel, rt::text(result));
}

namespace {

// What happened to a call of the runtime.
void checked(ds4_queue *q, const char *what, rt::Result r) {
    if (r) set_failed(q, r == rt::kOutOfMemory ? DS4_E_DEVICE_MEMORY : DS4_E_DEVICE, "%s: %s: %s", DS4_BACKEND_NAME, what, rt::text(r));
}

// Recording. The first operation after an idle queue begins it; what comes is kept and goes to the device as one graph when
// somebody waits, so a token costs one submission. With operations of several tokens, whose kernels are long, the queue
// goes on without recording.
constexpr uint64_t kStagingBytes = uint64_t{1} << 20;

void submit(ds4_queue *q) {
    if (!q->capturing) return;
    q->capturing = false;
    rt::Graph graph{};
    rt::Result r = rt::capture_end(q->stream, &graph);
    if (!r) r = rt::graph_run(q->stream, graph, &q->graph);
    rt::graph_destroy(graph);
    checked(q, "graph of a token", r);
}

// tokens: of the operation that comes; 0 where it does not say.
void begin(ds4_queue *q, uint32_t tokens) {
    if (q->capturing && tokens > 1) submit(q);
    if (q->open) return;
    q->open = true;
    if (tokens > 1) return;
    const rt::Result r = rt::capture_begin(q->stream);
    q->capturing = !r;
    checked(q, "recording", r);
}

void finish(ds4_queue *q) {
    submit(q);
    const rt::Result r = rt::wait(q->stream);
    if (r) set_failed(q, DS4_E_DEVICE, "%s: %s", DS4_BACKEND_NAME, rt::explain(q->stream, r));
    q->open = false;
    q->staged = 0;
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
        set_failed(q, r == rt::kOutOfMemory ? DS4_E_DEVICE_MEMORY : DS4_E_DEVICE,
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
        char why[256];
        rt::explain_open(r, why, sizeof why);
        return fail(err, DS4_E_UNAVAILABLE, "backend '%s': no device can be used: %s", DS4_BACKEND_NAME, why);
    }
    *out = d;
    return DS4_OK;
}
void device_close(ds4_device *d) { delete d; }
void device_info(ds4_device *d, ds4_device_info *out) {
    *out = {};
    snprintf(out->name, sizeof out->name, "%s", d->info.name);
    snprintf(out->arch, sizeof out->arch, "%s", d->info.arch);
    out->unified = d->info.unified;
    if (rt::memory(&out->free_bytes, &out->total_bytes)) out->free_bytes = out->total_bytes = 0;
}

ds4_status buffer_alloc(ds4_device *, uint64_t bytes, ds4_buffer **out, ds4_error *err) {
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b) return fail(err, DS4_E_MEMORY, "out of memory while making a buffer");
    rt::Result r = rt::allocate(&b->base, bytes ? bytes : 1);
    if (!r) r = rt::clear(b->base, bytes ? bytes : 1);
    if (r) {
        rt::release(b->base);
        delete b;
        return fail(err, r == rt::kOutOfMemory ? DS4_E_DEVICE_MEMORY : DS4_E_DEVICE, "%s: a buffer of %llu bytes was refused (%s); use a smaller context", DS4_BACKEND_NAME,
                    static_cast<unsigned long long>(bytes), rt::text(r));
    }
    b->bytes = bytes;
    *out = b;
    return DS4_OK;
}

void buffer_free(ds4_buffer *b) {
    if (!b) return;
    if (b->mapped)
        rt::unmap_host(b->mapped);
    else
        rt::release(b->base);
    delete b;
}

// Portions of an upload: large enough for the bus, small enough for a progress display.
constexpr uint64_t kPortion = uint64_t{64} << 20;

ds4_status send(void *to, const void *host, uint64_t bytes, ds4_import_progress progress, void *ud, ds4_error *err) {
    auto told = std::chrono::steady_clock::now();
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t part = std::min(kPortion, bytes - done);
        const rt::Result r = rt::upload_now(static_cast<uint8_t *>(to) + done, static_cast<const uint8_t *>(host) + done, part);
        if (r)
            return fail(err, DS4_E_DEVICE, "%s: upload of %llu bytes: %s", DS4_BACKEND_NAME,
                        static_cast<unsigned long long>(bytes), rt::text(r));
        done += part;
        const auto now = std::chrono::steady_clock::now();
        if (!progress || (done < bytes && now - told < std::chrono::milliseconds(50))) continue;
        told = now;
        if (progress(ud, done, bytes)) return fail(err, DS4_E_CANCELLED, "stopped while weights were sent to the device");
    }
    return DS4_OK;
}

ds4_status buffer_import_host(ds4_device *d, const void *host, uint64_t bytes, int lazy, ds4_import_progress progress, void *ud,
                              ds4_buffer **out, ds4_error *err) {
    *out = nullptr;
    if (d->info.unified) {
        void *mapped = nullptr;
        if (!rt::map_host(host, bytes, &mapped)) {
            auto *b = new (std::nothrow) ds4_buffer;
            if (!b) {
                rt::unmap_host(host);
                return fail(err, DS4_E_MEMORY, "out of memory while importing a mapped file");
            }
            b->base = mapped;
            b->bytes = bytes;
            b->mapped = host;
            *out = b;
            return DS4_OK;
        }  // refused: a copy then
    }
    ds4_buffer *made = nullptr;
    ds4_status st = buffer_alloc(d, bytes, &made, err);
    if (st != DS4_OK) return st;
    made->host = static_cast<const uint8_t *>(host);
    if (!lazy) st = send(made->base, host, bytes, progress, ud, err);
    if (st != DS4_OK) {
        buffer_free(made);
        return st;
    }
    *out = made;
    return DS4_OK;
}

uint64_t work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk, uint32_t) {
    return product_work_bytes(s, chunk) + attention_work_bytes(s, n_ctx) + choice_work_bytes(s, n_ctx, chunk);
}

void queue_destroy(ds4_queue *q) {
    if (!q) return;
    if (q->stream) {
        finish(q);
        rt::exec_destroy(q->graph);
        rt::stream_destroy(q->stream);
    }
    if (q->staging) rt::release_pinned(q->staging);
    for (auto &w : q->work) rt::release(w.base);
    rt::release(q->margins);
    delete q;
}

ds4_status queue_create(ds4_device *d, uint32_t n_threads, const Placement *, ds4_queue **out, ds4_error *err) {
    auto *q = new (std::nothrow) ds4_queue;
    if (!q) return fail(err, DS4_E_MEMORY, "out of memory while making a queue");
    q->device = d;
    void *margins = nullptr, *staging = nullptr;
    rt::Result r = rt::stream_create(&q->stream, n_threads);
    if (!r) r = rt::allocate_pinned(&staging, kStagingBytes);
    q->staging = static_cast<uint8_t *>(staging);
    if (!r) r = rt::allocate(&margins, 2 * sizeof(float));
    q->margins = static_cast<float *>(margins);
    if (r) {
        queue_destroy(q);
        return fail(err, r == rt::kOutOfMemory ? DS4_E_DEVICE_MEMORY : DS4_E_UNAVAILABLE, "%s: no queue: %s", DS4_BACKEND_NAME, rt::text(r));
    }
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
    if (bytes > kStagingBytes) {
        finish(q);
        if (usable(q)) checked(q, "upload", rt::upload_now(host_view(dst), src, bytes));
        return;
    }
    if (bytes > kStagingBytes - q->staged) finish(q);
    if (!usable(q)) return;
    begin(q, 0);
    memcpy(q->staging + q->staged, src, bytes);  // `src` is the caller's again
    checked(q, "upload", rt::copy(q->stream, host_view(dst), q->staging + q->staged, bytes));
    q->staged = std::min(kStagingBytes, (q->staged + bytes + 255) / 256 * 256);
}
void download(ds4_queue *q, void *dst, ds4_ref src, uint64_t bytes) {
    if (!usable(q) || !bytes) return;
    submit(q);
    checked(q, "download", rt::copy(q->stream, dst, host_view(src), bytes));
    finish(q);
}
void copy(ds4_queue *q, ds4_ref dst, ds4_ref src, uint64_t bytes) {
    if (!usable(q) || !bytes) return;
    begin(q, 0);
    device_copy(q, host_view(dst), host_view(src), bytes);
}

void refresh(ds4_queue *q, ds4_ref r, uint64_t bytes) {
    auto *b = reinterpret_cast<ds4_buffer *>(r.buffer);
    if (!usable(q) || !b->host) return;
    checked(q, "refresh", rt::copy(q->stream, static_cast<uint8_t *>(b->base) + r.offset, b->host + r.offset, bytes));
    finish(q);
}

void margins_reset(ds4_queue *q) {
    const float infinite[2] = {INFINITY, INFINITY};
    ds4_buffer all;
    all.base = q->margins;
    upload(q, ref(&all), infinite, sizeof infinite);
}
ds4_margins margins(ds4_queue *q) {
    ds4_margins m{INFINITY, INFINITY};
    ds4_buffer all;
    all.base = q->margins;
    download(q, &m, ref(&all), sizeof m);
    return m;
}
void drain(ds4_queue *q) { finish(q); }
uint64_t gate_up_ns(ds4_queue *) { return 0; }

// A failed queue does nothing until queue_wait has told.
template <class Args, void (*Op)(ds4_queue *, const Args *)> void guarded(ds4_queue *q, const Args *a) {
    if constexpr (requires { a->n; })
        if (usable(q)) begin(q, a->n);
    if (usable(q)) begin(q, 0);
    if (usable(q)) Op(q, a);
}

const ds4_backend_ops table = {
    DS4_BACKEND_ABI,
    sizeof(ds4_backend_ops),
    DS4_BACKEND_NAME,
    DS4_CAP_IMPORTANCE,
    device_open,
    device_close,
    device_info,
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
    refresh,
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
