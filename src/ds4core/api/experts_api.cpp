// The extern "C" functions of ds4/experts.h.
#include <algorithm>
#include <memory>
#include <vector>

#include "api/enter.h"
#include "model/model.h"
#include "session/session.h"

using ds4::fail;
using ds4::guarded;

namespace {

// body(cache) for a model that streams.
template <class F> ds4_status with_cache(const ds4_model *m, const char *what, ds4_error *err, F &&body) noexcept {
    if (!m) return fail(err, DS4_E_ARGUMENT, "%s: model is NULL", what);
    if (!m->stream) return fail(err, DS4_E_STATE, "%s: the model was opened without an expert cache", what);
    if (m->owner != getpid())
        return fail(err, DS4_E_STATE, "%s: the model belongs to the parent process; open it again after fork", what);
    return guarded(what, err, [&] { return body(m->stream->cache()); });
}

template <class F>
ds4_status with_all(const ds4_model *m, const void *values, size_t n, const char *what, ds4_error *err, F &&body) noexcept {
    return with_cache(m, what, err, [&](ds4::stream::ExpertCache &cache) {
        if (!values || n != cache.n_experts())
            return fail(err, DS4_E_ARGUMENT, "%s: %zu values were given, the model has %u experts", what, n, cache.n_experts());
        body(cache);
        return DS4_OK;
    });
}

}  // namespace

int ds4_model_streams(const ds4_model *m) { return m && m->stream; }

ds4_status ds4_model_expert_stats(const ds4_model *m, ds4_expert_stats *out, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_stats", err, [&](ds4::stream::ExpertCache &cache) {
        if (!out) return fail(err, DS4_E_ARGUMENT, "ds4_model_expert_stats: out is NULL");
        const ds4::stream::ReaderStats r = cache.reader().stats();
        *out = {cache.n_slots(), cache.slot_bytes(), cache.n_layers(), cache.n_experts(), m->stream->resident_bytes(),
                r.reads, r.bytes, r.failed, r.read_ns, r.busy_ns, cache.reader().options().depth, cache.reader().io()};
        return DS4_OK;
    });
}

ds4_status ds4_model_expert_block(const ds4_model *m, uint32_t block, ds4_expert_block *out, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_block", err, [&](ds4::stream::ExpertCache &cache) {
        if (!out || block >= cache.n_layers())
            return fail(err, DS4_E_ARGUMENT, "ds4_model_expert_block: block %u is outside 0..%u, or out is NULL", block,
                        cache.n_layers() - 1);
        const ds4::stream::LayerStats s = cache.stats(block);
        *out = {cache.n_experts(block), cache.expert_bytes(block), s.asked, s.hits, s.late, s.misses, s.prefetched,
                s.evicted, s.bytes, s.wait_ns, s.guessed, s.guessed_right};
        return DS4_OK;
    });
}

ds4_status ds4_session_expert_use(ds4_session *s, ds4_expert_use *out, ds4_error *err) {
    return ds4::enter(s, "ds4_session_expert_use", err, [&] {
        if (!out) return fail(err, DS4_E_ARGUMENT, "ds4_session_expert_use: out is NULL");
        *out = s->graph->expert_use();
        if (s->model->stream) {
            const ds4::stream::ReaderStats r = s->model->stream->cache().reader().stats();
            out->file_bytes = r.bytes;
            out->file_ns = r.busy_ns;
        }
        return DS4_OK;
    });
}

ds4_status ds4_model_expert_map(const ds4_model *m, uint8_t *out, size_t n, ds4_error *err) {
    return with_all(m, out, n, "ds4_model_expert_map", err, [&](const auto &cache) { cache.map(out); });
}

ds4_status ds4_model_expert_heat(const ds4_model *m, float *out, size_t n, ds4_error *err) {
    return with_all(m, out, n, "ds4_model_expert_heat", err, [&](const auto &cache) { cache.heat(out); });
}

ds4_status ds4_model_expert_set_heat(ds4_model *m, const float *values, size_t n, ds4_error *err) {
    return with_all(m, values, n, "ds4_model_expert_set_heat", err, [&](auto &cache) { cache.set_heat(values); });
}

ds4_status ds4_model_expert_preload(ds4_model *m, uint64_t n_slots, ds4_pulse pulse, void *ud, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_preload", err, [&](ds4::stream::ExpertCache &cache) {
        const uint64_t most = n_slots && n_slots < cache.n_slots() ? n_slots : cache.n_slots();
        return cache.preload(
            static_cast<uint32_t>(most),
            [&](uint64_t done, uint64_t total) {
                const ds4_progress p{done, total};
                return !pulse || pulse(ud, &p) == 0;
            },
            err);
    });
}

ds4_status ds4_model_expert_trace_start(ds4_model *m, uint64_t most_rows, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_trace_start", err, [&](ds4::stream::ExpertCache &cache) {
        cache.start_trace(most_rows);
        return DS4_OK;
    });
}

ds4_status ds4_model_expert_trace_stop(ds4_model *m, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_trace_stop", err, [&](ds4::stream::ExpertCache &cache) {
        cache.stop_trace();
        return DS4_OK;
    });
}

ds4_status ds4_model_expert_trace(const ds4_model *m, int32_t *rows, uint64_t cap, uint64_t *n_rows, uint64_t *row_length,
                                  uint64_t *lost, ds4_error *err) {
    return with_cache(m, "ds4_model_expert_trace", err, [&](ds4::stream::ExpertCache &cache) {
        if (!n_rows || !row_length || !lost) return fail(err, DS4_E_ARGUMENT, "ds4_model_expert_trace: NULL argument");
        std::vector<int32_t> all;
        size_t k = 0;
        *n_rows = cache.trace(rows ? &all : nullptr, &k, lost);
        *row_length = k + 1;
        if (!rows) return DS4_OK;
        if (cap < all.size())
            return fail(err, DS4_E_ARGUMENT, "ds4_model_expert_trace: room for %llu values, the trace has %zu",
                        static_cast<unsigned long long>(cap), all.size());
        std::copy(all.begin(), all.end(), rows);
        return DS4_OK;
    });
}

ds4_status ds4_measure_reads(const char *path, const ds4_model_options *o, uint64_t bytes, uint32_t reads, uint64_t seed,
                             double *speed, ds4_error *err) {
    if (!path || !speed) return fail(err, DS4_E_ARGUMENT, "ds4_measure_reads: path and speed must not be NULL");
    ds4_model_options options;
    ds4_model_options_init(&options);
    const ds4_status st = ds4::take_options("ds4_model_options", o, &options, err);
    if (st != DS4_OK) return st;
    return guarded("ds4_measure_reads", err, [&] {
        ds4::stream::SourceFile file;
        std::unique_ptr<ds4::stream::Reader> reader;
        ds4_status made = file.open(path, nullptr, !options.read_cached, err);
        if (made == DS4_OK) made = ds4::stream::Reader::create(ds4::reader_options(options), &reader, err);
        return made == DS4_OK ? ds4::stream::measure(*reader, file, bytes, reads, seed, speed, err) : made;
    });
}
