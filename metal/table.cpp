// Device, buffers and queue of the Metal back end, and its table: everything that needs no Metal.
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "encode.h"

struct ds4_queue {
    ds4::metal::Encoder encoder;
};

namespace ds4::metal {
namespace {

ds4_status device_open(ds4_device **out, ds4_error *err) {
    std::string why;
    ds4_status st = DS4_E_UNAVAILABLE;
    auto driver = open_driver(&why, &st);
    if (!driver) return fail(err, st, "backend '%s': %s", kBackendName, why.c_str());
    auto *d = new (std::nothrow) ds4_device;
    if (!d) return fail(err, DS4_E_MEMORY, "out of memory while opening the %s device", kBackendName);
    d->info = driver->info();
    d->driver = std::move(driver);
    *out = d;
    return DS4_OK;
}
void device_close(ds4_device *d) { delete d; }

void device_info(ds4_device *d, ds4_device_info *out) {
    const DeviceInfo i = d->driver->info();
    *out = {};
    strncpy(out->name, i.name.c_str(), sizeof out->name - 1);
    strncpy(out->arch, i.arch.c_str(), sizeof out->arch - 1);
    out->total_bytes = i.memory;
    out->free_bytes = i.used < i.memory ? i.memory - i.used : 0;
    out->unified = 1;
}

// What the driver said about memory, with what can be done.
ds4_status refused(ds4_error *err, ds4_status st, uint64_t bytes, const std::string &why) {
    return fail(err, st, "%s: a buffer of %llu bytes was refused: %s; use a smaller context", kBackendName,
                static_cast<unsigned long long>(bytes), why.c_str());
}

ds4_status buffer_alloc(ds4_device *d, uint64_t bytes, ds4_buffer **out, ds4_error *err) {
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b) return fail(err, DS4_E_MEMORY, "out of memory while making a buffer");
    b->device = d;
    std::string why;
    const ds4_status st = d->driver->allocate(bytes ? bytes : 1, &b->memory, &why);
    if (st != DS4_OK) {
        delete b;
        return refused(err, st, bytes, why);
    }
    *out = b;
    return DS4_OK;
}

// Whole pages are imported: those that the range lies in.
ds4_status buffer_import_host(ds4_device *d, const void *host, uint64_t bytes, int, ds4_import_progress, void *, ds4_buffer **out,
                              ds4_error *err) {
    // The device wants all of it in memory; a machine that has not so much would swap until it stands still.
    const DeviceInfo now = d->driver->info();
    const uint64_t free_bytes = now.used < now.memory ? now.memory - now.used : 0;
    if (bytes > free_bytes)
        return fail(err, DS4_E_MEMORY,
                    "%s: %llu bytes of weights do not fit the %llu bytes that %s may still use; stream the experts (expert_cache), "
                    "close other models, or use cpu",
                    kBackendName, static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(free_bytes),
                    now.name.c_str());
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b) return fail(err, DS4_E_MEMORY, "out of memory while making a buffer");
    const uint64_t page = d->info.page, begin = reinterpret_cast<uint64_t>(host);
    b->device = d;
    b->imported = true;
    b->lead = begin % page;
    const uint64_t whole = (b->lead + bytes + page - 1) / page * page;
    std::string why;
    const ds4_status st = d->driver->import(static_cast<const uint8_t *>(host) - b->lead, whole, &b->memory, &why);
    if (st != DS4_OK) {
        delete b;
        return fail(err, st, "%s: %llu bytes of host memory cannot be shared with the device: %s", kBackendName,
                    static_cast<unsigned long long>(bytes), why.c_str());
    }
    *out = b;
    return DS4_OK;
}

void buffer_free(ds4_buffer *b) {
    if (!b) return;
    b->device->driver->release(b->memory);
    delete b;
}

uint64_t work_space(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk, uint32_t) { return work_bytes(s, n_ctx, chunk); }

