// The device that the host executor plays for the Metal back end (metal/driver.h): back end "metal-host".
//
// Dispatches run when somebody waits, as late as on a real device; those between two barriers run in an order that the
// seed chooses, so that a barrier which was forgotten shows. The bytes behind every buffer are looked after.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <vector>

#include "../../metal/driver.h"
#include "metal_kernels.h"
#include "simt.h"

namespace ds4::metal {

const char *const kBackendName = "metal-host";

namespace {

constexpr uint64_t kPage = 4096, kGuardBytes = 256;
constexpr unsigned char kGuard = 0xab;

struct Card {
    std::mutex mutex;
    std::map<char *, uint64_t> allocations;
    std::set<std::string> seen;  // kernels that have run
    uint64_t total = uint64_t{16} << 30, used = 0;
    std::atomic<uint32_t> order{0};
    std::atomic<bool> matrices{true};
    std::atomic<int64_t> lost_after{-1};  // dispatches; -1: never
    std::atomic<uint64_t> dispatches{0}, submissions{0};
    Card() {
        if (const char *seed = getenv("DS4_SIMT_SEED")) order = static_cast<uint32_t>(strtoul(seed, nullptr, 10));
    }
};
Card &card() {
    static Card *the_card = new Card;  // never destroyed: streams may end after static objects
    return *the_card;
}

std::string broken_guard() {
    Card &c = card();
    std::lock_guard lock(c.mutex);
    for (auto &[p, bytes] : c.allocations)
        for (uint64_t i = 0; i < kGuardBytes; i++)
            if (static_cast<unsigned char>(p[bytes + i]) != kGuard) {
                memset(p + bytes, kGuard, kGuardBytes);
                return "memory was written " + std::to_string(i) + " bytes past the end of a buffer of " + std::to_string(bytes) +
                       " bytes";
            }
    return {};
}

const ds4_metal_kernel *find(const char *name) {
    for (unsigned i = 0; i < ds4_metal_n_kernels; i++)
        if (!strcmp(ds4_metal_kernels[i].name, name)) return &ds4_metal_kernels[i];
    return nullptr;
}

class HostStream : public Stream {
  public:
    HostStream() : executor_(std::max(1u, std::min(2u, std::thread::hardware_concurrency()))) {}

    void dispatch(const char *name, Grid grid, uint32_t threads, const void *record, size_t bytes) override {
        Step step;
        step.kernel = find(name);
        if (!step.kernel || step.kernel->record_bytes != bytes) {
            if (error_.empty())
                error_ = std::string("kernel ") + name + (step.kernel ? " takes a record of another size" : " does not exist");
            return;
        }
        step.grid = dim3(grid.x, grid.y, grid.z);
        step.threads = threads;
        step.record.assign(static_cast<const char *>(record), static_cast<const char *>(record) + bytes);
        step.section = section_;
        steps_.push_back(std::move(step));
    }
    void barrier() override { section_++; }

    ds4_status wait(std::string *message) override {
        std::vector<Step> steps;
        steps.swap(steps_);
        const uint32_t seed = card().order;
        if (seed) {  // sections stay in order
            std::reverse(steps.begin(), steps.end());
            std::stable_sort(steps.begin(), steps.end(), [](const Step &a, const Step &b) { return a.section < b.section; });
        }
        card().submissions += !steps.empty();
        for (const Step &step : steps) {
            if (card().lost_after == 0) error_ = "the device is lost";
            if (!error_.empty()) break;
            if (card().lost_after > 0) card().lost_after--;
            card().dispatches++;
            // The record moves for every launch, so that what keeps its address is found out.
            const std::vector<char> record = step.record;
            error_ = executor_.run({step.kernel->name, step.grid, dim3(step.threads), 0, seed,
                                    [&] { step.kernel->run(record.data()); }});
            if (error_.empty())
                if (std::string broken = broken_guard(); !broken.empty())
                    error_ = std::string("after kernel ") + step.kernel->name + ": " + broken;
            std::lock_guard lock(card().mutex);
            card().seen.insert(step.kernel->name);
        }
        if (error_.empty()) return DS4_OK;
        *message = std::move(error_);
        error_.clear();
        return DS4_E_DEVICE;
    }

  private:
    struct Step {
        const ds4_metal_kernel *kernel = nullptr;
        dim3 grid;
        uint32_t threads = 0;
        uint64_t section = 0;
        std::vector<char> record;
    };
    simt::Executor executor_;
    std::vector<Step> steps_;
    uint64_t section_ = 0;
    std::string error_;
};

class HostDriver : public Driver {
  public:
    DeviceInfo info() override {
        Card &c = card();
        std::lock_guard lock(c.mutex);
        DeviceInfo i;
        i.name = "host executor, simdgroups of 32";
        i.arch = "simt32";
        i.memory = c.total;
        i.used = c.used;
        i.largest = c.total;
        i.page = kPage;
        i.matrices = c.matrices;
        return i;
    }

