// Reads through io_uring, by its system calls: one thread fills the ring and takes the results out of it.
//
// The thread sleeps in the kernel. It is woken by results and, when something was submitted, by a counter (eventfd) that
// it always has a read under way for. Memory is not registered with the kernel beforehand: pinning the pages of each read
// takes 1 % of a core at 3 GB/s (they are huge), registering would need a right that many users lack.
#include "base/error.h"
#include "stream/reader.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include <linux/io_uring.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ds4::stream {

namespace {

constexpr uint64_t kWake = UINT64_MAX;  // user data of the counter's read

class Mapping {
public:
    ~Mapping() {
        if (data_) munmap(data_, bytes_);
    }
    bool map(int fd, size_t bytes, off_t what) {
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
        if (p == MAP_FAILED) return false;
        data_ = p;
        bytes_ = bytes;
        return true;
    }
    template <class T> T *at(uint32_t offset) const {
        return reinterpret_cast<T *>(static_cast<uint8_t *>(data_) + offset);
    }

private:
    void *data_ = nullptr;
    size_t bytes_ = 0;
};

// The two queues that are shared with the kernel. Used by one thread.
class Ring {
public:
    ~Ring() {
        if (fd_ >= 0) ::close(fd_);
    }

    // 0, or the errno of what was refused.
    int open(unsigned entries) {
        io_uring_params p{};
        p.flags = IORING_SETUP_CLAMP;
        fd_ = static_cast<int>(syscall(__NR_io_uring_setup, entries, &p));
        if (fd_ < 0) return errno;
        if (!(p.features & IORING_FEAT_SINGLE_MMAP) || !(p.features & IORING_FEAT_NODROP)) return ENOSYS;
        const size_t sq = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
        const size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
        if (!queues_.map(fd_, std::max(sq, cq), IORING_OFF_SQ_RING)) return errno;
        if (!entries_.map(fd_, p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) return errno;
        n_ = p.sq_entries;
        sq_head_ = queues_.at<uint32_t>(p.sq_off.head);
        sq_tail_ = queues_.at<uint32_t>(p.sq_off.tail);
        sq_mask_ = *queues_.at<uint32_t>(p.sq_off.ring_mask);
        sq_array_ = queues_.at<uint32_t>(p.sq_off.array);
        cq_head_ = queues_.at<uint32_t>(p.cq_off.head);
        cq_tail_ = queues_.at<uint32_t>(p.cq_off.tail);
        cq_mask_ = *queues_.at<uint32_t>(p.cq_off.ring_mask);
        results_ = queues_.at<io_uring_cqe>(p.cq_off.cqes);
        return 0;
    }

    // An entry to fill, zeroed. There always is one: no more are under way than the ring has.
    io_uring_sqe *next() {
        const uint32_t tail = *sq_tail_ + filled_, i = tail & sq_mask_;
        if (tail - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE) >= n_) return nullptr;
        io_uring_sqe *e = entries_.at<io_uring_sqe>(0) + i;
        memset(e, 0, sizeof *e);
        sq_array_[i] = i;
        filled_++;
        return e;
    }

    // Hands the filled entries over and waits for a result when asked to. 0 or an errno.
    int enter(bool wait) {
        __atomic_store_n(sq_tail_, *sq_tail_ + filled_, __ATOMIC_RELEASE);
        filled_ = 0;
        const uint32_t waiting = *sq_tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
        const long n = syscall(__NR_io_uring_enter, fd_, waiting, wait ? 1 : 0, wait ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
        return n < 0 ? errno : 0;
    }

    bool pop(uint64_t *user_data, int32_t *result) {
        const uint32_t head = *cq_head_;
        if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
        const io_uring_cqe &c = results_[head & cq_mask_];
        *user_data = c.user_data;
        *result = c.res;
        __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
        return true;
    }

    int fd() const { return fd_; }

private:
    int fd_ = -1;
    Mapping queues_, entries_;
    uint32_t n_ = 0, filled_ = 0, sq_mask_ = 0, cq_mask_ = 0;
    uint32_t *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
    io_uring_cqe *results_ = nullptr;
};

class UringReader final : public Reader {
public:
    explicit UringReader(const ReaderOptions &o) : Reader(o), pieces_(o.depth) {
        free_.reserve(o.depth);
        for (unsigned i = 0; i < o.depth; i++) free_.push_back(o.depth - 1 - i);
    }
    ~UringReader() override {
        if (thread_.joinable()) {
            end();
            thread_.join();
        }
        if (counter_ >= 0) ::close(counter_);
    }

