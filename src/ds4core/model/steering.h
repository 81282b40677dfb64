// Directions that are taken out of the outputs of sublayers (docs/steering.md), on the device.
#pragma once

#include <vector>

#include "backend/kernel_args.h"

namespace ds4 {

struct SteeringDirection {
    ds4_ref values{};           // float32 [n_layer][n_embd]
    std::vector<bool> present;  // [n_layer]; false: all zeros, nothing to take out
    float ffn = 0.0f, attn = 0.0f;
};

struct Steering {
    std::vector<SteeringDirection> directions;  // in the order in which they are subtracted; at most DS4_MAX_STEERING
};

}  // namespace ds4
