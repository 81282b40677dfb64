#include "simt.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <numeric>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#endif

// simt_swap(save, load): keep the registers that a call preserves on this stack, note the stack in *save, go on with
// `load`.
extern "C" void simt_swap(void **save, void *load) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
asm(R"(
.text
.globl simt_swap
.hidden simt_swap
.type simt_swap,@function
simt_swap:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp,(%rdi)
    mov %rsi,%rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size simt_swap,.-simt_swap
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl simt_swap
.hidden simt_swap
.type simt_swap,%function
simt_swap:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size simt_swap,.-simt_swap
)");
#else
#error "the host executor switches stacks on x86-64 and arm64"
#endif

namespace simt {

thread_local Block *current __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// Stacks lie at distances that are no power of two, so that their tops do not fall on the same lines of the caches.
// What is behind the end is room for writing the message of an overrun.
constexpr size_t kStackSlack = 16 * 1024, kStackStride = kStackBytes + kStackSlack + 5 * 64;

const char *name_of(Meeting m) {
    switch (m) {
        case kSyncBlock: return "sync_block";
        case kSyncWarp: return "sync_warp";
        case kExchange: return "a shuffle";
        case kVote: return "a vote";
        default: return "nothing";
    }
}

const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

std::string place(Meeting m, const Site &s) {
    return std::string(name_of(m)) + " (" + base_name(s.file_name()) + ":" + std::to_string(s.line()) + ")";
}

bool same(const Site &a, const Site &b) {
    return a.line() == b.line() && a.column() == b.column() && !strcmp(a.file_name(), b.file_name());
}

unsigned lowest(uint64_t bits) { return static_cast<unsigned>(__builtin_ctzll(bits)); }
unsigned highest(uint64_t bits) { return 63 - static_cast<unsigned>(__builtin_clzll(bits)); }

uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

unsigned any_of(uint64_t bits, uint64_t random) {
    const unsigned turn = random >> 32 & 63;
    const uint64_t turned = turn ? bits >> turn | bits << (64 - turn) : bits;
    return (lowest(turned) + turn) & 63;
}

// By seed: 0 lowest first, 1 highest first, even: any, odd: any lane of the warp that runs while it has one.
Fiber *pick(Block &b) {
    if (!b.ready_warps) return nullptr;
    unsigned w, lane;
    if (b.seed == 0) {
        w = lowest(b.ready_warps);
        lane = lowest(b.warps[w].ready);
    } else if (b.seed == 1) {
        w = highest(b.ready_warps);
        lane = highest(b.warps[w].ready);
    } else {
        const uint64_t r = next_random(&b.random);
        w = b.self ? b.self->thread / kLanes : 0;
        if (b.seed % 2 == 0 || !b.warps[w].ready) w = any_of(b.ready_warps, r);
        lane = any_of(b.warps[w].ready, r << 16);
    }
    Warp &warp = b.warps[w];
    warp.ready &= ~(uint64_t{1} << lane);
    if (!warp.ready) b.ready_warps &= ~(uint64_t{1} << w);
    return &b.fibers[w * kLanes + lane];
}

[[noreturn]] void leave() {
    Block &b = *current;
    simt_swap(&b.self->sp, b.home);
    abort();  // nobody comes back to a fiber that has left
}

// Nobody can go on, but some have not ended.
[[noreturn]] void stuck() {
    Block &b = *current;
    const Fiber *first = nullptr, *other = nullptr;
    for (const Fiber &f : b.fibers) {
        if (f.done) continue;
        if (!first)
            first = &f;
        else if (!other && (f.waits != first->waits || !same(f.site, first->site)))
            other = &f;
    }
    if (other)
        fail("threads wait for each other: thread %u in %s, thread %u in %s", first->thread,
             place(first->waits, first->site).c_str(), other->thread, place(other->waits, other->site).c_str());
    unsigned returned = 0;
    while (returned < b.n_threads && !b.fibers[returned].done) returned++;
    if (returned == b.n_threads)
        fail("thread %u waits in %s for threads that never come", first->thread, place(first->waits, first->site).c_str());
    fail("thread %u waits in %s, but thread %u has returned without it", first->thread,
         place(first->waits, first->site).c_str(), returned);
}

// Let somebody else run; the caller is ready again or waits.
void switch_away() {
    Block &b = *current;
    Fiber *me = b.self, *next = pick(b);
    if (next == me) return;
    if (!next) stuck();
    b.self = next;
    simt_swap(&me->sp, next->sp);
}

void check_stack() {
    const char here = 0;
    if (&here < current->self->stack + kStackSlack)
        fail("the stack of a thread is full (%zu KiB): the kernel keeps too much in local arrays", kStackBytes / 1024);
}

void entry() {
    Block &b = *current;
    bool thrown = false;
    try {
        (*b.kernel)();
    } catch (...) {
        thrown = true;  // leaving from inside the handler would lose the exception's bookkeeping
    }
    if (thrown) fail("an exception left the kernel");
    b.self->done = true;
    b.n_done++;
    Fiber *next = pick(b);
    if (!next) {
        if (b.n_done < b.n_threads) stuck();
        leave();
    }
    Fiber *me = b.self;
    b.self = next;
    simt_swap(&me->sp, next->sp);
    abort();
}

void *first_frame(char *end) {
    void **top = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(end) & ~uintptr_t{15});
#if defined(__x86_64__)
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(&entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
#else
    top -= 20;
    memset(top, 0, 160);
    top[11] = reinterpret_cast<void *>(&entry);
#endif
    return top;
}

}  // namespace

