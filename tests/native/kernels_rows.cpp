// The CPU backend's row kernels in ds4_kernels, each by the name of its variant. Outputs have the exact size needed.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/row_kernels.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using ds4::cpu::RowKernels;

const RowKernels *need(const std::string &name) {
    const int best = ds4::best_level(ds4::detect_features());
    const RowKernels *all[] = {ds4::cpu::row_kernels_base(), ds4::cpu::row_kernels_avx2(), ds4::cpu::row_kernels_avx512()};
    for (int level = 0; level <= best && level < 3; ++level)
        if (all[level] && name == all[level]->name) return all[level];
    throw py::value_error("this machine cannot run " + name);
}

size_t count(const Floats &x) { return static_cast<size_t>(x.size()); }
size_t extent(const Floats &x, int axis) { return static_cast<size_t>(x.shape(axis)); }

Floats copy_of(const Floats &x) {
    Floats out(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
    std::copy(x.data(), x.data() + x.size(), out.mutable_data());
    return out;
}

template <class Block, class Fn> py::bytes quantized(const Floats &x, size_t block, Fn fn) {
    if (count(x) % block) throw py::value_error("not whole blocks");
    std::unique_ptr<Block[]> rows(new Block[count(x) / block]);
    fn(x.data(), rows.get(), count(x));
    return py::bytes(reinterpret_cast<const char *>(rows.get()), sizeof(Block) * (count(x) / block));
}

py::tuple hc_coefficients(const std::string &isa, const Floats &mix, float inverse, const Floats &scale,
                          const Floats &base, size_t h, uint32_t iterations, float eps) {
    if (count(mix) != (2 + h) * h || count(base) != count(mix) || count(scale) != 3) throw py::value_error("sizes");
    const auto n = static_cast<py::ssize_t>(h);
    Floats pre(n), post(n), comb({n, n});
    need(isa)->hc_coefficients(mix.data(), inverse, scale.data(), base.data(), h, iterations, eps, pre.mutable_data(),
                               post.mutable_data(), comb.mutable_data());
    return py::make_tuple(pre, post, comb);
}

}  // namespace

void add_rows(py::module_ &m) {
    // The scalar definition is the variant "definition".
    m.def("q8_k_bytes", [](const std::string &isa, const Floats &x) {
        return quantized<ds4::BlockQ8K>(x, 256, isa == "definition" ? ds4::quantize_q8_k : need(isa)->quantize_q8_k);
    });
    m.def("q8_a_bytes", [](const std::string &isa, const Floats &x) {
        return quantized<ds4::BlockQ8A>(x, 32, isa == "definition" ? ds4::quantize_q8_a : need(isa)->quantize_q8_a);
    });
    m.def("rms_row", [](const std::string &isa, const Floats &x, const py::object &w, float eps) {
        const Floats y = copy_of(x);
        Floats out = y;  // in place
        need(isa)->rms_row(out.data(), w.is_none() ? nullptr : w.cast<Floats>().data(), out.mutable_data(), count(x), eps);
        return out;
    });
    m.def("rope", [](const std::string &isa, const Floats &x, size_t n, const Floats &cosine, const Floats &sine, float sign) {
        if (count(cosine) != n || count(sine) != n || extent(x, 1) < n) throw py::value_error("sizes");
        Floats out = copy_of(x);
        need(isa)->rope(out.mutable_data() + extent(x, 1) - n, extent(x, 0), extent(x, 1), n, cosine.data(), sine.data(), sign);
        return out;
    });
    m.def("add", [](const std::string &isa, const Floats &y, const Floats &x) {
        if (count(x) != count(y)) throw py::value_error("sizes");
        Floats out = copy_of(y);
        need(isa)->add(out.mutable_data(), x.data(), count(x));
        return out;
    });
    m.def("subtract", [](const std::string &isa, const Floats &y, const Floats &x, float factor) {
        if (count(x) != count(y)) throw py::value_error("sizes");
        Floats out = copy_of(y);
        need(isa)->subtract(out.mutable_data(), x.data(), factor, count(x));
        return out;
    });
    m.def("to_f16", [](const std::string &isa, const Floats &x) {
        py::array_t<uint16_t> out(x.size());
        need(isa)->to_f16(x.data(), out.mutable_data(), count(x));
        return out;
    });
    m.def("swiglu", [](const std::string &isa, const Floats &g, const Floats &u, float weight, float clamp) {
        if (count(g) != count(u)) throw py::value_error("sizes");
        Floats out = copy_of(g);
        need(isa)->swiglu(out.data(), u.data(), weight, clamp, out.mutable_data(), count(g));
        return out;
    });
    m.def("router_scores", [](const std::string &isa, const Floats &x) {
        Floats out = copy_of(x);
        need(isa)->router_scores(out.data(), out.mutable_data(), count(x));
        return out;
    });
    m.def("pool", [](const std::string &isa, const Floats &k, const Floats &s) {
        if (count(k) != count(s)) throw py::value_error("sizes");
        std::vector<const float *> pk, ps;
        for (py::ssize_t i = 0; i < k.shape(0); ++i) pk.push_back(k.data(i)), ps.push_back(s.data(i));
        Floats out(k.shape(1));
        need(isa)->pool(pk.data(), ps.data(), pk.size(), extent(k, 1), out.mutable_data());
        return out;
    });
    m.def("hc_coefficients", &hc_coefficients);
    m.def("hc_gates", [](const std::string &isa, const Floats &mix, float inverse, float scale, const Floats &base, float eps) {
        if (count(mix) != count(base)) throw py::value_error("sizes");
        Floats out(mix.size());
        need(isa)->hc_gates(mix.data(), inverse, scale, base.data(), count(mix), eps, out.mutable_data());
        return out;
    });
    m.def("hc_gather", [](const std::string &isa, const Floats &streams, const Floats &weight) {
        if (count(weight) != extent(streams, 0)) throw py::value_error("sizes");
        Floats out(streams.shape(1));
        need(isa)->hc_gather(streams.data(), extent(streams, 1), weight.data(), count(weight), out.mutable_data(), extent(streams, 1));
        return out;
    });
    m.def("hc_scatter", [](const std::string &isa, const Floats &streams, const Floats &y, const Floats &post, const Floats &comb) {
        const size_t h = extent(streams, 0), n = extent(streams, 1);
        if (count(y) != n || count(post) != h || count(comb) != h * h) throw py::value_error("sizes");
        Floats out = copy_of(streams);
        need(isa)->hc_scatter(out.mutable_data(), n, y.data(), post.data(), comb.data(), h, n);
        return out;
    });
}
