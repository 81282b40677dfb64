// The indexer's choice of compressed rows: scores, then the k best by their digits, in ascending order. Equal scores: the
// lower row. A token that sees no more rows than it may take gets all of them and no scores.
#pragma once

#include "common.metal"

enum { kScoreStride = DS4_METAL_INDEX_ROWS + 1, kHeadSums = 16, kSelectSimdgroups = 8 };

inline uint visible_rows(constant ds4_args_indexer &a, uint t) { return (a.pos0 + t + 1) / a.ratio; }

// group: x 32 rows, y token of this launch. A lane is a row. Heads are added in the definition's order: those that leave the
// same rest by 16 one after the other, then the 16 sums as a tree. A simdgroup has four of the sums.
kernel void indexer_scores(constant ds4_metal_indexer &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float rows[DS4_METAL_INDEX_DIM * kScoreStride];
    threadgroup float shares[kHeadSums * kSimd];
    constant ds4_args_indexer &a = m.a;
    const uint t = m.first_token + group.y, visible = visible_rows(a, t), first = group.x * DS4_METAL_INDEX_ROWS;
    if (visible <= a.top_k || first >= visible) return;
    for (uint r = sg; r < DS4_METAL_INDEX_ROWS; r += n_sg)
        for (uint d = lane; d < a.dim; d += kSimd)
            rows[d * kScoreStride + r] =
                first + r < visible ? load_value(a.row_type, at<uchar>(a.rows), ulong(first + r) * a.dim + d) : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = sg; i < kHeadSums; i += n_sg) {
        float share = 0;
        for (uint first_head = 0; first_head < a.heads; first_head += kHeadSums) {
            // A head that does not exist has a query of zeros, as there: with an infinite row that is a NaN.
            const uint h = first_head + i;
            const bool exists = h < a.heads;
            device const float *q = at<float>(a.q) + (ulong(t) * a.heads + (exists ? h : 0)) * a.dim;
            float s = 0;
            for (uint d = 0; d < a.dim; d++) s += (exists ? q[d] : 0.0f) * rows[d * kScoreStride + lane];
            s = s < 0 ? 0.0f : s;  // a NaN stays
            share += s * (exists ? at<float>(a.weights)[ulong(t) * a.heads + h] * a.scale : 0.0f);
        }
        shares[i * kSimd + lane] = share;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg != 0 || first + lane >= visible) return;
    float sums[kHeadSums];
    for (uint i = 0; i < kHeadSums; i++) sums[i] = shares[i * kSimd + lane];
    for (uint step = kHeadSums / 2; step > 0; step /= 2)
        for (uint i = 0; i < step; i++) sums[i] += sums[i + step];
    // NaN has no order; it shows in the logits all the same, through attention.
    at<float>(m.scores)[ulong(group.y) * m.max_rows + first + lane] = isnan(sums[0]) ? -INFINITY : sums[0];
}

// Integers in the order of the floats; both zeros are one.
inline uint key_of(float v) {
    const uint bits = as_type<uint>(v == 0 ? 0.0f : v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline float value_of(uint key) { return as_type<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// group.x: token of this launch.
kernel void indexer_select(constant ds4_metal_indexer &m [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup uint scratch[kSelectSimdgroups * 16];
    threadgroup uint equals[kSelectSimdgroups];
    constant ds4_args_indexer &a = m.a;
    const uint t = m.first_token + group.x, visible = visible_rows(a, t), k = a.top_k, threads = n_sg * kSimd;
    device int *selected = at<int>(a.selected) + ulong(t) * k;
    if (tid == 0) at<int>(a.counts)[t] = int(min(visible, k));
    if (visible <= k) {
        for (uint i = tid; i < visible; i += threads) selected[i] = int(i);
        if (tid == 0) at<float>(m.gaps)[t] = INFINITY;
        return;
    }
    device const float *scores = at<float>(m.scores) + ulong(group.x) * m.max_rows;

    // The k-th largest key, four bits at a time from the top: `left` of the keys that begin like it are still to be taken.
    uint kept = 0, known = 0, left = k, as_kept = 0;
    for (int shift = 28; shift >= 0; shift -= 4) {
        uint counts[16];
        for (uint d = 0; d < 16; d++) counts[d] = 0;
        for (uint i = tid; i < visible; i += threads) {
            const uint key = key_of(scores[i]), digit = key >> shift & 15;
            const bool counted = (key & known) == kept;
            for (uint d = 0; d < 16; d++) counts[d] += counted && digit == d;
        }
        for (uint d = 0; d < 16; d++) {
            const uint n = simd_sum(counts[d]);
            if (lane == 0) scratch[sg * 16 + d] = n;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint d = 16; d-- > 0;) {
            uint n = 0;
            for (uint i = 0; i < n_sg; i++) n += scratch[i * 16 + d];
            if (n >= left) {
                kept |= d << shift;
                as_kept = n;
                break;
            }
            left -= n;
        }
        known |= 15u << shift;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Ascending: every thread has a stretch of rows, and knows what the ones before it take.
    const uint stretch = (visible + threads - 1) / threads, from = min(tid * stretch, visible), to = min(from + stretch, visible);
    uint above = 0, equal = 0, best_left = 0;
    for (uint i = from; i < to; i++) {
        const uint key = key_of(scores[i]);
        above += key > kept;
        equal += key == kept;
        if (key < kept) best_left = max(best_left, key);
    }
    uint above_before = simd_prefix_exclusive_sum(above), equal_before = simd_prefix_exclusive_sum(equal);
    const uint above_sum = simd_sum(above), equal_sum = simd_sum(equal), best = simd_max(best_left);
    if (lane == 0) {
        scratch[sg] = above_sum;
        scratch[kSelectSimdgroups + sg] = best;
        equals[sg] = equal_sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < n_sg; i++) {
        if (i < sg) {
            above_before += scratch[i];
            equal_before += equals[i];
        }
        best_left = max(best_left, uint(scratch[kSelectSimdgroups + i]));
    }
    uint place = above_before + min(equal_before, left);
    for (uint i = from; i < to; i++) {
        const uint key = key_of(scores[i]);
        const bool tie = key == kept && equal_before < left;
        equal_before += tie;
        if (key > kept || tie) selected[place++] = int(i);
    }
    if (tid == 0) at<float>(m.gaps)[t] = as_kept > left ? 0.0f : value_of(kept) - value_of(best_left);
}
