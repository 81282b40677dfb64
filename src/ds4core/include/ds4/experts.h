/* Expert streaming: a model larger than the memory. Opened with ds4_model_options.expert_cache_bytes, a model keeps its
 * routed experts in the file and reads those that are needed into a cache, which all its sessions share. Results have the
 * bits of a model without it, whatever the size of the cache and the order of the reads.
 *
 * Blocks are numbered as layers; the MTP block, if there is one, is the last. Unless said otherwise a call answers
 * DS4_E_STATE when the model does not stream and DS4_E_ARGUMENT for a block or size that does not exist. */
#ifndef DS4_EXPERTS_H
#define DS4_EXPERTS_H

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds4_expert_stats {
    uint64_t n_slots, slot_bytes;   /* places for one expert each */
    uint64_t n_blocks, n_experts;   /* blocks with routed experts; experts of all blocks */
    uint64_t resident_bytes;        /* of all other weights, in memory */
    uint64_t reads, read_bytes, failed_reads; /* since the model was opened, its other weights included */
    uint64_t read_ns, busy_ns;      /* sum over the reads; time while there were any: read_bytes / busy_ns is the speed */
    uint32_t read_depth;
    const char *read_io;            /* "io_uring" or "threads" */
} ds4_expert_stats;

/* Of one block, since the model was opened. An expert counts once for every chunk that needs it. */
typedef struct ds4_expert_block {
    uint64_t n_experts, expert_bytes;
    uint64_t asked;      /* = hits + late + misses */
    uint64_t hits, late; /* were there; were being read already */
    uint64_t misses;
    uint64_t prefetched; /* reads begun before they were asked for */
    uint64_t evicted, read_bytes, wait_ns;
    uint64_t guessed, guessed_right; /* guesses of experts that were not in memory, whether read or not */
} ds4_expert_block;

/* What the experts cost one session since it was made; read_bytes are those of its misses. file_bytes and file_ns are of
 * the model, since it was opened: bytes that were read for any session, and the time while there were reads. The differences
 * of both over some time give the speed of the disk in that time. */
typedef struct ds4_expert_use {
    uint64_t asked, hits, late, misses, read_bytes, wait_ns;
    uint64_t file_bytes, file_ns;
} ds4_expert_use;

DS4_API int ds4_model_streams(const ds4_model *m);
DS4_API ds4_status ds4_model_expert_stats(const ds4_model *m, ds4_expert_stats *out, ds4_error *err);
DS4_API ds4_status ds4_model_expert_block(const ds4_model *m, uint32_t block, ds4_expert_block *out, ds4_error *err);
/* Zeros for a session whose model does not stream. Not while another thread is inside the session: DS4_E_BUSY. */
DS4_API ds4_status ds4_session_expert_use(ds4_session *s, ds4_expert_use *out, ds4_error *err);

/* For every expert of every block in order; n must be ds4_expert_stats.n_experts.
 * map: 0 not in memory, 1 being read, 2 in memory, 3 in use. heat: how often it was selected, every selection counting
 * half after 128 tokens of its block; set_heat replaces these numbers, negative ones count as 0. */
DS4_API ds4_status ds4_model_expert_map(const ds4_model *m, uint8_t *out, size_t n, ds4_error *err);
DS4_API ds4_status ds4_model_expert_heat(const ds4_model *m, float *out, size_t n, ds4_error *err);
DS4_API ds4_status ds4_model_expert_set_heat(ds4_model *m, const float *values, size_t n, ds4_error *err);

/* Read experts until n_slots slots (0: all) are filled, those of greatest heat first, then from the first block on.
 * pulse counts experts. DS4_E_IO; DS4_E_CANCELLED: what was read by then stays. */
DS4_API ds4_status ds4_model_expert_preload(ds4_model *m, uint64_t n_slots, ds4_pulse pulse, void *ud, ds4_error *err);

/* Record what the routers select. A row is the number of the block and the ids of one token, row_length int32 in all;
 * rows stand in the order in which chunks and layers ran. At most `most_rows` are kept. Starting begins at nothing.
 * read: rows NULL, or room for cap int32 (DS4_E_ARGUMENT when that is too little); *lost: rows that did not fit. */
DS4_API ds4_status ds4_model_expert_trace_start(ds4_model *m, uint64_t most_rows, ds4_error *err);
DS4_API ds4_status ds4_model_expert_trace_stop(ds4_model *m, ds4_error *err);
DS4_API ds4_status ds4_model_expert_trace(const ds4_model *m, int32_t *rows, uint64_t cap, uint64_t *n_rows,
                                          uint64_t *row_length, uint64_t *lost, ds4_error *err);

/* Measure what a file's disk gives: `reads` reads of `bytes` each from pseudo-random places that depend on seed, with
 * the options read_* of o (its other fields are not looked at). *speed in bytes a second. DS4_E_IO, DS4_E_ARGUMENT,
 * DS4_E_UNAVAILABLE. */
DS4_API ds4_status ds4_measure_reads(const char *path, const ds4_model_options *o, uint64_t bytes, uint32_t reads,
                                     uint64_t seed, double *speed, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
