// Matrix products. Sums have the order of the definition whatever the number of tokens, so a token's result does not depend
// on the chunk, and has the CPU's bits where the compiler fuses nothing:
//
//   quantized   float32 terms of the blocks, in order. A block's term comes of exact integer sums, so the plain form (8 lanes
//               a block) and the form with simdgroup matrices (whole numbers in half precision, sums below 2^24 in float32)
//               give the same.
//   float32     lane l takes the values l, l + 32, ... in order; the lanes as a tree; then what is left of the row.
#pragma once

#include "quant.metal"

// ---- activations rounded to 8 bits (docs/formats.md), a block a simdgroup; group.x is the row ----

inline char round_to_char(float x) { return char(int(rint(clamped(x, -128.0f, 127.0f)))); }
inline bool is_finite(float x) { return fabs(x) <= 3.40282347e+38f; }

kernel void round_q8_k(constant ds4_metal_round &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint block = group.y * n_sg + sg;
    if (block >= a.blocks) return;
    device const float *x = at<float>(a.x) + ulong(group.x) * a.x_stride + ulong(block) * 256 + 8 * lane;
    device uchar *out = at<uchar>(a.out) + (ulong(group.x) * a.blocks + block) * kQ8KBytes;
    // The first value of largest magnitude, with its sign: its place decides between equal ones.
    float magnitude = 0, peak = 0;
    bool finite = true;
    for (uint i = 0; i < 8; i++) {
        const float v = x[i], m = fabs(v);
        finite = finite && is_finite(v);
        if (m > magnitude) {
            magnitude = m;
            peak = v;
        }
    }
    finite = simd_all(finite);
    const float top = simd_max(finite ? magnitude : 0.0f);
    const uint first = simd_min(magnitude == top ? lane : kSimd);
    peak = simd_shuffle(peak, ushort(min(first, kSimd - 1)));
    const float factor = finite && top > 0 ? -127.0f / peak : 0.0f;
    const bool usable = finite && top > 0 && is_finite(factor);
    int sum = 0;
    device char *q = (device char *)(out + kActivationCodes) + 8 * lane;
    for (uint i = 0; i < 8; i++) {
        const char code = usable ? round_to_char(factor * x[i]) : char(0);
        q[i] = code;
        sum += code;
    }
    sum += simd_shuffle_xor(sum, 1);
    if (lane % 2 == 0) ((device short *)(out + kQ8KSums))[lane / 2] = short(sum);
    if (lane == 0) *(device float *)out = usable ? 1.0f / factor : finite ? 0.0f : NAN;
}

kernel void round_q8_a(constant ds4_metal_round &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint block = group.y * n_sg + sg;
    if (block >= a.blocks) return;
    const float x = at<float>(a.x)[ulong(group.x) * a.x_stride + ulong(block) * 32 + lane];
    device uchar *out = at<uchar>(a.out) + (ulong(group.x) * a.blocks + block) * kQ8ABytes;
    const bool finite = simd_all(is_finite(x));
    const float top = simd_max(finite ? fabs(x) : 0.0f);
    const float d = top / 127.0f, factor = d > 0 ? 1.0f / d : 0.0f;
    const bool usable = finite && d > 0 && is_finite(factor);
    ((device char *)(out + kActivationCodes))[lane] = usable ? round_to_char(factor * x) : char(0);
    if (lane == 0) *(device float *)out = usable ? d : finite ? 0.0f : NAN;
}

// ---- the plain forms: a row a simdgroup ----

// The product of a weight row with rounded activations, on every lane.
template <class F> inline float dot_rounded(device const uchar *w, device const uchar *act, uint n_in, uint lane) {
    const uint blocks = n_in / F::kBlock, own = lane / 8, part = lane % 8;
    float sum = 0;
    for (uint first = 0; first < blocks; first += 4) {
        const uint b = min(first + own, blocks - 1);
        device const uchar *wb = w + b * F::kBytes, *ab = act + b * F::kActBytes;
        Sums s = F::product(wb, ab, part);
        for (ushort m = 1; m < 8; m *= 2) {
            s.products += simd_shuffle_xor(s.products, m);
            if (F::kMinimums) s.minimums += simd_shuffle_xor(s.minimums, m);
        }
        const float term = F::term(wb, act_scale(ab), s);
        for (uint i = 0; i < 4; i++) {
            const float next = simd_shuffle(term, ushort(8 * i));
            if (first + i < blocks) sum += next;
        }
    }
    return sum;
}

