// The extern "C" functions of ds4/session.h: who may enter a session, and nothing else.
#include <algorithm>
#include <exception>

#include <unistd.h>

#include "api/enter.h"
#include "base/machine.h"
#include "session/sample.h"
#include "session/session.h"

using ds4::enter;
using ds4::fail;
using ds4::guarded;

uint32_t ds4_default_threads(void) {
    try {
        return ds4::default_threads(ds4::read_machine(ds4::affinity_mask()));
    } catch (const std::exception &) {
        return 1;  // no memory for a few lists
    }
}

void ds4_session_options_init(ds4_session_options *o) {
    if (!o) return;
    *o = {};
    o->struct_size = sizeof(*o);
    o->n_ctx = 32768;
    o->chunk = 512;
    o->n_threads = ds4_default_threads();
    o->qat = 1;
    o->rows_f16 = 1;
    o->activations = DS4_ACT_QUANTIZED;
    o->checkpoint_every = 1024;
    o->checkpoint_bytes = uint64_t{256} << 20;
}

void ds4_session_memory(const ds4_shape *shape, const ds4_session_options *o, ds4_memory_plan *out) {
    if (!out) return;
    *out = {};
    ds4_session_options options;
    ds4_session_options_init(&options);
    if (!shape || shape->n_layer > DS4_MAX_LAYERS || ds4::take_options("", o, &options, nullptr) != DS4_OK) return;
    ds4::plan_session(*shape, options, out);
}

ds4_status ds4_session_create(ds4_model *m, const ds4_session_options *o, ds4_session **out, ds4_error *err) {
    if (!m || !out) return fail(err, DS4_E_ARGUMENT, "ds4_session_create: model and out must not be NULL");
    if (m->owner != getpid())
        return fail(err, DS4_E_STATE, "the model belongs to the parent process; open it again after fork");
    ds4_session_options options;
    ds4_session_options_init(&options);
    const ds4_status st = ds4::take_options("ds4_session_options", o, &options, err);
    if (st != DS4_OK) return st;
    return guarded("ds4_session_create", err, [&] { return ds4::create_session(m, options, out, err); });
}

void ds4_session_free(ds4_session *s) {
    if (!s) return;
    ds4_model *m = s->model;
    // After a fork the workers do not exist here: joining them would wait for ever, so the memory is left alone.
    if (m->owner != getpid()) return;
    delete s;
    ds4::release_model(m);
}

ds4_status ds4_session_fork(ds4_session *s, ds4_session **out, ds4_error *err) {
    return enter(s, "ds4_session_fork", err, [&] {
        if (!out) return fail(err, DS4_E_ARGUMENT, "ds4_session_fork: out is NULL");
        return ds4::fork_session(*s, out, err);
    });
}

ds4_status ds4_session_sync(ds4_session *s, const int32_t *tokens, size_t n, size_t *n_kept, ds4_error *err) {
    return enter(s, "ds4_session_sync", err, [&] { return ds4::sync_session(*s, tokens, n, n_kept, err); });
}

ds4_status ds4_session_eval(ds4_session *s, const int32_t *tokens, size_t n, float *logits, ds4_error *err) {
    return enter(s, "ds4_session_eval", err, [&] { return ds4::eval_session(*s, tokens, n, logits, err); });
}

ds4_status ds4_session_logits(ds4_session *s, const float **out, ds4_error *err) {
    return enter(s, "ds4_session_logits", err, [&] {
        if (!out) return fail(err, DS4_E_ARGUMENT, "ds4_session_logits: out is NULL");
        if (s->tokens.empty()) return fail(err, DS4_E_STATE, "no logits yet: the session holds no position");
        *out = s->logits.data();
        return DS4_OK;
    });
}

ds4_status ds4_session_mtp(ds4_session *s, int32_t next_token, float *logits, ds4_error *err) {
    return enter(s, "ds4_session_mtp", err, [&] {
        if (!logits) return fail(err, DS4_E_ARGUMENT, "ds4_session_mtp: logits is NULL");
        return ds4::mtp_session(*s, next_token, logits, err);
    });
}

ds4_status ds4_session_eval_ahead(ds4_session *s, const int32_t *tokens, size_t n, ds4_error *err) {
    return enter(s, "ds4_session_eval_ahead", err, [&] { return ds4::eval_ahead(*s, tokens, n, err); });
}

size_t ds4_session_ahead(const ds4_session *s) { return s ? s->ahead.ready() : 0; }

ds4_status ds4_session_draft(ds4_session *s, int32_t next_token, const ds4_drafting *how, int32_t *tokens, size_t *n,
                             ds4_error *err) {
    return enter(s, "ds4_session_draft", err, [&] {
        if (!how || !tokens || !n) return fail(err, DS4_E_ARGUMENT, "ds4_session_draft: how, tokens or n is NULL");
        return ds4::draft_session(*s, next_token, *how, tokens, n, err);
    });
}

