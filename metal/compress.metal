// The compressor: pools the projected rows of a group of positions into one cache row (docs/model.md, compressor). Three
// steps: the position's addition to s, the rows of the groups that close, the rings.
#pragma once

#include "rows.metal"

// A value a thread; group.y is the token.
kernel void compress_add(constant ds4_args_compress &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint i = group.x * n_sg * kSimd + tid, t = group.y;
    if (i >= a.width) return;
    at<float>(a.s)[ulong(t) * a.width + i] += at<float>(a.ape)[ulong((a.pos0 + t) % a.ratio) * a.width + i];
}

// Entry e of the group g: its column 0 in k (or s) of this chunk, or in the ring.
inline device const float *entry(constant ds4_args_compress &a, ds4_ref chunk, ds4_ref ring, uint g, uint e) {
    const bool overlaps = a.width == 2 * a.dim;  // first half of the previous group, second half of this one
    const uint before = overlaps && g > 0 ? a.ratio : 0;
    const uint pos = g * a.ratio + e - before, column = overlaps && e >= before ? a.dim : 0;
    if (pos >= a.pos0) return at<float>(chunk) + ulong(pos - a.pos0) * a.width + column;
    return at<float>(ring) + ulong(pos % a.ring) * a.width + column;
}

// group.x: which of the closing groups.
kernel void compress_pool(constant ds4_args_compress &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    threadgroup float row[DS4_METAL_MAX_ROW];
    const uint g = a.pos0 / a.ratio + group.x, dim = a.dim, threads = n_sg * kSimd;
    const uint n = a.width == 2 * dim && g > 0 ? 2 * a.ratio : a.ratio;
    for (uint c = tid; c < dim; c += threads) {
        float top = entry(a, a.s, a.state_s, g, 0)[c], sum = 0, pooled = 0;
        for (uint e = 1; e < n; e++) {
            const float s = entry(a, a.s, a.state_s, g, e)[c];
            top = top < s ? s : top;
        }
        for (uint e = 0; e < n; e++) {
            const float weight = exp_of(entry(a, a.s, a.state_s, g, e)[c] - top);
            sum += weight;
            pooled += weight * entry(a, a.k, a.state_k, g, e)[c];
        }
        row[c] = pooled / sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // In the definition's order, which the rounding below would tell from another one.
    float squares = 0;
    const uint whole = dim / kSimd * kSimd;
    for (uint c = lane; c < whole; c += kSimd) squares += float(row[c]) * float(row[c]);
    squares = tree_sum(squares);
    for (uint c = whole; c < dim; c++) squares += float(row[c]) * float(row[c]);
    const float inverse = 1.0f / precise::sqrt(squares / float(dim) + a.eps);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const float *norm = at<float>(a.norm);
    for (uint c = tid; c < dim; c += threads) row[c] = row[c] * inverse * norm[c];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < a.n_rot / 2; i += threads) {  // at the first position of the group
        const uint c = dim - a.n_rot + 2 * i;
        const float angle = float(g * a.ratio) * at<float>(a.freqs)[i], cosine = precise::cos(angle), sine = precise::sin(angle);
        const float u = row[c], v = row[c + 1];
        row[c] = u * cosine - v * sine;
        row[c + 1] = v * cosine + u * sine;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    round_row(row, dim, a.n_rot, a.round, tid, lane, sg, n_sg);
    for (uint c = tid; c < dim; c += threads) store_value(a.row_type, at<uchar>(a.rows), ulong(g) * dim + c, row[c]);
}

// A value a thread; group.y is one of the last `ring` tokens.
kernel void compress_keep(constant ds4_args_compress &a [[buffer(0)]], DS4_GROUP, DS4_THREAD) {
    const uint i = group.x * n_sg * kSimd + tid, t = (a.n > a.ring ? a.n - a.ring : 0) + group.y;
    if (i >= a.width) return;
    const ulong from = ulong(t) * a.width + i, to = ulong((a.pos0 + t) % a.ring) * a.width + i;
    at<float>(a.state_k)[to] = at<float>(a.k)[from];
    at<float>(a.state_s)[to] = at<float>(a.s)[from];
}
