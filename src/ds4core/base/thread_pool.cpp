// The body of the thread pool.
#include "base/thread_pool.h"

#include <chrono>
#include <exception>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ds4 {

namespace {

using Clock = std::chrono::steady_clock;

// How long a worker looks out before it sleeps: inside begin() and end(), longer than the gap between two regions of a
// step; outside, less than sleeping and waking would take.
constexpr auto kLookOutInBurst = std::chrono::microseconds(100);
constexpr auto kLookOut = std::chrono::microseconds(2);
// The calling thread waits for pieces that are being computed, by a worker that may have lost its core: after this many
// rounds it gives its own core away each time.
constexpr int kRoundsBeforeYield = 200;

constexpr uint64_t kOpen = uint64_t{1} << 16, kInside = kOpen - 1;
constexpr uint64_t number(uint64_t state) noexcept { return state >> 17; }

inline void relax() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

struct Self {
    const void *pool = nullptr;
    unsigned number = 0;
};
thread_local Self self;

}  // namespace

ThreadPool::ThreadPool(unsigned n_threads, const Placement &placement)
    : n_(n_threads ? n_threads : 1), may_spin_(n_ <= usable_cpus()), placement_(placement), shares_(new Share[n_]) {
    threads_.reserve(n_ - 1);
    caller_.apply(placement_);  // threads inherit their starter's place, so a refusal is seen here
    try {
        for (unsigned i = 1; i < n_; i++) {
            if (!placement_.cpus.empty()) set_affinity({placement_.cpus[i]});
            threads_.emplace_back([this, i] { worker(i); });
        }
    } catch (...) {
        caller_.restore();
        stop();
        throw;
    }
    caller_.restore();
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::enter() noexcept {
    begun_ = true;
    burst_.store(may_spin_, std::memory_order_relaxed);
    if (placement_.none()) return;
    try {
        caller_.apply(placement_);
    } catch (const std::exception &) {  // granted before and taken away since: it computes where it may
    }
}

void ThreadPool::leave() noexcept {
    begun_ = false;
    burst_.store(false, std::memory_order_relaxed);
    caller_.restore();
}

void ThreadPool::stop() noexcept {
    stop_.store(true);
    state_.fetch_add(kOpen << 1);  // another number, not open
    wake();
    for (auto &t : threads_) t.join();
}

unsigned ThreadPool::own_number() const noexcept { return self.pool == this ? self.number : 0; }

void ThreadPool::dispatch(Call call, void *ctx, size_t items, size_t grain) noexcept {
    call_ = call;
    ctx_ = ctx;
    items_ = items;
    grain_ = grain;
    busy_ = true;
    const size_t pieces = (items - 1) / grain + 1, each = pieces / n_, more = pieces % n_;
    for (size_t t = 0, first = 0; t < n_; t++) {
        shares_[t].next.store(first, std::memory_order_relaxed);
        shares_[t].end = first += each + (t < more);
    }
    state_.store((number(state_.load(std::memory_order_relaxed)) + 1) << 17 | kOpen);
    if (sleepers_.load() > 0) wake();
    take_pieces(0);
    state_.fetch_and(~kOpen);
    for (int i = 0; state_.load(std::memory_order_acquire) & kInside; i++) {
        if (i < kRoundsBeforeYield)
            relax();
        else
            std::this_thread::yield();
    }
    busy_ = false;
}

void ThreadPool::take_pieces(unsigned id) noexcept {
    for (unsigned k = 0; k < n_; k++) {
        Share &share = shares_[id + k < n_ ? id + k : id + k - n_];
        while (share.next.load(std::memory_order_relaxed) < share.end) {  // a finished share is only read
            const size_t piece = share.next.fetch_add(1, std::memory_order_relaxed);
            if (piece >= share.end) break;
            const size_t begin = piece * grain_;
            call_(ctx_, begin, std::min(grain_, items_ - begin) + begin, id);
        }
    }
}

void ThreadPool::worker(unsigned id) noexcept {
    self = {this, id};
    for (uint64_t seen = 0; await_region(seen);) {
        uint64_t state = state_.load();
        while ((state & kOpen) && number(state) != seen) {
            if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
            seen = number(state);
            take_pieces(id);
            state_.fetch_sub(1, std::memory_order_release);
            break;
        }
    }
}

// Looks out, then sleeps, until a region is open that is not `seen`. False when the pool ends.
bool ThreadPool::await_region(uint64_t seen) noexcept {
    Clock::time_point start{};
    for (unsigned i = 1;; i++) {
        const uint64_t state = state_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return false;
        if ((state & kOpen) && number(state) != seen) return true;
        relax();
        if (i % 16) continue;
        const Clock::time_point now = Clock::now();
        if (start == Clock::time_point{}) start = now;
        if (now - start < (burst_.load(std::memory_order_relaxed) ? kLookOutInBurst : kLookOut)) continue;
        sleep(state);
        start = {};
    }
}

// Until the region changes; woken for a region that is over, the thread looks out for the next one.
//
// A worker counts itself before it looks at the state, a caller changes the state before it looks at the count: in the
// one order of these sequentially consistent operations at least one of them sees the other.
void ThreadPool::sleep(uint64_t state) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return number(state_.load()) != number(state) || stop_.load(); });
    sleepers_.fetch_sub(1);
}

void ThreadPool::wake() noexcept {
    { std::lock_guard<std::mutex> lock(mutex_); }  // nobody is between its look at the state and its sleep
    wake_.notify_all();
}

}  // namespace ds4
