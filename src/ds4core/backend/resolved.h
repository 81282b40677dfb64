// Argument records as kernels of a device see them: the handle of every buffer replaced by its address there.
//
// A back end defines device_address beside its ds4_buffer.
#pragma once

#include "backend/kernel_args.h"

struct ds4_buffer;
inline uint64_t device_address(const ds4_buffer &);

namespace ds4 {

inline void resolve(ds4_ref &r) {
    if (r.buffer) r.buffer = device_address(*reinterpret_cast<const ds4_buffer *>(r.buffer));
}
inline void resolve(ds4_weight &w) { resolve(w.data); }
inline void resolve(ds4_importance &i) { resolve(i.sum_in), resolve(i.sum_mid), resolve(i.counts); }
template <class... T> void resolve_each(T &...each) { (resolve(each), ...); }

inline void resolve(ds4_args_embed &a) { resolve_each(a.table, a.tokens, a.out); }
inline void resolve(ds4_args_rms_norm &a) { resolve_each(a.x, a.w, a.y); }
inline void resolve(ds4_args_matmul &a) { resolve_each(a.w, a.x, a.y); }
inline void resolve(ds4_args_hc_pre &a) { resolve_each(a.mix, a.streams, a.scale, a.base, a.x, a.post, a.comb); }
inline void resolve(ds4_args_hc_post &a) { resolve_each(a.y, a.post, a.comb, a.streams); }
inline void resolve(ds4_args_hc_head &a) { resolve_each(a.mix, a.streams, a.scale, a.base, a.x); }
inline void resolve(ds4_args_rope &a) { resolve_each(a.x, a.freqs); }
inline void resolve(ds4_args_round_rows &a) { resolve_each(a.x); }
inline void resolve(ds4_args_store_rows &a) { resolve_each(a.x, a.rows); }
inline void resolve(ds4_args_compress &a) {
    resolve_each(a.k, a.s, a.ape, a.norm, a.freqs, a.state_k, a.state_s, a.rows);
}
inline void resolve(ds4_args_indexer &a) { resolve_each(a.q, a.weights, a.rows, a.selected, a.counts); }
inline void resolve(ds4_args_attention &a) {
    resolve_each(a.q, a.window_rows, a.compressed_rows, a.selected, a.counts, a.sinks, a.out);
}
inline void resolve(ds4_args_router &a) { resolve_each(a.scores, a.bias, a.table, a.tokens, a.ids, a.weights); }
inline void resolve(ds4_args_experts &a) {
    resolve_each(a.gate, a.up, a.down, a.x, a.ids, a.weights, a.y, a.importance, a.places, a.chosen);
}
inline void resolve(ds4_args_swiglu &a) { resolve_each(a.a, a.b); }
inline void resolve(ds4_args_add_rows &a) { resolve_each(a.x, a.e); }
inline void resolve(ds4_args_steer &a) {
    resolve(a.y);
    for (uint32_t i = 0; i < a.count && i < DS4_MAX_STEERING; i++) resolve(a.directions[i]);
}

template <class Args> Args resolved(const Args *a) {
    Args copy = *a;
    resolve(copy);
    return copy;
}

}  // namespace ds4