void fail(const char *format, ...) {
    Block &b = *current;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const Fiber &f = *b.self;
    snprintf(b.message, sizeof b.message, "kernel %s, block (%u,%u,%u), thread %u: %s", b.name, b.index.x, b.index.y, b.index.z,
             f.thread, text);
    b.failed = true;
    leave();
}

void meet_warp(Meeting what, const Site &site) {
    Block &b = *current;
    Fiber &me = *b.self;
    Warp &w = *me.warp;
    check_stack();
    if (!w.arrived) {
        w.meeting = what;
        w.site = site;
    } else if (w.meeting != what || !same(w.site, site)) {
        const unsigned other = me.thread - me.lane + lowest(w.arrived);
        fail("lanes of a warp meet at different places: thread %u in %s, thread %u in %s", other,
             place(w.meeting, w.site).c_str(), me.thread, place(what, site).c_str());
    }
    w.arrived |= uint64_t{1} << me.lane;
    if (w.arrived == ~uint64_t{0} >> (64 - kLanes)) {
        w.arrived = 0;
        if (what == kSyncWarp) w.interval++;
        w.ready = ~uint64_t{0} >> (64 - kLanes);
        const unsigned index = me.thread / kLanes;
        b.ready_warps |= uint64_t{1} << index;
        if (b.seed < 2) {  // go on at once
            w.ready &= ~(uint64_t{1} << me.lane);
            return;
        }
    } else {
        me.waits = what;
        me.site = site;
    }
    switch_away();
    me.waits = kNone;
}

void sync_warp(const Site &site) { meet_warp(kSyncWarp, site); }

void sync_block(const Site &site) {
    Block &b = *current;
    Fiber &me = *b.self;
    check_stack();
    if (!b.arrived)
        b.site = site;
    else if (!same(b.site, site))
        fail("threads of a block wait at different barriers: %s, and thread %u in %s", place(kSyncBlock, b.site).c_str(),
             me.thread, place(kSyncBlock, site).c_str());
    if (++b.arrived == b.n_threads) {
        b.arrived = 0;
        b.interval++;
        for (Warp &w : b.warps) w.ready = ~uint64_t{0} >> (64 - kLanes);
        b.ready_warps = ~uint64_t{0} >> (64 - b.warps.size());
        if (b.seed < 2) {
            me.warp->ready &= ~(uint64_t{1} << me.lane);
            return;
        }
    } else {
        me.waits = kSyncBlock;
        me.site = site;
    }
    switch_away();
    me.waits = kNone;
}

