// Devices with memory of their own: is there room, and which experts have their copy there.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/backend.h"

struct ds4_model;

namespace ds4 {

// DS4_E_DEVICE_MEMORY when the model's device has less free memory than `bytes`; the text names `what`, the device and what it
// has, and ends with `advice`. Devices that compute in the host's memory have room as long as the system gives it.
ds4_status check_room(const ds4_model &m, const char *what, uint64_t bytes, const char *advice, ds4_error *err);

// The copies of expert slots in the memory of a device, shared by all sessions of a model. A slot is sent when an expert
// that the copy does not hold is about to be used; the caller has it pinned.
class SlotMirror {
  public:
    SlotMirror(uint32_t n_slots, uint64_t slot_bytes) : held_(n_slots, kNothing), slot_bytes_(slot_bytes) {}
    // slab: the buffer of all slots; offset: a place in the slot.
    void show(const ds4_backend_ops &ops, ds4_queue *q, ds4_ref slab, uint64_t offset, uint32_t layer, uint32_t expert);

  private:
    static constexpr uint64_t kNothing = UINT64_MAX;
    std::mutex mutex_;
    std::vector<uint64_t> held_;  // by slot: layer and expert
    const uint64_t slot_bytes_;
};

}  // namespace ds4
