// The inner kernels of attention and indexer, and the exponential, for ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "variants.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

Floats exp_row(const std::string &isa, const Floats &x) {
    Floats out(x.size());
    need(isa)->exp_row(x.data(), out.mutable_data(), static_cast<size_t>(x.size()));
    return out;
}

}  // namespace

void add_attention(py::module_ &m) {
    m.def("exp_row", &exp_row);
}
