// The room of the panels in ds4_kernels: unpacking a step, and whole products, by any variant that the machine runs.
//
// Weights and packed activations lie between pages that cannot be touched, so that a read past them ends the test.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "backend/cpu/panel.h"
#include "quant/quant.h"

namespace py = pybind11;

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Bytes = py::array_t<uint8_t, py::array::c_style | py::array::forcecast>;
using namespace ds4::cpu;

// `n` bytes that end `gap` bytes before a page without access, or (gap < 0) begin right behind one.
class Guarded {
  public:
    Guarded(size_t n, int gap) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), behind = static_cast<size_t>(std::max(gap, 0));
        const size_t inner = (n + behind + page - 1) / page * page;
        size_ = inner + 2 * page;
        void *p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<uint8_t *>(p);
        if (mprotect(base_, page, PROT_NONE) || mprotect(base_ + page + inner, page, PROT_NONE)) {
            munmap(base_, size_);
            throw std::bad_alloc();
        }
        data_ = gap < 0 ? base_ + page : base_ + page + inner - behind - n;
    }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;
    ~Guarded() { munmap(base_, size_); }
    uint8_t *data() const { return data_; }

  private:
    uint8_t *base_, *data_;
    size_t size_;
};

std::vector<const PanelKernels *> variants() {
    std::vector<const PanelKernels *> found;
    const int best = ds4::best_level(ds4::detect_features());
    for (int level = 0; level <= best; level++) {
        const PanelKernels *k = panels_of(static_cast<ds4::IsaLevel>(level));
        if (std::find(found.begin(), found.end(), k) == found.end()) found.push_back(k);
    }
    return found;
}

const PanelKernels &need(const std::string &name) {
    for (const PanelKernels *k : variants())
        if (name == k->name) return *k;
    throw py::value_error("this machine has no panels " + name);
}

// A weight type with the sizes of rows of n_in columns.
struct Rows {
    PanelType type;
    uint32_t gguf_type;
    size_t n_in, block, block_bytes, row_bytes;

    Rows(uint32_t t, size_t columns) : type(panel_type(t)), gguf_type(t), n_in(columns) {
        if (type == kPanelTypes) throw py::value_error("a type without panels");
        block = ds4::type_info(t)->block;
        block_bytes = ds4::type_info(t)->bytes;
        if (!n_in || n_in % block) throw py::value_error("rows are not whole blocks");
        row_bytes = n_in / block * block_bytes;
    }
    void check(const Bytes &weights, size_t n_out) const {
        if (!n_out || static_cast<size_t>(weights.size()) != n_out * row_bytes)
            throw py::value_error("need " + std::to_string(n_out * row_bytes) + " bytes of weights");
    }
};

// Each row of x rounded to 8 bits as the type wants it.
std::vector<std::vector<uint8_t>> rounded(const Rows &rows, const Floats &x) {
    if (x.ndim() != 2 || static_cast<size_t>(x.shape(1)) != rows.n_in)
        throw py::value_error("x must have shape [n, n_in]");
    const uint32_t kind = ds4::activation_kind(rows.gguf_type);
    std::vector<std::vector<uint8_t>> out;
    for (py::ssize_t t = 0; t < x.shape(0); t++) {
        out.emplace_back(ds4::activation_bytes(kind, rows.n_in));
        if (kind == ds4::kActivationQ8K)
            ds4::quantize_q8_k(x.data(t), reinterpret_cast<ds4::BlockQ8K *>(out.back().data()), rows.n_in);
        else
            ds4::quantize_q8_a(x.data(t), reinterpret_cast<ds4::BlockQ8A *>(out.back().data()), rows.n_in);
    }
    return out;
}

// The rows of the panel that begins at row `first`; the last row stands for those that do not exist.
void panel_rows(const uint8_t *weights, const Rows &rows, size_t first, size_t n_out, const uint8_t **out) {
    for (size_t r = 0; r < kPanelRows; r++) out[r] = weights + std::min(first + r, n_out - 1) * rows.row_bytes;
}

size_t steps(const Rows &rows) { return (rows.n_in + kStep - 1) / kStep; }
size_t blocks_of(const Rows &rows, size_t step) { return std::min(kStep, rows.n_in - kStep * step) / rows.block; }

void unpack(const PanelKernels &k, const Rows &rows, const uint8_t *const *first, size_t step, Panel *out) {
    std::memset(static_cast<void *>(out), 0xFF, sizeof *out);  // what is left out shows as NaN or as a large number
    out->ahead = nullptr;  // the panel's one input
    out->ahead_bytes = 0;
    k.formats[rows.type].unpack(first, step * (kStep / rows.block) * rows.block_bytes, blocks_of(rows, step), out);
}

