/* Argument records of the backend operations: the one place where they are declared.
 *
 * Fixed-width fields only, so that C++, CUDA, HIP and Metal sources can read the same header. Matrices are row
 * major; `n` is always the number of tokens of the chunk; every activation is float32 unless said. */
#ifndef DS4_KERNEL_ARGS_H
#define DS4_KERNEL_ARGS_H

#ifdef __METAL_VERSION__
typedef device uchar *ds4_address;
#else
#include <stdint.h>
typedef uint64_t ds4_address;
#endif

/* A place in a buffer. `buffer` is the backend's own handle (a ds4_buffer pointer); 0 means "absent". Kernels see the
 * address of the buffer on the device there. */
typedef struct ds4_ref {
    ds4_address buffer;
    uint64_t offset; /* bytes */
} ds4_ref;

/* A weight matrix [n_out][n_in]: row r starts at data + r * row_stride and holds n_in values of `type`. */
typedef struct ds4_weight {
    ds4_ref data;
    uint64_t row_stride; /* bytes */
    uint32_t type;       /* GGUF tensor type id */
    uint32_t n_in, n_out;
    uint32_t n_matrices; /* stacked experts, else 1 */
    uint64_t matrix_stride;
} ds4_weight;

enum { DS4_ROW_F32 = 0, DS4_ROW_F16 = 1 };                        /* how cache rows are stored */
enum { DS4_ROUND_NONE = 0, DS4_ROUND_FP8 = 1, DS4_ROUND_FP4 = 2 }; /* docs/model.md, simulated quantization */

/* out [n][copies][n_embd]: the embedding row of each token, repeated for each HC stream. tokens int32 [n]. */
typedef struct ds4_args_embed {
    ds4_weight table;
    ds4_ref tokens, out;
    uint32_t n, copies;
} ds4_args_embed;

/* Rows of `dim`: y = x / sqrt(mean(x^2) + eps) * w; w float32 [dim] or absent. x and y may be the same place. */
typedef struct ds4_args_rms_norm {
    ds4_ref x, w, y;
    uint32_t n_rows, dim;
    float eps;
} ds4_args_rms_norm;

/* y[t][r] = sum_i W[r][i] * x[t][i] (+ y when accumulate). With groups G > 1 row r belongs to group
 * r / (n_out / G) and reads x[t][group * n_in ...]. quantized: activations of quantized weight types are rounded
 * to 8 bits once per row (docs/formats.md, activation formats). */
typedef struct ds4_args_matmul {
    ds4_weight w;
    ds4_ref x, y;
    uint32_t n, x_stride, y_stride; /* floats */
    uint32_t groups, accumulate, quantized;
} ds4_args_matmul;

/* Hyper-connection input: from mix [n][(2+H)*H] = fn @ streams (not yet normalised) and streams [n][H][dim]
 * compute x [n][dim], post [n][H] and comb [n][H][H] (row = source, column = destination). */
typedef struct ds4_args_hc_pre {
    ds4_ref mix, streams, scale, base, x, post, comb;
    uint32_t n, n_hc, dim, iterations;
    float norm_eps, hc_eps;
} ds4_args_hc_pre;

/* streams'[k] = post[k] * y + sum_j comb[j][k] * streams[j], in place. */
typedef struct ds4_args_hc_post {
    ds4_ref y, post, comb, streams;
    uint32_t n, n_hc, dim;
} ds4_args_hc_post;

/* x = sum_i (sigmoid(mix_i * scale / rms + base_i) + eps) * streams[i]; mix [n][H]. */
typedef struct ds4_args_hc_head {
    ds4_ref mix, streams, scale, base, x;
    uint32_t n, n_hc, dim;
    float norm_eps, hc_eps;
} ds4_args_hc_head;

/* Rotate consecutive pairs of the last n_rot entries of each head row of x [n][heads][dim] by
 * sign * (pos0 + t) * freqs[i]; freqs float32 [n_rot / 2]. */
typedef struct ds4_args_rope {
    ds4_ref x, freqs;
    uint32_t n, heads, dim, n_rot, pos0;
    float sign;
} ds4_args_rope;

/* Simulated quantization of n_rows rows of x [n_rows][dim], in place. FP8 leaves the last n_rot entries. */
typedef struct ds4_args_round_rows {
    ds4_ref x;
    uint32_t n_rows, dim, n_rot, mode;
} ds4_args_round_rows;

/* rows[(pos0 + t) % capacity] = x[t], in the cache's row type. */
typedef struct ds4_args_store_rows {
    ds4_ref x, rows;
    uint32_t n, dim, pos0, capacity, row_type;
} ds4_args_store_rows;

