/* A session: one mutable timeline of tokens over a model, with its KV cache.
 *
 * One caller at a time: a second thread gets DS4_E_BUSY. Only ds4_session_cancel may be called from elsewhere.
 * A cancelled or failed call leaves the session at the last whole chunk, valid and usable. */
#ifndef DS4_SESSION_H
#define DS4_SESSION_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds4_session ds4_session;

enum { DS4_NUMA_NONE = 0, DS4_NUMA_INTERLEAVE = 1 };
enum { DS4_ACT_FLOAT = 0, DS4_ACT_QUANTIZED = 1 };

typedef struct ds4_session_options {
    uint32_t struct_size;
    uint32_t n_ctx;        /* positions; 1 .. 1048576 */
    uint32_t chunk;        /* largest prefill chunk; 1 .. 4096 (default 512) */
    uint32_t n_threads;    /* 1 .. 256 (default: ds4_default_threads) */
    int32_t qat;           /* 1 (default): FP8/FP4 round trips of the released model; 0: as transformers */
    int32_t rows_f16;      /* 1 (default): cache rows stored as F16; 0: F32 */
    int32_t activations;   /* DS4_ACT_QUANTIZED (default): 8 bits against quantized weights; or DS4_ACT_FLOAT */
    int32_t with_mtp;      /* 1: keep the MTP block's own rows, so that ds4_session_mtp works */
    const char *affinity;  /* NULL or "none" (default): threads run where the system likes; "auto": one thread a core;
                              "0-3,8": thread i on the i-th processor of the list. The calling thread has its place
                              only while it computes */
    int32_t numa;          /* DS4_NUMA_NONE (default) or DS4_NUMA_INTERLEAVE: pages of the file and of the session that
                              its threads are first to touch go to all memory nodes in turn */
    uint32_t checkpoint_every; /* positions between automatic checkpoints; 0: none (default 1024) */
    uint64_t checkpoint_bytes; /* that all checkpoints together may take; 0: none at all (default 256 MiB) */
} ds4_session_options;

/* One thread a physical core that this process may use (affinity mask), not more than the CPU time that its control
 * groups grant (cgroup v1 and v2, rounded up) and at most 64. */
DS4_API uint32_t ds4_default_threads(void);

DS4_API void ds4_session_options_init(ds4_session_options *o);
/* DS4_E_ARGUMENT  an option is out of range, or affinity names a processor that the process may not use, or too few.
 * DS4_E_UNAVAILABLE  interleaving on a system without NUMA, or the system refuses a place. DS4_E_MEMORY. */
DS4_API ds4_status ds4_session_create(ds4_model *m, const ds4_session_options *o, ds4_session **out, ds4_error *err);
DS4_API void ds4_session_free(ds4_session *s);

/* Memory that a session of these options (affinity and numa aside) takes at most. Options as in ds4_session_create;
 * zeros in *out when they are of a size that this library does not know. */
DS4_API void ds4_session_memory(const ds4_shape *shape, const ds4_session_options *o, ds4_memory_plan *out);

/* Bring the session to `tokens` and leave the logits of the last position ready.
 * Keeps the longest prefix it can: all it has when that is a prefix of `tokens` (nothing is computed when they are
 * equal), else it rewinds to the last checkpoint in the common prefix, else it starts again. What it computes has the
 * bits of a new session's.
 * tokens, n   ids in [0, n_vocab), n >= 1. *n_kept (may be NULL) receives the number of reused positions.
 * DS4_E_ARGUMENT   an id is out of range or n is 0; DS4_E_CONTEXT  n > n_ctx: the session is unchanged.
 * DS4_E_CANCELLED  the session stands at the last whole chunk. */
DS4_API ds4_status ds4_session_sync(ds4_session *s, const int32_t *tokens, size_t n, size_t *n_kept, ds4_error *err);

/* Append n tokens; errors as sync. `logits` NULL, or room for n * n_vocab floats: the logits of every appended
 * position (row i belongs to tokens[i]). On DS4_E_CANCELLED the rows of whole chunks are filled. */
DS4_API ds4_status ds4_session_eval(ds4_session *s, const int32_t *tokens, size_t n, float *logits, ds4_error *err);

/* Logits [n_vocab] of the last position. Valid until the next call that changes the session.
 * DS4_E_STATE when nothing was evaluated yet. */
DS4_API ds4_status ds4_session_logits(ds4_session *s, const float **out, ds4_error *err);

