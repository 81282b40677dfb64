// Whole matrix products of the CPU backend in ds4_kernels, through its table of operations.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/float_kernels.h"
#include "base/isa.h"
#include "quant/quant.h"

namespace py = pybind11;

namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

void check(ds4_status status, const ds4_error &err) {
    if (status != DS4_OK) throw py::value_error(err.message);
}

// y [n][n_out] of weights [n_out][n_in] in bytes of `type` and x [n][groups * n_in]; `y` is added to when given.
Floats matmul(const std::string &isa, uint32_t threads, uint32_t type, const Bytes &weight, uint32_t n_out, const Floats &x,
              uint32_t groups, const py::object &y, bool quantized) {
    auto err = std::make_unique<ds4_error>();
    check(ds4::limit_isa(isa.c_str(), err.get()), *err);
    const ds4_backend_ops *ops = ds4::cpu_backend();
    ds4_device *device = nullptr;
    ds4_queue *queue = nullptr;
    ds4_buffer *buffers[3] = {};
    check(ops->device_open(&device, err.get()), *err);
    check(ops->queue_create(device, threads, nullptr, &queue, err.get()), *err);
    check(ds4::limit_isa("auto", err.get()), *err);

    const auto n = static_cast<uint32_t>(x.shape(0)), width = static_cast<uint32_t>(x.shape(1)), n_in = width / groups;
    uint64_t stride = 0;
    if (!ds4::row_bytes(type, n_in, &stride) || stride * n_out != static_cast<uint64_t>(weight.size()))
        throw py::value_error("sizes");
    Floats out({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(n_out)});
    if (!y.is_none()) std::copy_n(y.cast<Floats>().data(), out.size(), out.mutable_data());
    check(ops->buffer_import_host(device, weight.data(), weight.nbytes(), 0, nullptr, nullptr, &buffers[0], err.get()), *err);
    check(ops->buffer_import_host(device, x.data(), x.nbytes(), 0, nullptr, nullptr, &buffers[1], err.get()), *err);
    check(ops->buffer_import_host(device, out.mutable_data(), out.nbytes(), 0, nullptr, nullptr, &buffers[2], err.get()), *err);
    const ds4_weight w{ds4::ref(buffers[0]), stride, type, n_in, n_out, 1, 0};
    const ds4_args_matmul args{w, ds4::ref(buffers[1]), ds4::ref(buffers[2]), n, width, n_out, groups, !y.is_none(), quantized};
    ops->matmul(queue, &args);
    check(ops->queue_wait(queue, err.get()), *err);
    for (ds4_buffer *b : buffers) ops->buffer_free(b);
    ops->queue_destroy(queue);
    ops->device_close(device);
    return out;
}

const ds4::cpu::FloatKernels *need(const std::string &name) {
    const int best = ds4::best_level(ds4::detect_features());
    const ds4::cpu::FloatKernels *all[] = {ds4::cpu::float_kernels_base(), ds4::cpu::float_kernels_avx2(),
                                           ds4::cpu::float_kernels_avx512()};
    for (int level = 0; level <= best && level < 3; ++level)
        if (all[level] && name == all[level]->name) return all[level];
    throw py::value_error("this machine cannot run " + name);
}

// A row of 16-bit floats with x; None when the variant has no such kernel.
py::object dot_16(const std::string &isa, bool bf16, const Bytes &w, const Floats &x) {
    if (w.size() != 2 * x.size()) throw py::value_error("sizes");
    auto run = bf16 ? need(isa)->dot_bf16 : need(isa)->dot_f16;
    if (!run) return py::none();
    // Exactly as long as the row, and not aligned.
    std::vector<uint8_t> row(static_cast<size_t>(w.size()) + 1);
    std::copy_n(w.data(), w.size(), row.data() + 1);
    return py::float_(run(row.data() + 1, x.data(), static_cast<size_t>(x.size())));
}

}  // namespace

void add_matmul(py::module_ &m) {
    m.def("matmul", &matmul, py::arg("isa"), py::arg("threads"), py::arg("type"), py::arg("weight"), py::arg("n_out"),
          py::arg("x"), py::arg("groups") = 1, py::arg("y") = py::none(), py::arg("quantized") = false);
    m.def("dot_16", &dot_16);
}
