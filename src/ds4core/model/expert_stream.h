// A model whose routed experts stay in the file: where they are there, the cache that they are read into, and the copy
// of all other weights that stays in memory.
//
// The other weights are copied, not mapped: the system may drop pages of a mapped file at the very moment when the experts
// press on the memory, and a file that someone cuts short would end the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/pages.h"
#include "ds4/model.h"
#include "gguf/gguf.h"
#include "model/expert_layout.h"
#include "stream/expert_cache.h"

namespace ds4 {

// The weights of a file that are no routed experts, in memory.
class ResidentWeights {
public:
    // Plans: which ranges of the file are kept, and memory for them. DS4_E_MEMORY.
    ds4_status plan(const ds4_gguf &g, ds4_error *err);
    // Fills the memory. DS4_E_IO.
    ds4_status read(stream::Reader &reader, const stream::SourceFile &file, ds4_error *err);
    // The place of a tensor; NULL for one that is not kept.
    const uint8_t *find(const ds4_gguf_tensor &t) const;

    const uint8_t *data() const { return memory_.data(); }
    uint64_t bytes() const { return bytes_; }               // of the weights
    uint64_t mapped_bytes() const { return mapped_bytes_; }  // of the memory

private:
    struct Range {
        uint64_t offset, bytes, at;  // in the file; in memory_
    };
    std::vector<Range> ranges_;  // ascending
    ZeroedMemory memory_;
    uint64_t bytes_ = 0, mapped_bytes_ = 0;
};

// What the options say about reads.
stream::ReaderOptions reader_options(const ds4_model_options &o);

// Whether a tensor holds routed experts, in either layout.
bool is_expert_tensor(std::string_view name);

class ExpertStream {
public:
    // Opens the file (again) for reading; to be called for the model's file, then for a separate MTP file.
    ds4_status add_file(const char *path, const ds4_gguf &g, bool direct, ds4_error *err);
    const ResidentWeights &resident(const ds4_gguf &g) const;
    // Adds the experts of a block; returns the number that the cache knows it by.
    uint32_t add_layer(const ds4_gguf &g, const ExpertLayout &layout, const std::string &prefix, std::string name);
    // Makes the cache and reads the weights that stay. DS4_E_ARGUMENT: the cache is too small, or a reader's option is
    // out of range. DS4_E_IO, DS4_E_MEMORY, DS4_E_UNAVAILABLE.
    ds4_status start(const ds4_model_options &o, ds4_error *err);

    stream::ExpertCache &cache() const { return *cache_; }
    std::string notices() const;  // of the files, one a line
    uint64_t resident_bytes() const;
    bool guesses() const { return guesses_; }

private:
    struct File {
        const ds4_gguf *gguf = nullptr;
        stream::SourceFile file;
        ResidentWeights resident;
    };
    std::vector<std::unique_ptr<File>> files_;
    std::vector<stream::LayerSource> layers_;
    std::unique_ptr<stream::ExpertCache> cache_;
    bool guesses_ = true;
    const File &file_of(const ds4_gguf &g) const;
};

}  // namespace ds4
