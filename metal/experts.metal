// The routed experts. A pair is a token with one of its experts, number token * k + choice. Each product of an expert is
// one of matmul.metal's; a token's parts are added in ascending order of the experts whatever the form.
#pragma once

#include "matmul.metal"

inline bool is_chosen(constant ds4_args_experts &a, uint expert) {
    device const uchar *chosen = at<uchar>(a.chosen);
    return !chosen || chosen[expert] != 0;
}

inline device const uchar *expert_row(constant ds4_args_experts &a, uint which, uint expert, uint row) {
    constant ds4_weight &w = which == DS4_METAL_GATE ? a.gate : which == DS4_METAL_UP ? a.up : a.down;
    device const uchar *base = (device const uchar *)(w.data.buffer + w.data.offset) + ulong(row) * w.row_stride;
    device const ds4_expert_place *places = at<ds4_expert_place>(a.places);
    if (!places) return base + expert * w.matrix_stride;
    return base + (which == DS4_METAL_GATE ? places[expert].gate : which == DS4_METAL_UP ? places[expert].up : places[expert].down);
}

// What is done with a value of the gate or up product: up is kept, gate makes the middle row. The routing weight goes in
// before the down projection.
inline void put_middle(constant ds4_metal_experts &m, uint pair, uint row, float v) {
    const ulong place = ulong(pair) * m.a.gate.n_out + row;
    if (m.which == DS4_METAL_UP)
        at<float>(m.up)[place] = v;
    else
        at<float>(m.mid)[place] = gated(v, at<float>(m.up)[place], at<float>(m.a.weights)[pair], m.a.clamp);
}

// The choices of a token in ascending order of (expert, choice): the key after `last`, or kNoChoice. Begin with -1.
enum { kNoChoice = 0x7fffffff };
inline int next_choice(device const int *ids, uint k, int last) {
    int best = kNoChoice;
    for (uint j = 0; j < k; j++) {
        const int key = ids[j] * DS4_METAL_MAX_CHOSEN + int(j);
        if (key > last && key < best) best = key;
    }
    return best;
}
inline uint expert_of(int key) { return uint(key) / DS4_METAL_MAX_CHOSEN; }
inline uint choice_of(int key) { return uint(key) % DS4_METAL_MAX_CHOSEN; }

// ---- the plain forms. group.y: DS4_METAL_ROWS rows, one a simdgroup ----

// group.x: the pair.
template <class F> inline void experts_in(constant ds4_metal_experts &m, uint3 group, uint lane, uint sg) {
    const uint pair = group.x, row = group.y * DS4_METAL_ROWS + sg, n_in = m.a.gate.n_in;
    const uint expert = uint(at<int>(m.a.ids)[pair]);
    if (row >= m.a.gate.n_out || !is_chosen(m.a, expert)) return;
    device const uchar *w = expert_row(m.a, m.which, expert, row);
    float v[DS4_METAL_TOKENS];
    dot_float<F>(w, at<float>(m.a.x) + ulong(pair / m.a.k) * n_in, 0, 1, n_in, lane, v);
    if (lane == 0) put_middle(m, pair, row, v[0]);
}
template <class F> inline void experts_in_rounded(constant ds4_metal_experts &m, uint3 group, uint lane, uint sg) {
    const uint pair = group.x, row = group.y * DS4_METAL_ROWS + sg, n_in = m.a.gate.n_in;
    const uint expert = uint(at<int>(m.a.ids)[pair]);
    if (row >= m.a.gate.n_out || !is_chosen(m.a, expert)) return;
    device const uchar *w = expert_row(m.a, m.which, expert, row);
    device const uchar *act = at<uchar>(m.act) + ulong(pair / m.a.k) * (n_in / F::kBlock) * F::kActBytes;
    const float v = dot_rounded<F>(w, act, n_in, lane);
    if (lane == 0) put_middle(m, pair, row, v);
}

