// Python module ds4_kernels: internal functions of the core, for tests only.
//
// Inputs are copied into allocations of exactly the needed size (plus a chosen misalignment), so that a sanitizer
// sees every read outside a row. Other files add functions of their room through the add_* functions below.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/checked.h"
#include "base/error.h"
#include "quant/encode.h"
#include "quant/quant.h"

namespace py = pybind11;

namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// A copy of `bytes` that starts `shift` bytes past an aligned address and ends with its allocation.
class ShiftedCopy {
  public:
    ShiftedCopy(const Bytes &bytes, size_t shift)
        : store_(new uint8_t[static_cast<size_t>(bytes.size()) + shift]), shift_(shift) {
        std::memcpy(store_.get() + shift, bytes.data(), static_cast<size_t>(bytes.size()));
    }
    const uint8_t *data() const { return store_.get() + shift_; }

  private:
    std::unique_ptr<uint8_t[]> store_;
    size_t shift_;
};

uint64_t needed_bytes(uint32_t type, uint64_t n) {
    uint64_t bytes = 0;
    if (!ds4::row_bytes(type, n, &bytes)) throw py::value_error("not whole blocks of a known type");
    return bytes;
}

void check_size(const Bytes &bytes, uint64_t wanted) {
    if (static_cast<uint64_t>(bytes.size()) != wanted)
        throw py::value_error("need " + std::to_string(wanted) + " bytes, got " + std::to_string(bytes.size()));
}

py::object type_info(uint32_t type) {
    const ds4::TypeInfo *info = ds4::type_info(type);
    if (!info) return py::none();
    return py::make_tuple(info->name, info->block, info->bytes, info->computable);
}

py::object row_bytes(uint32_t type, uint64_t n) {
    uint64_t bytes = 0;
    if (!ds4::row_bytes(type, n, &bytes)) return py::none();
    return py::int_(bytes);
}

Floats dequantize_row(uint32_t type, const Bytes &row, uint64_t n, size_t shift) {
    check_size(row, needed_bytes(type, n));
    const ShiftedCopy copy(row, shift);
    Floats out(static_cast<py::ssize_t>(n));
    ds4::dequantize_row(type, copy.data(), out.mutable_data(), n);
    return out;
}

Bytes quantize_row(uint32_t type, const Floats &values) {
    const uint64_t n = static_cast<uint64_t>(values.size());
    Bytes out(static_cast<py::ssize_t>(needed_bytes(type, n)));
    if (!ds4::has_encoder(type)) throw py::value_error("no encoder");
    ds4::encode_values(type, values.data(), nullptr, out.mutable_data(), n);
    return out;
}

py::tuple quantize_q8_k(const Floats &values) {
    const py::ssize_t blocks = values.size() / 256;
    if (values.size() % 256) throw py::value_error("not whole blocks of 256");
    std::unique_ptr<ds4::BlockQ8K[]> rows(new ds4::BlockQ8K[static_cast<size_t>(blocks)]);
    ds4::quantize_q8_k(values.data(), rows.get(), static_cast<uint64_t>(values.size()));
    Floats d(blocks);
    py::array_t<int8_t> q({blocks, py::ssize_t{256}});
    py::array_t<int16_t> sums({blocks, py::ssize_t{16}});
    for (py::ssize_t b = 0; b < blocks; ++b) {
        const ds4::BlockQ8K &row = rows[static_cast<size_t>(b)];
        d.mutable_at(b) = row.d;
        std::memcpy(q.mutable_data(b), row.q, sizeof row.q);
        std::memcpy(sums.mutable_data(b), row.bsums, sizeof row.bsums);
    }
    return py::make_tuple(d, q, sums);
}