    int start() {
        const int refused = ring_.open(options().depth + 1);
        if (refused) return refused;
        counter_ = eventfd(0, EFD_CLOEXEC);
        if (counter_ < 0) return errno;
        // A trial: some systems make rings but refuse to work with them.
        io_uring_sqe *e = ring_.next();
        e->opcode = IORING_OP_NOP;
        const int trial = ring_.enter(true);
        uint64_t what = 0;
        int32_t result = 0;
        if (trial || !ring_.pop(&what, &result)) return trial ? trial : EIO;
        thread_ = std::thread([this] { work(); });
        return 0;
    }

    const char *io() const override { return "io_uring"; }

private:
    void wake() override {
        const uint64_t one = 1;
        while (::write(counter_, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }

    void await_wake() {
        io_uring_sqe *e = ring_.next();
        e->opcode = IORING_OP_READ;
        e->fd = counter_;
        e->addr = reinterpret_cast<uint64_t>(&count_);
        e->len = sizeof count_;
        e->user_data = kWake;
    }

    void fill(uint32_t slot) {
        const Piece &p = pieces_[slot];
        io_uring_sqe *e = ring_.next();
        e->opcode = IORING_OP_READ;
        e->fd = p.read->file->fd();
        e->off = p.offset;
        e->addr = reinterpret_cast<uint64_t>(p.into);
        e->len = static_cast<uint32_t>(p.bytes);
        e->user_data = slot;
    }

    void work() {
        await_wake();
        size_t under_way = 0;
        bool awake = false;
        for (;;) {
            while (!free_.empty()) {
                const uint32_t slot = free_.back();
                if (!take(&pieces_[slot])) break;
                free_.pop_back();
                fill(slot);
                under_way++;
            }
            if (!under_way && ended()) return;
            if (awake) await_wake();
            awake = false;
            const int refused = ring_.enter(true);
            if (refused && refused != EINTR && refused != EAGAIN && refused != EBUSY) std::this_thread::yield();
            uint64_t what = 0;
            for (int32_t result = 0; ring_.pop(&what, &result);) {
                if (what == kWake) {
                    awake = true;
                    continue;
                }
                const uint32_t slot = static_cast<uint32_t>(what);
                if (result == -EINTR || result == -EAGAIN) {
                    fill(slot);
                    continue;
                }
                const Piece p = pieces_[slot];
                free_.push_back(slot);
                under_way--;
                finish(p, result);
            }
        }
    }

    Ring ring_;
    int counter_ = -1;
    uint64_t count_ = 0;
    std::vector<Piece> pieces_;   // by the user data of their entries
    std::vector<uint32_t> free_;  // numbers of pieces that are not under way
    std::thread thread_;
};

}  // namespace

ds4_status make_uring_reader(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err) {
    try {
        auto reader = std::make_unique<UringReader>(o);
        const int refused = reader->start();
        if (refused) return fail_errno(err, DS4_E_UNAVAILABLE, refused, "io_uring is not to be had");
        *out = std::move(reader);
    } catch (const std::system_error &e) {
        return fail(err, DS4_E_MEMORY, "cannot start the thread that reads: %s", e.what());
    }
    return DS4_OK;
}

}  // namespace ds4::stream

#else

namespace ds4::stream {

ds4_status make_uring_reader(const ReaderOptions &, std::unique_ptr<Reader> *, ds4_error *err) {
    return fail(err, DS4_E_UNAVAILABLE, "io_uring is not to be had: this system has none");
}

}  // namespace ds4::stream

#endif
