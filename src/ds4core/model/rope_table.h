// Rotation frequencies (docs/model.md, rotation): float32 [n_rot / 2], computed once per model.
#pragma once

#include <vector>

#include "ds4/model.h"

namespace ds4 {

// compressed: base compress_rope_base with YaRN; else rope_base, plain.
std::vector<float> rope_frequencies(const ds4_shape &s, bool compressed);

}  // namespace ds4
