// A session over a model: the token timeline, its cache, and the calls that move it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ds4/session.h"
#include "kv/cache.h"
#include "model/graph.h"
#include "session/ahead.h"
#include "session/checkpoints.h"
#include "session/importance.h"
#include "session/past.h"
#include "session/steering.h"

namespace ds4 {
// Who is inside a session. One atomic, so that a cancel meets the running call or nothing.
enum class Phase : int { idle, running, stopping };
}  // namespace ds4

struct ds4_session {
    ds4_session() = default;
    ~ds4_session();
    ds4_session(const ds4_session &) = delete;

    ds4_model *model = nullptr;
    ds4_session_options options{};
    std::string affinity;  // that options point to
    ds4_queue *queue = nullptr;
    ds4::Scratch scratch;
    ds4::KvCache cache;
    std::unique_ptr<ds4::Graph> graph;
    std::unique_ptr<ds4::Importance> importance;  // while statistics are gathered
    std::unique_ptr<ds4::Profile> profile;        // while times are taken
    ds4::Past past;
    std::shared_ptr<const ds4::SessionSteering> steering;  // of what is computed from now on
    ds4::SteeringHistory steered;                          // of the positions held
    uint64_t steering_digest() const { return steering ? steering->digest : 0; }
    // with_mtp: work space for the streams of the last position (row 0) and of the running chunk (rows 1..).
    ds4_buffer *mtp_streams = nullptr;

    std::vector<int32_t> tokens;
    std::vector<float> logits;  // [n_vocab] of the last position; valid when tokens is not empty
    std::vector<float> next_logits;  // of the chunk that runs, until it is known to be good
    ds4::Ahead ahead;  // whatever changes the state in another way than going on drops it
    ds4::Checkpoints checkpoints;
    size_t turn_end = 0;  // where the last sync ended: worth a checkpoint when the session goes on from there

    std::atomic<ds4::Phase> phase{ds4::Phase::idle};
    ds4_pulse pulse = nullptr;
    void *pulse_ud = nullptr;
    ds4_tap tap = nullptr;
    void *tap_ud = nullptr;
    uint32_t tap_stages = 1u << DS4_STAGE_STREAMS;
    std::chrono::steady_clock::time_point last_pulse{};
    ds4_progress progress{};  // of the running call
    ds4_margins margins{};
};

namespace ds4 {

void plan_session(const ds4_shape &s, const ds4_session_options &o, ds4_memory_plan *out,
                  const ds4_backend_ops *ops = cpu_backend());
ds4_status create_session(ds4_model *m, const ds4_session_options &o, ds4_session **out, ds4_error *err);
ds4_status fork_session(ds4_session &s, ds4_session **out, ds4_error *err);
// DS4_E_ARGUMENT unless there is a token and all are in the vocabulary.
ds4_status check_tokens(const ds4_session &s, const int32_t *tokens, size_t n, ds4_error *err);
ds4_status sync_session(ds4_session &s, const int32_t *tokens, size_t n, size_t *n_kept, ds4_error *err);
ds4_status eval_session(ds4_session &s, const int32_t *tokens, size_t n, float *logits, ds4_error *err);
// Append tokens[0] and compute the others ahead.
ds4_status eval_ahead(ds4_session &s, const int32_t *tokens, size_t n, ds4_error *err);
ds4_status check_mtp(const ds4_session &s, int32_t next_token, ds4_error *err);
ds4_status draft_session(ds4_session &s, int32_t next_token, const ds4_drafting &how, int32_t *tokens, size_t *n,
                         ds4_error *err);
ds4_status mtp_session(ds4_session &s, int32_t next_token, float *logits, ds4_error *err);
void reset_session(ds4_session &s);

ds4_status keep_checkpoint(ds4_session &s, Checkpoint::Why why, ds4_error *err);
ds4_status checkpoint_session(ds4_session &s, ds4_error *err);
// How many positions can be taken back without a checkpoint.
size_t steps_back(const ds4_session &s);
ds4_status rewind_session(ds4_session &s, size_t pos, size_t *reached, ds4_error *err);

const char *stage_name(uint32_t stage);
void set_tap(ds4_session &s, uint32_t stages, ds4_tap tap, void *ud);

ds4_status start_importance(ds4_session &s, ds4_error *err);
void stop_importance(ds4_session &s);
ds4_status read_importance(ds4_session &s, uint32_t layer, double *sum_in, double *sum_mid, uint64_t *counts,
                           ds4_error *err);

const char *part_name(uint32_t part);
void start_profile(ds4_session &s);
void stop_profile(ds4_session &s);
ds4_status read_profile(ds4_session &s, uint32_t phase, uint64_t *tokens, uint64_t *ns, uint64_t *entries,
                        ds4_error *err);
ds4_status fill_session(ds4_session &s, size_t n, uint64_t seed, ds4_error *err);

uint64_t rows_bytes(const ds4_session &s, uint32_t start, uint32_t stop);
ds4_status export_rows(ds4_session &s, uint32_t start, uint32_t stop, void *buf, uint64_t cap, uint64_t *n_bytes,
                       ds4_error *err);
uint64_t packed_tail_bytes(const ds4_session &s, uint32_t at);
ds4_status export_tail(ds4_session &s, uint32_t at, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err);
ds4_status import_state(ds4_session &s, const int32_t *tokens, size_t n_tokens, const ds4_blob *rows, size_t n_rows,
                        const ds4_blob &tail, size_t *pos, ds4_error *err);

uint64_t state_floats(const ds4_session &s, uint32_t pos);
ds4_status read_state(ds4_session &s, float *out, uint64_t n, ds4_error *err);
ds4_status load_state(ds4_session &s, const int32_t *tokens, size_t n_tokens, const float *in, uint64_t n,
                      ds4_error *err);

uint64_t snapshot_bytes(const ds4_session &s);
ds4_status write_snapshot(ds4_session &s, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err);
ds4_status read_snapshot(ds4_session &s, const void *buf, uint64_t n_bytes, ds4_error *err);

}  // namespace ds4