// group.x: the token.
inline float begin_sum(constant ds4_args_experts &a, uint token, uint row) {
    return a.work & DS4_EXPERTS_ADD ? at<float>(a.y)[ulong(token) * a.down.n_out + row] : 0.0f;
}
template <class F> inline void experts_down(constant ds4_metal_experts &m, uint3 group, uint lane, uint sg) {
    const uint token = group.x, row = group.y * DS4_METAL_ROWS + sg, width = m.a.down.n_in, k = m.a.k;
    if (row >= m.a.down.n_out) return;
    device const int *ids = at<int>(m.a.ids) + ulong(token) * k;
    float sum = begin_sum(m.a, token, row);
    for (int key = next_choice(ids, k, -1); key != kNoChoice; key = next_choice(ids, k, key)) {
        if (!is_chosen(m.a, expert_of(key))) continue;
        device const float *mid = at<float>(m.mid) + (ulong(token) * k + choice_of(key)) * width;
        float v[DS4_METAL_TOKENS];
        dot_float<F>(expert_row(m.a, DS4_METAL_DOWN, expert_of(key), row), mid, 0, 1, width, lane, v);
        sum += v[0];
    }
    if (lane == 0) at<float>(m.a.y)[ulong(token) * m.a.down.n_out + row] = sum;
}
template <class F> inline void experts_down_rounded(constant ds4_metal_experts &m, uint3 group, uint lane, uint sg) {
    const uint token = group.x, row = group.y * DS4_METAL_ROWS + sg, width = m.a.down.n_in, k = m.a.k;
    if (row >= m.a.down.n_out) return;
    device const int *ids = at<int>(m.a.ids) + ulong(token) * k;
    float sum = begin_sum(m.a, token, row);
    for (int key = next_choice(ids, k, -1); key != kNoChoice; key = next_choice(ids, k, key)) {
        if (!is_chosen(m.a, expert_of(key))) continue;
        const ulong pair = ulong(token) * k + choice_of(key);
        device const uchar *act = at<uchar>(m.act) + pair * (width / F::kBlock) * F::kActBytes;
        sum += dot_rounded<F>(expert_row(m.a, DS4_METAL_DOWN, expert_of(key), row), act, width, lane);
    }
    if (lane == 0) at<float>(m.a.y)[ulong(token) * m.a.down.n_out + row] = sum;
}

// ---- the forms with simdgroup matrices: pairs sorted by expert, in tiles of DS4_METAL_TILE ----

