// The encoders' room of ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <memory>

#include "quant/encode.h"
#include "quant/quant.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// The bytes, or None when the row is refused; a refused row must leave the output as it was.
py::object encode_row(uint32_t type, const Floats &values, const py::object &importance) {
    const uint64_t n = static_cast<uint64_t>(values.size());
    uint64_t bytes = 0;
    if (!ds4::row_bytes(type, n, &bytes)) bytes = n * 4;
    std::unique_ptr<uint8_t[]> out(new uint8_t[bytes]);
    std::memset(out.get(), 0xA5, bytes);
    bool ok;
    if (importance.is_none()) {
        ok = ds4::encode_row(type, values.data(), nullptr, out.get(), n);
    } else {
        const Floats weights = Floats::ensure(importance);
        if (!weights || weights.size() != values.size()) throw py::value_error("need one weight for each value");
        ok = ds4::encode_row(type, values.data(), weights.data(), out.get(), n);
    }
    if (ok) {
        py::array_t<uint8_t> result(static_cast<py::ssize_t>(bytes));
        std::memcpy(result.mutable_data(), out.get(), bytes);
        return result;
    }
    for (uint64_t i = 0; i < bytes; ++i)
        if (out[i] != 0xA5) throw std::runtime_error("a refused row was written");
    return py::none();
}

Floats synthetic_importance(const Floats &rows) {
    if (rows.ndim() != 2) throw py::value_error("rows must have two dimensions");
    Floats out(rows.shape(1));
    std::memset(out.mutable_data(), 0, static_cast<size_t>(out.nbytes()));
    for (py::ssize_t r = 0; r < rows.shape(0); ++r)
        ds4::add_synthetic_importance(rows.data(r), out.mutable_data(), static_cast<uint64_t>(rows.shape(1)));
    return out;
}

}  // namespace

void add_encode(py::module_ &m) {
    m.def("encode_row", &encode_row, py::arg("type"), py::arg("values"), py::arg("importance") = py::none(),
          "bytes of a Q2_K, Q4_K or IQ2_XXS row, or None");
    m.def("synthetic_importance", &synthetic_importance);
}