// ---- shared arrays ----

void out_of_bounds(const ArrayState &a, long long index) {
    fail("shared array %s[%lld] is out of bounds: it has %llu elements", a.name, index, static_cast<unsigned long long>(a.count));
}

namespace {

[[noreturn]] void race(const ArrayState &a, uint64_t index, const char *before, unsigned other, const char *now) {
    fail("race on shared array %s[%llu]: %s by thread %u and %s by thread %u with no barrier between", a.name,
         static_cast<unsigned long long>(index), before, other, now, current->self->thread);
}

// Has nothing ordered what `other` did in the warp interval `interval` of this block interval before me?
bool unordered(const Fiber &me, unsigned other, uint32_t interval) {
    if (other == me.thread) return false;
    return other / kLanes != me.thread / kLanes || interval == me.warp->interval;
}

}  // namespace

void reads(ArrayState &a, uint64_t index) {
    const Block &b = *current;
    const Fiber &me = *b.self;
    Shadow &s = a.shadow[index];
    if (s.write_block < b.first_interval)
        fail("shared array %s[%llu] is read, but nobody has written it in this block so far", a.name, static_cast<unsigned long long>(index));
    if (s.write_block == b.interval && unordered(me, s.writer, s.write_warp)) race(a, index, "written", s.writer, "read");
    const uint32_t warp = me.warp->interval;
    if (s.read_block != b.interval || !s.readers) {
        s.readers = 1;
    } else if (s.readers == 3) {
        return;
    } else if (s.reader / kLanes != me.thread / kLanes) {
        s.readers = 3;
    } else {
        s.readers = s.read_warp == warp && (s.readers == 2 || s.reader != me.thread) ? 2 : 1;
    }
    s.read_block = b.interval;
    s.read_warp = warp;
    s.reader = static_cast<uint16_t>(me.thread);
}

void writes(ArrayState &a, uint64_t index) {
    const Block &b = *current;
    const Fiber &me = *b.self;
    Shadow &s = a.shadow[index];
    if (s.write_block == b.interval && unordered(me, s.writer, s.write_warp)) race(a, index, "written", s.writer, "written");
    if (s.read_block == b.interval && s.readers) {
        if (s.readers == 3) fail("race on shared array %s[%llu]: read by threads of several warps and written by thread %u with no barrier between", a.name, static_cast<unsigned long long>(index), me.thread);
        if (s.readers == 1 ? unordered(me, s.reader, s.read_warp)
                           : s.reader / kLanes != me.thread / kLanes || s.read_warp == me.warp->interval)
            race(a, index, "read", s.reader, "written");
    }
    s.write_block = b.interval;
    s.write_warp = me.warp->interval;
    s.writer = static_cast<uint16_t>(me.thread);
}

