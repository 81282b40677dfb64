// The expert-adjacent layout (docs/formats.md): one tensor of bytes in place of three stacked ones, with a record per
// expert that holds its gate, up and down matrix. Everything above the binding sees the same weights in both layouts.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/tensors.h"

namespace ds4 {

constexpr int kExpertParts = 3;  // gate, up, down

struct ExpertPart {
    uint32_t type;
    uint32_t n_in, n_out;
    uint64_t offset, row_stride;  // in the record, bytes
    uint64_t bytes() const { return row_stride * n_out; }
};

struct ExpertRecord {
    ExpertPart part[kExpertParts];
    uint64_t bytes;
    uint32_t n_expert;
};

// The layout of one file: no records when its experts lie in the standard way.
struct ExpertLayout {
    std::map<std::string, ExpertRecord, std::less<>> records;  // by the block's prefix, "blk.3." or "mtp.0."
    uint64_t standard_alignment = 0;         // general.alignment of the standard form, 0 when that has none
    std::vector<uint64_t> standard_order;    // places of a block's three tensors in the standard form's directory
    std::vector<std::string> blocks;         // prefixes in the order of standard_order

    const ExpertRecord *find(std::string_view prefix) const;
};

// A tensor as the standard form of a file lists it.
struct DirectoryEntry {
    std::string name;
    uint64_t ne[4];
    uint32_t type;
    const uint8_t *data;
    uint64_t n_bytes;
};

// Read a file's layout. `specs` lists what the standard form must hold; where the file has records it is changed to
// list those. What is wrong goes to `out`, and the layout is then not to be used.
ExpertLayout read_expert_layout(const ds4_gguf &g, std::vector<TensorSpec> *specs, Findings &out);

// Metadata that the layout brings along, and that the standard form lacks.
bool is_layout_key(std::string_view key);

// The directory of the standard form. The layout was read without findings.
std::vector<DirectoryEntry> standard_directory(const ds4_gguf &g, const ExpertLayout &layout);

std::string record_name(const std::string &prefix);  // "blk.3.ffn_exps.weight"
const char *expert_part_name(int part);              // "gate", "up", "down"

}  // namespace ds4
