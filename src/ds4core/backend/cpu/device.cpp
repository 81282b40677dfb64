// Device, buffers and queue of the CPU backend, and its table.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>

#include "backend/cpu/attention.h"
#include "backend/cpu/isa.h"
#include "base/error.h"

struct ds4_device {
    int unused = 0;  // the host needs no state
};

namespace ds4::cpu {
namespace {

ds4_status device_open(ds4_device **out, ds4_error *err) {
    *out = new (std::nothrow) ds4_device;
    return *out ? DS4_OK : fail(err, DS4_E_MEMORY, "out of memory while opening the cpu device");
}
void device_close(ds4_device *d) { delete d; }
void device_info(ds4_device *, ds4_device_info *out) {
    *out = {};
    strcpy(out->name, "CPU");
    strncpy(out->arch, isa_name(active_isa()), sizeof out->arch - 1);
    out->unified = 1;
}

ds4_status buffer_alloc(ds4_device *, uint64_t bytes, ds4_buffer **out, ds4_error *err) {
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b || !b->own.allocate(bytes)) {
        delete b;
        return fail(err, DS4_E_MEMORY, "out of memory: a buffer of %llu bytes was refused; use a smaller context",
                    static_cast<unsigned long long>(bytes));
    }
    b->base = b->own.data();
    b->bytes = bytes;
    *out = b;
    return DS4_OK;
}

ds4_status buffer_import_host(ds4_device *, const void *host, uint64_t bytes, int, ds4_import_progress, void *,
                              ds4_buffer **out, ds4_error *err) {
    auto *b = new (std::nothrow) ds4_buffer;
    if (!b) return fail(err, DS4_E_MEMORY, "out of memory while importing a mapped file");
    b->base = static_cast<uint8_t *>(const_cast<void *>(host));  // only read: weights have no writing operation
    b->bytes = bytes;
    *out = b;
    return DS4_OK;
}

void buffer_free(ds4_buffer *b) { delete b; }

// What ops keep in the queue's vectors: the middle rows of the experts, their gathered inputs (as floats, or packed
// for gate and for up), rounded rows, the transposed queries and scores of attention or indexer; and per thread
// panels with sums, a decoded row with sums, or what attention and indexer need.
uint64_t work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk, uint32_t n_threads) {
    const uint64_t pairs = uint64_t{chunk} * s->n_expert_used, longest = std::max(s->n_embd, s->n_ff);
    const uint64_t heads = uint64_t{s->n_head} * s->head_dim;
    const uint64_t gathered = pairs * s->n_embd;
    const uint64_t row = std::max(heads, uint64_t{s->n_hc} * s->n_embd);
    const uint64_t rounded = (chunk + uint64_t{kMostTokens} * n_threads) * row;
    const uint64_t blocks = std::max({chunk * row, gathered, pairs * s->n_ff}) + gathered;
    const uint64_t packed = (rounded + blocks) * 4 / 3;  // at most 1.27 bytes a value
    const uint64_t keys = s->window + std::max<uint64_t>(s->index_top_k, n_ctx / 128);
    const uint64_t lookup = std::max(attention_floats(s->n_head, s->head_dim, keys),
                                     indexer_floats(s->n_index_head, s->index_dim, n_ctx / 4));
    const uint64_t shared = std::max(pairs * s->n_ff, lookup);
    const uint64_t scratch = std::max({longest, uint64_t{s->n_hc} * s->n_embd + chunk, lookup, uint64_t{float_product_work()}}) + kGrain;
    const uint64_t sums = sizeof(ProductWork) / 4 + kGrain + kPanelsAtOnce * kPanelRows * std::min<uint64_t>(chunk, kSlab);
    const uint64_t angles = 4 * uint64_t{chunk} * s->n_rot;  // two tables of sines and cosines
    return (shared + gathered + angles + 6 * kGrain + n_threads * (scratch + sums)) * 4 + packed;
}

ds4_status queue_create(ds4_device *, uint32_t n_threads, const Placement *placement, ds4_queue **out,
                        ds4_error *err) {
    try {
        *out = new ds4_queue(n_threads, placement ? *placement : Placement{});
    } catch (const std::system_error &e) {
        const int why = e.code().value();
        return fail(err, why == EAGAIN || why == ENOMEM ? DS4_E_MEMORY : DS4_E_UNAVAILABLE, "cannot start %u thread(s): %s",
                    n_threads, e.what());
    } catch (const std::bad_alloc &) {
        return fail(err, DS4_E_MEMORY, "out of memory while starting %u threads", n_threads);
    }
    (*out)->kernels = active_kernels();
    (*out)->panels = active_panels();
    (*out)->rows = active_row_kernels();
    (*out)->floats = active_float_kernels();
    return DS4_OK;
}
void queue_destroy(ds4_queue *q) { delete q; }

ds4_status queue_wait(ds4_queue *q, ds4_error *err) {
    q->pool.end();
    if (q->status == DS4_OK) return DS4_OK;
    ds4_status status = q->status;
    q->status = DS4_OK;
    return fail(err, status, "%s", q->message);
}

void upload(ds4_queue *, ds4_ref dst, const void *src, uint64_t bytes) { memcpy(ptr<uint8_t>(dst), src, bytes); }
void download(ds4_queue *, void *dst, ds4_ref src, uint64_t bytes) { memcpy(dst, ptr<const uint8_t>(src), bytes); }
void copy(ds4_queue *, ds4_ref dst, ds4_ref src, uint64_t bytes) {
    memmove(ptr<uint8_t>(dst), ptr<const uint8_t>(src), bytes);
}
void refresh(ds4_queue *, ds4_ref, uint64_t) {}  // imported memory is the host's
void margins_reset(ds4_queue *q) {
    q->margins.indexer = q->margins.router = std::numeric_limits<float>::infinity();
}
ds4_margins margins(ds4_queue *q) { return q->margins; }
void drain(ds4_queue *) {}  // operations have run when they return
uint64_t gate_up_ns(ds4_queue *q) { return q->gate_up_ns; }

// Operations allocate their work space with vectors; running out of memory there is the one failure they have.
template <class Args, void (*Op)(ds4_queue *, const Args *)> void guarded(ds4_queue *q, const Args *a) {
    if (q->status != DS4_OK) return;
    q->pool.begin();  // until queue_wait
    try {
        Op(q, a);
    } catch (const std::exception &) {
        q->status = DS4_E_MEMORY;
        strcpy(q->message, "out of memory for the work space of an operation; use a smaller chunk or context");
    }
}

const ds4_backend_ops table = {
    DS4_BACKEND_ABI,
    sizeof(ds4_backend_ops),
    "cpu",
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
}  // namespace ds4::cpu

const ds4_backend_ops *ds4::cpu_backend() { return &ds4::cpu::table; }
