// A fixed team of threads that runs one parallel region at a time.
//
// The work is always cut in the same way for a given item, never by who is free first, so results do not depend
// on timing; kernels compute each output in one thread, so they do not depend on the number of threads either.
// Workers spin briefly between regions (a decode step has hundreds of them) and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ds4 {

class ThreadPool {
public:
    explicit ThreadPool(unsigned n_threads);  // may throw bad_alloc or system_error
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    unsigned size() const noexcept { return n_; }

    // fn(begin, end, thread) over [0, n_items) in contiguous ranges, one a thread. `work` is a rough count of
    // elementary operations of the whole region: small regions run on the calling thread alone.
    template <class F> void run(size_t n_items, uint64_t work, F &&fn) noexcept {
        if (n_ == 1 || n_items <= 1 || work < kSmall) {
            fn(size_t{0}, n_items, 0u);
            return;
        }
        auto call = [](void *ctx, unsigned t, unsigned n, size_t items) {
            size_t b = items * t / n, e = items * (t + 1) / n;
            if (b < e) (*static_cast<F *>(ctx))(b, e, t);
        };
        dispatch(call, &fn, n_items);
    }

private:
    using Call = void (*)(void *, unsigned, unsigned, size_t);
    static constexpr uint64_t kSmall = 20000;

    void dispatch(Call call, void *ctx, size_t items) noexcept;
    void worker(unsigned id) noexcept;

    unsigned n_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> epoch_{0};
    std::atomic<unsigned> pending_{0};
    std::atomic<bool> stop_{false};
    unsigned sleepers_ = 0;  // guarded by mutex_
    Call call_ = nullptr;
    void *ctx_ = nullptr;
    size_t items_ = 0;
};

}  // namespace ds4
