// The thread pool's room of ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

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

}  // namespace

void add_pool(py::module_ &m) {
    py::class_<ds4::ThreadPool>(m, "ThreadPool")
        .def(py::init<unsigned>(), py::arg("n_threads"))
        .def_property_readonly("size", &ds4::ThreadPool::size)
        .def("begin", &ds4::ThreadPool::begin)
        .def("end", &ds4::ThreadPool::end)
        .def("cover", &cover, py::arg("items"), py::arg("grain") = 0, py::arg("work") = kLarge, py::arg("regions") = 1,
             "(calls an item, last owner of an item, ranges, faults); grain 0: the pool chooses")
        .def("owners_beside_sleeper", &owners_beside_sleeper, py::arg("items"), py::arg("sleeper"), py::arg("us"))
        .def("nested", &nested)
        .def("region_times", &region_times, py::arg("regions"), py::arg("gap") = 0, py::arg("piece") = 0,
             py::arg("burst") = true, "(microseconds, threads that took part) of each region");
}