/* Feed n tokens to a compressor. k, s [n][width] with width = dim, or 2 * dim for ratio 4; ape float32
 * [ratio][width]. state_k, state_s: rings of `ring` rows of `width`, row of a position at pos % ring (s with ape
 * added). Every group that closes writes row number pos / ratio of `rows`. */
typedef struct ds4_args_compress {
    ds4_ref k, s, ape, norm, freqs, state_k, state_s, rows;
    uint32_t n, dim, width, ratio, ring, pos0, n_rot, round, row_type;
    float eps;
} ds4_args_compress;

/* Choose the compressed rows that each token may read: all visible ones when they are at most top_k, else the
 * top_k best by sum_h weight_h * relu(q_h . row); ties go to the lower row. q [n][heads][dim], weights [n][heads]
 * (scaled by `scale` here), selected int32 [n][top_k] ascending, counts int32 [n]. */
typedef struct ds4_args_indexer {
    ds4_ref q, weights, rows, selected, counts;
    uint32_t n, heads, dim, top_k, ratio, pos0, row_type;
    float scale;
} ds4_args_indexer;

/* Attention of n tokens over the window and the compressed rows; one row is key and value of all heads.
 * q, out [n][heads][dim]; window ring of `capacity` rows; compressed rows: absent for ratio 0; selected/counts
 * absent: every visible row. sinks float32 [heads]. */
typedef struct ds4_args_attention {
    ds4_ref q, window_rows, compressed_rows, selected, counts, sinks, out;
    uint32_t n, heads, dim, window, capacity, ratio, top_k, pos0, row_type;
    float scale;
} ds4_args_attention;

/* scores [n][n_expert] -> ids int32 [n][k], weights [n][k]. z = sqrt(softplus(score)); by table (int32
 * [n_vocab][k], of `tokens`) or the k largest z + bias; weights = z / sum * scale. */
typedef struct ds4_args_router {
    ds4_ref scores, bias, table, tokens, ids, weights;
    uint32_t n, n_expert, k;
    float scale;
} ds4_args_router;

/* Statistics of the experts of a layer, or absent refs. For every token and every expert chosen for it the squares of
 * the expert's input are added to sum_in float64 [n_expert][n_embd], those of the input of its down projection to
 * sum_mid float64 [n_expert][n_ff], and 1 to counts uint64 [n_expert]. An element is summed in token order. */
typedef struct ds4_importance {
    ds4_ref sum_in, sum_mid, counts;
} ds4_importance;

/* Where the matrices of an expert begin: bytes after the places that `data` of the three weights names. */
typedef struct ds4_expert_place {
    uint64_t gate, up, down;
} ds4_expert_place;

/* Work of one call: the middle rows (gate, up, activation), which stay with the queue until the next call with other
 * ids; what they add to y; and whether y holds the parts of lower experts already, or is set. */
enum { DS4_EXPERTS_GATE_UP = 1, DS4_EXPERTS_DOWN = 2, DS4_EXPERTS_ADD = 4 };

/* y[t] = sum over the k chosen experts of down(weight * silu(min(gate x, clamp)) * clamp(up x, +-clamp)), in ascending
 * order of the experts. The work may be split into calls with the same x, ids and weights, between which the queue gets
 * no other operations: one or more with GATE_UP, one with DOWN, then the same for higher experts with ADD. That changes
 * no bit. */
typedef struct ds4_args_experts {
    ds4_weight gate, up, down;
    ds4_ref x, ids, weights, y;
    uint32_t n, k, quantized;
    float clamp;
    ds4_importance importance; /* added to by GATE_UP when present */
    uint32_t work;
    ds4_ref places; /* ds4_expert_place [n_expert], or absent: the matrices are stacked, matrix_stride apart */
    ds4_ref chosen; /* uint8 [n_expert], not zero: the experts of this call, or absent: all */
} ds4_args_experts;

/* a[i] = silu(min(a[i], clamp)) * clamp(b[i], +-clamp), count values. */
typedef struct ds4_args_swiglu {
    ds4_ref a, b;
    uint64_t count;
    float clamp;
} ds4_args_swiglu;

/* x [n][copies][dim] += e [n][dim] for every copy. */
typedef struct ds4_args_add_rows {
    ds4_ref x, e;
    uint32_t n, copies, dim;
} ds4_args_add_rows;

enum { DS4_MAX_STEERING = 8 }; /* directions at a time */

/* y[t] -= sum over the directions d, in order, of scale * (d . y[t]) * d; all products see the y that came in.
 * y [n][dim], a direction float32 [dim]. */
typedef struct ds4_args_steer {
    ds4_ref y;
    ds4_ref directions[DS4_MAX_STEERING];
    float scales[DS4_MAX_STEERING];
    uint32_t n, dim, count;
} ds4_args_steer;

#endif