/* Logits [n_vocab] that the MTP block gives for the token after `next_token`, where next_token follows the last
 * position. Does not move the session. DS4_E_STATE without with_mtp or on an empty session. */
DS4_API ds4_status ds4_session_mtp(ds4_session *s, int32_t next_token, float *logits, ds4_error *err);

/* Speculation: tokens that the caller expects are computed ahead, together with the next one. They are no part of the
 * session until they are evaluated, which then costs nothing; nothing else about the session changes.
 * eval_ahead: append tokens[0] as ds4_session_eval does, and compute tokens[1..n-1] ahead, n <= 8. Those that do not fit
 * the context or the chunk are left out, and all while a tap, statistics or times are in use. ahead: how many tokens
 * are ready. */
DS4_API ds4_status ds4_session_eval_ahead(ds4_session *s, const int32_t *tokens, size_t n, ds4_error *err);
DS4_API size_t ds4_session_ahead(const ds4_session *s);

DS4_API size_t ds4_session_pos(const ds4_session *s);            /* number of positions held */
DS4_API const int32_t *ds4_session_tokens(const ds4_session *s); /* that many ids */
DS4_API uint32_t ds4_session_n_ctx(const ds4_session *s);
DS4_API void ds4_session_get_options(const ds4_session *s, ds4_session_options *out);
DS4_API uint64_t ds4_session_bytes(const ds4_session *s);        /* memory held by caches, scratch and checkpoints */
/* Checkpoints: positions that the session can go back to. Automatic ones are taken at the multiples of
 * checkpoint_every at which a chunk can end (chunks are cut there; with a chunk that is longer, at the last multiple in
 * it), others where a sync ended when the session goes on from there (the newest 8, in at most half of the budget), and
 * those asked for here (the newest 16). When checkpoint_bytes are full, the distance of the automatic ones is doubled,
 * then older ends of syncs go, then, for one asked for here, older ones of that kind. Going back forgets all behind.
 * DS4_E_STATE  an empty session, or one checkpoint alone exceeds checkpoint_bytes; DS4_E_MEMORY. */
DS4_API ds4_status ds4_session_checkpoint(ds4_session *s, ds4_error *err);
/* Positions of the checkpoints, ascending: at most cap of them are written to `out` (which may be NULL when cap is 0),
 * *n receives their number. */
DS4_API ds4_status ds4_session_checkpoints(ds4_session *s, uint32_t *out, size_t cap, size_t *n, ds4_error *err);
/* Go back to pos when it is at most ds4_session_steps_back before the present position, else to the newest checkpoint
 * at or before it; *reached (may be NULL) receives the position, 0 when there is no checkpoint. At the present position
 * nothing happens. DS4_E_ARGUMENT  pos is behind it: the session is unchanged. */
DS4_API ds4_status ds4_session_rewind(ds4_session *s, size_t pos, size_t *reached, ds4_error *err);

/* How many positions can be taken back without a checkpoint, computing the logits only: the last 8 that were evaluated,
 * since the session began or its state was put in place from elsewhere. */
DS4_API size_t ds4_session_steps_back(const ds4_session *s);

/* An independent session with the same options, state and checkpoints; it gathers no statistics, takes no times and has
 * no pulse and no tap. What both do from then on has the same bits as without the other. Errors as
 * ds4_session_create. */
DS4_API ds4_status ds4_session_fork(ds4_session *s, ds4_session **out, ds4_error *err);

/* Forget everything. */
DS4_API ds4_status ds4_session_reset(ds4_session *s, ds4_error *err);

/* Stop the call that is running, from another thread or a signal handler: it returns DS4_E_CANCELLED within a layer.
 * Without a running call nothing happens: a later one is not affected. */
DS4_API void ds4_session_cancel(ds4_session *s);
DS4_API void ds4_session_set_pulse(ds4_session *s, ds4_pulse pulse, void *ud);

/* Look at intermediate values: called on the calling thread with rows of float32 [n_rows][width], for
 * stage "streams" (layer 0..n_layer, width n_hc * n_embd: before that layer; the last is the head's input). */
typedef void (*ds4_tap)(void *ud, const char *stage, uint32_t layer, uint32_t pos, uint32_t n_rows, uint32_t width,
                        const float *values);
DS4_API void ds4_session_set_tap(ds4_session *s, ds4_tap tap, void *ud);

/* The same for the stages whose bits are set (1 << DS4_STAGE_...), each in the layers 0..n_layer - 1, the streams in
 * n_layer too. The MTP block is not shown. DS4_E_ARGUMENT  a bit that is no stage. */
