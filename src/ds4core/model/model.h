// A bound model: the weights of every layer as backend references, checked and immutable.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "backend/backend.h"
#include "ds4/model.h"
#include "gguf/gguf.h"
#include "model/device_memory.h"
#include "model/expert_layout.h"
#include "model/expert_stream.h"
#include "model/shape.h"

namespace ds4 {

struct CompressorWeights {
    ds4_weight kv{}, gate{};  // [width][n_embd]
    ds4_ref ape{}, norm{};    // float32 [ratio][width], [dim]
};

struct HyperWeights {
    ds4_weight fn{};             // [(2 + H) * H][H * n_embd]; the head's has H rows
    ds4_ref scale{}, base{};
};

// One transformer block (also the MTP block, with ratio 0).
struct LayerWeights {
    uint32_t ratio = 0;
    HyperWeights hc_attn, hc_ffn;
    ds4_ref attn_norm{}, ffn_norm{}, q_a_norm{}, kv_norm{}, sinks{};
    ds4_weight q_a{}, q_b{}, kv{}, out_a{}, out_b{};
    CompressorWeights compressor, index_compressor;
    ds4_weight index_q{}, index_weights{};
    ds4_weight router{};
    ds4_ref router_bias{}, hash_table{};
    ds4_weight gate_exps{}, up_exps{}, down_exps{}, gate_shexp{}, up_shexp{}, down_shexp{};
    // With streamed experts: the number of the layer in the cache, whose tickets know where an expert is, and hash_table
    // or router_bias on the host.
    int64_t stream = -1;
    const int32_t *hash_ids = nullptr;
    const float *bias = nullptr;
};

struct MtpWeights {
    LayerWeights block;
    ds4_weight e_proj{}, h_proj{};
    ds4_ref enorm{}, hnorm{}, norm{};
    HyperWeights head;
};

}  // namespace ds4

struct ds4_model {
    ~ds4_model();

    ds4_shape shape{};
    const ds4_backend_ops *ops = nullptr;
    ds4_device *device = nullptr;
    std::unique_ptr<ds4_gguf> file, mtp_file;  // mtp_file is set only for a separate file
    ds4::ExpertLayout layout, mtp_layout;      // of file and mtp_file
    std::unique_ptr<ds4::ExpertStream> stream; // when the experts stay in the file
    std::unique_ptr<ds4::SlotMirror> mirror;   // of the slots, on a device with memory of its own
    std::vector<ds4_buffer *> buffers;
    std::vector<std::pair<ds4_buffer *, uint64_t>> resident;  // of these: weights that are read after they are bound

    ds4_weight token_embd{}, output{};
    ds4_ref output_norm{};
    ds4::HyperWeights head;
    std::vector<ds4::LayerWeights> layers;
    std::unique_ptr<ds4::MtpWeights> mtp;
    ds4_ref freqs_plain{}, freqs_compressed{};  // float32 [n_rot / 2]

    std::string warnings;
    uint8_t fingerprint[16] = {};
    std::atomic<uint32_t> references{1};  // sessions keep their model alive
    pid_t owner = getpid();
};

namespace ds4 {

ds4_status open_model(const char *path, const ds4_model_options &o, ds4_model **out, ds4_error *err);
void release_model(ds4_model *m);
// The recognised or nearest shape and every difference from it.
ds4_status find_problems(const ds4_gguf &g, ds4_shape *shape, Findings *out, ds4_error *err);
ds4_status check_weights(const ds4_model &m, ds4_pulse pulse, void *ud, ds4_error *err);

}  // namespace ds4