ds4_status queue_create(ds4_device *d, uint32_t, const Placement *, ds4_queue **out, ds4_error *err) {
    std::string why;
    auto stream = d->driver->stream(&why);
    if (!stream) return fail(err, DS4_E_UNAVAILABLE, "%s: no command queue: %s", kBackendName, why.c_str());
    Memory margins;
    const ds4_status st = d->driver->allocate(2 * sizeof(float), &margins, &why);
    if (st != DS4_OK) return refused(err, st, 2 * sizeof(float), why);
    // The plain forms give the same bits; they are for finding out whether the matrix units are at fault.
    const char *plain = getenv("DS4_METAL_PLAIN");
    const bool matrices = d->info.matrices && !(plain && *plain && strcmp(plain, "0") != 0);
    *out = new (std::nothrow) ds4_queue{{d, std::move(stream), margins, matrices}};
    if (*out) return DS4_OK;
    d->driver->release(margins);
    return fail(err, DS4_E_MEMORY, "out of memory while making a queue");
}
void queue_destroy(ds4_queue *q) { delete q; }

ds4_status queue_wait(ds4_queue *q, ds4_error *err) {
    q->encoder.drain();
    return q->encoder.take_status(err);
}

void upload(ds4_queue *q, ds4_ref dst, const void *src, uint64_t bytes) { q->encoder.upload(dst, src, bytes); }
void download(ds4_queue *q, void *dst, ds4_ref src, uint64_t bytes) { q->encoder.download(dst, src, bytes); }
void copy(ds4_queue *q, ds4_ref dst, ds4_ref src, uint64_t bytes) { q->encoder.copy(dst, src, bytes); }
void refresh(ds4_queue *, ds4_ref, uint64_t) {}  // imported memory is the host's
void margins_reset(ds4_queue *q) { q->encoder.reset_margins(); }
ds4_margins margins(ds4_queue *q) { return q->encoder.margins(); }
void drain(ds4_queue *q) { q->encoder.drain(); }
uint64_t gate_up_ns(ds4_queue *) { return 0; }  // not known: the device does both in one go

template <class Args, void (Encoder::*Op)(const Args *)> void op(ds4_queue *q, const Args *a) { (q->encoder.*Op)(a); }

const ds4_backend_ops table = {
    DS4_BACKEND_ABI,
    sizeof(ds4_backend_ops),
    kBackendName,
    DS4_CAP_IMPORTANCE,
    device_open,
    device_close,
    device_info,
    buffer_alloc,
    buffer_import_host,
    buffer_free,
    work_space,
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
    op<ds4_args_embed, &Encoder::embed>,
    op<ds4_args_rms_norm, &Encoder::rms_norm>,
    op<ds4_args_matmul, &Encoder::matmul>,
    op<ds4_args_hc_pre, &Encoder::hc_pre>,
    op<ds4_args_hc_post, &Encoder::hc_post>,
    op<ds4_args_hc_head, &Encoder::hc_head>,
    op<ds4_args_rope, &Encoder::rope>,
    op<ds4_args_round_rows, &Encoder::round_rows>,
    op<ds4_args_store_rows, &Encoder::store_rows>,
    op<ds4_args_compress, &Encoder::compress>,
    op<ds4_args_indexer, &Encoder::indexer>,
    op<ds4_args_attention, &Encoder::attention>,
    op<ds4_args_router, &Encoder::router>,
    op<ds4_args_experts, &Encoder::experts>,
    op<ds4_args_swiglu, &Encoder::swiglu>,
    op<ds4_args_add_rows, &Encoder::add_rows>,
    op<ds4_args_steer, &Encoder::steer>,
};

}  // namespace
}  // namespace ds4::metal

extern "C" __attribute__((visibility("default"))) const ds4_backend_ops *ds4_backend_entry(void);
const ds4_backend_ops *ds4_backend_entry(void) { return &ds4::metal::table; }