ds4_status ds4_session_reset(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_reset", err, [&] {
        ds4::reset_session(*s);
        return DS4_OK;
    });
}

size_t ds4_session_pos(const ds4_session *s) { return s ? s->tokens.size() : 0; }
const int32_t *ds4_session_tokens(const ds4_session *s) { return s ? s->tokens.data() : nullptr; }
uint32_t ds4_session_n_ctx(const ds4_session *s) { return s ? s->options.n_ctx : 0; }
void ds4_session_get_options(const ds4_session *s, ds4_session_options *out) {
    if (s && out) *out = s->options;
}
uint64_t ds4_session_bytes(const ds4_session *s) {
    if (!s) return 0;
    ds4_memory_plan plan;
    ds4::plan_session(s->model->shape, s->options, &plan, s->model->ops);
    return plan.total_session_bytes - plan.checkpoint_bytes + s->checkpoints.bytes() +
           (s->steering ? s->steering->bytes : 0);
}

ds4_status ds4_session_checkpoint(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_checkpoint", err, [&] { return ds4::checkpoint_session(*s, err); });
}
ds4_status ds4_session_checkpoints(ds4_session *s, uint32_t *out, size_t cap, size_t *n, ds4_error *err) {
    return enter(s, "ds4_session_checkpoints", err, [&] {
        if (!n || (cap && !out)) return fail(err, DS4_E_ARGUMENT, "ds4_session_checkpoints: out or n is NULL");
        const std::vector<ds4::Checkpoint> &all = s->checkpoints.all();
        *n = all.size();
        for (size_t i = 0; i < std::min(cap, all.size()); i++) out[i] = all[i].pos;
        return DS4_OK;
    });
}
size_t ds4_session_steps_back(const ds4_session *s) { return s ? ds4::steps_back(*s) : 0; }
ds4_status ds4_session_rewind(ds4_session *s, size_t pos, size_t *reached, ds4_error *err) {
    return enter(s, "ds4_session_rewind", err, [&] { return ds4::rewind_session(*s, pos, reached, err); });
}

void ds4_session_cancel(ds4_session *s) {
    if (!s) return;
    ds4::Phase running = ds4::Phase::running;
    s->phase.compare_exchange_strong(running, ds4::Phase::stopping);
}
void ds4_session_set_pulse(ds4_session *s, ds4_pulse pulse, void *ud) {
    if (!s) return;
    s->pulse = pulse;
    s->pulse_ud = ud;
}
void ds4_session_set_tap(ds4_session *s, ds4_tap tap, void *ud) {
    if (s) ds4::set_tap(*s, 1u << DS4_STAGE_STREAMS, tap, ud);
}
ds4_status ds4_session_tap_stages(ds4_session *s, uint32_t stages, ds4_tap tap, void *ud, ds4_error *err) {
    return enter(s, "ds4_session_tap_stages", err, [&] {
        if (stages >> DS4_N_STAGES)
            return fail(err, DS4_E_ARGUMENT, "stages is 0x%x; there are %d", stages, int{DS4_N_STAGES});
        ds4::set_tap(*s, stages, tap, ud);
        return DS4_OK;
    });
}
const char *ds4_stage_name(uint32_t stage) { return ds4::stage_name(stage); }

ds4_status ds4_session_set_steering(ds4_session *s, const ds4_steering *directions, size_t n, ds4_error *err) {
    return enter(s, "ds4_session_set_steering", err, [&] {
        if (n && !directions) return fail(err, DS4_E_ARGUMENT, "ds4_session_set_steering: directions is NULL");
        return ds4::set_steering(*s, directions, n, err);
    });
}
ds4_status ds4_session_steering(ds4_session *s, uint64_t *present, size_t *n_kept, uint64_t *held, ds4_error *err) {
    return enter(s, "ds4_session_steering", err, [&] {
        const uint32_t pos = static_cast<uint32_t>(s->tokens.size());
        if (present) *present = s->steering_digest();
        if (n_kept) *n_kept = s->steered.uniform(s->steering_digest(), pos);
        if (held) *held = s->steered.identity(pos);
        return DS4_OK;
    });
}
void ds4_session_margins(const ds4_session *s, float *indexer, float *router) {
    if (s && indexer) *indexer = s->margins.indexer;
    if (s && router) *router = s->margins.router;
}

ds4_status ds4_session_importance_start(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_importance_start", err, [&] { return ds4::start_importance(*s, err); });
}
ds4_status ds4_session_importance_stop(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_importance_stop", err, [&] {
        ds4::stop_importance(*s);
        return DS4_OK;
    });
}
ds4_status ds4_session_importance(ds4_session *s, uint32_t layer, double *sum_in, double *sum_mid, uint64_t *counts,
                                  ds4_error *err) {
    return enter(s, "ds4_session_importance", err, [&] {
        if (!sum_in || !sum_mid || !counts)
            return fail(err, DS4_E_ARGUMENT, "ds4_session_importance: a place to write to is NULL");
        return ds4::read_importance(*s, layer, sum_in, sum_mid, counts, err);
    });
}

