// A host executor for GPU kernels: what a device does with a grid, done by the CPU, with the rules of the device looked
// after.
//
// Every GPU thread is a fiber with a stack of its own. The threads of a block run on one thread of the system, one at a
// time; blocks are spread over several. Barriers, shuffles and votes are meetings: a thread that arrives waits until all
// of its warp or block are there, and says where in the source it waits, so that threads which meet at different places
// are an error. If nobody can go on, that is an error too.
//
// Who runs next is a matter of the seed (Order): a kernel must give the same bits for every seed.
//
// Shared arrays (Array) look out for indices out of bounds, reads of elements that nobody wrote in this block, and races:
// two threads, one of them writing, with no barrier in between. Races are found from the barriers that threads have
// passed and not from the order of the run, so every seed finds them.
//
// An error ends the launch, never the process: the block's fibers are left where they stand and their stacks are used
// again. Kernels must therefore own nothing that needs a destructor.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#ifndef DS4_WARP
#define DS4_WARP 32
#endif

// CUDA's name; grids and blocks.
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3() = default;
    constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr uint64_t count() const { return uint64_t{x} * y * z; }
};

namespace simt {

constexpr unsigned kLanes = DS4_WARP;
static_assert(kLanes == 32 || kLanes == 64, "DS4_WARP is 32 or 64");
constexpr unsigned kMostThreads = 1024;              // of a block
constexpr size_t kStackBytes = 64 * 1024;            // of a thread
constexpr size_t kMostSharedBytes = 160 * 1024;      // of a block, static and dynamic together

using Site = std::source_location;
enum Meeting : uint8_t { kNone, kSyncBlock, kSyncWarp, kExchange, kVote };

// Who touched an element of a shared array, in intervals between barriers: `block` counts the block's barriers, `warp`
// those of the thread's warp.
struct Shadow {
    uint32_t write_block = 0, write_warp = 0, read_block = 0, read_warp = 0;
    uint16_t writer = 0, reader = 0;
    uint8_t readers = 0;  // since read_block: 1 one thread, 2 several of one warp, 3 several warps
};

struct ArrayState {
    const void *tag = nullptr;
    const char *name = "";
    char *data = nullptr;
    uint64_t count = 0;
    size_t offset = 0, element = 0;
    std::vector<Shadow> shadow;
};

struct Warp {
    uint64_t ready = 0, arrived = 0;
    uint32_t interval = 1, live = 0;
    Meeting meeting = kNone;
    Site site;
    uint64_t slot[2][kLanes];
};

struct Fiber {
    void *sp = nullptr;
    Warp *warp = nullptr;
    char *stack = nullptr;
    uint32_t thread = 0, lane = 0, phase = 0;
    dim3 index;
    Meeting waits = kNone;
    bool done = false;
    Site site;
};

struct Launch;

// A block that runs, with all that is kept from block to block.
struct Block {
    dim3 grid, block, index;
    Fiber *self = nullptr;
    void *home = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    uint64_t ready_warps = 0;
    unsigned n_threads = 0, n_done = 0, arrived = 0;
    Site site;                                // of the block's barrier
    uint32_t interval = 1, first_interval = 1;  // barriers of all blocks so far
    uint32_t seed = 0;
    uint64_t random = 1;
    struct alignas(64) Line {
        char bytes[64];
    };
    std::unique_ptr<Line[]> memory;
    char *shared = nullptr;
    size_t shared_used = 0, dynamic_bytes = 0;
    std::vector<std::unique_ptr<ArrayState>> arrays;
    size_t n_arrays = 0;
    char *stacks = nullptr;
    size_t stacks_bytes = 0;
    const char *name = "";
    const std::function<void()> *kernel = nullptr;
    bool failed = false;
    char message[512] = {};

    Block() = default;
    Block(const Block &) = delete;
    ~Block();
    bool prepare(const Launch &, std::string *error);
    void run(dim3 index, uint64_t number);
    ArrayState &array(const void *tag, const char *name, size_t element, size_t align, uint64_t count, bool dynamic, size_t offset);
};

extern thread_local Block *current __attribute__((tls_model("initial-exec")));

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void meet_warp(Meeting what, const Site &site);
void sync_block(const Site &site);
void sync_warp(const Site &site);
[[noreturn]] void out_of_bounds(const ArrayState &a, long long index);
void reads(ArrayState &a, uint64_t index);
void writes(ArrayState &a, uint64_t index);

inline const Fiber &self() { return *current->self; }

// The value of lane `from`, which must be a lane of the warp; every lane gives one and takes one.
template <class T> T exchange(T value, unsigned from, const Site &site) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
    Fiber &me = *current->self;
    if (from >= kLanes) fail("shuffle at %s:%u from lane %u; a warp has %u lanes", site.file_name(), unsigned(site.line()), from, kLanes);
    uint64_t *slots = me.warp->slot[me.phase++ & 1];
    memcpy(&slots[me.lane], &value, sizeof value);
    meet_warp(kExchange, site);
    T out;
    memcpy(&out, &slots[from], sizeof out);
    return out;
}

