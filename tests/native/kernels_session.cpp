// Whole sessions over a model whose reads fail on demand, in ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ds4/ds4.h"
#include "failure.h"
#include "model/model.h"

namespace py = pybind11;
namespace st = ds4::stream;

namespace {

class FaultyModel {
public:
    FaultyModel(const std::string &path, uint64_t cache_bytes, const std::string &io, uint32_t depth) {
        auto err = std::make_unique<ds4_error>();
        ds4_model_options o;
        ds4_model_options_init(&o);
        o.expert_cache_bytes = cache_bytes;
        o.read_io = io == "threads" ? DS4_READ_THREADS : DS4_READ_AUTO;
        o.read_depth = depth;
        o.read_piece = 16384;
        ds4_model *m = nullptr;
        need(ds4_model_open(path.c_str(), &o, &m, err.get()), *err);
        model_.reset(m, ds4_model_close);
    }

    // Every `every`-th read from number n on (counted from now) has this fault.
    void set_fault(uint64_t n, uint64_t every, int os_errno, uint64_t missing, unsigned late_us) {
        auto count = std::make_shared<std::atomic<uint64_t>>(0);
        model_->stream->cache().reader().set_fault([=](const st::Read &) {
            const uint64_t i = count->fetch_add(1);
            return i >= n && (i - n) % every == 0 ? st::Fault{os_errno, missing, late_us} : st::Fault{};
        });
    }
    // From now on reads are whole; those that have begun end first.
    void heal() {
        py::gil_scoped_release release;
        st::ExpertCache &cache = model_->stream->cache();
        cache.reader().set_fault(nullptr);
        std::vector<uint8_t> map(cache.n_experts());
        do {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            cache.map(map.data());
        } while (std::find(map.begin(), map.end(), 1) != map.end());
    }
    py::dict stats() const {
        auto err = std::make_unique<ds4_error>();
        ds4_expert_stats s;
        need(ds4_model_expert_stats(model_.get(), &s, err.get()), *err);
        py::dict out;
        out["slot_bytes"] = s.slot_bytes;
        out["n_slots"] = s.n_slots;
        out["reads"] = s.reads;
        out["failed_reads"] = s.failed_reads;
        uint64_t evicted = 0, guessed = 0, prefetched = 0;
        for (uint32_t i = 0; i < s.n_blocks; i++) {
            ds4_expert_block b;
            need(ds4_model_expert_block(model_.get(), i, &b, err.get()), *err);
            evicted += b.evicted;
            guessed += b.guessed;
            prefetched += b.prefetched;
        }
        out["evicted"] = evicted;
        out["guessed"] = guessed;
        out["prefetched"] = prefetched;
        return out;
    }
    ds4_model *get() const { return model_.get(); }

private:
    std::shared_ptr<ds4_model> model_;
};

class FaultySession {
public:
    FaultySession(const FaultyModel &model, uint32_t chunk) {
        auto err = std::make_unique<ds4_error>();
        ds4_session_options o;
        ds4_session_options_init(&o);
        o.n_ctx = 256;
        o.chunk = chunk;
        o.n_threads = 1;
        ds4_session *s = nullptr;
        need(ds4_session_create(model.get(), &o, &s, err.get()), *err);
        session_.reset(s, ds4_session_free);
        auto shape = std::make_unique<ds4_shape>();
        ds4_model_get_shape(model.get(), shape.get());
        n_vocab_ = shape->n_vocab;
    }

    // float32 [n][n_vocab]
    py::array_t<float> eval(const std::vector<int32_t> &tokens) {
        auto err = std::make_unique<ds4_error>();
        std::vector<float> logits(tokens.size() * n_vocab_);
        {
            py::gil_scoped_release release;
            need(ds4_session_eval(session_.get(), tokens.data(), tokens.size(), logits.data(), err.get()), *err);
        }
        return py::array_t<float>({tokens.size(), n_vocab_}, logits.data());
    }
    size_t pos() const { return ds4_session_pos(session_.get()); }

private:
    std::shared_ptr<ds4_session> session_;
    size_t n_vocab_ = 0;
};

}  // namespace

void add_session(py::module_ &m) {
    py::class_<FaultyModel>(m, "FaultyModel")
        .def(py::init<const std::string &, uint64_t, const std::string &, uint32_t>(), py::arg("path"), py::arg("cache_bytes"),
             py::arg("io") = "automatic", py::arg("depth") = 4)
        .def("set_fault", &FaultyModel::set_fault, py::arg("n") = 0, py::arg("every") = 1, py::arg("os_errno") = 0,
             py::arg("missing") = 0, py::arg("late_us") = 0)
        .def("heal", &FaultyModel::heal)
        .def("stats", &FaultyModel::stats);
    py::class_<FaultySession>(m, "FaultySession")
        .def(py::init<const FaultyModel &, uint32_t>(), py::arg("model"), py::arg("chunk") = 16)
        .def("eval", &FaultySession::eval)
        .def_property_readonly("pos", &FaultySession::pos);
}