const char *ds4_part_name(uint32_t part) { return ds4::part_name(part); }
ds4_status ds4_session_profile_start(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_profile_start", err, [&] {
        ds4::start_profile(*s);
        return DS4_OK;
    });
}
ds4_status ds4_session_profile_stop(ds4_session *s, ds4_error *err) {
    return enter(s, "ds4_session_profile_stop", err, [&] {
        ds4::stop_profile(*s);
        return DS4_OK;
    });
}
ds4_status ds4_session_profile(ds4_session *s, uint32_t phase, uint64_t *tokens, uint64_t *ns, uint64_t *entries,
                               ds4_error *err) {
    return enter(s, "ds4_session_profile", err, [&] {
        if (!tokens || !ns || !entries)
            return fail(err, DS4_E_ARGUMENT, "ds4_session_profile: a place to write to is NULL");
        return ds4::read_profile(*s, phase, tokens, ns, entries, err);
    });
}
ds4_status ds4_session_fill(ds4_session *s, size_t n, uint64_t seed, ds4_error *err) {
    return enter(s, "ds4_session_fill", err, [&] { return ds4::fill_session(*s, n, seed, err); });
}

uint64_t ds4_session_snapshot_bytes(const ds4_session *s) { return s ? ds4::snapshot_bytes(*s) : 0; }
ds4_status ds4_session_snapshot(ds4_session *s, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err) {
    return enter(s, "ds4_session_snapshot", err, [&] { return ds4::write_snapshot(*s, buf, cap, n_bytes, err); });
}
ds4_status ds4_session_restore(ds4_session *s, const void *buf, uint64_t n_bytes, ds4_error *err) {
    return enter(s, "ds4_session_restore", err, [&] { return ds4::read_snapshot(*s, buf, n_bytes, err); });
}

uint64_t ds4_session_rows_bytes(const ds4_session *s, uint32_t start, uint32_t stop) {
    return s ? ds4::rows_bytes(*s, start, stop) : 0;
}
ds4_status ds4_session_export_rows(ds4_session *s, uint32_t start, uint32_t stop, void *buf, uint64_t cap,
                                   uint64_t *n_bytes, ds4_error *err) {
    return enter(s, "ds4_session_export_rows", err, [&] {
        if (!n_bytes) return fail(err, DS4_E_ARGUMENT, "ds4_session_export_rows: n_bytes is NULL");
        return ds4::export_rows(*s, start, stop, buf, cap, n_bytes, err);
    });
}
uint64_t ds4_session_tail_bytes(const ds4_session *s, uint32_t at) { return s ? ds4::packed_tail_bytes(*s, at) : 0; }
ds4_status ds4_session_export_tail(ds4_session *s, uint32_t at, void *buf, uint64_t cap, uint64_t *n_bytes,
                                   ds4_error *err) {
    return enter(s, "ds4_session_export_tail", err, [&] {
        if (!n_bytes) return fail(err, DS4_E_ARGUMENT, "ds4_session_export_tail: n_bytes is NULL");
        return ds4::export_tail(*s, at, buf, cap, n_bytes, err);
    });
}
ds4_status ds4_session_import(ds4_session *s, const int32_t *tokens, size_t n, const ds4_blob *rows, size_t n_rows,
                              const ds4_blob *tail, size_t *pos, ds4_error *err) {
    return enter(s, "ds4_session_import", err, [&] {
        if (!tokens || (n_rows && !rows) || !tail)
            return fail(err, DS4_E_ARGUMENT, "ds4_session_import: tokens, rows or tail is NULL");
        return ds4::import_state(*s, tokens, n, rows, n_rows, *tail, pos, err);
    });
}

uint64_t ds4_session_state_floats(const ds4_session *s) {
    return s ? ds4::state_floats(*s, static_cast<uint32_t>(s->tokens.size())) : 0;
}
ds4_status ds4_session_read_state(ds4_session *s, float *out, uint64_t n_floats, ds4_error *err) {
    return enter(s, "ds4_session_read_state", err, [&] { return ds4::read_state(*s, out, n_floats, err); });
}
ds4_status ds4_session_load_state(ds4_session *s, const int32_t *tokens, size_t n, const float *values,
                                  uint64_t n_floats, ds4_error *err) {
    return enter(s, "ds4_session_load_state", err,
                 [&] { return ds4::load_state(*s, tokens, n, values, n_floats, err); });
}

ds4_status ds4_sample(const float *logits, size_t n, const ds4_sampling *p, uint64_t *rng, int32_t *token,
                      float *logprob, ds4_error *err) {
    if (!logits || !n || !p || !rng || !token) return fail(err, DS4_E_ARGUMENT, "ds4_sample: NULL argument or no logits");
    return guarded("ds4_sample", err, [&] { return ds4::sample(logits, n, *p, rng, token, logprob, err); });
}