// Bit i: what lane i said.
inline uint64_t ballot(bool vote, const Site &site) {
    Fiber &me = *current->self;
    uint64_t *slots = me.warp->slot[me.phase++ & 1];
    slots[me.lane] = vote;
    meet_warp(kVote, site);
    uint64_t bits = 0;
    for (unsigned i = 0; i < kLanes; i++) bits |= slots[i] << i;
    return bits;
}

// An element of a shared array: reading and writing go through the checks.
template <class T> class Cell {
  public:
    Cell(ArrayState *a, uint64_t i) : a_(a), i_(i) {}
    Cell(const Cell &) = delete;
    operator T() const {
        reads(*a_, i_);
        T v;
        memcpy(&v, a_->data + i_ * sizeof(T), sizeof v);
        return v;
    }
    T operator=(T v) const {
        writes(*a_, i_);
        memcpy(a_->data + i_ * sizeof(T), &v, sizeof v);
        return v;
    }
    T operator=(const Cell &other) const { return *this = T(other); }
    template <class U> T operator+=(U v) const { return *this = T(T(*this) + v); }
    template <class U> T operator-=(U v) const { return *this = T(T(*this) - v); }
    template <class U> T operator*=(U v) const { return *this = T(T(*this) * v); }
    template <class U> T operator|=(U v) const { return *this = T(T(*this) | v); }

  private:
    ArrayState *a_;
    uint64_t i_;
};

// A shared array, or the rest of one from an element on. Copying it copies the name, not the elements.
template <class T> class Array {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    Array(ArrayState *a, int64_t first) : a_(a), first_(first) {}
    template <class I> Cell<T> operator[](I i) const {
        const int64_t at = first_ + static_cast<int64_t>(i);
        if (at < 0 || static_cast<uint64_t>(at) >= a_->count) out_of_bounds(*a_, at);
        return Cell<T>(a_, static_cast<uint64_t>(at));
    }
    template <class I> Array operator+(I n) const { return Array(a_, first_ + static_cast<int64_t>(n)); }
    // The bare elements, for what has declared the range that it touches.
    T *raw() const { return reinterpret_cast<T *>(a_->data) + first_; }
    void touch(int64_t first, uint64_t count, bool write) const {
        for (uint64_t i = 0; i < count; i++) {
            const int64_t at = first_ + first + static_cast<int64_t>(i);
            if (at < 0 || static_cast<uint64_t>(at) >= a_->count) out_of_bounds(*a_, at);
            if (write)
                writes(*a_, static_cast<uint64_t>(at));
            else
                reads(*a_, static_cast<uint64_t>(at));
        }
    }
    ArrayState *state() const { return a_; }
    int64_t first() const { return first_; }

  private:
    ArrayState *a_;
    int64_t first_;
};

template <class T> Array<T> static_array(const void *tag, const char *name, uint64_t count) {
    return Array<T>(&current->array(tag, name, sizeof(T), 16, count, false, 0), 0);
}
template <class T> Array<T> dynamic_array(const char *name) {
    return Array<T>(&current->array(&current->dynamic_bytes, name, sizeof(T), 16, current->dynamic_bytes / sizeof(T), true, 0), 0);
}
// `count` elements of another type in the dynamic array, from a byte on. Parts must not overlap each other.
template <class U> Array<U> dynamic_part(const char *name, size_t offset, uint64_t count) {
    return Array<U>(&current->array(reinterpret_cast<const void *>(offset + 1), name, sizeof(U), alignof(U), count, true, offset), 0);
}

struct Launch {
    const char *name;
    dim3 grid, block;
    size_t dynamic_bytes;
    uint32_t seed;
    std::function<void()> kernel;
};

// The blocks of a launch on up to `n_threads` threads of the system. One launch at a time.
class Executor {
  public:
    explicit Executor(unsigned n_threads);
    Executor(const Executor &) = delete;
    ~Executor();
    // Runs the whole grid; the error of its lowest block that had one, or empty.
    std::string run(const Launch &launch);

  private:
    void work(const Launch &launch, Block &block);
    void loop(unsigned i);

    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    uint64_t round_ = 0;
    unsigned busy_ = 0;
    bool end_ = false;
    const Launch *launch_ = nullptr;
    uint64_t next_ = 0, total_ = 0, step_ = 1, start_ = 0;
    uint64_t failed_block_ = 0;
    std::string error_;
};

}  // namespace simt
