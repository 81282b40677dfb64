// The room of the thread pool, of the machine and of large memory in ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "base/error.h"
#include "base/machine.h"
#include "base/pages.h"
#include "base/thread_pool.h"

namespace py = pybind11;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr uint64_t kLarge = UINT64_MAX;  // work that is worth all threads

void spin(microseconds time) {
    for (const auto end = Clock::now() + time; Clock::now() < end;) {
    }
}

py::array_t<uint32_t> array_of(const std::vector<uint32_t> &values) {
    return py::array_t<uint32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Regions over `items`, each counting its calls on every item and keeping who made the last one. Work space is chosen by
// thread number, so two threads with one number at a time show as a wrong count of overlaps.
py::tuple cover(ds4::ThreadPool &pool, size_t items, size_t grain, uint64_t work, unsigned regions) {
    std::vector<uint32_t> calls(items), owner(items);
    std::atomic<uint32_t> ranges{0}, wrong{0};
    std::unique_ptr<std::atomic<bool>[]> inside(new std::atomic<bool>[pool.size()]());
    const auto fn = [&](size_t begin, size_t end, unsigned thread) {
        if (thread >= pool.size() || inside[thread].exchange(true)) wrong++;
        if (begin >= end || end > items || (grain && begin % grain)) wrong++;
        ranges++;
        for (size_t i = begin; i < end; i++) {
            calls[i]++;
            owner[i] = thread;
        }
        inside[thread] = false;
    };
    {
        py::gil_scoped_release release;
        for (unsigned r = 0; r < regions; r++) {
            if (grain)
                pool.run(items, grain, work, fn);
            else
                pool.run(items, work, fn);
        }
    }
    return py::make_tuple(array_of(calls), array_of(owner), ranges.load(), wrong.load());
}

// Who computed each item when one thread sleeps `us` microseconds on every piece.
py::array_t<uint32_t> owners_beside_sleeper(ds4::ThreadPool &pool, size_t items, unsigned sleeper, unsigned us) {
    std::vector<uint32_t> owner(items);
    {
        py::gil_scoped_release release;
        pool.run(items, 1, kLarge, [&](size_t begin, size_t end, unsigned thread) {
            if (thread == sleeper)
                std::this_thread::sleep_for(microseconds(us));
            else
                spin(microseconds(20));
            for (size_t i = begin; i < end; i++) owner[i] = thread;
        });
    }
    return array_of(owner);
}

// A region inside each piece of a region: calls on every inner item, and inner calls under another thread's number.
py::tuple nested(ds4::ThreadPool &pool, size_t outer, size_t inner) {
    std::vector<uint32_t> calls(outer * inner);
    std::atomic<uint32_t> foreign{0};
    {
        py::gil_scoped_release release;
        pool.run(outer, 1, kLarge, [&](size_t begin, size_t end, unsigned thread) {
            for (size_t o = begin; o < end; o++)
                pool.run(inner, 1, kLarge, [&](size_t b, size_t e, unsigned inside) {
                    if (inside != thread) foreign++;
                    for (size_t i = b; i < e; i++) calls[o * inner + i]++;
                });
        });
    }
    return py::make_tuple(array_of(calls), foreign.load());
}

// Microseconds of each of `regions` regions of one short piece a thread, with `gap` microseconds of serial work between
// them; a region counts as joined when every thread took part.
py::tuple region_times(ds4::ThreadPool &pool, unsigned regions, unsigned gap, unsigned piece, bool burst) {
    std::vector<double> times(regions);
    std::vector<uint32_t> joined(regions);
    {
        py::gil_scoped_release release;
        if (burst) pool.begin();
        for (unsigned r = 0; r < regions; r++) {
            spin(microseconds(gap));
            std::atomic<uint32_t> seen{0};
            const auto start = Clock::now();
            pool.run(pool.size(), 1, kLarge, [&](size_t begin, size_t end, unsigned thread) {
                seen |= 1u << thread % 32;
                for (size_t i = begin; i < end; i++) spin(microseconds(piece));
            });
            times[r] = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
            joined[r] = static_cast<uint32_t>(__builtin_popcount(seen.load()));
        }
        if (burst) pool.end();
    }
    return py::make_tuple(py::array_t<double>(static_cast<py::ssize_t>(regions), times.data()), array_of(joined));
}

py::dict read_machine(const std::vector<unsigned> &mask, const std::string &root) {
    const ds4::Machine machine = ds4::read_machine(mask, root);
    py::dict out;
    out["cpus"] = machine.cpus;
    out["order"] = machine.order;
    out["cores"] = machine.n_cores;
    out["quota"] = machine.quota;
    out["nodes"] = machine.nodes;
    out["default_threads"] = ds4::default_threads(machine);
    return out;
}

// (processors, nodes), or ValueError with the message.
py::tuple choose_placement(const char *affinity, bool interleave, unsigned threads, const std::vector<unsigned> &mask,
                           const std::string &root) {
    ds4::Placement out;
    auto err = std::make_unique<ds4_error>();
    if (ds4::choose_placement(affinity, interleave, threads, ds4::read_machine(mask, root), &out, err.get()) != DS4_OK)
        throw py::value_error(err->message);
    return py::make_tuple(out.cpus, out.nodes);
}

// What each thread of a pool sees of itself: (mask, processor, memory policy).
py::list places(ds4::ThreadPool &pool) {
    struct Place {
        std::vector<unsigned> mask;
        int cpu = -1, policy = -1;
    };
    std::vector<Place> found(pool.size());
    {
        py::gil_scoped_release release;
        std::atomic<unsigned> arrived{0};
        pool.begin();
        pool.run(pool.size(), 1, kLarge, [&](size_t, size_t, unsigned thread) {
            arrived++;
            while (arrived < pool.size()) std::this_thread::yield();  // so that no thread takes two pieces
            Place &place = found[thread];
            place.mask = ds4::affinity_mask();
            place.policy = ds4::memory_policy();
#if defined(__linux__)
            place.cpu = sched_getcpu();
#endif
        });
        pool.end();
    }
    py::list out;
    for (const Place &place : found) out.append(py::make_tuple(place.mask, place.cpu, place.policy));
    return out;
}

std::unique_ptr<ds4::ThreadPool> placed_pool(unsigned n_threads, const std::vector<unsigned> &cpus,
                                             const std::vector<unsigned> &nodes) {
    if (!cpus.empty() && cpus.size() < n_threads) throw py::value_error("a processor for each thread");
    ds4::Placement placement;
    placement.cpus = cpus;
    placement.nodes = nodes;
    return std::make_unique<ds4::ThreadPool>(n_threads, placement);
}

class Area {
  public:
    explicit Area(uint64_t bytes) : bytes_(bytes) {
        if (!memory_.allocate(bytes)) throw std::bad_alloc();
    }
    uintptr_t address() const { return reinterpret_cast<uintptr_t>(memory_.data()); }
    bool all(unsigned value) const {
        return std::all_of(memory_.data(), memory_.data() + bytes_, [&](uint8_t b) { return b == value; });
    }
    void fill(unsigned value) { std::fill(memory_.data(), memory_.data() + bytes_, static_cast<uint8_t>(value)); }

  private:
    ds4::ZeroedMemory memory_;
    uint64_t bytes_;
};

}  // namespace

