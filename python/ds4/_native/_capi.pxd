# The C interface of the core, declarations only; see src/ds4core/include/ds4 for what each call promises.
# Nothing else in the package declares C functions. No `except` here: failures travel as ds4_status, and
# _core.check turns them into exceptions.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "ds4/ds4.h" nogil:
    # status.h
    ctypedef enum ds4_status:
        DS4_OK
        DS4_E_ARGUMENT
        DS4_E_IO
        DS4_E_FORMAT
        DS4_E_UNSUPPORTED
        DS4_E_MEMORY
        DS4_E_STATE
        DS4_E_BUSY
        DS4_E_CANCELLED
        DS4_E_CONTEXT
        DS4_E_SNAPSHOT
        DS4_E_UNAVAILABLE
        DS4_E_DEVICE
        DS4_E_DATA
        DS4_E_INTERNAL
        DS4_E_DEVICE_MEMORY

    const uint64_t DS4_NO_OFFSET

    ctypedef struct ds4_error:
        int32_t status
        int32_t os_errno
        uint64_t offset
        char message[32768]

    const char *ds4_status_name(int status)
    const char *ds4_version()
    const char *ds4_cpu_isa()
    ds4_status ds4_set_cpu_isa(const char *name, ds4_error *err)

    # backends.h
    ctypedef struct ds4_backend_info:
        uint32_t struct_size
        char name[32]
        int32_t available
        char reason[1024]
        char device[128]
        char arch[64]
        uint64_t total_bytes
        uint64_t free_bytes
        int32_t unified

    size_t ds4_backend_list(ds4_backend_info *out, size_t cap)
    ds4_status ds4_backend_load(const char *path, char *name, size_t cap, ds4_error *err)

    # gguf.h
    enum:
        DS4_KV_U8
        DS4_KV_I8
        DS4_KV_U16
        DS4_KV_I16
        DS4_KV_U32
        DS4_KV_I32
        DS4_KV_F32
        DS4_KV_BOOL
        DS4_KV_STRING
        DS4_KV_ARRAY
        DS4_KV_U64
        DS4_KV_I64
        DS4_KV_F64

    ctypedef struct ds4_gguf:
        pass

    ctypedef struct ds4_gguf_kv:
        const char *key
        size_t key_len
        uint32_t type
        uint32_t elem_type
        uint64_t count
        const uint8_t *data
        uint64_t n_bytes
        uint64_t offset

    ctypedef struct ds4_gguf_tensor:
        const char *name
        size_t name_len
        uint32_t n_dims
        uint64_t ne[4]
        uint32_t type
        uint64_t n_bytes
        uint64_t offset
        const uint8_t *data

    ctypedef struct ds4_gguf_info:
        uint64_t file_bytes
        uint64_t data_offset
        uint64_t alignment
        uint64_t n_kv
        uint64_t n_tensors
        uint32_t version

    ds4_status ds4_gguf_open(const char *path, ds4_gguf **out, ds4_error *err)
    void ds4_gguf_close(ds4_gguf *g)
    void ds4_gguf_get_info(const ds4_gguf *g, ds4_gguf_info *out)
    ds4_status ds4_gguf_get_kv(const ds4_gguf *g, uint64_t i, ds4_gguf_kv *out, ds4_error *err)
    ds4_status ds4_gguf_get_tensor(const ds4_gguf *g, uint64_t i, ds4_gguf_tensor *out, ds4_error *err)
    const char *ds4_type_name(uint32_t type)
    ds4_status ds4_type_block(uint32_t type, uint32_t *n_elems, uint32_t *n_bytes, ds4_error *err)

    # model.h
    enum:
        DS4_MAX_LAYERS

    ctypedef struct ds4_model:
        pass

    ctypedef struct ds4_shape:
        char name[32]
        uint32_t n_layer
        uint32_t n_embd
        uint32_t n_vocab
        uint32_t n_head
        uint32_t head_dim
        uint32_t n_rot
        uint32_t q_lora
        uint32_t o_lora
        uint32_t o_groups
        uint32_t n_expert
        uint32_t n_expert_used
        uint32_t n_expert_shared
        uint32_t n_ff
        uint32_t n_hash_layer
        uint32_t window
        uint32_t n_index_head
        uint32_t index_dim
        uint32_t index_top_k
        uint32_t n_hc
        uint32_t sinkhorn_iterations
        float expert_scale
        float norm_eps
        float hc_eps
        float swiglu_clamp
        float rope_base
        float compress_rope_base
        float yarn_factor
        float yarn_beta_fast
        float yarn_beta_slow
        uint64_t yarn_original_ctx
        uint32_t compress_ratio[128]  # DS4_MAX_LAYERS

    ctypedef struct ds4_progress:
        uint64_t done
        uint64_t total

    # The functions that we pass are `noexcept with gil`; both casts and calls stay plain C.
    ctypedef int (*ds4_pulse)(void *ud, const ds4_progress *p) noexcept

    ctypedef struct ds4_model_options:
        uint32_t struct_size
        const char *backend
        const char *mtp_path
        uint64_t expert_cache_bytes
        int32_t read_io
        uint32_t read_depth
        uint64_t read_piece
        int32_t read_cached
        double expert_half_life
        int32_t expert_no_guesses
        ds4_pulse pulse
        void *ud

    void ds4_model_options_init(ds4_model_options *o)
    ds4_status ds4_model_open(const char *path, const ds4_model_options *o, ds4_model **out, ds4_error *err)
    void ds4_model_close(ds4_model *m)
    void ds4_model_get_shape(const ds4_model *m, ds4_shape *out)
    const ds4_gguf *ds4_model_gguf(const ds4_model *m)
    int ds4_model_has_mtp(const ds4_model *m)
    const char *ds4_model_warnings(const ds4_model *m)
    const char *ds4_model_backend(const ds4_model *m)
    void ds4_model_fingerprint(const ds4_model *m, uint8_t *out)
    ds4_status ds4_model_diagnose(const ds4_gguf *g, ds4_shape *shape, char *report, size_t cap, ds4_error *err)

    ctypedef struct ds4_memory_plan:
        uint64_t window_bytes
        uint64_t compressed_bytes
        uint64_t indexer_bytes
        uint64_t compressor_bytes
        uint64_t scratch_bytes
        uint64_t checkpoint_bytes
        uint64_t total_session_bytes

    ds4_status ds4_model_check(const ds4_model *m, ds4_pulse pulse, void *ud, ds4_error *err)

    # session.h
    ctypedef struct ds4_session:
        pass

    # experts.h
    ctypedef struct ds4_expert_stats:
        uint64_t n_slots
        uint64_t slot_bytes
        uint64_t n_blocks
        uint64_t n_experts
        uint64_t resident_bytes
        uint64_t reads
        uint64_t read_bytes
        uint64_t failed_reads
        uint64_t read_ns
        uint64_t busy_ns
        uint32_t read_depth
        const char *read_io

    ctypedef struct ds4_expert_block:
        uint64_t n_experts
        uint64_t expert_bytes
        uint64_t asked
        uint64_t hits
        uint64_t late
        uint64_t misses
        uint64_t prefetched
        uint64_t evicted
        uint64_t read_bytes
        uint64_t wait_ns
        uint64_t guessed
        uint64_t guessed_right

    ctypedef struct ds4_expert_use:
        uint64_t asked
        uint64_t hits
        uint64_t late
        uint64_t misses
        uint64_t read_bytes
        uint64_t wait_ns
        uint64_t file_bytes
        uint64_t file_ns

    int ds4_model_streams(const ds4_model *m)
    ds4_status ds4_model_expert_stats(const ds4_model *m, ds4_expert_stats *out, ds4_error *err)
    ds4_status ds4_model_expert_block(const ds4_model *m, uint32_t block, ds4_expert_block *out, ds4_error *err)
    ds4_status ds4_session_expert_use(ds4_session *s, ds4_expert_use *out, ds4_error *err)
    ds4_status ds4_model_expert_map(const ds4_model *m, uint8_t *out, size_t n, ds4_error *err)
    ds4_status ds4_model_expert_heat(const ds4_model *m, float *out, size_t n, ds4_error *err)
    ds4_status ds4_model_expert_set_heat(ds4_model *m, const float *values, size_t n, ds4_error *err)
    ds4_status ds4_model_expert_preload(ds4_model *m, uint64_t n_slots, ds4_pulse pulse, void *ud, ds4_error *err)
    ds4_status ds4_model_expert_trace_start(ds4_model *m, uint64_t most_rows, ds4_error *err)
    ds4_status ds4_model_expert_trace_stop(ds4_model *m, ds4_error *err)
    ds4_status ds4_model_expert_trace(const ds4_model *m, int32_t *rows, uint64_t cap, uint64_t *n_rows,
                                      uint64_t *row_length, uint64_t *lost, ds4_error *err)
    ds4_status ds4_measure_reads(const char *path, const ds4_model_options *o, uint64_t bytes, uint32_t reads,
                                 uint64_t seed, double *speed, ds4_error *err)

    enum:
        DS4_NUMA_NONE
        DS4_NUMA_INTERLEAVE
        DS4_ACT_FLOAT
        DS4_ACT_QUANTIZED

    ctypedef struct ds4_session_options:
        uint32_t struct_size
        uint32_t n_ctx
        uint32_t chunk
        uint32_t n_threads
        int32_t qat
        int32_t rows_f16
        int32_t activations
        int32_t with_mtp
        const char *affinity
        int32_t numa
        uint32_t checkpoint_every
        uint64_t checkpoint_bytes

    uint32_t ds4_default_threads()
    void ds4_session_options_init(ds4_session_options *o)
    ds4_status ds4_session_create(ds4_model *m, const ds4_session_options *o, ds4_session **out, ds4_error *err)
    void ds4_session_free(ds4_session *s)
    void ds4_session_memory(const ds4_shape *shape, const ds4_session_options *o, ds4_memory_plan *out)
    ds4_status ds4_session_sync(ds4_session *s, const int32_t *tokens, size_t n, size_t *n_kept, ds4_error *err)
    ds4_status ds4_session_eval(ds4_session *s, const int32_t *tokens, size_t n, float *logits, ds4_error *err)
    ds4_status ds4_session_logits(ds4_session *s, const float **out, ds4_error *err)
    ds4_status ds4_session_mtp(ds4_session *s, int32_t next_token, float *logits, ds4_error *err)
    ds4_status ds4_session_eval_ahead(ds4_session *s, const int32_t *tokens, size_t n, ds4_error *err)
    size_t ds4_session_ahead(const ds4_session *s)
    size_t ds4_session_pos(const ds4_session *s)
    const int32_t *ds4_session_tokens(const ds4_session *s)
    uint32_t ds4_session_n_ctx(const ds4_session *s)
    void ds4_session_get_options(const ds4_session *s, ds4_session_options *out)
    uint64_t ds4_session_bytes(const ds4_session *s)
    ds4_status ds4_session_checkpoint(ds4_session *s, ds4_error *err)
    ds4_status ds4_session_checkpoints(ds4_session *s, uint32_t *out, size_t cap, size_t *n, ds4_error *err)
    ds4_status ds4_session_fork(ds4_session *s, ds4_session **out, ds4_error *err)
    size_t ds4_session_steps_back(const ds4_session *s)
    ds4_status ds4_session_rewind(ds4_session *s, size_t pos, size_t *reached, ds4_error *err)
    ds4_status ds4_session_reset(ds4_session *s, ds4_error *err)
    void ds4_session_cancel(ds4_session *s)
    void ds4_session_set_pulse(ds4_session *s, ds4_pulse pulse, void *ud)

    ctypedef void (*ds4_tap)(void *ud, const char *stage, uint32_t layer, uint32_t pos, uint32_t n_rows,
                             uint32_t width, const float *values) noexcept

    enum:
        DS4_N_STAGES
    ds4_status ds4_session_tap_stages(ds4_session *s, uint32_t stages, ds4_tap tap, void *ud, ds4_error *err)
    const char *ds4_stage_name(uint32_t stage)
    ctypedef struct ds4_steering:
        uint32_t struct_size
        uint32_t n_layer
        uint32_t n_embd
        const float *values
        float ffn
        float attn
    ds4_status ds4_session_set_steering(ds4_session *s, const ds4_steering *directions, size_t n, ds4_error *err)
    ds4_status ds4_session_steering(ds4_session *s, uint64_t *present, size_t *n_kept, uint64_t *held, ds4_error *err)
    void ds4_session_margins(const ds4_session *s, float *indexer, float *router)
    ds4_status ds4_session_importance_start(ds4_session *s, ds4_error *err)
    ds4_status ds4_session_importance_stop(ds4_session *s, ds4_error *err)
    ds4_status ds4_session_importance(ds4_session *s, uint32_t layer, double *sum_in, double *sum_mid,
                                      uint64_t *counts, ds4_error *err)
    enum:
        DS4_N_PARTS
        DS4_N_PHASES

    const char *ds4_part_name(uint32_t part)
    ds4_status ds4_session_profile_start(ds4_session *s, ds4_error *err)
    ds4_status ds4_session_profile_stop(ds4_session *s, ds4_error *err)
    ds4_status ds4_session_profile(ds4_session *s, uint32_t phase, uint64_t *tokens, uint64_t *ns, uint64_t *entries,
                                   ds4_error *err)
    ds4_status ds4_session_fill(ds4_session *s, size_t n, uint64_t seed, ds4_error *err)
    uint64_t ds4_session_snapshot_bytes(const ds4_session *s)
    ds4_status ds4_session_snapshot(ds4_session *s, void *buf, uint64_t cap, uint64_t *n_bytes, ds4_error *err)
    ds4_status ds4_session_restore(ds4_session *s, const void *buf, uint64_t n_bytes, ds4_error *err)

    ctypedef struct ds4_blob:
        const void *data
        uint64_t n_bytes

    uint64_t ds4_session_rows_bytes(const ds4_session *s, uint32_t start, uint32_t stop)
    ds4_status ds4_session_export_rows(ds4_session *s, uint32_t start, uint32_t stop, void *buf, uint64_t cap,
                                       uint64_t *n_bytes, ds4_error *err)
    uint64_t ds4_session_tail_bytes(const ds4_session *s, uint32_t at)
    ds4_status ds4_session_export_tail(ds4_session *s, uint32_t at, void *buf, uint64_t cap, uint64_t *n_bytes,
                                       ds4_error *err)
    ds4_status ds4_session_import(ds4_session *s, const int32_t *tokens, size_t n, const ds4_blob *rows, size_t n_rows,
                                  const ds4_blob *tail, size_t *pos, ds4_error *err)

    uint64_t ds4_session_state_floats(const ds4_session *s)
    ds4_status ds4_session_read_state(ds4_session *s, float *out, uint64_t n_floats, ds4_error *err)
    ds4_status ds4_session_load_state(ds4_session *s, const int32_t *tokens, size_t n, const float *values,
                                      uint64_t n_floats, ds4_error *err)

    ctypedef struct ds4_sampling:
        float temperature
        uint32_t top_k
        float top_p
        float min_p

    ctypedef struct ds4_drafting:
        uint32_t most
        float margin
        ds4_sampling sampling
        uint64_t rng

    ds4_status ds4_session_draft(ds4_session *s, int32_t next_token, const ds4_drafting *how, int32_t *tokens,
                                 size_t *n, ds4_error *err)
    ds4_status ds4_sample(const float *logits, size_t n, const ds4_sampling *p, uint64_t *rng, int32_t *token,
                          float *logprob, ds4_error *err)

    # quantize.h
    ctypedef struct ds4_quantize_options:
        uint32_t struct_size
        uint32_t n_threads
        const float *importance
        uint64_t first_row
        int32_t allow_nonfinite
        ds4_pulse pulse
        void *ud

    ctypedef struct ds4_place:
        uint64_t row
        uint64_t column

    void ds4_quantize_options_init(ds4_quantize_options *o)
    ds4_status ds4_quantize(uint32_t type, const float *src, uint64_t n_rows, uint64_t n_columns,
                            const ds4_quantize_options *options, void *dst, uint64_t dst_bytes, ds4_place *place,
                            ds4_error *err)
    uint64_t ds4_unweighted_blocks(const float *importance, uint64_t n_columns)
    void ds4_add_column_squares(const float *src, uint64_t n_rows, uint64_t n_columns, float *sums)
    ds4_status ds4_dequantize(uint32_t type, const void *src, uint64_t src_bytes, uint64_t n, uint32_t n_threads,
                              float *dst, ds4_error *err)
