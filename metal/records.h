/* Argument records of kernels that need more than an operation's own record: work space and forms. Read by the Metal
 * sources and by the encoder; the rules of backend/kernel_args.h hold. */
#ifndef DS4_METAL_RECORDS_H
#define DS4_METAL_RECORDS_H

#ifndef __METAL_VERSION__
#include "backend/kernel_args.h"
#endif

/* Layout constants that kernels and encoder agree on. */
enum {
    DS4_METAL_ROWS = 4,           /* weight rows of a threadgroup of the plain products, one a simdgroup */
    DS4_METAL_TOKENS = 4,         /* tokens of a simdgroup of the plain products with float32 activations */
    DS4_METAL_TILE = 32,          /* rows and tokens of a tile of the matrix products */
    DS4_METAL_MAX_DIM = 512,      /* of a row of attention */
    DS4_METAL_MAX_ROW = 1024,     /* of a row that is rounded or pooled */
    DS4_METAL_MAX_EXPERTS = 1024, /* of a layer */
    DS4_METAL_MAX_CHOSEN = 32,    /* experts of a token */
    DS4_METAL_MAX_STREAMS = 8,    /* hyper-connections */
    DS4_METAL_MAX_GROUP = 128,    /* positions that one compressed row is made of */
    DS4_METAL_HEADS = 8,          /* of a threadgroup of attention */
    DS4_METAL_SPLIT = 1024,       /* keys of a part of attention; parts begin at multiples of it */
    DS4_METAL_INDEX_ROWS = 32,    /* rows of a threadgroup of the indexer */
    DS4_METAL_INDEX_DIM = 128     /* largest dimension of an indexer row */
};

/* Rows of x rounded to 8 bits: out [n_rows][blocks] of Q8_K (292 bytes, 256 values) or Q8_A (36 bytes, 32 values).
 * Row r begins at x + r * x_stride floats. */
typedef struct ds4_metal_round {
    ds4_ref x, out;
    uint32_t n_rows, blocks, x_stride;
} ds4_metal_round;

/* y of `matmul`; act: the rounded rows [n][groups * n_in / block], absent where activations stay float32. */
typedef struct ds4_metal_matmul {
    ds4_args_matmul a;
    ds4_ref act;
} ds4_metal_matmul;

enum { DS4_METAL_GATE = 0, DS4_METAL_UP = 1, DS4_METAL_DOWN = 2 };

/* A piece of an expert's pairs: slots [first, first + count) of the sorted list. */
typedef struct ds4_metal_tile {
    uint32_t expert, first, count, unused;
} ds4_metal_tile;

/* One product of the experts. Pair p is choice p % k of token p / k. act: rounded rows of the tokens (gate, up) or of the
 * pairs (down), absent for float32. up: results of the up product [n * k][n_ff], which gate reads. mid: rows of the
 * middle layer [n * k][n_ff]. The matrix forms also take the pairs sorted by expert, tiles of them with their number, and
 * parts [n * k][n_rows] of the rows [first_row, first_row + n_rows) of down. */
typedef struct ds4_metal_experts {
    ds4_args_experts a;
    ds4_ref act, up, mid, slots, tiles, n_tiles, parts;
    uint32_t which, max_tiles, first_row, n_rows;
} ds4_metal_experts;

/* `compress`, one step of it. */
typedef struct ds4_metal_indexer {
    ds4_args_indexer a;
    ds4_ref scores; /* [tokens][max_rows] */
    ds4_ref gaps;   /* [n] gap at the boundary of each token's choice */
    uint32_t first_token, max_rows;
} ds4_metal_indexer;

/* Parts of the keys: partial [token][part][heads][dim + 2] holds the sum of values, the greatest score and the sum of
 * weights of each part. Tokens [first_token, first_token + gridDim). */
typedef struct ds4_metal_attention {
    ds4_args_attention a;
    ds4_ref partial;
    uint32_t first_token, parts;
} ds4_metal_attention;

/* Statistics of the experts (ds4_importance), one of both sums: of rows of x, one a token, or of the middle rows, one a
 * pair. counts: absent for the second. */
typedef struct ds4_metal_importance {
    ds4_args_experts a;
    ds4_ref rows, sums, counts;
    uint32_t width, per_token;
} ds4_metal_importance;

typedef struct ds4_metal_router {
    ds4_args_router a;
    ds4_ref gaps;
} ds4_metal_router;

/* margin = min(margin, gaps[0..n)) */
typedef struct ds4_metal_margin {
    ds4_ref gaps, margin;
    uint32_t n;
} ds4_metal_margin;

/* count bytes; of source, or of `data` where source is absent. */
enum { DS4_METAL_INLINE = 2048 };
typedef struct ds4_metal_copy {
    ds4_ref source, target;
    uint64_t count;
    uint32_t data[DS4_METAL_INLINE / 4];
} ds4_metal_copy;

#endif
