#include "model/device_memory.h"

#include <cstdio>
#include <string>

#include "base/error.h"
#include "model/model.h"

namespace ds4 {
namespace {

std::string readable(uint64_t bytes) {
    char text[64];
    if (bytes >= uint64_t{1} << 30)
        snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
    else if (bytes >= uint64_t{1} << 20)
        snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    else
        snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
    return text;
}

}  // namespace

ds4_status check_room(const ds4_model &m, const char *what, uint64_t bytes, const char *advice, ds4_error *err) {
    ds4_device_info info{};
    m.ops->device_info(m.device, &info);
    if (!info.total_bytes || info.unified || bytes <= info.free_bytes) return DS4_OK;
    return fail(err, DS4_E_DEVICE_MEMORY, "%s: %s of %s do not fit the memory of %s, which has %s free of %s; %s", m.ops->name, what,
                readable(bytes).c_str(), escape_name(info.name).c_str(), readable(info.free_bytes).c_str(),
                readable(info.total_bytes).c_str(), advice);
}

void SlotMirror::show(const ds4_backend_ops &ops, ds4_queue *q, ds4_ref slab, uint64_t offset, uint32_t layer, uint32_t expert) {
    const uint64_t slot = offset / slot_bytes_, wanted = uint64_t{layer} << 32 | expert;
    std::lock_guard lock(mutex_);
    if (held_[slot] == wanted) return;
    held_[slot] = wanted;
    ops.refresh(q, advance(slab, slot * slot_bytes_), slot_bytes_);
}

}  // namespace ds4