Floats panel_matmul(const std::string &name, uint32_t type, const Bytes &weights, size_t n_out, const Floats &x,
                    int gap, bool in_panels) {
    const PanelKernels &k = need(name);
    if (!k.block || k.block > kMostTokens) throw py::value_error("the variant's block is out of range");
    const Rows rows(type, x.ndim() == 2 ? static_cast<size_t>(x.shape(1)) : 0);
    rows.check(weights, n_out);
    const PanelFormat &format = k.formats[rows.type];
    const std::vector<std::vector<uint8_t>> tokens = rounded(rows, x);
    const Guarded w(static_cast<size_t>(weights.size()), gap), panel(sizeof(Panel), 0);
    std::memcpy(w.data(), weights.data(), static_cast<size_t>(weights.size()));
    Panel *const p = reinterpret_cast<Panel *>(panel.data());
    const size_t n = tokens.size(), per_token = packed_bytes(rows.type, rows.n_in);
    const size_t per_step = is_block32(rows.type) ? kStep / 32 * kPackedBlock32 : kPackedBlock256;
    Floats out({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(n_out)});
    for (size_t t0 = 0; t0 < n; t0 += k.block) {
        const size_t T = std::min(k.block, n - t0);
        const uint8_t *pointers[kMostTokens];
        for (size_t t = 0; t < T; t++) pointers[t] = tokens[t0 + t].data();
        const Guarded packed(T * per_token, 0);
        pack_activations(rows.type, format, pointers, T, rows.n_in, packed.data());
        for (size_t first = 0; first < n_out; first += kPanelRows) {
            const uint8_t *row[kPanelRows];
            panel_rows(w.data(), rows, first, n_out, row);
            const Guarded sums(T * kPanelRows * sizeof(float), 0);  // zeros
            float *const s = reinterpret_cast<float *>(sums.data());
            const bool whole = first + kPanelRows <= n_out;
            if (T == 1 && whole && format.single && !in_panels)
                format.single(row[0], rows.row_bytes, rows.n_in, packed.data(), s, row[0], kPanelRows * rows.row_bytes);
            else
                for (size_t step = 0; step < steps(rows); step++) {
                    unpack(k, rows, row, step, p);
                    format.multiply[T - 1](p, blocks_of(rows, step), packed.data() + step * T * per_step, s);
                }
            for (size_t t = 0; t < T; t++)
                for (size_t r = 0; r < std::min(kPanelRows, n_out - first); r++)
                    out.mutable_at(t0 + t, first + r) = s[t * kPanelRows + r];
        }
    }
    return out;
}

Floats vec_dot_matmul(uint32_t type, const Bytes &weights, size_t n_out, const Floats &x) {
    const Rows rows(type, x.ndim() == 2 ? static_cast<size_t>(x.shape(1)) : 0);
    rows.check(weights, n_out);
    const std::vector<std::vector<uint8_t>> tokens = rounded(rows, x);
    Floats out({static_cast<py::ssize_t>(tokens.size()), static_cast<py::ssize_t>(n_out)});
    for (size_t t = 0; t < tokens.size(); t++)
        for (size_t r = 0; r < n_out; r++)
            out.mutable_at(t, r) =
                ds4::vec_dot(type, weights.data() + r * rows.row_bytes, tokens[t].data(), rows.n_in);
    return out;
}

// One step of 16 rows: codes without bias [16][columns], scales or factors [16][columns / 32], minimums
// [16][columns / 16], d and dmin [16]; None for what the type does not have.
py::tuple panel_unpack(const std::string &name, uint32_t type, const Bytes &weights, size_t n_in, size_t step) {
    const PanelKernels &k = need(name);
    const Rows rows(type, n_in);
    rows.check(weights, kPanelRows);
    if (step >= steps(rows)) throw py::value_error("no such step");
    const Guarded w(static_cast<size_t>(weights.size()), 0), panel(sizeof(Panel), 0);
    std::memcpy(w.data(), weights.data(), static_cast<size_t>(weights.size()));
    Panel *const p = reinterpret_cast<Panel *>(panel.data());
    const uint8_t *row[kPanelRows];
    panel_rows(w.data(), rows, 0, kPanelRows, row);
    unpack(k, rows, row, step, p);

    const size_t columns = blocks_of(rows, step) * rows.block, groups = columns / 32;
    const PanelFormat &format = k.formats[rows.type];
    const bool wide = !is_block32(rows.type), mins = rows.type == kPanelQ2K || rows.type == kPanelQ4K;
    py::array_t<int32_t> codes({kPanelRows, columns}), factors({kPanelRows, groups});
    py::array_t<int16_t> minimums({kPanelRows, 2 * groups});
    Floats scales({kPanelRows, groups}), d(kPanelRows), dmin(kPanelRows);
    for (size_t r = 0; r < kPanelRows; r++) {
        for (size_t c = 0; c < columns; c++) {
            const bool run = format.quads == Quads::kRun;
            const size_t quad = run ? c / 4 : c / 32 * 8 + c % 8, part = run ? c % 4 : c % 32 / 8;
            const uint8_t code = p->codes[quad][r][part];
            codes.mutable_at(r, c) = format.bias ? code - format.bias : static_cast<int8_t>(code);
        }
        for (size_t j = 0; j < groups; j++) {
            if (wide) {
                factors.mutable_at(r, j) = p->factor[j][r];
                for (size_t h = 0; h < 2; h++) minimums.mutable_at(r, 2 * j + h) = p->mins[j][r][h];
            } else {
                scales.mutable_at(r, j) = p->scale[j][r];
            }
        }
        d.mutable_at(r) = p->d[r];
        dmin.mutable_at(r) = p->dmin[r];
    }
    const auto if_ = [](bool has, py::object value) { return has ? value : py::object(py::none()); };
    return py::make_tuple(codes, if_(!wide, scales), if_(wide && rows.type != kPanelQ2K, factors),
                          if_(mins, minimums), if_(wide, d), if_(mins, dmin));
}

}  // namespace

void add_panel(py::module_ &m) {
    m.def("panel_names", [] {
        py::list names;
        for (const PanelKernels *k : variants()) names.append(k->name);
        return names;
    });
    m.def("panel_block", [](const std::string &name) { return need(name).block; });
    m.def("panel_unpack", &panel_unpack);
    m.def("panel_matmul", &panel_matmul, py::arg("name"), py::arg("type"), py::arg("weights"), py::arg("n_out"),
          py::arg("x"), py::arg("gap") = 0, py::arg("in_panels") = false);
    m.def("panel_takes_one", [](const std::string &name, uint32_t type) {
        return need(name).formats[panel_type(type)].single != nullptr;
    });
    m.def("vec_dot_matmul", &vec_dot_matmul);
}