void add_pool(py::module_ &m) {
    py::class_<ds4::ThreadPool>(m, "ThreadPool")
        .def(py::init(&placed_pool), py::arg("n_threads"), py::arg("cpus") = std::vector<unsigned>{},
             py::arg("nodes") = std::vector<unsigned>{})
        .def("places", &places, "(mask, processor, memory policy) of each thread, inside begin and end")
        .def_property_readonly("size", &ds4::ThreadPool::size)
        .def("begin", &ds4::ThreadPool::begin)
        .def("end", &ds4::ThreadPool::end)
        .def("cover", &cover, py::arg("items"), py::arg("grain") = 0, py::arg("work") = kLarge, py::arg("regions") = 1,
             "(calls an item, last owner of an item, ranges, faults); grain 0: the pool chooses")
        .def("owners_beside_sleeper", &owners_beside_sleeper, py::arg("items"), py::arg("sleeper"), py::arg("us"))
        .def("nested", &nested)
        .def("region_times", &region_times, py::arg("regions"), py::arg("gap") = 0, py::arg("piece") = 0,
             py::arg("burst") = true, "(microseconds, threads that took part) of each region");
    m.def("read_machine", &read_machine, py::arg("mask"), py::arg("root") = "");
    m.def("choose_placement", &choose_placement, py::arg("affinity"), py::arg("interleave"), py::arg("threads"),
          py::arg("mask"), py::arg("root") = "");
    m.def("affinity_mask", &ds4::affinity_mask);
    m.def("memory_policy", &ds4::memory_policy);
    py::class_<Area>(m, "Area")
        .def(py::init<uint64_t>())
        .def_property_readonly("address", &Area::address)
        .def("all", &Area::all)
        .def("fill", &Area::fill);
}
