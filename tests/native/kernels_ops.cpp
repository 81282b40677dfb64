// Operations of a backend through its table, for conformance tests and micro-benchmarks: argument records arrive as bytes.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/isa.h"

namespace py = pybind11;

namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;

void check(ds4_status status, const ds4_error &err) {
    if (status != DS4_OK) throw std::runtime_error(err.message);
}

// A record of the right size, and the call that takes it.
struct Operation {
    const char *name;
    size_t bytes;
    void (*run)(const ds4_backend_ops *, ds4_queue *, const void *);
};

template <class Args, auto Member> void call(const ds4_backend_ops *ops, ds4_queue *q, const void *args) {
    (ops->*Member)(q, static_cast<const Args *>(args));
}

#define OPERATION(name) \
    Operation { #name, sizeof(ds4_args_##name), call<ds4_args_##name, &ds4_backend_ops::name> }

const Operation kOperations[] = {
    OPERATION(embed),     OPERATION(rms_norm), OPERATION(matmul),     OPERATION(hc_pre), OPERATION(hc_post),
    OPERATION(hc_head),   OPERATION(rope),     OPERATION(round_rows), OPERATION(store_rows), OPERATION(compress),
    OPERATION(indexer),   OPERATION(attention), OPERATION(router),    OPERATION(experts), OPERATION(swiglu),
    OPERATION(add_rows),  OPERATION(steer),
};

// A queue with its buffers.
class Queue {
public:
    // backend: path of a shared object, or empty for the CPU.
    explicit Queue(unsigned threads, const std::string &backend)
        : ops_(ds4::cpu_backend()), err_(std::make_unique<ds4_error>()) {
        if (!backend.empty()) check(ds4::load_backend(backend.c_str(), &ops_, err_.get()), *err_);
        check(ops_->device_open(&device_, err_.get()), *err_);
        check(ops_->queue_create(device_, threads, nullptr, &queue_, err_.get()), *err_);
    }
    Queue(const Queue &) = delete;
    ~Queue() {
        for (ds4_buffer *b : buffers_) ops_->buffer_free(b);
        if (queue_) ops_->queue_destroy(queue_);
        if (device_) ops_->device_close(device_);
    }

    uint64_t upload(const Bytes &data) {
        const uint64_t bytes = static_cast<uint64_t>(data.size());
        buffers_.push_back(nullptr);
        check(ops_->buffer_alloc(device_, bytes, &buffers_.back(), err_.get()), *err_);
        ops_->upload(queue_, ds4::ref(buffers_.back()), data.data(), bytes);
        return ds4::ref(buffers_.back()).buffer;
    }

    Bytes download(uint64_t buffer, uint64_t bytes) {
        Bytes out(static_cast<py::ssize_t>(bytes));
        ops_->download(queue_, out.mutable_data(), ds4_ref{buffer, 0}, bytes);
        return out;
    }

    void run(const std::string &name, const py::bytes &record) {
        for (const Operation &op : kOperations) {
            if (name != op.name) continue;
            const std::string args = record;
            if (args.size() != op.bytes)
                throw py::value_error(name + " takes " + std::to_string(op.bytes) + " bytes of arguments, got " +
                                      std::to_string(args.size()));
            alignas(16) uint8_t aligned[1024];
            static_assert(sizeof(ds4_args_experts) <= sizeof aligned, "the largest record");
            std::memcpy(aligned, args.data(), args.size());
            py::gil_scoped_release nogil;
            op.run(ops_, queue_, aligned);
            check(ops_->queue_wait(queue_, err_.get()), *err_);
            return;
        }
        throw py::value_error("no operation " + name);
    }

    void reset_margins() { ops_->margins_reset(queue_); }
    // The smallest gaps at the boundary of a choice: (indexer, router).
    std::pair<float, float> margins() {
        const ds4_margins m = ops_->margins(queue_);
        return {m.indexer, m.router};
    }

private:
    const ds4_backend_ops *ops_;
    std::unique_ptr<ds4_error> err_;
    ds4_device *device_ = nullptr;
    ds4_queue *queue_ = nullptr;
    std::vector<ds4_buffer *> buffers_;
};

}  // namespace

void add_ops(py::module_ &m) {
    m.def("limit_isa", [](const std::string &name) {
        auto err = std::make_unique<ds4_error>();
        check(ds4::limit_isa(name.c_str(), err.get()), *err);
    });
    m.def("active_isa", [] { return ds4::isa_name(ds4::active_isa()); });
    py::class_<Queue>(m, "Queue")
        .def(py::init<unsigned, const std::string &>(), py::arg("threads"), py::arg("backend") = "")
        .def("upload", &Queue::upload)
        .def("download", &Queue::download)
        .def("run", &Queue::run)
        .def("reset_margins", &Queue::reset_margins)
        .def("margins", &Queue::margins);
}
