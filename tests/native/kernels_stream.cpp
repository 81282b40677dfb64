// The room of reads from the disk in ds4_kernels.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "failure.h"
#include "stream/expert_cache.h"
#include "stream/reader.h"

namespace py = pybind11;
namespace st = ds4::stream;

namespace {

constexpr uint8_t kUntouched = 0xA5;

// A read with memory of its own, and guards on both sides of what it may write to.
struct OwnRead {
    static constexpr uint64_t kGuard = st::kAlignment;
    OwnRead(const st::SourceFile &file, uint64_t offset, uint64_t bytes) : store(bytes + 6 * st::kAlignment, kUntouched) {
        const uint64_t start = reinterpret_cast<uintptr_t>(store.data());
        first = store.data() + (st::kAlignment - start % st::kAlignment) % st::kAlignment + kGuard;
        read.file = &file;
        read.offset = offset;
        read.bytes = bytes;
        read.into = first + (file.direct() ? offset % st::kAlignment : 0);
    }
    bool guards_hold() const {
        const uint8_t *last = read.into + read.bytes;
        if (read.file->direct()) last = first + (last - first + st::kAlignment - 1) / st::kAlignment * st::kAlignment;
        return std::all_of(first - kGuard, first, [](uint8_t b) { return b == kUntouched; }) &&
               std::all_of(last, last + kGuard, [](uint8_t b) { return b == kUntouched; });
    }
    std::vector<uint8_t> store;
    uint8_t *first;
    st::Read read;
};

class TestReader {
public:
    TestReader(const std::string &path, const std::string &io, unsigned depth, uint64_t piece, bool direct) {
        auto err = std::make_unique<ds4_error>();
        st::ReaderOptions o;
        o.io = io == "threads" ? st::Io::threads : io == "io_uring" ? st::Io::uring : st::Io::automatic;
        o.depth = depth;
        o.piece_bytes = piece;
        need(file_.open(path.c_str(), nullptr, direct, err.get()), *err);
        need(st::Reader::create(o, &reader_, err.get()), *err);
    }

    // Submits all ranges at once. For each: bytes, or (errno, changed, bytes that came, message, offset in the error).
    py::list read(const std::vector<std::pair<uint64_t, uint64_t>> &ranges, const std::vector<int> &ranks, const std::vector<size_t> &withdrawn) {
        std::vector<std::unique_ptr<OwnRead>> reads;
        std::mutex mutex;
        std::condition_variable arrived;
        struct Waiting {
            std::mutex &mutex;
            std::condition_variable &arrived;
            size_t left;
            std::vector<uint64_t> order;
        } waiting{mutex, arrived, ranges.size(), {}};
        for (const auto &[offset, bytes] : ranges) {
            reads.push_back(std::make_unique<OwnRead>(file_, offset, bytes));
            reads.back()->read.owner = &waiting;
            reads.back()->read.done = [](st::Read &r) {
                Waiting &w = *static_cast<Waiting *>(r.owner);
                const std::lock_guard<std::mutex> lock(w.mutex);
                w.order.push_back(r.offset);
                w.left--;
                w.arrived.notify_all();
            };
        }
        {
            py::gil_scoped_release release;
            for (size_t i = 0; i < reads.size(); i++) reader_->submit(reads[i]->read, static_cast<st::Rank>(i < ranks.size() ? ranks[i] : 0));
            size_t gone = 0;
            for (size_t i : withdrawn) gone += reader_->withdraw(reads[i]->read);
            std::unique_lock<std::mutex> lock(mutex);
            waiting.left -= gone;
            arrived.wait(lock, [&] { return waiting.left == 0; });
        }
        order_ = waiting.order;
        py::list out;
        for (const auto &own : reads) {
            const st::Read &r = own->read;
            if (!own->guards_hold()) throw std::runtime_error("bytes beside a range were written");
            if (r.ok()) {
                out.append(py::bytes(reinterpret_cast<const char *>(r.into), r.bytes));
                continue;
            }
            if (r.withdrawn) {
                out.append(py::none());
                continue;
            }
            auto err = std::make_unique<ds4_error>();
            const int status = st::describe(r, "a thing", err.get());
            if (status != DS4_E_IO || err->status != status) throw std::runtime_error("another status than DS4_E_IO");
            out.append(py::make_tuple(r.os_errno, r.changed, r.got, err->message, err->offset));
        }
        return out;
    }