enum {
    DS4_STAGE_STREAMS = 0, /* n_hc * n_embd, before the layer */
    DS4_STAGE_ATTN_IN,     /* n_embd, gathered from the streams */
    DS4_STAGE_ATTN_NORM,   /* n_embd */
    DS4_STAGE_Q,           /* n_head * head_dim, rotated */
    DS4_STAGE_KV,          /* head_dim, rotated, and rounded with qat */
    DS4_STAGE_ATTN_OUT,    /* n_embd, before steering */
    DS4_STAGE_FFN_IN,
    DS4_STAGE_FFN_NORM,
    DS4_STAGE_ROUTER,      /* n_expert scores */
    DS4_STAGE_FFN_OUT,     /* n_embd, routed and shared experts, before steering */
    DS4_N_STAGES
};
DS4_API ds4_status ds4_session_tap_stages(ds4_session *s, uint32_t stages, ds4_tap tap, void *ud, ds4_error *err);
/* Name of a stage ("ffn_out"), NULL for no stage. */
DS4_API const char *ds4_stage_name(uint32_t stage);

/* Steering: y -= scale * (d . y) * d on the output y of attention and of the FFN, for every position and layer, before it
 * goes into the streams. Several directions are subtracted in their order, and all products see the y that came in.
 * values: float32 [n_layer][n_embd], rows of length 1, or 0 for layers that are left alone. A scale > 0 takes the
 * direction out, < 0 amplifies it; in -100..100. With scales of 0, as with n = 0, not a bit differs from a session
 * without steering. The MTP block is not steered. */
typedef struct ds4_steering {
    uint32_t struct_size;
    uint32_t n_layer, n_embd;
    const float *values;
    float ffn, attn; /* scales */
} ds4_steering;

/* What the session steers with from now on, at most 8 directions (copied); n = 0 ends it. What it holds stays as it was
 * computed, sync keeps it and checkpoints bring it back; the session knows which of its positions were steered, and how.
 * A stored state says so too. It goes back into a session whose present steering is that of all its positions, or into
 * one that has the same history up to there; any other refuses it.
 * DS4_E_ARGUMENT  shapes, scales or values; DS4_E_MEMORY: the steering is as before. */
DS4_API ds4_status ds4_session_set_steering(ds4_session *s, const ds4_steering *directions, size_t n, ds4_error *err);
/* What was set, as a digest of directions and scales, 0: none. *n_kept: positions from 0 on that were computed with it.
 * *held: the digest if all positions held were steered alike, 0 if none was, else a number that stands for the mixture.
 * Each may be NULL. */
DS4_API ds4_status ds4_session_steering(ds4_session *s, uint64_t *present, size_t *n_kept, uint64_t *held,
                                        ds4_error *err);

/* Selection margins of the last call: the smallest score gap at a top-k boundary (infinity when none was cut). */
DS4_API void ds4_session_margins(const ds4_session *s, float *indexer, float *router);

/* Importance statistics, for quantization. From _start on, every token that sync and eval compute adds, in each layer
 * and for each expert chosen for it, the squares of the expert's input (the normalised layer input) and of the input of
 * its down projection (the SwiGLU row times the routing weight). Logits do not change by a bit. Sums are float64 in
 * token order: chunk and n_threads do not change them. Tokens that sync keeps, drafts of ds4_session_mtp and snapshots
 * add nothing; a call that was stopped or failed has counted its last chunk in the layers that it reached.
 * _start begins at zero, also when statistics are gathered already; _stop frees them (without any it does nothing).
 * They take n_layer * n_expert * (n_embd + n_ff + 1) * 8 bytes; with_mtp counts as one more layer.
 * DS4_E_MEMORY  the session is as before, without statistics. */
DS4_API ds4_status ds4_session_importance_start(ds4_session *s, ds4_error *err);
DS4_API ds4_status ds4_session_importance_stop(ds4_session *s, ds4_error *err);

/* Read the statistics of a layer; n_layer is the MTP block of a session with_mtp. Room for sum_in [n_expert][n_embd],
 * sum_mid [n_expert][n_ff] and counts [n_expert], tokens of each expert.
 * DS4_E_STATE  none are gathered; DS4_E_ARGUMENT  no such layer. */
DS4_API ds4_status ds4_session_importance(ds4_session *s, uint32_t layer, double *sum_in, double *sum_mid,
                                          uint64_t *counts, ds4_error *err);