    ds4_status allocate(uint64_t bytes, Memory *out, std::string *message) override {
        Card &c = card();
        std::lock_guard lock(c.mutex);
        char *p = nullptr;
        if (c.used <= c.total && bytes <= c.total - c.used)
            p = static_cast<char *>(::operator new(bytes + kGuardBytes, std::align_val_t{kPage}, std::nothrow));
        if (!p) {
            *message = "out of memory";
            return DS4_E_MEMORY;
        }
        memset(p, 0, bytes);
        memset(p + bytes, kGuard, kGuardBytes);
        c.allocations[p] = bytes;
        c.used += bytes;
        *out = {p, reinterpret_cast<uint8_t *>(p), reinterpret_cast<uint64_t>(p), bytes};
        return DS4_OK;
    }

    ds4_status import(const void *host, uint64_t bytes, Memory *out, std::string *message) override {
        if (reinterpret_cast<uint64_t>(host) % kPage || bytes % kPage) {
            *message = "not whole pages";
            return DS4_E_ARGUMENT;
        }
        auto *p = static_cast<uint8_t *>(const_cast<void *>(host));  // kernels only read weights
        *out = {nullptr, p, reinterpret_cast<uint64_t>(p), bytes};
        return DS4_OK;
    }

    void release(Memory &m) override {
        if (!m.handle) return;
        Card &c = card();
        std::lock_guard lock(c.mutex);
        auto found = c.allocations.find(static_cast<char *>(m.handle));
        if (found == c.allocations.end()) abort();  // not ours: a fault of the back end
        c.used -= found->second;
        c.allocations.erase(found);
        memset(m.handle, 0xff, m.bytes);  // no number for whoever still reads it
        ::operator delete(m.handle, std::align_val_t{kPage});
        m = Memory{};
    }

    std::unique_ptr<Stream> stream(std::string *message) override {
        try {
            return std::make_unique<HostStream>();
        } catch (const std::exception &) {
            *message = "out of memory";
            return nullptr;
        }
    }
};

}  // namespace

std::unique_ptr<Driver> open_driver(std::string *, ds4_status *) { return std::make_unique<HostDriver>(); }

}  // namespace ds4::metal

#define EXPORT extern "C" __attribute__((visibility("default")))

// For tests: the order of what runs from now on, the memory of the card, whether devices that are opened from now on have
// simdgroup matrices, the loss of the device after so many dispatches (-1: it is there), how many batches and dispatches have
// run, and which kernels ("a b c", in the caller's buffer of `size` bytes; returns the bytes needed).
EXPORT void simt_set_order(uint32_t seed);
EXPORT void simt_set_memory(uint64_t bytes);
EXPORT uint64_t simt_used_memory();
EXPORT void simt_set_matrix_units(uint32_t on);
EXPORT void simt_lose(int64_t launches);
EXPORT uint64_t simt_graphs();
EXPORT uint64_t simt_launches();
EXPORT size_t simt_kernels(int all, char *out, size_t size);
void simt_set_order(uint32_t seed) { ds4::metal::card().order = seed; }
void simt_set_memory(uint64_t bytes) {
    std::lock_guard lock(ds4::metal::card().mutex);
    ds4::metal::card().total = bytes;
}
uint64_t simt_used_memory() {
    std::lock_guard lock(ds4::metal::card().mutex);
    return ds4::metal::card().used;
}
void simt_lose(int64_t launches) { ds4::metal::card().lost_after = launches; }
uint64_t simt_graphs() { return ds4::metal::card().submissions; }
uint64_t simt_launches() { return ds4::metal::card().dispatches; }
void simt_set_matrix_units(uint32_t on) { ds4::metal::card().matrices = on != 0; }
size_t simt_kernels(int all, char *out, size_t size) {
    std::string text;
    std::lock_guard lock(ds4::metal::card().mutex);
    if (all)
        for (unsigned i = 0; i < ds4_metal_n_kernels; i++) text += std::string(ds4_metal_kernels[i].name) + " ";
    else
        for (const std::string &name : ds4::metal::card().seen) text += name + " ";
    if (size) {
        const size_t n = std::min(size - 1, text.size());
        memcpy(out, text.data(), n);
        out[n] = 0;
    }
    return text.size() + 1;
}