    // Of read number n from now (and of `times` reads from there on).
    void set_fault(uint64_t n, uint64_t times, int os_errno, uint64_t missing, unsigned late_us) {
        auto count = std::make_shared<std::atomic<uint64_t>>(0);
        reader_->set_fault([=](const st::Read &) {
            const uint64_t i = count->fetch_add(1);
            return i >= n && i < n + times ? st::Fault{os_errno, missing, late_us} : st::Fault{};
        });
    }

    double measure(uint64_t bytes, uint32_t reads, uint64_t seed) {
        auto err = std::make_unique<ds4_error>();
        double speed = 0;
        py::gil_scoped_release release;
        need(st::measure(*reader_, file_, bytes, reads, seed, &speed, err.get()), *err);
        return speed;
    }

    py::dict stats() const {
        const st::ReaderStats s = reader_->stats();
        py::dict out;
        out["reads"] = s.reads;
        out["bytes"] = s.bytes;
        out["failed"] = s.failed;
        out["read_ns"] = s.read_ns;
        out["busy_ns"] = s.busy_ns;
        return out;
    }

    std::string io() const { return reader_->io(); }
    bool direct() const { return file_.direct(); }
    std::string notice() const { return file_.notice(); }
    std::vector<uint64_t> order() const { return order_; }

private:
    st::SourceFile file_;
    std::unique_ptr<st::Reader> reader_;
    std::vector<uint64_t> order_;
};

// A cache over layers (number of experts, offsets of expert 0's parts, their bytes, distances to the next expert).
class TestCache {
public:
    TestCache(const std::string &path, const std::vector<std::tuple<uint32_t, std::array<uint64_t, 3>, std::array<uint64_t, 3>,
                                                                   std::array<uint64_t, 3>>> &layers,
              uint64_t bytes, double near, double far, double near_share, const std::string &io, unsigned depth) {
        auto err = std::make_unique<ds4_error>();
        need(file_.open(path.c_str(), nullptr, true, err.get()), *err);
        std::vector<st::LayerSource> list;
        for (const auto &[n, offset, sizes, stride] : layers) {
            st::LayerSource l;
            l.name = "layer " + std::to_string(list.size());
            l.file = &file_;
            l.n_expert = n;
            std::copy(offset.begin(), offset.end(), l.offset);
            std::copy(sizes.begin(), sizes.end(), l.bytes);
            std::copy(stride.begin(), stride.end(), l.stride);
            list.push_back(l);
        }
        st::ReaderOptions o;
        o.io = io == "threads" ? st::Io::threads : st::Io::automatic;
        o.depth = depth;
        std::unique_ptr<st::Reader> reader;
        need(st::Reader::create(o, &reader, err.get()), *err);
        sources_ = list;
        need(st::ExpertCache::create(std::move(list), std::move(reader), {bytes, {near, far, near_share}}, &cache_, err.get()), *err);
    }

    // A ticket, or None when it would have to wait (try) or waited longer than `patience_ms`.
    std::unique_ptr<st::Ticket> acquire(uint32_t layer, const std::vector<uint32_t> &experts, bool attempt, unsigned patience_ms) {
        auto t = std::make_unique<st::Ticket>();
        py::gil_scoped_release release;
        const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
        const bool got = attempt ? cache_->try_acquire(layer, experts.data(), experts.size(), t.get())
                                 : cache_->acquire(layer, experts.data(), experts.size(), t.get(),
                                                   [&] { return std::chrono::steady_clock::now() < until; });
        return got ? std::move(t) : nullptr;
    }

