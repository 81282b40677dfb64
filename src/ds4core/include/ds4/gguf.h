/* Reading GGUF v3 files: the directory of a memory-mapped file, checked whole before anything is handed out.
 *
 * A ds4_gguf is immutable and may be used from many threads. Pointers it returns live until ds4_gguf_close. */
#ifndef DS4_GGUF_H
#define DS4_GGUF_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds4_gguf ds4_gguf;

/* GGUF value types (ids of the file format). */
enum {
    DS4_KV_U8 = 0, DS4_KV_I8 = 1, DS4_KV_U16 = 2, DS4_KV_I16 = 3, DS4_KV_U32 = 4, DS4_KV_I32 = 5, DS4_KV_F32 = 6,
    DS4_KV_BOOL = 7, DS4_KV_STRING = 8, DS4_KV_ARRAY = 9, DS4_KV_U64 = 10, DS4_KV_I64 = 11, DS4_KV_F64 = 12
};

/* Tensor types that ds4 computes with (ids of the file format). */
enum {
    DS4_TYPE_F32 = 0, DS4_TYPE_F16 = 1, DS4_TYPE_Q8_0 = 8, DS4_TYPE_Q2_K = 10, DS4_TYPE_Q4_K = 12,
    DS4_TYPE_IQ2_XXS = 16, DS4_TYPE_I32 = 26, DS4_TYPE_BF16 = 30, DS4_TYPE_MXFP4 = 39
};

/* One metadata record. A string value has elem_type STRING, count 1. `data` points at the raw little-endian
 * value in the file (for an array: its first element; for strings: the u64 length before the first text). */
typedef struct ds4_gguf_kv {
    const char *key;      /* UTF-8, not terminated */
    size_t key_len;
    uint32_t type;        /* DS4_KV_* */
    uint32_t elem_type;   /* the element type of an array, else equal to type */
    uint64_t count;       /* elements of an array, else 1 */
    const uint8_t *data;
    uint64_t n_bytes;     /* bytes of the value at `data` */
    uint64_t offset;      /* of the record in the file */
} ds4_gguf_kv;

typedef struct ds4_gguf_tensor {
    const char *name;     /* UTF-8, not terminated */
    size_t name_len;
    uint32_t n_dims;      /* as written */
    uint64_t ne[4];       /* ne[0] contiguous; unused dimensions are 1 */
    uint32_t type;        /* id of the tensor type */
    uint64_t n_bytes;
    uint64_t offset;      /* absolute, in the file */
    const uint8_t *data;  /* in the mapping */
} ds4_gguf_tensor;

typedef struct ds4_gguf_info {
    uint64_t file_bytes, data_offset, alignment, n_kv, n_tensors;
    uint32_t version;
} ds4_gguf_info;

/* Map a file and check its whole directory.
 * DS4_E_IO        cannot be opened, is a directory or another non-regular file.
 * DS4_E_FORMAT    too short, not GGUF, another version, or any check of the directory fails. */
DS4_API ds4_status ds4_gguf_open(const char *path, ds4_gguf **out, ds4_error *err);
DS4_API void ds4_gguf_close(ds4_gguf *g);
DS4_API void ds4_gguf_get_info(const ds4_gguf *g, ds4_gguf_info *out);
/* Record i in file order; DS4_E_ARGUMENT when i is out of range. */
DS4_API ds4_status ds4_gguf_get_kv(const ds4_gguf *g, uint64_t i, ds4_gguf_kv *out, ds4_error *err);
DS4_API ds4_status ds4_gguf_get_tensor(const ds4_gguf *g, uint64_t i, ds4_gguf_tensor *out, ds4_error *err);

/* Name of a tensor type ("Q8_0"), or NULL for an id the format does not define. */
DS4_API const char *ds4_type_name(uint32_t type);
/* Elements and bytes of one block; DS4_E_ARGUMENT for an undefined or removed type. */
DS4_API ds4_status ds4_type_block(uint32_t type, uint32_t *n_elems, uint32_t *n_bytes, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
