// A fixed team of threads that runs one parallel region at a time.
//
// A region is cut into pieces. Every thread owns a contiguous share of them and works through it first, so that it
// meets the same rows of a weight again in each region; a thread that has finished takes pieces of other shares which
// nobody has started. Who computes a piece depends on timing, so fn must give each item the same result whoever
// computes it and whatever else its piece contains: compute an output whole, in one call, with an order of summation
// that depends neither on `thread` nor on begin and end. Then results depend neither on timing nor on the number of
// threads.
//
// A region does not wait for a thread that has not joined it (asleep, or without a core): the others do its share.
// Idle workers sleep. Between begin() and end() they first look out for the next region for a little while, since a
// step of the model has hundreds of regions that follow each other within microseconds, and waking a thread takes as
// long as such a region.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/machine.h"

namespace ds4 {

class ThreadPool {
public:
    // May throw bad_alloc or system_error. Thread 0 of `placement` is the one that calls begin(): it has its place until
    // end(), and is where it was before at all other times.
    explicit ThreadPool(unsigned n_threads, const Placement &placement = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    unsigned size() const noexcept { return n_; }

    // Calls fn(begin, end, thread) for ranges that together are [0, n_items), each item once, and returns when all are
    // done. `thread` is below size() and two calls that run at the same time have different ones, so it may choose
    // work space; a thread may be called for several ranges or for none. Ranges begin at multiples of `grain`.
    // `work` is a rough count of elementary operations of the whole region: small regions, and those of one piece, run
    // on the calling thread alone. One caller at a time. A call from inside a region of the same pool runs alone on its
    // thread, with that thread's number.
    template <class F> void run(size_t n_items, size_t grain, uint64_t work, F &&fn) noexcept {
        if (n_items == 0) return;
        if (n_ == 1 || n_items <= grain || work < kSmall || busy_) {
            fn(size_t{0}, n_items, busy_ ? own_number() : 0u);
            return;
        }
        auto call = [](void *ctx, size_t begin, size_t end, unsigned thread) {
            (*static_cast<std::remove_reference_t<F> *>(ctx))(begin, end, thread);
        };
        dispatch(call, const_cast<void *>(static_cast<const void *>(&fn)), n_items, std::max<size_t>(grain, 1));
    }

    // The same with about eight pieces a thread.
    template <class F> void run(size_t n_items, uint64_t work, F &&fn) noexcept {
        run(n_items, usual_grain(n_items), work, fn);
    }

    // Around a series of regions, on the thread that calls run: workers stay awake for short gaps.
    // Both may be called again without effect.
    void begin() noexcept {
        if (!begun_) enter();
    }
    void end() noexcept {
        if (begun_) leave();
    }

private:
    using Call = void (*)(void *, size_t, size_t, unsigned);
    static constexpr uint64_t kSmall = 20000;

    // The pieces [next, end) of a thread's share that nobody has taken. One cache line each.
    struct alignas(64) Share {
        std::atomic<size_t> next{0};
        size_t end = 0;
    };

    // Pieces of many items are whole groups of 16, so that vector loops have one tail in all.
    size_t usual_grain(size_t n_items) const noexcept {
        const size_t grain = n_items / (size_t{n_} * 8);
        return grain < 64 ? std::max<size_t>(grain, 1) : (grain + 15) / 16 * 16;
    }
    unsigned own_number() const noexcept;
    void enter() noexcept;
    void leave() noexcept;
    void dispatch(Call call, void *ctx, size_t items, size_t grain) noexcept;
    void take_pieces(unsigned id) noexcept;
    void worker(unsigned id) noexcept;
    bool await_region(uint64_t seen) noexcept;
    void sleep(uint64_t state) noexcept;
    void wake() noexcept;
    void stop() noexcept;

    unsigned n_;
    bool may_spin_;      // no more threads than cores: a thread that looks out takes no core from one that works
    bool begun_ = false;
    bool busy_ = false;  // a region runs; written by the calling thread while no worker is inside
    Placement placement_;
    CallerPlacement caller_;
    std::unique_ptr<Share[]> shares_;
    Call call_ = nullptr;
    void *ctx_ = nullptr;
    size_t items_ = 0, grain_ = 1;

    // Number of the region << 17 | open << 16 | workers inside. Workers enter while it is open and has another number
    // than the last one they saw; everything above is written when it is closed and empty.
    alignas(64) std::atomic<uint64_t> state_{0};
    std::atomic<bool> burst_{false};
    std::atomic<bool> stop_{false};

    alignas(64) std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<unsigned> sleepers_{0};
    std::vector<std::thread> threads_;
};

}  // namespace ds4
