// The body of the thread pool.
#include "base/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ds4 {

namespace {
inline void relax() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}
// About 20 to 50 microseconds: longer than the gap between two regions of a step, far shorter than a user notices.
constexpr int kSpins = 2000;
// The caller waits for workers that may have been descheduled: give the core away after this many rounds.
constexpr int kSpinsBeforeYield = 4000;
}  // namespace

ThreadPool::ThreadPool(unsigned n_threads) : n_(n_threads ? n_threads : 1) {
    threads_.reserve(n_ - 1);
    try {
        for (unsigned i = 1; i < n_; i++) threads_.emplace_back([this, i] { worker(i); });
    } catch (...) {
        stop_ = true;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            epoch_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto &t : threads_) t.join();
        throw;
    }
}

ThreadPool::~ThreadPool() {
    stop_ = true;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        epoch_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto &t : threads_) t.join();
}

void ThreadPool::dispatch(Call call, void *ctx, size_t items) noexcept {
    call_ = call;
    ctx_ = ctx;
    items_ = items;
    pending_.store(n_ - 1, std::memory_order_relaxed);
    bool sleeping;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        epoch_.fetch_add(1, std::memory_order_release);
        sleeping = sleepers_ > 0;
    }
    if (sleeping) wake_.notify_all();
    call(ctx, 0, n_, items);
    for (int i = 0; pending_.load(std::memory_order_acquire) != 0; i++) {
        if (i < kSpinsBeforeYield)
            relax();
        else
            std::this_thread::yield();
    }
}

void ThreadPool::worker(unsigned id) noexcept {
    uint64_t seen = 0;
    for (;;) {
        int spins = 0;
        while (epoch_.load(std::memory_order_acquire) == seen && spins < kSpins) {
            relax();
            spins++;
        }
        if (epoch_.load(std::memory_order_acquire) == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleepers_++;
            wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
            sleepers_--;
        }
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        call_(ctx_, id, n_, items_);
        pending_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

}  // namespace ds4
