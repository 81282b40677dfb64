#include "base/mapped_file.h"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/pages.h"

namespace ds4 {

FileIdentity FileIdentity::of(const struct stat &st) {
#if defined(__APPLE__)
    const timespec &changed = st.st_mtimespec;
#else
    const timespec &changed = st.st_mtim;
#endif
    return {static_cast<uint64_t>(st.st_dev), static_cast<uint64_t>(st.st_ino), static_cast<uint64_t>(st.st_size),
            static_cast<int64_t>(changed.tv_sec), static_cast<int64_t>(changed.tv_nsec)};
}

MappedFile::~MappedFile() {
    if (data_) munmap(const_cast<uint8_t *>(data_), static_cast<size_t>(size_));
}

ds4_status MappedFile::open(const char *path, ds4_error *err) {
    const std::string shown = escape_name(path, 1024);
    // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
    int fd = -1;
    do {
        fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return fail_errno(err, DS4_E_IO, errno, "cannot open \"%s\"", shown.c_str());

    struct stat st {};
    ds4_status status = DS4_OK;
    if (fstat(fd, &st) != 0) {
        status = fail_errno(err, DS4_E_IO, errno, "cannot examine \"%s\"", shown.c_str());
    } else if (S_ISDIR(st.st_mode)) {
        status = fail_errno(err, DS4_E_IO, EISDIR, "cannot read \"%s\"", shown.c_str());
    } else if (!S_ISREG(st.st_mode)) {
        status = fail(err, DS4_E_IO, "\"%s\" is not a regular file (mode 0%o)", shown.c_str(),
                      static_cast<unsigned>(st.st_mode & S_IFMT));
    } else if (static_cast<uint64_t>(st.st_size) > static_cast<uint64_t>(PTRDIFF_MAX)) {
        status = fail(err, DS4_E_IO, "\"%s\" has %llu bytes, more than this process can address", shown.c_str(),
                      static_cast<unsigned long long>(st.st_size));
    } else {
        identity_ = FileIdentity::of(st);
    }
    if (status == DS4_OK && st.st_size > 0) {
        const size_t size = static_cast<size_t>(st.st_size);
        uint8_t *const room = size >= kHugePage ? reserve_aligned(size) : nullptr;
        void *map = mmap(room, size, PROT_READ, MAP_SHARED | (room ? MAP_FIXED : 0), fd, 0);
        if (map == MAP_FAILED) {
            if (room) munmap(room, size);
            status = fail_errno(err, DS4_E_IO, errno, "cannot map \"%s\" (%llu bytes)", shown.c_str(),
                                static_cast<unsigned long long>(st.st_size));
        } else {
            data_ = static_cast<const uint8_t *>(map);
            size_ = static_cast<uint64_t>(st.st_size);
        }
    }
    ::close(fd);  // the mapping keeps the file alive
    return status;
}

void MappedFile::use_huge_pages() const {
#if defined(MADV_HUGEPAGE)
    if (size_ >= kHugePage) madvise(const_cast<uint8_t *>(data_), static_cast<size_t>(size_), MADV_HUGEPAGE);
#endif
}

}  // namespace ds4
