// Importance statistics that a session gathers for quantization: the buffer they are added up in.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "ds4/model.h"

namespace ds4 {

// One record a layer, and one for the MTP block when the session keeps it; all zero at the start.
class Importance {
public:
    Importance() = default;
    Importance(const Importance &) = delete;
    Importance &operator=(const Importance &) = delete;
    ~Importance();
    ds4_status create(const ds4_backend_ops *ops, ds4_device *device, const ds4_shape &s, bool with_mtp, ds4_error *err);

    const ds4_importance *layers() const { return blocks_.data(); }
    const ds4_importance &block(uint32_t i) const { return blocks_[i]; }
    uint32_t n_blocks() const { return static_cast<uint32_t>(blocks_.size()); }

private:
    const ds4_backend_ops *ops_ = nullptr;
    ds4_buffer *buffer_ = nullptr;
    std::vector<ds4_importance> blocks_;
};

}  // namespace ds4
