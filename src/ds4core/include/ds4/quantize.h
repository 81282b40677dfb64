/* Encoding and decoding of tensor types (docs/formats.md says what the bytes are).
 *
 * Rows are independent of each other, so the bytes do not depend on the number of threads, nor on the CPU variant
 * (ds4_set_cpu_isa). */
#ifndef DS4_QUANTIZE_H
#define DS4_QUANTIZE_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Set it with ds4_quantize_options_init, then change what differs. NULL in place of options: the defaults. */
typedef struct ds4_quantize_options {
    uint32_t struct_size;
    uint32_t n_threads;       /* 0 or 1: the calling thread alone */
    const float *importance;  /* one weight a column, for all rows, or NULL; Q2_K, Q4_K and IQ2_XXS use it */
    uint64_t first_row;       /* number of src's first row, for messages and ds4_place */
    int32_t allow_nonfinite;  /* F32, F16 and BF16 may store NaN and infinity, and F16 and BF16 overflow to it */
    ds4_pulse pulse;          /* called with values encoded so far; non-zero stops with DS4_E_CANCELLED; or NULL */
    void *ud;
} ds4_quantize_options;

typedef struct ds4_place {
    uint64_t row, column;
} ds4_place;

DS4_API void ds4_quantize_options_init(ds4_quantize_options *o);

/* Encode n_rows rows of n_columns float32 values, whole blocks each, as F32, F16, BF16, Q8_0, Q2_K, Q4_K, IQ2_XXS or
 * MXFP4.
 * DS4_E_UNSUPPORTED  another type.
 * DS4_E_ARGUMENT     partial blocks, too little room, IQ2_XXS without importance, or a weight that is negative, not
 *                    finite or above 2^64.
 * DS4_E_DATA         a value that the type cannot hold: *place (may be NULL) is the first one.
 * After an error dst is undefined. */
DS4_API ds4_status ds4_quantize(uint32_t type, const float *src, uint64_t n_rows, uint64_t n_columns,
                                const ds4_quantize_options *options, void *dst, uint64_t dst_bytes, ds4_place *place,
                                ds4_error *err);

/* How many blocks of 256 columns have no positive weight. Such a block says nothing about its columns: ds4_quantize
 * encodes it, in every row, as if all weights were one. */
DS4_API uint64_t ds4_unweighted_blocks(const float *importance, uint64_t n_columns);

/* Add the square of each value to its column's sum, row by row in order: importance for a matrix without measured one.
 * Start with zeros. */
DS4_API void ds4_add_column_squares(const float *src, uint64_t n_rows, uint64_t n_columns, float *sums);

/* Decode n values (a multiple of the block) of any of these types into float32.
 * `src_bytes` is checked against what n values need. DS4_E_UNSUPPORTED names another type. */
DS4_API ds4_status ds4_dequantize(uint32_t type, const void *src, uint64_t src_bytes, uint64_t n, uint32_t n_threads,
                                  float *dst, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