ArrayState &Block::array(const void *tag, const char *array_name, size_t element, size_t align, uint64_t count, bool dynamic,
                         size_t offset) {
    for (size_t i = 0; i < n_arrays; i++) {
        ArrayState &a = *arrays[i];
        if (a.tag != tag) continue;
        if (a.element != element || a.count != count)
            fail("shared array %s is declared twice with different types or sizes", array_name);
        return a;
    }
    if (dynamic) {
        const bool whole = tag == &dynamic_bytes;
        if (offset % align || offset > dynamic_bytes || count > (dynamic_bytes - offset) / element)
            fail("shared array %s: %llu elements of %zu bytes from byte %zu on do not fit the %zu dynamic bytes of the launch",
                 array_name, static_cast<unsigned long long>(count), element, offset, dynamic_bytes);
        for (size_t i = 0; i < n_arrays && !whole; i++) {
            const ArrayState &a = *arrays[i];
            if (a.data < shared || a.data >= shared + dynamic_bytes || a.tag == &dynamic_bytes) continue;
            if (a.offset < offset + count * element && offset < a.offset + a.count * a.element)
                fail("the parts %s and %s of the dynamic shared array overlap", a.name, array_name);
        }
    } else {
        offset = (shared_used + align - 1) / align * align;
        if (count > kMostSharedBytes || offset + count * element > kMostSharedBytes)
            fail("shared array %s of %llu bytes: a block has %zu bytes in all", array_name,
                 static_cast<unsigned long long>(count * element), kMostSharedBytes);
        shared_used = offset + count * element;
    }
    if (n_arrays == arrays.size()) arrays.push_back(std::make_unique<ArrayState>());
    ArrayState &a = *arrays[n_arrays++];
    a.tag = tag;
    a.name = array_name;
    a.data = shared + offset;
    a.count = count;
    a.offset = offset;
    a.element = element;
    if (a.shadow.size() < count) a.shadow.resize(count);  // what is in it is older than this block
    return a;
}

// ---- blocks ----

Block::~Block() {
    if (stacks) munmap(stacks, stacks_bytes);
}

bool Block::prepare(const Launch &launch, std::string *error) {
    n_threads = static_cast<unsigned>(launch.block.count());
    const size_t bytes = n_threads * kStackStride;
    if (bytes > stacks_bytes) {
        if (stacks) munmap(stacks, stacks_bytes);
        stacks = nullptr;
        stacks_bytes = 0;
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            *error = "out of memory for the stacks of " + std::to_string(n_threads) + " threads";
            return false;
        }
        stacks = static_cast<char *>(p);
        stacks_bytes = bytes;
    }
    if (!memory) {
        memory.reset(new Line[kMostSharedBytes / sizeof(Line)]);
        shared = memory[0].bytes;
    }
    name = launch.name;
    kernel = &launch.kernel;
    grid = launch.grid;
    block = launch.block;
    seed = launch.seed;
    shared_used = dynamic_bytes = launch.dynamic_bytes;
    n_arrays = 0;
    fibers.resize(n_threads);
    warps.resize(n_threads / kLanes);
    for (unsigned i = 0; i < n_threads; i++) {
        Fiber &f = fibers[i];
        f.warp = &warps[i / kLanes];
        f.stack = stacks + i * kStackStride;
        f.thread = i;
        f.lane = i % kLanes;
        f.index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
    }
    return true;
}

void Block::run(dim3 where, uint64_t number) {
    index = where;
    n_done = arrived = 0;
    failed = false;
    random = (number + 1) * 0x9e3779b97f4a7c15ull ^ (uint64_t{seed} + 1) * 0xbf58476d1ce4e5b9ull;
    if (!random) random = 1;
    if (interval > UINT32_MAX / 2) {  // begin again before the counter turns over
        for (auto &a : arrays) a->shadow.assign(a->shadow.size(), Shadow{});
        interval = 0;
    }
    first_interval = ++interval;
    memset(shared, 0xff, dynamic_bytes);  // not a number in every format
    for (Fiber &f : fibers) {
        f.done = false;
        f.waits = kNone;
        f.phase = 0;
        f.sp = first_frame(f.stack + kStackStride - 64);
    }
    for (Warp &w : warps) {
        w.ready = ~uint64_t{0} >> (64 - kLanes);
        w.arrived = 0;
        w.interval++;
    }
    ready_warps = ~uint64_t{0} >> (64 - warps.size());
    current = this;
    self = nullptr;
    self = pick(*this);
    simt_swap(&home, self->sp);
    current = nullptr;
#ifdef SIMT_ASAN
    if (failed) __asan_unpoison_memory_region(stacks, stacks_bytes);  // of frames that were left
#endif
}