/* Where the time goes. From _start on, sync and eval take the time of every part of the computation. One part runs at
 * any moment and all of a chunk belongs to some part, so the times of a phase add up to the time that its chunks took
 * (the session's own work is DS4_PART_OTHER; so are calls of pulse and tap). Logits do not change by a bit. A chunk of
 * one token is decode, a longer one prefill. A backend that works ahead is made to wait at the end of every part while
 * times are taken, and is slower then; without it nothing is added. Drafts of ds4_session_mtp are not measured.
 * _start begins at zero, also when times are taken already; _stop forgets them. */
enum {
    DS4_PART_OTHER = 0,       /* the session: copies of state, logits to the host, callbacks */
    DS4_PART_EMBEDDING,
    DS4_PART_HYPER,           /* hyper-connections: mixers, Sinkhorn, both mixes of the streams */
    DS4_PART_PROJECTIONS,     /* query, key-value and output matrices of attention */
    DS4_PART_ATTENTION,       /* scores and sums over window and compressed rows */
    DS4_PART_COMPRESSOR,
    DS4_PART_INDEXER,
    DS4_PART_ROUTER,
    DS4_PART_EXPERTS_GATE_UP, /* gate, up and SwiGLU of the routed experts */
    DS4_PART_EXPERTS_DOWN,
    DS4_PART_SHARED,          /* the shared expert */
    DS4_PART_ROWS,            /* norms, rotation, rounding and storing of rows */
    DS4_PART_HEAD,
    DS4_PART_EXPERT_WAIT,     /* until streamed experts were read, or had a place to be read to */
    DS4_N_PARTS
};
enum { DS4_PHASE_PREFILL = 0, DS4_PHASE_DECODE = 1, DS4_N_PHASES };

/* Name of a part ("experts_gate_up"), NULL for no part. */
DS4_API const char *ds4_part_name(uint32_t part);
DS4_API ds4_status ds4_session_profile_start(ds4_session *s, ds4_error *err);
DS4_API ds4_status ds4_session_profile_stop(ds4_session *s, ds4_error *err);

/* Read the times of a phase. ns and entries: room for [n_layer + 2][DS4_N_PARTS]; row n_layer is the MTP block, the
 * last row is what belongs to no layer. ns in nanoseconds; entries: how often the part began. *tokens: of whole chunks.
 * A stopped or failed chunk has its time, but no tokens.
 * DS4_E_STATE  no times are taken; DS4_E_ARGUMENT  no such phase. */
DS4_API ds4_status ds4_session_profile(ds4_session *s, uint32_t phase, uint64_t *tokens, uint64_t *ns,
                                       uint64_t *entries, ds4_error *err);

/* For measurements only: make the session hold n positions that nobody computed, n <= n_ctx, in place of what it
 * held. Tokens, cache rows and compressor states are pseudo-random finite numbers that depend on seed, and all logits
 * are 0: what follows has the cost of a context of n positions, and no meaning.
 * DS4_E_ARGUMENT  n is 0; DS4_E_CONTEXT  n > n_ctx: the session is unchanged. */
DS4_API ds4_status ds4_session_fill(ds4_session *s, size_t n, uint64_t seed, ds4_error *err);

/* A snapshot is a self-contained byte string: restoring it gives bit-identical results. It is bound to the model's
 * fingerprint and to qat, rows_f16, with_mtp and activations, and checked by length and checksum (DS4_E_SNAPSHOT). */
DS4_API uint64_t ds4_session_snapshot_bytes(const ds4_session *s);
DS4_API ds4_status ds4_session_snapshot(ds4_session *s, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err);
DS4_API ds4_status ds4_session_restore(ds4_session *s, const void *buf, uint64_t n_bytes, ds4_error *err);

/* The state in parts that can be stored one by one. Rows of closed groups never change, so a longer timeline needs only
 * the rows of what it added; the tail is all else at one position. Parts name the model, the settings and the tokens
 * that they belong to, and carry checksums; rows are packed in the precision that they have (docs/formats.md). */
typedef struct ds4_blob {
    const void *data;
    uint64_t n_bytes;
} ds4_blob;

/* Compressed and indexer rows of the groups that close in positions (start, stop]. cap: at least what
 * ds4_session_rows_bytes says, an upper bound; *n_bytes receives the size.
 * DS4_E_ARGUMENT  no such positions, or the buffer is too small. */