// The products of a weight row with n <= DS4_METAL_TOKENS rows of float32, x_stride apart, on every lane.
template <class F>
inline void dot_float(device const uchar *w, device const float *x, ulong x_stride, uint n, uint n_in, uint lane,
                      thread float *sums) {
    for (uint t = 0; t < DS4_METAL_TOKENS; t++) sums[t] = 0;
    const uint whole = n_in / kSimd * kSimd;
    float v[1];
    for (uint i = lane; i < whole; i += kSimd) {
        F::decode8(w, i, 1, v);
        for (uint t = 0; t < n; t++) sums[t] += v[0] * x[t * x_stride + i];
    }
    for (uint t = 0; t < DS4_METAL_TOKENS; t++) sums[t] = tree_sum(sums[t]);
    for (uint i = whole; i < n_in; i++) {
        F::decode8(w, i, 1, v);
        for (uint t = 0; t < n; t++) sums[t] += v[0] * x[t * x_stride + i];
    }
}

inline void put(constant ds4_args_matmul &a, uint t, uint row, float v) {
    device float *y = at<float>(a.y) + ulong(t) * a.y_stride + row;
    *y = a.accumulate ? *y + v : v;
}

// group.x: DS4_METAL_ROWS rows; group.y: the token.
template <class F> inline void matmul_rounded(constant ds4_metal_matmul &m, uint3 group, uint lane, uint sg) {
    constant ds4_args_matmul &a = m.a;
    const uint row = group.x * DS4_METAL_ROWS + sg;
    if (row >= a.w.n_out) return;
    const ulong blocks = a.w.n_in / F::kBlock, part = row / (a.w.n_out / a.groups);
    device const uchar *act = at<uchar>(m.act) + (group.y * blocks * a.groups + part * blocks) * F::kActBytes;
    const float v = dot_rounded<F>(weight_row(a.w, row), act, a.w.n_in, lane);
    if (lane == 0) put(a, group.y, row, v);
}

// group.y: DS4_METAL_TOKENS tokens.
template <class F> inline void matmul_float(constant ds4_metal_matmul &m, uint3 group, uint lane, uint sg) {
    constant ds4_args_matmul &a = m.a;
    const uint row = group.x * DS4_METAL_ROWS + sg, t = group.y * DS4_METAL_TOKENS;
    if (row >= a.w.n_out) return;
    const uint n = min(a.n - t, uint(DS4_METAL_TOKENS));
    device const float *x = at<float>(a.x) + ulong(t) * a.x_stride + ulong(row / (a.w.n_out / a.groups)) * a.w.n_in;
    float v[DS4_METAL_TOKENS];
    dot_float<F>(weight_row(a.w, row), x, a.x_stride, n, a.w.n_in, lane, v);
    if (lane == 0)
        for (uint i = 0; i < n; i++) put(a, t + i, row, v[i]);
}

// ---- tiles of 32 rows and 32 tokens with simdgroup matrices: four simdgroups, each 16 rows and 16 tokens ----

enum { kTile = DS4_METAL_TILE, kTileThreads = 128, kOwn = kTile * kTile / kTileThreads, kMostChunk = 64 };

// The sums of a tile that one thread keeps: elements tid + 128 i of the tile [row][token].
struct TileSums {
    float of[kOwn];
};