    // Waits until all experts of a ticket are there; gate, up and down of each, one after the other.
    std::vector<py::bytes> wait(st::Ticket &t, uint32_t layer) {
        auto err = std::make_unique<ds4_error>();
        {
            py::gil_scoped_release release;
            std::vector<size_t> fresh;
            do
                need(cache_->wait(t, &fresh, [] { return true; }, err.get()), *err);
            while (!fresh.empty());
        }
        std::vector<py::bytes> out;
        for (size_t i = 0; i < t.size(); i++) {
            std::string all;
            const st::Place p = t.place(i);
            for (int part = 0; part < st::kParts; part++)
                all.append(reinterpret_cast<const char *>(cache_->slab() + p.part[part]), sources_[layer].bytes[part]);
            out.emplace_back(all);
        }
        return out;
    }

    void selected(uint32_t layer, const std::vector<std::vector<int32_t>> &tokens) {
        std::vector<int32_t> ids;
        for (const auto &t : tokens) ids.insert(ids.end(), t.begin(), t.end());
        cache_->selected(layer, ids.data(), tokens.size(), tokens.empty() ? 0 : tokens[0].size());
    }
    std::unique_ptr<st::Wish> wish(uint32_t layer, const std::vector<uint32_t> &experts) {
        return std::make_unique<st::Wish>(cache_->wish(layer, experts.data(), experts.size()));
    }
    void prefetch(uint32_t layer, const std::vector<uint32_t> &experts) {
        cache_->prefetch(layer, experts.data(), experts.size());
    }
    std::unique_ptr<st::Guess> guess(uint32_t layer, const std::vector<uint32_t> &experts, size_t spare) {
        std::vector<uint32_t> ranks(experts.size());
        for (uint32_t i = 0; i < ranks.size(); i++) ranks[i] = i;
        return std::make_unique<st::Guess>(cache_->guess(layer, experts.data(), ranks.data(), experts.size(), spare));
    }
    bool guesses_pay(uint32_t layer) { return cache_->guesses_pay(layer); }
    void preload(uint32_t n) {
        auto err = std::make_unique<ds4_error>();
        py::gil_scoped_release release;
        need(cache_->preload(n, [](uint64_t, uint64_t) { return true; }, err.get()), *err);
    }
    std::vector<float> heat() const {
        std::vector<float> out(cache_->n_experts());
        cache_->heat(out.data());
        return out;
    }
    void set_heat(const std::vector<float> &values) {
        if (values.size() != cache_->n_experts()) throw py::value_error("one value for every expert");
        cache_->set_heat(values.data());
    }
    std::vector<unsigned> map() const {
        std::vector<uint8_t> out(cache_->n_experts());
        cache_->map(out.data());
        return {out.begin(), out.end()};
    }
    py::dict stats(uint32_t layer) const {
        const st::LayerStats s = cache_->stats(layer);
        py::dict out;
        out["asked"] = s.asked;
        out["hits"] = s.hits;
        out["late"] = s.late;
        out["misses"] = s.misses;
        out["prefetched"] = s.prefetched;
        out["evicted"] = s.evicted;
        out["guessed"] = s.guessed;
        out["guessed_right"] = s.guessed_right;
        out["bytes"] = s.bytes;
        return out;
    }
    uint64_t reads() const { return cache_->reader().stats().reads; }
    uint32_t n_slots() const { return cache_->n_slots(); }
    uint64_t slot_bytes() const { return cache_->slot_bytes(); }
    void set_fault(uint64_t n, uint64_t times, int os_errno, uint64_t missing, unsigned late_us) {
        auto count = std::make_shared<std::atomic<uint64_t>>(0);
        cache_->reader().set_fault([=](const st::Read &) {
            const uint64_t i = count->fetch_add(1);
            return i >= n && i < n + times ? st::Fault{os_errno, missing, late_us} : st::Fault{};
        });
    }

private:
    st::SourceFile file_;
    std::vector<st::LayerSource> sources_;
    std::unique_ptr<st::ExpertCache> cache_;
};

}  // namespace

