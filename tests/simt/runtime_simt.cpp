#include "runtime.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace ds4::gpu::rt {
namespace {

constexpr uint64_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xab;

// The card: its memory is shared by everybody in the process, as that of a real one.
struct Card {
    std::mutex mutex;
    std::map<char *, uint64_t> allocations;
    uint64_t total = uint64_t{16} << 30, used = 0;
    std::atomic<uint32_t> order{0};
    std::atomic<bool> unified{false};
    std::atomic<uint64_t> graphs{0}, launches{0};
    std::atomic<int64_t> lost_after{-1};  // launches until the card is lost; -1: it is not
    Card() {
        if (const char *seed = getenv("DS4_SIMT_SEED")) order = static_cast<uint32_t>(strtoul(seed, nullptr, 10));
    }
};
Card &card() {
    static Card *the_card = new Card;  // never destroyed: streams may end after static objects
    return *the_card;
}

// The first allocation behind whose end somebody wrote; its guard is made whole again.
std::string broken_guard() {
    Card &c = card();
    std::lock_guard lock(c.mutex);
    for (auto &[p, bytes] : c.allocations)
        for (uint64_t i = 0; i < kGuardBytes; i++)
            if (static_cast<unsigned char>(p[bytes + i]) != kGuard) {
                memset(p + bytes, kGuard, kGuardBytes);
                return "was written " + std::to_string(i) + " bytes past the end of a buffer of " + std::to_string(bytes) + " bytes";
            }
    return {};
}

}  // namespace

Result Queue::capture_begin() {
    if (captured_) return kFailed;
    captured_ = new std::vector<Step>;
    return kOk;
}
Result Queue::capture_end(Graph *out) {
    *out = captured_;
    captured_ = nullptr;
    return *out ? kOk : kFailed;
}

Result Queue::run() {
    error_.clear();
    if (captured_) {
        error_ = "waited for a stream that is recording";
        return kFailed;
    }
    std::vector<Step> steps;
    steps.swap(steps_);
    for (Step &step : steps) {
        if (step.host) {
            step.host();
            continue;
        }
        card().launches++;
        if (card().lost_after >= 0 && card().lost_after-- == 0) {
            card().lost_after = 0;
            error_ = "the device is lost";
            return kFailed;
        }
        step.launch.seed = card().order;
        error_ = executor_.run(step.launch);
        if (error_.empty())
            if (std::string broken = broken_guard(); !broken.empty())
                error_ = std::string("after kernel ") + step.launch.name + ": memory " + broken;
        if (!error_.empty()) return kFailed;
    }
    return kOk;
}

const char *text(Result r) {
    switch (r) {
        case kOk: return "no error";
        case kOutOfMemory: return "out of memory";
        default: return "a kernel failed";
    }
}

Result open(int index, Info *info) {
    if (index) return kFailed;
    snprintf(info->name, sizeof info->name, "host executor, warps of %u", simt::kLanes);
    snprintf(info->arch, sizeof info->arch, "simt%u", simt::kLanes);
    info->unified = card().unified;
    return memory(&info->free, &info->total);
}

Result memory(uint64_t *free, uint64_t *total) {
    Card &c = card();
    std::lock_guard lock(c.mutex);
    *total = c.total;
    *free = c.used < c.total ? c.total - c.used : 0;
    return kOk;
}

Result allocate(void **out, uint64_t bytes) {
    Card &c = card();
    std::lock_guard lock(c.mutex);
    if (c.used > c.total || bytes > c.total - c.used) return kOutOfMemory;
    auto *p = static_cast<char *>(::operator new(bytes + kGuardBytes, std::align_val_t{256}, std::nothrow));
    if (!p) return kOutOfMemory;
    memset(p, 0xff, bytes);
    memset(p + bytes, kGuard, kGuardBytes);
    c.allocations[p] = bytes;
    c.used += bytes;
    *out = p;
    return kOk;
}

void release(void *p) {
    if (!p) return;
    Card &c = card();
    std::lock_guard lock(c.mutex);
    auto found = c.allocations.find(static_cast<char *>(p));
    if (found == c.allocations.end()) abort();  // not ours: a fault of the back end
    c.used -= found->second;
    c.allocations.erase(found);
    ::operator delete(p, std::align_val_t{256});
}

Result allocate_pinned(void **out, uint64_t bytes) {
    *out = malloc(bytes);
    return *out ? kOk : kOutOfMemory;
}
void release_pinned(void *p) { free(p); }

Result stream_create(Stream *out, unsigned n_threads) {
    try {
        *out = new Queue(n_threads);
    } catch (const std::exception &) {
        return kOutOfMemory;
    }
    return kOk;
}
void stream_destroy(Stream s) { delete s; }

Result copy(Stream s, void *dst, const void *src, uint64_t bytes) {
    s->add([=] { memmove(dst, src, bytes); });
    return kOk;
}
Result fill(Stream s, void *dst, int value, uint64_t bytes) {
    s->add([=] { memset(dst, value, bytes); });
    return kOk;
}
Result map_host(const void *host, uint64_t, void **device) {
    if (!card().unified) return kFailed;
    *device = const_cast<void *>(host);
    return kOk;
}
void unmap_host(const void *) {}
Result clear(void *p, uint64_t bytes) {
    memset(p, 0, bytes);
    return kOk;
}
Result upload_now(void *dst, const void *src, uint64_t bytes) {
    memcpy(dst, src, bytes);
    return kOk;
}
Result capture_begin(Stream s) { return s->capture_begin(); }
Result capture_end(Stream s, Graph *out) { return s->capture_end(out); }
Result graph_run(Stream s, Graph g, GraphExec *) {
    card().graphs++;
    for (Step &step : *g) s->add(std::move(step));
    return kOk;
}
void graph_destroy(Graph g) { delete g; }
Result wait(Stream s) { return s->run(); }
const char *explain(Stream s, Result r) { return r == kFailed ? s->error() : text(r); }

}  // namespace ds4::gpu::rt

#define EXPORT extern "C" __attribute__((visibility("default")))

// For tests: in which order threads and blocks of the launches to come run (simt.h), how much memory the card has, whether
// it shares that of the host, after how many launches it is lost (-1: never); the memory in use, and how many graphs and
// kernels have run.
EXPORT void simt_set_order(uint32_t seed);
EXPORT void simt_set_memory(uint64_t bytes);
EXPORT void simt_set_unified(int unified);
EXPORT void simt_lose(int64_t launches);
EXPORT uint64_t simt_used_memory();
EXPORT uint64_t simt_graphs();
EXPORT uint64_t simt_launches();

using ds4::gpu::rt::card;

void simt_set_order(uint32_t seed) { card().order = seed; }
void simt_set_memory(uint64_t bytes) {
    std::lock_guard lock(card().mutex);
    card().total = bytes;
}
void simt_set_unified(int unified) { card().unified = unified != 0; }
void simt_lose(int64_t launches) { card().lost_after = launches; }
uint64_t simt_used_memory() {
    std::lock_guard lock(card().mutex);
    return card().used;
}
uint64_t simt_graphs() { return card().graphs; }
uint64_t simt_launches() { return card().launches; }
