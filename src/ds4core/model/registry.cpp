// The shapes that ds4 runs. A file must match one of them in every number: an almost right shape would compute
// something, and it would be wrong.
#include <cstring>

#include "model/shape.h"

namespace ds4 {
namespace {

// What all members of the family share (docs/model.md, configuration).
ds4_shape base_shape(const char *name) {
    ds4_shape s{};
    strncpy(s.name, name, sizeof(s.name) - 1);
    s.n_rot = 64;
    s.n_expert_shared = 1;
    s.n_hash_layer = 3;
    s.window = 128;
    s.index_dim = 128;
    s.n_hc = 4;
    s.sinkhorn_iterations = 20;
    s.norm_eps = 1e-6f;
    s.hc_eps = 1e-6f;
    s.swiglu_clamp = 10.0f;
    s.rope_base = 10000.0f;
    s.compress_rope_base = 160000.0f;
    s.yarn_factor = 16.0f;
    s.yarn_beta_fast = 32.0f;
    s.yarn_beta_slow = 1.0f;
    s.yarn_original_ctx = 65536;
    return s;
}

// From layer 2 on ratios alternate 4, 128; the first two layers are window-only in Flash and 128 in Pro.
void set_ratios(ds4_shape &s, uint32_t n_layer, uint32_t first_two) {
    s.n_layer = n_layer;
    memset(s.compress_ratio, 0, sizeof(s.compress_ratio));
    for (uint32_t i = 0; i < n_layer; i++) s.compress_ratio[i] = i < 2 ? first_two : i % 2 ? 128 : 4;
}

ds4_shape flash() {
    ds4_shape s = base_shape("flash");
    set_ratios(s, 43, 0);
    s.n_embd = 4096;
    s.n_vocab = 129280;
    s.n_head = 64;
    s.head_dim = 512;
    s.q_lora = 1024;
    s.o_lora = 1024;
    s.o_groups = 8;
    s.n_expert = 256;
    s.n_expert_used = 6;
    s.n_ff = 2048;
    s.n_index_head = 64;
    s.index_top_k = 512;
    s.expert_scale = 1.5f;
    return s;
}

ds4_shape pro() {
    ds4_shape s = flash();
    strncpy(s.name, "pro", sizeof(s.name) - 1);
    set_ratios(s, 61, 128);
    s.n_embd = 7168;
    s.n_head = 128;
    s.q_lora = 1536;
    s.o_groups = 16;
    s.n_expert = 384;
    s.n_ff = 3072;
    s.index_top_k = 1024;
    s.expert_scale = 2.5f;
    return s;
}

// Flash's true layers, one of each kind only: what fits a small machine when speed at real dimensions is measured.
ds4_shape flash_4_layers() {
    ds4_shape s = flash();
    strncpy(s.name, "flash-4-layers", sizeof(s.name) - 1);
    set_ratios(s, 4, 0);
    return s;
}

// The random models of the tests: every mechanism, seconds on one core.
ds4_shape test_flash() {
    ds4_shape s = base_shape("test-flash");
    set_ratios(s, 5, 0);
    s.n_embd = 256;
    s.n_vocab = 512;
    s.n_head = 4;
    s.head_dim = 256;
    s.q_lora = 128;
    s.o_lora = 64;
    s.o_groups = 2;
    s.n_expert = 16;
    s.n_expert_used = 6;
    s.n_ff = 256;
    s.n_index_head = 16;
    s.index_top_k = 16;
    s.expert_scale = 1.5f;
    return s;
}

ds4_shape test_pro() {
    ds4_shape s = test_flash();
    strncpy(s.name, "test-pro", sizeof(s.name) - 1);
    set_ratios(s, 5, 128);
    s.n_head = 8;
    s.o_groups = 4;
    s.n_expert = 24;
    s.index_top_k = 24;
    s.expert_scale = 2.5f;
    return s;
}

// The trained model in the package (training/README.md).
ds4_shape ds4_tiny() {
    ds4_shape s = base_shape("ds4-tiny");
    set_ratios(s, 5, 0);
    s.n_embd = 256;
    s.n_vocab = 3072;
    s.n_head = 4;
    s.head_dim = 128;
    s.q_lora = 128;
    s.o_lora = 64;
    s.o_groups = 2;
    s.n_expert = 8;
    s.n_expert_used = 2;
    s.n_ff = 256;
    s.n_hash_layer = 2;
    s.n_index_head = 8;
    s.index_top_k = 128;
    s.expert_scale = 1.5f;
    return s;
}

}  // namespace

const std::vector<ds4_shape> &known_shapes() {
    static const std::vector<ds4_shape> shapes = {flash(), pro(), ds4_tiny(), flash_4_layers(), test_flash(),
                                                  test_pro()};
    return shapes;
}

}  // namespace ds4
