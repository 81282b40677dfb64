// The tensors a shape must have: names, shapes and which types are allowed. One list drives the check of a file's
// directory, the binding and the listing of groups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ds4/model.h"
#include "model/shape.h"

namespace ds4 {

enum class TensorKind {
    vector,   // float32 vectors the graph reads as they are
    matrix,   // any type with a decoder
    expert,   // stacked matrices; gate and up of a layer share a type
    record,   // bytes that hold the experts of a block (expert_layout.h)
    hash,     // int32 expert table
};

struct TensorSpec {
    std::string name;
    TensorKind kind;
    uint64_t ne[3];  // unused trailing dimensions are 1
    bool optional = false;
};

// Names within one block, given its prefix ("blk.3." or "mtp.0.").
std::vector<TensorSpec> block_tensors(const ds4_shape &s, const std::string &prefix, uint32_t ratio, bool hashed);
// Everything outside the blocks.
std::vector<TensorSpec> root_tensors(const ds4_shape &s);
// The whole main model.
std::vector<TensorSpec> model_tensors(const ds4_shape &s);
// The MTP block under the names of ds4's files ("mtp.0.") and of llama.cpp's ("blk.<n_layer>.", "nextn.").
std::vector<TensorSpec> mtp_tensors_ds4(const ds4_shape &s);
std::vector<TensorSpec> mtp_tensors_llama(const ds4_shape &s);

// For messages: "F32, F16 or ...".
const char *wanted_types(TensorKind kind);

// Compare the directory with the list; differences go to `out`.
void check_tensors(const ds4_gguf &g, const std::vector<TensorSpec> &specs, Findings &out);

}  // namespace ds4
