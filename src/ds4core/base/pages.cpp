#include "base/pages.h"

#include <cerrno>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace ds4 {

uint8_t *reserve_aligned(size_t bytes) {
    if (bytes > SIZE_MAX - kHugePage) return nullptr;
    void *room = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return nullptr;
    uint8_t *const first = static_cast<uint8_t *>(room);
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
    if (before) munmap(first, before);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), kept = (bytes + page - 1) / page * page;
    if (kHugePage > before + (kept - bytes)) munmap(first + before + kept, bytes + kHugePage - before - kept);
    return first + before;
}

ZeroedMemory::~ZeroedMemory() {
    if (mapped_)
        munmap(data_, mapped_);
    else
        std::free(data_);
}

bool ZeroedMemory::allocate(uint64_t bytes) {
    if (bytes > SIZE_MAX) return false;
#if defined(MADV_HUGEPAGE)
    if (bytes >= kHugePage) {
        uint8_t *const room = reserve_aligned(static_cast<size_t>(bytes));
        if (!room) return false;
        if (mprotect(room, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0) {
            munmap(room, static_cast<size_t>(bytes));
            return false;
        }
        madvise(room, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice: a system without huge pages says no
        data_ = room;
        mapped_ = static_cast<size_t>(bytes);
        return true;
    }
#endif
    data_ = static_cast<uint8_t *>(std::calloc(bytes ? static_cast<size_t>(bytes) : 1, 1));
    return data_ != nullptr;
}

bool ZeroedMemory::populate() const {
#if defined(MADV_POPULATE_WRITE)
    int failed = 0;
    do {
        failed = mapped_ && madvise(data_, mapped_, MADV_POPULATE_WRITE) != 0 ? errno : 0;
    } while (failed == EINTR || failed == EAGAIN);
    return failed != ENOMEM;
#else
    return true;
#endif
}

}  // namespace ds4