void add_stream(py::module_ &m) {
    py::register_local_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const Failure &f) {
            const py::tuple args = py::make_tuple(f.status, f.os_errno, f.offset, f.message);
            PyErr_SetObject(PyExc_RuntimeError, args.ptr());
        }
    });
    py::class_<TestReader>(m, "Reader")
        .def(py::init<const std::string &, const std::string &, unsigned, uint64_t, bool>(), py::arg("path"),
             py::arg("io") = "automatic", py::arg("depth") = 8, py::arg("piece") = 1 << 20, py::arg("direct") = true)
        .def("read", &TestReader::read, py::arg("ranges"), py::arg("ranks") = std::vector<int>{},
             py::arg("withdrawn") = std::vector<size_t>{})
        .def("set_fault", &TestReader::set_fault, py::arg("n") = 0, py::arg("times") = 1, py::arg("os_errno") = 0,
             py::arg("missing") = 0, py::arg("late_us") = 0)
        .def("measure", &TestReader::measure, py::arg("bytes"), py::arg("reads"), py::arg("seed") = 1)
        .def("stats", &TestReader::stats)
        .def_property_readonly("io", &TestReader::io)
        .def_property_readonly("direct", &TestReader::direct)
        .def_property_readonly("notice", &TestReader::notice)
        .def_property_readonly("order", &TestReader::order, "Offsets of the last read(), as they were done");
    py::class_<st::Ticket>(m, "Ticket").def("release", &st::Ticket::release).def_property_readonly("size", &st::Ticket::size);
    py::class_<st::Guess>(m, "Guess").def("release", &st::Guess::release).def("settle", &st::Guess::settle, py::arg("experts"));
    py::class_<st::Wish>(m, "Wish").def("release", &st::Wish::release);
    py::class_<TestCache>(m, "ExpertCache")
        .def(py::init<const std::string &,
                      const std::vector<std::tuple<uint32_t, std::array<uint64_t, 3>, std::array<uint64_t, 3>, std::array<uint64_t, 3>>> &,
                      uint64_t, double, double, double, const std::string &, unsigned>(),
             py::arg("path"), py::arg("layers"), py::arg("bytes"), py::arg("near") = st::HeatScales().near,
             py::arg("far") = st::HeatScales().far, py::arg("near_share") = st::HeatScales().near_share, py::arg("io") = "automatic",
             py::arg("depth") = 8)
        .def("acquire", &TestCache::acquire, py::arg("layer"), py::arg("experts"), py::arg("attempt") = false,
             py::arg("patience_ms") = 60000, py::keep_alive<0, 1>())
        .def("wait", &TestCache::wait)
        .def("selected", &TestCache::selected)
        .def("wish", &TestCache::wish, py::keep_alive<0, 1>())
        .def("prefetch", &TestCache::prefetch, py::arg("layer"), py::arg("experts"))
        .def("guess", &TestCache::guess, py::arg("layer"), py::arg("experts"), py::arg("spare") = 0, py::keep_alive<0, 1>())
        .def("guesses_pay", &TestCache::guesses_pay)
        .def("preload", &TestCache::preload)
        .def("heat", &TestCache::heat)
        .def("set_heat", &TestCache::set_heat)
        .def("map", &TestCache::map)
        .def("stats", &TestCache::stats)
        .def("set_fault", &TestCache::set_fault, py::arg("n") = 0, py::arg("times") = 1, py::arg("os_errno") = 0,
             py::arg("missing") = 0, py::arg("late_us") = 0)
        .def_property_readonly("reads", &TestCache::reads)
        .def_property_readonly("n_slots", &TestCache::n_slots)
        .def_property_readonly("slot_bytes", &TestCache::slot_bytes);
}
