// Moving a session: chunk by chunk through the graph, each one whole or undone.
#include "session/session.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/machine.h"

ds4_session::~ds4_session() {
    graph.reset();
    if (!model) return;
    model->ops->buffer_free(mtp_streams);
    if (queue) model->ops->queue_destroy(queue);
}

namespace ds4 {

ds4_status check_tokens(const ds4_session &s, const int32_t *tokens, size_t n, ds4_error *err) {
    if (!tokens || n == 0) return fail(err, DS4_E_ARGUMENT, "no tokens: at least one is needed");
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= s.model->shape.n_vocab)
            return fail(err, DS4_E_ARGUMENT, "token %zu is %d, outside the vocabulary 0..%u", i, tokens[i],
                        s.model->shape.n_vocab - 1);
    return DS4_OK;
}

namespace {

// Asks the caller whether to go on; at most every 50 ms, but a cancel is seen at once.
bool keep_going(ds4_session &s, uint64_t done, uint64_t total) {
    s.progress = {done, total};
    if (s.phase.load() == Phase::stopping) return false;
    auto now = std::chrono::steady_clock::now();
    if (!s.pulse || now - s.last_pulse < std::chrono::milliseconds(50)) return true;
    s.last_pulse = now;
    return s.pulse(s.pulse_ud, &s.progress) == 0 && s.phase.load() != Phase::stopping;
}

void show_rows(ds4_session &s, uint32_t stage, uint32_t layer, ds4_ref rows, uint32_t n, uint32_t width) {
    std::vector<float> values(uint64_t{n} * width);
    s.model->ops->download(s.queue, values.data(), rows, values.size() * 4);
    s.tap(s.tap_ud, stage_name(stage), layer, static_cast<uint32_t>(s.tokens.size()), n, width, values.data());
}

// Give the MTP block the pairs (streams of p, token p + 1) that this chunk completes. Afterwards rows 1.. of
// mtp_streams hold the chunk's streams.
ds4_status feed_mtp(ds4_session &s, const int32_t *tokens, uint32_t n, uint32_t pos0, ds4_error *err) {
    const ds4_backend_ops *ops = s.model->ops;
    const uint64_t row = stream_bytes(s.model->shape);
    ops->copy(s.queue, ref(s.mtp_streams, row), s.scratch.streams, n * row);
    const uint32_t skip = pos0 == 0;  // the first token of all completes no pair
    if (!skip) ops->copy(s.queue, ref(s.mtp_streams), s.past.streams(pos0 - 1), row);
    if (n > skip) {
        if (s.profile) s.profile->block(s.model->shape.n_layer);
        ops->upload(s.queue, s.scratch.tokens, tokens + skip, (n - skip) * 4);
        s.graph->mtp_input(ref(s.mtp_streams, skip * row), n - skip);
        if (s.importance)  // the rows are those of mtp_rows; the rest of the block runs for its experts' statistics
            s.graph->mtp_block(n - skip, pos0 + skip - 1, s.cache.mtp, &s.importance->block(s.model->shape.n_layer));
        else
            s.graph->mtp_rows(n - skip, pos0 + skip - 1, s.cache.mtp);
        if (s.profile) s.profile->outside();
    }
    return s.graph->wait(err);
}

// Logits of the chunk's rows: all of them to `out`, or only the last; that one also to `last`. False when stopped.
bool read_logits(ds4_session &s, uint32_t n, float *out, float *last, uint64_t done, uint64_t total) {
    const ds4_model &m = *s.model;
    const uint64_t row = stream_bytes(s.model->shape), vocab = m.shape.n_vocab;
    for (uint32_t i = out ? 0 : n - 1; i < n;) {
        const uint32_t k = std::min(n - i, Scratch::kLogitRows);
        s.graph->head(m.head, m.output_norm, advance(s.scratch.streams, i * row), k);
        if (out) m.ops->download(s.queue, out + i * vocab, s.scratch.logits, k * vocab * 4);
        i += k;
        if (i == n)
            m.ops->download(s.queue, last, advance(s.scratch.logits, (k - 1) * vocab * 4), vocab * 4);
        else if (!keep_going(s, done, total))
            return false;
    }
    return true;
}

// A chunk that ends in any other way than commit() is undone, by an exception too. A short one overwrites nothing that
// its first position needs, only what earlier ones do.
class Undo {
public:
    Undo(ds4_session &s, uint32_t n) : s_(s), long_(n > kSlack) {
        if (long_)
            s_.cache.save_states(s_.queue);
        else
            s_.past.reach(s_.tokens.size() + n);
    }
    ~Undo() {
        if (done_) return;
        s_.graph->wait(nullptr);  // a failure that nobody asked for yet ends here
        if (long_) s_.cache.restore_states(s_.queue);
    }
    void commit() { done_ = true; }

private:
    ds4_session &s_;
    bool long_, done_ = false;
};

bool all_finite(const float *x, size_t n) {
    return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

// One chunk, of which the first `n_taken` tokens become part of the timeline; the others, which need `logits`, are
// computed ahead. On anything but DS4_OK the session is as before it.
ds4_status eval_chunk(ds4_session &s, const int32_t *tokens, uint32_t n, uint32_t n_taken, float *logits, uint64_t done,
                      uint64_t total, ds4_error *err) {
    const ds4_backend_ops *ops = s.model->ops;
    const uint32_t pos0 = static_cast<uint32_t>(s.tokens.size()), n_layer = s.model->shape.n_layer;
    s.tokens.reserve(pos0 + n);  // nothing may throw between the last check and the commit
    const MeasuredChunk measured(s.profile.get(), n);
    Undo undo(s, n);
    ops->upload(s.queue, s.scratch.tokens, tokens, uint64_t{n} * 4);
    bool whole = s.graph->forward(n, pos0, s.cache.layers, [&](uint32_t layer) {
        if (s.tap && s.tap_stages >> DS4_STAGE_STREAMS & 1)
            show_rows(s, DS4_STAGE_STREAMS, layer, s.scratch.streams, n,
                      static_cast<uint32_t>(stream_bytes(s.model->shape) / 4));
        return layer == n_layer || keep_going(s, done + uint64_t{n} * layer / n_layer, total);
    });
    whole = whole && read_logits(s, n, logits, s.next_logits.data(), done + n, total);
    ds4_status st = s.graph->wait(err);
    if (st != DS4_OK && st != DS4_E_CANCELLED) return st;
    const size_t vocab = s.next_logits.size();
    if (whole && n_taken < n) std::copy_n(logits + (n_taken - 1) * vocab, vocab, s.next_logits.begin());
    if (!whole)
        return fail(err, DS4_E_CANCELLED, "stopped after %llu of %llu tokens; the session stands at position %u",
                    static_cast<unsigned long long>(done), static_cast<unsigned long long>(total), pos0);
    for (size_t i = 0; i < s.next_logits.size(); i++)
        if (!std::isfinite(s.next_logits[i]))
            return fail(err, DS4_E_DATA, "logit %zu after position %u is not finite: %s", i, pos0 + n_taken - 1,
                        s.steering ? "the steering is too strong, or the weights are damaged"
                                   : "the weights look damaged, check them");
    uint32_t ready = n_taken;
    while (ready < n && all_finite(logits + ready * vocab, vocab)) ready++;
    s.ahead.tokens.reserve(n);
    if (s.mtp_streams) st = feed_mtp(s, tokens, n, pos0, err);
    if (st != DS4_OK) return st;
    s.past.keep(s.queue, pos0, s.mtp_streams ? ref(s.mtp_streams, stream_bytes(s.model->shape)) : s.scratch.streams, n);
    st = ops->queue_wait(s.queue, err);
    if (st != DS4_OK) return st;
    s.logits.swap(s.next_logits);
    s.steered.note(pos0, s.steering_digest());
    s.tokens.insert(s.tokens.end(), tokens, tokens + n_taken);
    s.ahead.tokens.assign(tokens + n_taken, tokens + ready);
    undo.commit();
    if (s.profile) s.profile->count(n);
    return DS4_OK;
}

// Whether somebody looks at the computation, who is to see the timeline only.
bool observed(const ds4_session &s) { return s.tap || s.profile || s.importance; }

// The next token was computed ahead.
void take_ahead(ds4_session &s, int32_t token, float *logits) {
    const size_t vocab = s.logits.size();
    s.tokens.push_back(token);
    s.ahead.next++;
    std::copy_n(s.ahead.logits.data() + s.ahead.next * vocab, vocab, s.logits.begin());
    if (logits) std::copy_n(s.logits.data(), vocab, logits);
}

ds4_status check_room(const ds4_session &s, size_t n, ds4_error *err) {
    if (n <= s.options.n_ctx - s.tokens.size()) return DS4_OK;
    return fail(err, DS4_E_CONTEXT, "%zu token(s) after position %zu do not fit a context of %u", n, s.tokens.size(),
                s.options.n_ctx);
}

}  // namespace

ds4_status eval_session(ds4_session &s, const int32_t *tokens, size_t n, float *logits, ds4_error *err) {
    ds4_status st = check_tokens(s, tokens, n, err);
    if (st == DS4_OK) st = check_room(s, n, err);
    if (st != DS4_OK) return st;
    if (s.turn_end && s.turn_end == s.tokens.size()) st = keep_checkpoint(s, Checkpoint::turn, err);
    s.model->ops->margins_reset(s.queue);
    for (size_t i = 0; i < n && st == DS4_OK;) {
        const uint32_t pos = static_cast<uint32_t>(s.tokens.size());
        const uint32_t end = pos + static_cast<uint32_t>(std::min<size_t>(n - i, s.options.chunk));
        uint32_t k = s.checkpoints.chunk_end(pos, end) - pos;
        float *rows = logits ? logits + i * s.model->shape.n_vocab : nullptr;
        if (s.ahead.holds(tokens[i]) && !observed(s)) {
            take_ahead(s, tokens[i], rows);
            k = 1;
        } else {
            s.ahead.drop();
            st = eval_chunk(s, tokens + i, k, k, rows, i, n, err);
        }
        if (st == DS4_OK && s.checkpoints.due(pos + k)) st = keep_checkpoint(s, Checkpoint::automatic, err);
        i += k;
    }
    s.margins = s.model->ops->margins(s.queue);
    return st;
}

ds4_status eval_ahead(ds4_session &s, const int32_t *tokens, size_t n, ds4_error *err) {
    ds4_status st = check_tokens(s, tokens, n, err);
    if (st == DS4_OK) st = check_room(s, 1, err);
    if (st != DS4_OK) return st;
    if (n > 1 + kMostAhead)
        return fail(err, DS4_E_ARGUMENT, "%zu tokens ahead, at most %u", n - 1, kMostAhead);
    const size_t fit = std::min<size_t>({n, s.options.chunk, s.options.n_ctx - s.tokens.size()});
    if (fit == 1 || observed(s) || s.ahead.holds(tokens[0]))
        return eval_session(s, tokens, 1, nullptr, err);
    s.ahead.drop();
    s.ahead.logits.resize(Ahead::bytes(s.logits.size()) / 4);
    s.tokens.reserve(s.tokens.size() + fit);
    if (s.turn_end && s.turn_end == s.tokens.size()) st = keep_checkpoint(s, Checkpoint::turn, err);
    s.model->ops->margins_reset(s.queue);
    if (st == DS4_OK) st = eval_chunk(s, tokens, static_cast<uint32_t>(fit), 1, s.ahead.logits.data(), 0, 1, err);
    if (st == DS4_OK && s.checkpoints.due(static_cast<uint32_t>(s.tokens.size())))
        st = keep_checkpoint(s, Checkpoint::automatic, err);
    s.margins = s.model->ops->margins(s.queue);
    return st;
}

ds4_status sync_session(ds4_session &s, const int32_t *tokens, size_t n, size_t *n_kept, ds4_error *err) {
    ds4_status st = check_tokens(s, tokens, n, err);
    if (st != DS4_OK) return st;
    if (n > s.options.n_ctx)
        return fail(err, DS4_E_CONTEXT, "a prompt of %zu tokens does not fit a context of %u", n, s.options.n_ctx);
    const auto leaves = std::mismatch(s.tokens.begin(), s.tokens.end(), tokens, tokens + n).first;
    size_t kept = 0;
    st = rewind_session(s, static_cast<size_t>(leaves - s.tokens.begin()), &kept, err);
    if (st != DS4_OK) return st;
    if (n_kept) *n_kept = kept;
    if (kept < n) st = eval_session(s, tokens + kept, n - kept, nullptr, err);
    if (st == DS4_OK) s.turn_end = n;
    return st;
}

const char *stage_name(uint32_t stage) {
    static const char *const names[] = {"streams", "attn_in", "attn_norm", "q",      "kv",
                                        "attn_out", "ffn_in", "ffn_norm",  "router", "ffn_out"};
    static_assert(sizeof(names) / sizeof(names[0]) == DS4_N_STAGES, "a name for every stage");
    return stage < DS4_N_STAGES ? names[stage] : nullptr;
}

void set_tap(ds4_session &s, uint32_t stages, ds4_tap tap, void *ud) {
    s.tap = tap;
    s.tap_ud = ud;
    s.tap_stages = stages;
    if (tap)
        s.graph->show(stages, [&s](uint32_t stage, uint32_t layer, ds4_ref rows, uint32_t n, uint32_t width) {
            show_rows(s, stage, layer, rows, n, width);
        });
    else
        s.graph->show(0, {});
}

ds4_status mtp_session(ds4_session &s, int32_t next_token, float *logits, ds4_error *err) {
    const ds4_status st = check_mtp(s, next_token, err);
    if (st != DS4_OK) return st;
    const ds4_model &m = *s.model;
    m.ops->upload(s.queue, s.scratch.tokens, &next_token, 4);
    s.graph->mtp_input(s.past.streams(s.tokens.size() - 1), 1);
    // Writes the window row of the last position, which the real next token will write again.
    s.graph->mtp_block(1, static_cast<uint32_t>(s.tokens.size()) - 1, s.cache.mtp);
    s.graph->head(m.mtp->head, m.mtp->norm, s.scratch.streams, 1);
    m.ops->download(s.queue, logits, s.scratch.logits, uint64_t{m.shape.n_vocab} * 4);
    return s.graph->wait(err);
}

void reset_session(ds4_session &s) {
    s.tokens.clear();
    s.ahead.drop();
    s.past.begin(0);
    s.steered.cut(0);
    s.checkpoints.cut(0);
    s.turn_end = 0;
}

namespace {

ds4_status check_options(const ds4_model &m, const ds4_session_options &o, ds4_error *err) {
    struct Range {
        const char *name;
        uint32_t value, low, high;
    };
    for (const Range &r : {Range{"n_ctx", o.n_ctx, 1, 1048576}, Range{"chunk", o.chunk, 1, 4096},
                           Range{"n_threads", o.n_threads, 1, 256}, Range{"checkpoint_every", o.checkpoint_every, 0, 1048576}})
        if (r.value < r.low || r.value > r.high)
            return fail(err, DS4_E_ARGUMENT, "%s is %u, it must be in %u..%u", r.name, r.value, r.low, r.high);
    if (o.activations != DS4_ACT_FLOAT && o.activations != DS4_ACT_QUANTIZED)
        return fail(err, DS4_E_ARGUMENT, "activations is %d; known are 0 (float32) and 1 (quantized)", o.activations);
    if (o.numa != DS4_NUMA_NONE && o.numa != DS4_NUMA_INTERLEAVE)
        return fail(err, DS4_E_ARGUMENT, "numa is %d; known are 0 (none) and 1 (interleave)", o.numa);
    if (o.with_mtp && !m.mtp) return fail(err, DS4_E_ARGUMENT, "with_mtp is set but the model has no MTP block");
    return DS4_OK;
}

}  // namespace

void plan_session(const ds4_shape &s, const ds4_session_options &o, ds4_memory_plan *out, const ds4_backend_ops *ops) {
    *out = {};
    const uint32_t row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;
    const bool mtp = o.with_mtp != 0;
    plan_cache(s, {o.n_ctx, o.chunk, row_type, mtp}, out);
    out->scratch_bytes = Scratch::bytes(s, o.chunk) + ops->work_bytes(&s, o.n_ctx, o.chunk, o.n_threads);
    out->scratch_bytes += Past::bytes(stream_bytes(s)) + Ahead::bytes(s.n_vocab);
    if (mtp) out->scratch_bytes += (uint64_t{o.chunk} + 1) * stream_bytes(s);
    const uint64_t tail = KvCache::most_tail_bytes(s, row_type, mtp) + uint64_t{s.n_vocab} * 4 + (mtp ? stream_bytes(s) : 0);
    const uint64_t most = Checkpoints::kByHand + Checkpoints::kTurns +
                          (o.checkpoint_every ? o.n_ctx / o.checkpoint_every : 0);
    out->checkpoint_bytes = std::min(o.checkpoint_bytes, most * tail);
    out->total_session_bytes = out->window_bytes + out->compressed_bytes + out->indexer_bytes + out->compressor_bytes +
                               out->scratch_bytes + out->checkpoint_bytes;
}

ds4_status create_session(ds4_model *m, const ds4_session_options &o, ds4_session **out, ds4_error *err) {
    ds4_status st = check_options(*m, o, err);
    if (st != DS4_OK) return st;
    ds4_memory_plan plan;
    plan_session(m->shape, o, &plan, m->ops);
    char advice[160];
    snprintf(advice, sizeof advice, "use a smaller n_ctx (now %u) or chunk (%u), or close other sessions and models", o.n_ctx, o.chunk);
    st = check_room(*m, "the rows and the work space of a session", plan.total_session_bytes - plan.checkpoint_bytes, advice, err);
    if (st != DS4_OK) return st;
    auto s = std::make_unique<ds4_session>();
    s->model = m;
    s->options = o;
    const uint32_t row_type = o.rows_f16 ? DS4_ROW_F16 : DS4_ROW_F32;
    Placement placement;
    st = choose_placement(o.affinity, o.numa != DS4_NUMA_NONE, o.n_threads, read_machine(affinity_mask()), &placement, err);
    if (st != DS4_OK) return st;
    s->checkpoints.configure(o.checkpoint_every, o.checkpoint_bytes);
    s->affinity = o.affinity ? o.affinity : "none";
    s->options.affinity = s->affinity.c_str();
    st = m->ops->queue_create(m->device, o.n_threads, &placement, &s->queue, err);
    if (st == DS4_OK) st = s->scratch.create(*m, o.chunk, err);
    if (st == DS4_OK)
        st = s->cache.create(m->shape, {o.n_ctx, o.chunk, row_type, o.with_mtp != 0}, m->ops, m->device, err);
    if (st == DS4_OK) st = s->past.create(m->ops, m->device, stream_bytes(m->shape), err);
    if (st == DS4_OK && o.with_mtp)
        st = m->ops->buffer_alloc(m->device, (uint64_t{o.chunk} + 1) * stream_bytes(m->shape), &s->mtp_streams, err);
    if (st != DS4_OK) return st;
    s->logits.resize(m->shape.n_vocab);
    s->next_logits.resize(m->shape.n_vocab);
    s->graph = std::make_unique<Graph>(*m, GraphSettings{o.qat != 0, o.activations == DS4_ACT_QUANTIZED, row_type},
                                       s->queue, s->scratch);
    s->graph->poll_with([own = s.get()] { return keep_going(*own, own->progress.done, own->progress.total); });
    m->ops->margins_reset(s->queue);
    s->margins = m->ops->margins(s->queue);
    m->references.fetch_add(1);
    *out = s.release();
    return DS4_OK;
}

}  // namespace ds4
