// A whole file mapped read-only into memory.
//
// The size is taken from the open descriptor, so it belongs to the very file that is mapped. A file that is cut
// short by someone else afterwards raises SIGBUS when the lost part is read; nothing in user space can prevent that,
// so callers copy what must outlive the file (the tokenizer does).
#pragma once

#include <cstdint>

#include "ds4/status.h"

struct stat;

namespace ds4 {

// What tells a file from another one, and from itself after someone wrote to it.
struct FileIdentity {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;  // of the last change of its contents

    static FileIdentity of(const struct stat &st);
    bool operator==(const FileIdentity &) const = default;
};

class MappedFile {
  public:
    MappedFile() = default;
    ~MappedFile();
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    // DS4_E_IO: cannot be opened or mapped, or is not a regular file. An empty file maps to size 0, data NULL.
    ds4_status open(const char *path, ds4_error *err);

    // Read, and map, in pieces of 2 MiB where the file system can hold a file in huge pages; elsewhere without effect.
    // Several times faster from a disk when much is read, slower when a byte here and there is.
    void use_huge_pages() const;

    const uint8_t *data() const { return data_; }
    uint64_t size() const { return size_; }
    const FileIdentity &identity() const { return identity_; }

  private:
    const uint8_t *data_ = nullptr;
    uint64_t size_ = 0;
    FileIdentity identity_;
};

}  // namespace ds4