// One threadgroup: every thread has its experts.
kernel void experts_sort(constant ds4_metal_experts &m [[buffer(0)]], DS4_THREAD) {
    threadgroup uint counts[DS4_METAL_MAX_EXPERTS];
    threadgroup uint firsts[DS4_METAL_MAX_EXPERTS];
    threadgroup uint tile_firsts[DS4_METAL_MAX_EXPERTS];
    const uint pairs = m.a.n * m.a.k, n_expert = m.a.gate.n_matrices, threads = n_sg * kSimd;
    device const int *ids = at<int>(m.a.ids);
    for (uint e = tid; e < n_expert; e += threads) {
        uint count = 0;
        if (is_chosen(m.a, e))
            for (uint p = 0; p < pairs; p++) count += uint(ids[p]) == e;
        counts[e] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        uint first = 0, tile = 0;
        for (uint e = 0; e < n_expert; e++) {
            firsts[e] = first;
            tile_firsts[e] = tile;
            first += counts[e];
            tile += (counts[e] + DS4_METAL_TILE - 1) / DS4_METAL_TILE;
        }
        at<uint>(m.n_tiles)[0] = tile;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device uint *slots = at<uint>(m.slots);
    device ds4_metal_tile *tiles = at<ds4_metal_tile>(m.tiles);
    for (uint e = tid; e < n_expert; e += threads) {
        const uint count = counts[e], first = firsts[e];
        if (count == 0) continue;
        uint next = first;
        for (uint p = 0; p < pairs; p++)
            if (uint(ids[p]) == e) slots[next++] = p;
        for (uint i = 0; i < count; i += DS4_METAL_TILE) {
            device ds4_metal_tile &tile = tiles[tile_firsts[e] + i / DS4_METAL_TILE];
            tile.expert = e;
            tile.first = first + i;
            tile.count = min(count - i, uint(DS4_METAL_TILE));
        }
    }
}

// group.x: the rows of a tile, group.y: the tile. For gate and up a pair's activations are those of its token.
template <class F>
inline void experts_tile(constant ds4_metal_experts &m, uint3 group, threadgroup ulong *rows, threadgroup ulong *acts,
                         threadgroup half *weights, threadgroup half *codes, threadgroup float *results, uint tid, uint sg) {
    if (group.y >= at<uint>(m.n_tiles)[0]) return;
    const bool down = m.which == DS4_METAL_DOWN;
    const uint n_in = down ? m.a.down.n_in : m.a.gate.n_in, row0 = group.x * kTile;
    const uint end_row = down ? m.n_rows : m.a.gate.n_out;
    const ds4_metal_tile tile = at<ds4_metal_tile>(m.tiles)[group.y];
    device const uint *slots = at<uint>(m.slots) + tile.first;
    if (tid < kTile) {
        const ulong act_bytes = ulong(n_in / F::kBlock) * F::kActBytes;
        const uint pair = tid < tile.count ? slots[tid] : 0, r = row0 + tid;
        acts[tid] = tid < tile.count ? (ulong)(at<uchar>(m.act) + (down ? pair : pair / m.a.k) * act_bytes) : 0;
        rows[tid] = r < end_row ? (ulong)expert_row(m.a, m.which, tile.expert, down ? m.first_row + r : r) : 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    TileSums sums;
    tile_product<F>(sums, rows, acts, n_in, weights, codes, results, tid, sg);
    for (uint i = 0; i < kOwn; i++) {
        const uint element = tid + i * kTileThreads, r = row0 + element / kTile, t = element % kTile;
        if (r >= end_row || t >= tile.count) continue;
        if (down)
            at<float>(m.parts)[ulong(slots[t]) * m.n_rows + r] = sums.of[i];
        else
            put_middle(m, slots[t], r, sums.of[i]);
    }
}

// Adds the parts of a token's pairs: a row a thread, group.y the token.
kernel void experts_combine(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint r = group.x * n_sg * kSimd + tid, token = group.y, row = m.first_row + r, k = m.a.k;
    if (r >= m.n_rows) return;
    device const int *ids = at<int>(m.a.ids) + ulong(token) * k;
    device const float *parts = at<float>(m.parts) + ulong(token) * k * m.n_rows + r;
    float sum = begin_sum(m.a, token, row);
    for (int key = next_choice(ids, k, -1); key != kNoChoice; key = next_choice(ids, k, key))
        if (is_chosen(m.a, expert_of(key))) sum += parts[ulong(choice_of(key)) * m.n_rows];
    at<float>(m.a.y)[ulong(token) * m.a.down.n_out + row] = sum;
}

#define DS4_EXPERTS_FLOAT(name, F)                                                                              \
    kernel void experts_in_float_##name(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {   \
        experts_in<F>(m, group, lane, sg);                                                               \
    }                                                                                                           \
    kernel void experts_down_float_##name(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) { \
        experts_down<F>(m, group, lane, sg);                                                                    \
    }
#define DS4_EXPERTS_ROUNDED(name, F)                                                                              \
    kernel void experts_in_rounded_##name(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {   \
        experts_in_rounded<F>(m, group, lane, sg);                                                                \
    }                                                                                                             \
    kernel void experts_down_rounded_##name(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) { \
        experts_down_rounded<F>(m, group, lane, sg);                                                              \
    }                                                                                                             \
    kernel void experts_tile_##name(constant ds4_metal_experts &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {         \
        DS4_TILE_MEMORY                                                                                           \
        experts_tile<F>(m, group, rows, acts, weights, codes, results, tid, sg);                                  \
    }

DS4_EXPERTS_FLOAT(f32, F32)
DS4_EXPERTS_FLOAT(f16, F16)
DS4_EXPERTS_FLOAT(bf16, BF16)
DS4_EXPERTS_FLOAT(q8_0, Q8_0)
DS4_EXPERTS_FLOAT(q2_k, Q2_K)
DS4_EXPERTS_FLOAT(q4_k, Q4_K)
DS4_EXPERTS_FLOAT(iq2_xxs, IQ2_XXS)
DS4_EXPERTS_FLOAT(mxfp4, MXFP4)
DS4_EXPERTS_ROUNDED(q8_0, Q8_0)
DS4_EXPERTS_ROUNDED(q2_k, Q2_K)
DS4_EXPERTS_ROUNDED(q4_k, Q4_K)
DS4_EXPERTS_ROUNDED(iq2_xxs, IQ2_XXS)
DS4_EXPERTS_ROUNDED(mxfp4, MXFP4)
