// A file from which ranges are read for as long as a model lives.
//
// Every read asks whether it still is the file that was opened: one that was cut, written to, replaced or removed gives
// an error and never its new bytes. Reads bypass the page cache where the file system lets them; elsewhere what was read
// is dropped from the cache at once, because a model larger than the memory would push out everything else.
#pragma once

#include <cstdint>
#include <string>

#include "base/mapped_file.h"
#include "ds4/status.h"

namespace ds4::stream {

// Of the offsets, lengths and places of direct reads.
constexpr uint64_t kAlignment = 4096;

class SourceFile {
public:
    SourceFile() = default;
    ~SourceFile();
    SourceFile(const SourceFile &) = delete;
    SourceFile &operator=(const SourceFile &) = delete;

    // expected: the file that the path named before, or NULL. direct: try to bypass the page cache.
    // DS4_E_IO: cannot be opened, or is another file by now.
    ds4_status open(const char *path, const FileIdentity *expected, bool direct, ds4_error *err);

    // Whether it still is the file that was opened, unchanged.
    bool unchanged() const;
    // Tells the system that a range which was read will not be read again soon.
    void forget(uint64_t offset, uint64_t bytes) const;

    int fd() const { return fd_; }
    bool direct() const { return direct_; }
    uint64_t size() const { return identity_.size; }
    const std::string &shown() const { return shown_; }  // the path, safe to print
    // Why reads do not bypass the page cache although they should; empty when they do.
    const std::string &notice() const { return notice_; }

private:
    void try_direct(const char *path);

    int fd_ = -1;
    bool direct_ = false;
    FileIdentity identity_;
    std::string shown_, notice_;
};

}  // namespace ds4::stream
