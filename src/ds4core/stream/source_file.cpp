#include "stream/source_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace ds4::stream {

namespace {

int open_file(const char *path, int flags) {
    int fd = -1;
    do {
        fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

struct Free {
    void operator()(void *p) const { std::free(p); }
};

}  // namespace

SourceFile::~SourceFile() {
    if (fd_ >= 0) ::close(fd_);
}

ds4_status SourceFile::open(const char *path, const FileIdentity *expected, bool direct, ds4_error *err) {
    shown_ = escape_name(path, 1024);
    fd_ = open_file(path, 0);
    if (fd_ < 0) return fail_errno(err, DS4_E_IO, errno, "cannot open \"%s\"", shown_.c_str());
    struct stat st {};
    if (fstat(fd_, &st) != 0) return fail_errno(err, DS4_E_IO, errno, "cannot examine \"%s\"", shown_.c_str());
    if (S_ISDIR(st.st_mode)) return fail_errno(err, DS4_E_IO, EISDIR, "cannot read \"%s\"", shown_.c_str());
    if (!S_ISREG(st.st_mode)) return fail(err, DS4_E_IO, "\"%s\" is not a regular file", shown_.c_str());
    identity_ = FileIdentity::of(st);
    if (expected && !(identity_ == *expected))
        return fail(err, DS4_E_IO, "\"%s\" was changed or replaced while it was being opened", shown_.c_str());
    if (direct) try_direct(path);
#if defined(POSIX_FADV_RANDOM)
    if (!direct_) posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // no reading ahead of what was asked for
#endif
    return DS4_OK;
}

// A second descriptor takes the place of the first one when a read through it works.
void SourceFile::try_direct(const char *path) {
    std::string why;
#if defined(O_DIRECT)
    const int fd = open_file(path, O_DIRECT);
    int refused = fd < 0 ? errno : 0;
    if (fd >= 0) {
        const std::unique_ptr<void, Free> block(std::aligned_alloc(kAlignment, kAlignment));
        struct stat st {};
        if (!block || fstat(fd, &st) != 0 || !(FileIdentity::of(st) == identity_))
            refused = EAGAIN;
        else if (pread(fd, block.get(), kAlignment, 0) < 0)
            refused = errno;
    }
    if (!refused) {
        ::close(fd_);
        fd_ = fd;
        direct_ = true;
        return;
    }
    if (fd >= 0) ::close(fd);
    why = std::generic_category().message(refused);
#elif defined(F_NOCACHE)
    static_cast<void>(path);
    if (fcntl(fd_, F_NOCACHE, 1) == 0) return;
    why = std::generic_category().message(errno);
#else
    static_cast<void>(path);
    why = "this system has none";
#endif
    notice_ = "\"" + shown_ + "\" is read through the page cache: its file system gives no direct reads (" + why + ")";
}

bool SourceFile::unchanged() const {
    struct stat st {};
    return fstat(fd_, &st) == 0 && st.st_nlink > 0 && FileIdentity::of(st) == identity_;
}

void SourceFile::forget(uint64_t offset, uint64_t bytes) const {
#if defined(POSIX_FADV_DONTNEED)
    if (direct_) return;
    const uint64_t first = offset / kAlignment * kAlignment;  // only whole pages are dropped
    const uint64_t end = (offset + bytes + kAlignment - 1) / kAlignment * kAlignment;
    posix_fadvise(fd_, static_cast<off_t>(first), static_cast<off_t>(end - first), POSIX_FADV_DONTNEED);
#else
    static_cast<void>(offset);
    static_cast<void>(bytes);
#endif
}

}  // namespace ds4::stream