// ---- launches ----

Executor::Executor(unsigned n_threads) {
    n_threads = std::clamp(n_threads, 1u, 64u);
    for (unsigned i = 0; i < n_threads; i++) blocks_.push_back(std::make_unique<Block>());
    for (unsigned i = 1; i < n_threads; i++) workers_.emplace_back(&Executor::loop, this, i);
}

Executor::~Executor() {
    {
        std::lock_guard lock(mutex_);
        end_ = true;
    }
    wake_.notify_all();
    for (std::thread &t : workers_) t.join();
}

void Executor::loop(unsigned i) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return end_ || round_ != seen; });
        if (end_) return;
        seen = round_;
        const Launch *launch = launch_;
        if (!launch) continue;  // came too late
        busy_++;
        lock.unlock();
        work(*launch, *blocks_[i]);
        lock.lock();
        if (--busy_ == 0) idle_.notify_one();
    }
}

void Executor::work(const Launch &l, Block &block) {
    std::string error;
    if (!block.prepare(l, &error)) {
        std::lock_guard lock(mutex_);
        if (error_.empty()) error_ = error;
        next_ = total_;
        return;
    }
    for (;;) {
        uint64_t i;
        {
            std::lock_guard lock(mutex_);
            if (next_ >= total_) return;
            i = (start_ + next_++ * step_) % total_;
        }
        block.run(dim3(static_cast<unsigned>(i % l.grid.x), static_cast<unsigned>(i / l.grid.x % l.grid.y),
                       static_cast<unsigned>(i / l.grid.x / l.grid.y)),
                  i);
        if (!block.failed) continue;
        std::lock_guard lock(mutex_);
        if (error_.empty() || i < failed_block_) {
            error_ = block.message;
            failed_block_ = i;
        }
        next_ = total_;
        return;
    }
}

std::string Executor::run(const Launch &launch) {
    const uint64_t threads = launch.block.count();
    const std::string who = std::string("kernel ") + launch.name + ": ";
    if (!launch.grid.count()) return who + "an empty grid";
    if (launch.grid.y > 65535 || launch.grid.z > 65535 || launch.grid.x > 0x7fffffff)
        return who + "a grid of " + std::to_string(launch.grid.x) + " x " + std::to_string(launch.grid.y) + " x " +
               std::to_string(launch.grid.z) + " blocks; devices take 2147483647 x 65535 x 65535";
    if (!threads || threads > kMostThreads || threads % kLanes)
        return who + "a block of " + std::to_string(threads) + " threads; it must be whole warps of " + std::to_string(kLanes) +
               ", at most " + std::to_string(kMostThreads);
    if (launch.dynamic_bytes > kMostSharedBytes)
        return who + std::to_string(launch.dynamic_bytes) + " bytes of dynamic shared memory; a block has " +
               std::to_string(kMostSharedBytes);
    total_ = launch.grid.count();
    next_ = 0;
    step_ = 1;
    start_ = 0;
    if (launch.seed == 1) {
        step_ = total_ - 1;
        start_ = total_ - 1;
    } else if (launch.seed > 1) {
        uint64_t r = launch.seed * 0x9e3779b97f4a7c15ull | 1;
        start_ = next_random(&r) % total_;
        step_ = next_random(&r) % total_ | 1;
        while (std::gcd(step_, total_) != 1) step_ += 2;
        step_ %= total_;
        if (!step_) step_ = 1;
    }
    if (total_ == 1) step_ = 0;
    error_.clear();
    {
        std::lock_guard lock(mutex_);
        launch_ = &launch;
        round_++;
    }
    if (total_ > 1 && total_ * threads > 512) wake_.notify_all();
    work(launch, *blocks_[0]);
    std::unique_lock lock(mutex_);
    launch_ = nullptr;
    idle_.wait(lock, [&] { return busy_ == 0; });
    return std::move(error_);
}

}  // namespace simt
