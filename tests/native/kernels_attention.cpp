// Attention and indexer of the CPU backend as whole operations, and the exponential, for ds4_kernels.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "backend/cpu/cpu.h"
#include "variants.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

uint32_t size(const py::array &a, int axis) { return static_cast<uint32_t>(a.shape(axis)); }

// Buffers of exactly the size of the arrays, so that a sanitizer sees every read outside.
class Buffers {
  public:
    ds4_ref add(const py::array &a) {
        ds4_ref r = make(static_cast<size_t>(a.nbytes()));
        std::memcpy(all_.back()->base, a.data(), all_.back()->bytes);
        return r;
    }
    ds4_ref make(size_t bytes) {
        store_.emplace_back(new uint8_t[bytes]);
        std::memset(store_.back().get(), 0xff, bytes);  // not a number, and no row
        all_.emplace_back(new ds4_buffer{});
        all_.back()->base = store_.back().get();
        all_.back()->bytes = bytes;
        return ds4::ref(all_.back().get());
    }

  private:
    std::vector<std::unique_ptr<uint8_t[]>> store_;
    std::vector<std::unique_ptr<ds4_buffer>> all_;
};

uint32_t row_type(const py::array &rows) { return rows.itemsize() == 2 ? DS4_ROW_F16 : DS4_ROW_F32; }

template <class T> py::array_t<T> result(ds4_ref r, std::vector<py::ssize_t> shape) {
    py::array_t<T> out(std::move(shape));
    std::memcpy(out.mutable_data(), ds4::cpu::ptr<T>(r), static_cast<size_t>(out.nbytes()));
    return out;
}

// q [n][heads][dim]; rows of float16 or float32; compressed [rows][dim] empty for ratio 0, selected [n][k] empty for
// every visible row.
Floats attention(const std::string &isa, unsigned threads, const Floats &q, const py::array &window_rows,
                 const py::array &compressed, const Ints &selected, const Ints &counts, const Floats &sinks,
                 uint32_t window, uint32_t ratio, uint32_t pos0, float scale) {
    ds4_queue queue(threads, {});
    queue.kernels = need(isa);
    Buffers b;
    ds4_args_attention a{};
    a.q = b.add(q);
    a.window_rows = b.add(window_rows);
    if (ratio) a.compressed_rows = b.add(compressed);
    if (ratio && selected.size()) {
        a.selected = b.add(selected);
        a.counts = b.add(counts);
        a.top_k = size(selected, 1);
    }
    a.sinks = b.add(sinks);
    a.out = b.make(static_cast<size_t>(q.nbytes()));
    a.n = size(q, 0), a.heads = size(q, 1), a.dim = size(q, 2);
    a.window = window, a.capacity = size(window_rows, 0), a.ratio = ratio, a.pos0 = pos0;
    a.row_type = row_type(window_rows), a.scale = scale;
    ds4::cpu::attention(&queue, &a);
    return result<float>(a.out, {q.shape(0), q.shape(1), q.shape(2)});
}

// (selected, counts, margin); q [n][heads][dim], weights [n][heads], rows [..][dim]. Places behind a token's count
// hold -1.
py::tuple indexer(const std::string &isa, unsigned threads, const Floats &q, const Floats &weights,
                  const py::array &rows, uint32_t top_k, uint32_t ratio, uint32_t pos0, float scale) {
    ds4_queue queue(threads, {});
    queue.kernels = need(isa);
    queue.margins.indexer = std::numeric_limits<float>::infinity();
    Buffers b;
    ds4_args_indexer a{};
    a.n = size(q, 0), a.heads = size(q, 1), a.dim = size(q, 2);
    a.q = b.add(q), a.weights = b.add(weights), a.rows = b.add(rows);
    a.selected = b.make(size_t{a.n} * top_k * 4), a.counts = b.make(size_t{a.n} * 4);
    a.top_k = top_k, a.ratio = ratio, a.pos0 = pos0, a.row_type = row_type(rows), a.scale = scale;
    ds4::cpu::indexer(&queue, &a);
    return py::make_tuple(result<int32_t>(a.selected, {q.shape(0), static_cast<py::ssize_t>(top_k)}),
                          result<int32_t>(a.counts, {q.shape(0)}), queue.margins.indexer);
}

Floats exp_row(const std::string &isa, const Floats &x) {
    Floats out(x.size());
    need(isa)->exp_row(x.data(), out.mutable_data(), static_cast<size_t>(x.size()));
    return out;
}

}  // namespace

void add_attention(py::module_ &m) {
    m.def("attention", &attention);
    m.def("indexer", &indexer);
    m.def("exp_row", &exp_row);
}
