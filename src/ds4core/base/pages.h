// Large zeroed areas of memory, on huge pages where the system has them.
//
// A cache or a chunk's activations are read from end to end over and over; with pages of 4 KiB every one of them needs
// an entry of the address translation. Pages that are never written take no memory; a huge page takes its 2 MiB at the
// first write, so an area never takes more than its size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4 {

constexpr size_t kHugePage = size_t{2} << 20;

class ZeroedMemory {
  public:
    ZeroedMemory() = default;
    ~ZeroedMemory();
    ZeroedMemory(const ZeroedMemory &) = delete;
    ZeroedMemory &operator=(const ZeroedMemory &) = delete;

    bool allocate(uint64_t bytes);  // once; false when the system has no room
    uint8_t *data() const { return data_; }
    // Takes the memory at once instead of at the first writes. False when there is not enough; on systems that cannot do
    // it nothing happens.
    bool populate() const;

  private:
    uint8_t *data_ = nullptr;
    size_t mapped_ = 0;  // bytes of an own mapping; 0: from calloc
};

// Room of `bytes` addresses that begins at a multiple of kHugePage, without memory behind it; to be mapped over and
// unmapped by the caller. nullptr when refused.
uint8_t *reserve_aligned(size_t bytes);

}  // namespace ds4
