// Reads by threads that wait for them: on systems without io_uring, and where it is forbidden.
#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "base/error.h"
#include "stream/reader.h"

namespace ds4::stream {

namespace {

class ThreadReader final : public Reader {
public:
    explicit ThreadReader(const ReaderOptions &o) : Reader(o) {
        try {
            for (unsigned i = 0; i < o.depth; i++) threads_.emplace_back([this] { work(); });
        } catch (...) {
            stop();
            throw;
        }
    }
    ~ThreadReader() override { stop(); }

    const char *io() const override { return "threads"; }

private:
    void wake() override { notify(); }

    void stop() {
        end();
        for (std::thread &t : threads_) t.join();
        threads_.clear();
    }

    void work() {
        for (Piece p; await(&p);) {
            ssize_t n = 0;
            do {
                n = pread(p.read->file->fd(), p.into, static_cast<size_t>(p.bytes), static_cast<off_t>(p.offset));
            } while (n < 0 && errno == EINTR);
            finish(p, n < 0 ? -int64_t{errno} : int64_t{n});
        }
    }

    std::vector<std::thread> threads_;
};

}  // namespace

ds4_status make_thread_reader(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err) {
    try {
        *out = std::make_unique<ThreadReader>(o);
    } catch (const std::system_error &e) {
        return fail(err, DS4_E_MEMORY, "cannot start %u threads that read: %s", o.depth, e.what());
    }
    return DS4_OK;
}

}  // namespace ds4::stream