// rows, acts: where rows and activations of the tile begin, null beyond the last one. All 128 threads call it.
template <class F>
inline void tile_product(thread TileSums &out, const threadgroup ulong *rows, const threadgroup ulong *acts, uint n_in,
                         threadgroup half *weights, threadgroup half *codes, threadgroup float *results, uint tid, uint sg) {
    for (uint i = 0; i < kOwn; i++) out.of[i] = 0;
    const uint blocks = n_in / F::kBlock, row0 = sg / 2 * 16, token0 = sg % 2 * 16;
    for (uint b = 0; b < blocks; b++) {
        int products[kOwn];
        for (uint i = 0; i < kOwn; i++) products[i] = 0;
        for (uint c = 0; c < F::kBlock; c += F::kChunk) {
            // weights [row][chunk] and codes [token][chunk], 8 values a thread and turn.
            for (uint i = tid; i < kTile * F::kChunk / 8; i += kTileThreads) {
                const uint r = i / (F::kChunk / 8), k = i % (F::kChunk / 8) * 8;
                short v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                device const uchar *w = (device const uchar *)ulong(rows[r]), *act = (device const uchar *)ulong(acts[r]);
                if (w) F::folded8(w + b * F::kBytes, c + k, v);
                for (uint j = 0; j < 8; j++) weights[r * F::kChunk + k + j] = half(v[j]);
                if (act) {
                    device const char *q = act_codes(act + b * F::kActBytes) + c + k;
                    for (uint j = 0; j < 8; j++) codes[r * F::kChunk + k + j] = half(short(q[j]));
                } else {
                    for (uint j = 0; j < 8; j++) codes[r * F::kChunk + k + j] = half(0.0f);
                }
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            simdgroup_float8x8 s[2][2];
            for (uint i = 0; i < 2; i++)
                for (uint j = 0; j < 2; j++) s[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            for (uint k = 0; k < F::kChunk; k += 8) {
                simdgroup_half8x8 w8[2], q8[2];
                for (uint i = 0; i < 2; i++) {
                    simdgroup_load(w8[i], weights + (row0 + 8 * i) * F::kChunk + k, F::kChunk);
                    simdgroup_load(q8[i], codes + (token0 + 8 * i) * F::kChunk + k, F::kChunk, ulong2(0, 0), true);
                }
                for (uint i = 0; i < 2; i++)
                    for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(s[i][j], w8[i], q8[j], s[i][j]);
            }
            for (uint i = 0; i < 2; i++)
                for (uint j = 0; j < 2; j++)
                    simdgroup_store(s[i][j], results + (row0 + 8 * i) * kTile + token0 + 8 * j, kTile);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < kOwn; i++) products[i] += int(results[tid + i * kTileThreads]);
        }
        for (uint i = 0; i < kOwn; i++) {
            const uint element = tid + i * kTileThreads;
            device const uchar *w = (device const uchar *)ulong(rows[element / kTile]);
            device const uchar *act = (device const uchar *)ulong(acts[element % kTile]);
            if (!w || !act) continue;
            w += b * F::kBytes;
            act += b * F::kActBytes;
            out.of[i] += F::term(w, act_scale(act), {products[i], F::kMinimums ? F::minimum(w, act) : 0});
        }
    }
}

// group.x: the rows of a tile, group.y: its tokens, group.z: the group of the matrix.
template <class F>
inline void matmul_tile(constant ds4_metal_matmul &m, uint3 group, threadgroup ulong *rows, threadgroup ulong *acts,
                        threadgroup half *weights, threadgroup half *codes, threadgroup float *results, uint tid, uint sg) {
    constant ds4_args_matmul &a = m.a;
    const uint per_group = a.w.n_out / a.groups, row0 = group.x * kTile, token0 = group.y * kTile;
    const ulong blocks = a.w.n_in / F::kBlock;
    if (tid < kTile) {
        const uint r = row0 + tid, t = token0 + tid;
        rows[tid] = r < per_group ? (ulong)weight_row(a.w, group.z * per_group + r) : 0;
        acts[tid] = t < a.n ? (ulong)(at<uchar>(m.act) + (t * a.groups + group.z) * blocks * F::kActBytes) : 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    TileSums sums;
    tile_product<F>(sums, rows, acts, a.w.n_in, weights, codes, results, tid, sg);
    for (uint i = 0; i < kOwn; i++) {
        const uint element = tid + i * kTileThreads, r = row0 + element / kTile, t = token0 + element % kTile;
        if (r < per_group && t < a.n) put(a, t, group.z * per_group + r, sums.of[i]);
    }
}

// The threadgroup memory of a tile: 12.5 KiB.
#define DS4_TILE_MEMORY                                                            \
    threadgroup ulong rows[kTile];                                                 \
    threadgroup ulong acts[kTile];                                                 \
    threadgroup half weights[kTile * kMostChunk];                                  \
    threadgroup half codes[kTile * kMostChunk];                                    \
    threadgroup float results[kTile * kTile];

#define DS4_MATMUL_FLOAT(name, F)                                                                              \
    kernel void matmul_float_##name(constant ds4_metal_matmul &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {       \
        matmul_float<F>(m, group, lane, sg);                                                                   \
    }
#define DS4_MATMUL_ROUNDED(name, F)                                                                            \
    kernel void matmul_rounded_##name(constant ds4_metal_matmul &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {     \
        matmul_rounded<F>(m, group, lane, sg);                                                                 \
    }                                                                                                          \
    kernel void matmul_tile_##name(constant ds4_metal_matmul &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {        \
        DS4_TILE_MEMORY                                                                                        \
        matmul_tile<F>(m, group, rows, acts, weights, codes, results, tid, sg);                                \
    }

DS4_MATMUL_FLOAT(f32, F32)
DS4_MATMUL_FLOAT(f16, F16)
DS4_MATMUL_FLOAT(bf16, BF16)
DS4_MATMUL_FLOAT(q8_0, Q8_0)
DS4_MATMUL_FLOAT(q2_k, Q2_K)
DS4_MATMUL_FLOAT(q4_k, Q4_K)
DS4_MATMUL_FLOAT(iq2_xxs, IQ2_XXS)
DS4_MATMUL_FLOAT(mxfp4, MXFP4)
DS4_MATMUL_ROUNDED(q8_0, Q8_0)
DS4_MATMUL_ROUNDED(q2_k, Q2_K)
DS4_MATMUL_ROUNDED(q4_k, Q4_K)
DS4_MATMUL_ROUNDED(iq2_xxs, IQ2_XXS)
DS4_MATMUL_ROUNDED(mxfp4, MXFP4)
