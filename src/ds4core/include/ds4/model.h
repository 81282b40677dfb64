/* A model: the weights of one GGUF file, bound and checked. Immutable; shared by any number of sessions. */
#ifndef DS4_MODEL_H
#define DS4_MODEL_H

#include "gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds4_model ds4_model;

#define DS4_MAX_LAYERS 128

/* Every number that decides the arithmetic. Names follow the GGUF keys. */
typedef struct ds4_shape {
    char name[32];           /* registry name: "flash", "pro", "ds4-tiny", ... */
    uint32_t n_layer, n_embd, n_vocab;
    uint32_t n_head, head_dim, n_rot;
    uint32_t q_lora, o_lora, o_groups;
    uint32_t n_expert, n_expert_used, n_expert_shared, n_ff;
    uint32_t n_hash_layer, window;
    uint32_t n_index_head, index_dim, index_top_k;
    uint32_t n_hc, sinkhorn_iterations;
    float expert_scale, norm_eps, hc_eps, swiglu_clamp;
    float rope_base, compress_rope_base, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    uint64_t yarn_original_ctx;
    uint32_t compress_ratio[DS4_MAX_LAYERS]; /* 0, 4 or 128 per layer */
} ds4_shape;

/* How expert streaming reads: io_uring where the system has it and threads elsewhere, or one of them by name. */
enum { DS4_READ_AUTO = 0, DS4_READ_URING = 1, DS4_READ_THREADS = 2 };

/* Called between tensors and layers on the calling thread, at most every 50 ms; non-zero stops the work. */
typedef struct ds4_progress {
    uint64_t done, total;    /* tokens of a prefill, or bytes of a check or of an upload */
} ds4_progress;
typedef int (*ds4_pulse)(void *ud, const ds4_progress *p);

typedef struct ds4_model_options {
    uint32_t struct_size;
    const char *backend;     /* "auto", "cpu", or a name of ds4/backends.h */
    const char *mtp_path;    /* a separate file with the MTP block, or NULL */
    /* Expert streaming (ds4/experts.h): memory for routed experts, which are then read from the file when they are
     * needed, while all other weights are copied to memory. 0 (default): everything is mapped. */
    uint64_t expert_cache_bytes;
    int32_t read_io;         /* DS4_READ_* */
    uint32_t read_depth;     /* reads under way at a time, 1 .. 1024 (with threads: their number); 0: 16 */
    uint64_t read_piece;     /* long reads are cut into pieces of so many bytes, a multiple of 4096; 0: 1 MiB */
    int32_t read_cached;     /* 1: read through the page cache even where the file system could do without */
    double expert_half_life; /* tokens after which a recent selection counts half in the choice of who goes; 0: 4 */
    int32_t expert_no_guesses; /* 1: read nothing on a guess of what the next layer needs; for measurements */
    ds4_pulse pulse;         /* told of the upload to a device with memory of its own; or NULL */
    void *ud;
} ds4_model_options;

DS4_API void ds4_model_options_init(ds4_model_options *o);

/* Open, check the whole directory against the shape registry, bind the weights without copying them; a device with
 * memory of its own gets a copy.
 * DS4_E_UNAVAILABLE   there is no such backend or device; the text says why.
 * DS4_E_DEVICE_MEMORY the device has no room for the weights; nothing was allocated.
 * DS4_E_CANCELLED     the pulse stopped the upload.
 * DS4_E_ARGUMENT      an option is out of range; for expert_cache_bytes the text names the smallest possible number.
 * DS4_E_UNSUPPORTED   another architecture or shape, a tensor type ds4 cannot compute with; lists every difference.
 * DS4_E_FORMAT, DS4_E_IO   as ds4_gguf_open. */
DS4_API ds4_status ds4_model_open(const char *path, const ds4_model_options *o, ds4_model **out, ds4_error *err);
DS4_API void ds4_model_close(ds4_model *m);  /* sessions keep their model alive; NULL is accepted */
DS4_API void ds4_model_get_shape(const ds4_model *m, ds4_shape *out);
DS4_API const ds4_gguf *ds4_model_gguf(const ds4_model *m);
DS4_API int ds4_model_has_mtp(const ds4_model *m);
/* Warnings of the load (extra tensors, ...), newline separated; empty when there are none. */
DS4_API const char *ds4_model_warnings(const ds4_model *m);
DS4_API const char *ds4_model_backend(const ds4_model *m);
/* 16 bytes that identify the metadata, the directory and the first 64 bytes of every tensor; the same for both
 * layouts of experts. */
DS4_API void ds4_model_fingerprint(const ds4_model *m, uint8_t out[16]);

/* The difference between a file and the shapes ds4 runs, without opening a model: `report` receives text
 * (one line per difference, empty when it would load) cut at cap bytes; *shape the recognised or nearest shape. */
DS4_API ds4_status ds4_model_diagnose(const ds4_gguf *g, ds4_shape *shape, char *report, size_t cap, ds4_error *err);

/* Memory that a session takes, in bytes (ds4_session_memory). An upper bound: rows that are never written take no
 * memory on most systems. */
typedef struct ds4_memory_plan {
    uint64_t window_bytes, compressed_bytes, indexer_bytes, compressor_bytes;
    uint64_t scratch_bytes;       /* activations of a chunk, and the work space of the operations */
    uint64_t checkpoint_bytes;    /* of checkpoints, when as many are kept as the options allow */
    uint64_t total_session_bytes; /* all of the lines above */
} ds4_memory_plan;

/* Decode every weight and look for NaN and infinity; DS4_E_DATA names the first tensors, rows and columns. */
DS4_API ds4_status ds4_model_check(const ds4_model *m, ds4_pulse pulse, void *ud, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