py::tuple quantize_q8_a(const Floats &values) {
    const py::ssize_t blocks = values.size() / 32;
    if (values.size() % 32) throw py::value_error("not whole blocks of 32");
    std::unique_ptr<ds4::BlockQ8A[]> rows(new ds4::BlockQ8A[static_cast<size_t>(blocks)]);
    ds4::quantize_q8_a(values.data(), rows.get(), static_cast<uint64_t>(values.size()));
    Floats d(blocks);
    py::array_t<int8_t> q({blocks, py::ssize_t{32}});
    for (py::ssize_t b = 0; b < blocks; ++b) {
        const ds4::BlockQ8A &row = rows[static_cast<size_t>(b)];
        d.mutable_at(b) = row.d;
        std::memcpy(q.mutable_data(b), row.q, sizeof row.q);
    }
    return py::make_tuple(d, q);
}

// Quantize `x` as the weight type wants it and multiply.
float vec_dot(uint32_t type, const Bytes &row, const Floats &x, size_t shift) {
    const uint64_t n = static_cast<uint64_t>(x.size());
    check_size(row, needed_bytes(type, n));
    const ShiftedCopy copy(row, shift);
    if (ds4::activation_kind(type) == ds4::kActivationQ8K) {
        std::unique_ptr<ds4::BlockQ8K[]> act(new ds4::BlockQ8K[n / 256]);
        ds4::quantize_q8_k(x.data(), act.get(), n);
        return ds4::vec_dot(type, copy.data(), act.get(), n);
    }
    std::unique_ptr<ds4::BlockQ8A[]> act(new ds4::BlockQ8A[n / 32]);
    ds4::quantize_q8_a(x.data(), act.get(), n);
    return ds4::vec_dot(type, copy.data(), act.get(), n);
}

py::object checked(bool ok, uint64_t value) { return ok ? py::object(py::int_(value)) : py::none(); }

void add_base(py::module_ &m) {
    m.def("escape_name", [](const py::bytes &name, size_t max) {
        return py::bytes(ds4::escape_name(std::string(name), max));
    }, py::arg("name"), py::arg("max") = 80);
    m.def("add", [](uint64_t a, uint64_t b) {
        uint64_t out = 0;
        const bool ok = ds4::add(a, b, &out);
        return checked(ok, out);
    });
    m.def("mul", [](uint64_t a, uint64_t b) {
        uint64_t out = 0;
        const bool ok = ds4::mul(a, b, &out);
        return checked(ok, out);
    });
    m.def("fail", [](const std::string &text) {
        auto err = std::make_unique<ds4_error>();
        ds4::fail(err.get(), DS4_E_DATA, "%s", text.c_str());
        return py::bytes(err->message);
    });
}

void add_quant(py::module_ &m) {
    m.def("type_info", &type_info, "(name, block values, block bytes, computable), or None");
    m.def("row_bytes", &row_bytes);
    m.def("dequantize_row", &dequantize_row, py::arg("type"), py::arg("row"), py::arg("n"), py::arg("shift") = 0);
    m.def("quantize_row", &quantize_row);
    m.def("activation_kind", &ds4::activation_kind);
    m.def("quantize_q8_k", &quantize_q8_k);
    m.def("quantize_q8_a", &quantize_q8_a);
    m.def("vec_dot", &vec_dot, py::arg("type"), py::arg("row"), py::arg("x"), py::arg("shift") = 0);
}

}  // namespace

void add_ops(py::module_ &m);      // kernels_ops.cpp
void add_cpu(py::module_ &m);        // kernels_cpu.cpp
void add_attention(py::module_ &m);  // kernels_attention.cpp
void add_panel(py::module_ &m);      // kernels_panel.cpp
void add_pool(py::module_ &m);       // kernels_pool.cpp
void add_rows(py::module_ &m);       // kernels_rows.cpp
void add_matmul(py::module_ &m);     // kernels_matmul.cpp
void add_stream(py::module_ &m);     // kernels_stream.cpp
void add_session(py::module_ &m);    // kernels_session.cpp

PYBIND11_MODULE(ds4_kernels, m) {
    m.doc() = "Internal functions of the ds4 core, for tests";
    add_base(m);
    add_quant(m);
    add_cpu(m);
    add_ops(m);
    add_attention(m);
    add_panel(m);
    add_pool(m);
    add_rows(m);
    add_matmul(m);
    add_stream(m);
    add_session(m);
}