DS4_API uint64_t ds4_session_rows_bytes(const ds4_session *s, uint32_t start, uint32_t stop);
DS4_API ds4_status ds4_session_export_rows(ds4_session *s, uint32_t start, uint32_t stop, void *buf, uint64_t cap,
                                           uint64_t *n_bytes, ds4_error *err);
/* The tail at the present position or at a checkpoint. DS4_E_STATE  neither is there, or the session is empty. */
DS4_API uint64_t ds4_session_tail_bytes(const ds4_session *s, uint32_t at);
DS4_API ds4_status ds4_session_export_tail(ds4_session *s, uint32_t at, void *buf, uint64_t cap, uint64_t *n_bytes,
                                           ds4_error *err);
/* Put the session where `tail` was taken, in place of what it held; results are bit-identical. rows: consecutive ranges
 * from 0 on that reach the tail's position; the last may go on behind it. tokens, n: the ids of all positions of the
 * parts, at least. *pos (may be NULL) receives the position.
 * DS4_E_SNAPSHOT  a part is damaged, of another model, setting or other tokens, or missing; DS4_E_CONTEXT  the position
 * exceeds n_ctx; DS4_E_ARGUMENT  too few tokens. In all these cases the session is unchanged. */
DS4_API ds4_status ds4_session_import(ds4_session *s, const int32_t *tokens, size_t n, const ds4_blob *rows,
                                      size_t n_rows, const ds4_blob *tail, size_t *pos, ds4_error *err);

/* The state at the present position as float32, for files of other programs: logits [n_vocab]; then for each layer, in
 * order: rows of the last min(pos, window) positions [head_dim], the oldest first (the oldest of a full window is 0: no
 * later position sees it); if the ratio r is not 0 the pos / r compressed rows [head_dim], and K and S of the
 * compressor [r][head_dim] by position in the group, for r = 4 [8][2 * head_dim], the closed group first and the open one behind
 * it, K 0 and S -1e30 where there is none; if r = 4 the same three of the indexer with index_dim for head_dim. The MTP
 * block is left out.
 * load: put the session there, in place of what it held. Rows are rounded to the session's row type, so a state that
 * was read from a session like it comes back with all its bits.
 * DS4_E_STATE  nothing to read; loading into a session with MTP; DS4_E_ARGUMENT  another number of values, or a token
 * id is out of range; DS4_E_CONTEXT  n > n_ctx; DS4_E_SNAPSHOT  a value is not finite or too large: unchanged. */
DS4_API uint64_t ds4_session_state_floats(const ds4_session *s);
DS4_API ds4_status ds4_session_read_state(ds4_session *s, float *out, uint64_t n_floats, ds4_error *err);
DS4_API ds4_status ds4_session_load_state(ds4_session *s, const int32_t *tokens, size_t n, const float *values,
                                          uint64_t n_floats, ds4_error *err);

/* ---- sampling ---- */
typedef struct ds4_sampling {
    float temperature;  /* <= 0: greedy, the lowest id wins ties */
    uint32_t top_k;     /* 0: all; at most 1024 */
    float top_p;        /* (0, 1] */
    float min_p;        /* [0, 1], relative to the best token */
} ds4_sampling;

/* How to draft. sampling and rng: how the next tokens will be drawn, so that guesses fall as the draws will. */
typedef struct ds4_drafting {
    uint32_t most;  /* drafts, 1 .. 7 */
    float margin;   /* end where the best logit is less than this above the second best; 0: never */
    ds4_sampling sampling;
    uint64_t rng;   /* state of the generator that the next draw will use; it stays as it is */
} ds4_drafting;

/* Let the MTP block guess the tokens after `next_token`, which follows the last position: each from its own output at
 * the one before. The session does not move. tokens: room for how->most ids, *n receives how many there are, perhaps 0.
 * DS4_E_STATE  without with_mtp or on an empty session; DS4_E_ARGUMENT  something is out of range; DS4_E_CANCELLED. */
DS4_API ds4_status ds4_session_draft(ds4_session *s, int32_t next_token, const ds4_drafting *how, int32_t *tokens,
                                     size_t *n, ds4_error *err);

/* Draw one token. rng: state of an xorshift64* generator (0 is replaced by a fixed constant), advanced by one draw
 * unless greedy. *logprob (may be NULL): log-softmax of the raw logits at the token.
 * DS4_E_ARGUMENT for parameters out of range; DS4_E_DATA when no logit is finite. */
DS4_API ds4_status ds4_sample(const float *logits, size_t n, const ds4_sampling *p, uint64_t *rng, int32_t *token,
                              float *logprob, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
