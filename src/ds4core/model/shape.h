// The registry of shapes that ds4 runs, and reading a file's shape.
#pragma once

#include <string>
#include <vector>

#include "ds4/model.h"
#include "gguf/gguf.h"

namespace ds4 {

// Registered shapes, Flash first.
const std::vector<ds4_shape> &known_shapes();

// Collects everything that is wrong with a file, one line each, so that a user sees all of it at once.
class Findings {
public:
    void add(std::string line) { lines_.push_back(std::move(line)); }
    bool empty() const { return lines_.empty(); }
    size_t size() const { return lines_.size(); }
    // One line each, lines that differ only in the layer number joined ("blk.{0-2,5}."), at most `limit` bytes with a
    // note of what was left out.
    std::string text(size_t limit) const;

private:
    std::vector<std::string> lines_;
};

// What a file says about itself.
struct FileShape {
    ds4_shape shape{};          // the registered shape that matches best
    Findings problems;          // empty: the metadata is exactly a registered shape
};

// DS4_E_UNSUPPORTED for another architecture, named and with a hint.
ds4_status check_architecture(const ds4_gguf &g, ds4_error *err);
// As check_architecture; differences of the metadata go to out->problems.
ds4_status read_shape(const ds4_gguf &g, FileShape *out, ds4_error *err);

}  // namespace ds4
