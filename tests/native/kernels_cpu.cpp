// The CPU backend's room of ds4_kernels: rounding primitives, instruction-set choice and the inner kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "backend/cpu/rounding.h"
#include "variants.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using ds4::cpu::Kernels;

// Rows [n][dim], each rounded on a copy.
template <class Round> Floats each_row(const Floats &rows, Round round) {
    if (rows.ndim() != 2) throw py::value_error("rows must have two dimensions");
    Floats out({rows.shape(0), rows.shape(1)});
    std::copy(rows.data(), rows.data() + rows.size(), out.mutable_data());
    for (py::ssize_t r = 0; r < rows.shape(0); ++r)
        round(out.mutable_data(r), static_cast<size_t>(rows.shape(1)));
    return out;
}

template <float (*F)(float)> Floats each_value(const Floats &x) {
    Floats out(x.size());
    for (py::ssize_t i = 0; i < x.size(); ++i) out.mutable_data()[i] = F(x.data()[i]);
    return out;
}

Floats decode(const std::string &isa, const std::string &type, const Bytes &src, size_t n) {
    const Kernels *k = need(isa);
    Floats out(static_cast<py::ssize_t>(n));
    auto run = type == "f16" ? k->f16_row : type == "bf16" ? k->bf16_row : k->q8_0_row;
    run(src.data(), out.mutable_data(), n);
    return out;
}

Floats dot_many(const std::string &isa, const Floats &w, const Floats &x) {
    Floats out(x.shape(0));
    const size_t n = static_cast<size_t>(w.size());
    need(isa)->dot_many(w.data(), x.data(), static_cast<size_t>(x.shape(1)), static_cast<size_t>(x.shape(0)), n,
                        out.mutable_data(), 1);
    return out;
}

}  // namespace

void add_cpu(py::module_ &m) {
    m.def("round_fp8", [](const Floats &rows, size_t n_rot) {
        return each_row(rows, [=](float *row, size_t dim) { ds4::cpu::round_fp8(row, dim, n_rot); });
    });
    m.def("round_fp4", [](const Floats &rows) { return each_row(rows, ds4::cpu::round_fp4); });
    m.def("round_e4m3", &each_value<ds4::cpu::round_e4m3>);
    m.def("round_e2m1", &each_value<ds4::cpu::round_e2m1>);
    m.def("power_of_two_at_least", &each_value<ds4::cpu::power_of_two_at_least>);
    m.def("best_level", [](uint64_t xcr0, const py::set &flags) {
        const auto has = [&](const char *name) { return flags.contains(name); };
        ds4::CpuFeatures c;
        c.avx2 = has("avx2"), c.fma = has("fma"), c.f16c = has("f16c");
        c.avx512f = has("avx512f"), c.avx512bw = has("avx512bw"), c.avx512vl = has("avx512vl");
        c.avx512dq = has("avx512dq"), c.avx512vnni = has("avx512vnni"), c.avx512vbmi = has("avx512vbmi");
        c.xcr0 = xcr0;
        return static_cast<int>(ds4::best_level(c));
    });
    m.def("can_run", [](const std::string &isa) { return variant(isa) != nullptr; });
    m.def("decode", &decode);
    m.def("dot_many", &dot_many);
    m.def("dot", [](const std::string &isa, const Floats &a, const Floats &b) {
        return need(isa)->dot(a.data(), b.data(), static_cast<size_t>(a.size()));
    });
}
