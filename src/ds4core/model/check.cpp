// Looking for NaN and infinity in the weights themselves: hours of odd output have this cheap explanation.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/model.h"
#include "quant/quant.h"

namespace ds4 {

namespace {

constexpr size_t kMaxReported = 20;
constexpr uint64_t kPiece = 65536;  // values decoded at a time, whole blocks of every type

struct Scan {
    Scan(ds4_pulse p, void *u) : pulse(p), ud(u) {}

    ds4_pulse pulse;
    void *ud;
    ds4_progress progress{};
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
    std::string findings;
    size_t n_tensors = 0, pieces = 0;

    bool stopped() {
        auto now = std::chrono::steady_clock::now();
        if (!pulse || now - last < std::chrono::milliseconds(50)) return false;
        last = now;
        return pulse(ud, &progress) != 0;
    }

    // Stacked matrices of one type, wherever they lie.
    struct Matrices {
        std::string name;
        uint32_t type;
        uint64_t n_in, n_out, n;
        const uint8_t *data;
        uint64_t stride;  // from one matrix to the next
    };

    bool tensor(const ds4_gguf_tensor &t, const ExpertLayout &layout) {
        const uint64_t end = progress.done + t.n_bytes;
        const std::string name = escape_name(name_of(t));
        const size_t dot = name_of(t).find("ffn_exps.weight");
        const ExpertRecord *r = dot == std::string_view::npos ? nullptr : layout.find(name_of(t).substr(0, dot));
        bool go_on = true;
        if (r) {
            for (int i = 0; go_on && i < kExpertParts; i++) {
                const ExpertPart &p = r->part[i];
                go_on = matrices({name + " (" + expert_part_name(i) + ")", p.type, p.n_in, p.n_out, r->n_expert,
                                  t.data + p.offset, r->bytes});
            }
        } else {
            uint64_t row = 0;
            if (row_bytes(t.type, t.ne[0], &row))
                go_on = matrices({name, t.type, t.ne[0], t.ne[1], t.ne[2] * t.ne[3], t.data, row * t.ne[1]});
        }
        if (go_on) progress.done = end;  // padding and what has no decoder
        return go_on;
    }

    // One line for bad values: the first and how many there are. False when asked to stop.
    bool matrices(const Matrices &m) {
        const TypeInfo *info = type_info(m.type);
        if (!info || !info->computable) return true;
        uint64_t row_stride = 0, bad = 0, first_row = 0, first_column = 0;
        if (!row_bytes(m.type, m.n_in, &row_stride)) return true;
        std::vector<float> piece(std::min(m.n_in, kPiece));
        uint64_t piece_bytes = 0;
        if (!row_bytes(m.type, piece.size(), &piece_bytes)) return true;  // the reader refuses such rows
        for (uint64_t r = 0; r < m.n_out * m.n; r++)
            for (uint64_t c0 = 0; c0 < m.n_in; c0 += kPiece) {
                const uint64_t n = std::min(kPiece, m.n_in - c0);
                const uint8_t *row = m.data + r / m.n_out * m.stride + r % m.n_out * row_stride;
                dequantize_row(m.type, row + c0 / kPiece * piece_bytes, piece.data(), n);
                for (uint64_t c = 0; c < n; c++) {
                    if (std::isfinite(piece[c])) continue;
                    if (!bad++) {
                        first_row = r;
                        first_column = c0 + c;
                    }
                }
                progress.done += piece_bytes * n / piece.size();
                if ((++pieces & 63) == 0 && stopped()) return false;
            }
        if (!bad) return true;
        if (n_tensors++ < kMaxReported)
            findings += "\n" + m.name + ": " + std::to_string(bad) + " value(s) are NaN or infinite, the first at row " +
                        std::to_string(first_row) + ", column " + std::to_string(first_column);
        return true;
    }
};

}  // namespace

ds4_status check_weights(const ds4_model &m, ds4_pulse pulse, void *ud, ds4_error *err) {
    Scan scan(pulse, ud);
    for (const ds4_gguf *f : {m.file.get(), m.mtp_file.get()})
        if (f)
            for (const ds4_gguf_tensor &t : f->tensors) scan.progress.total += t.n_bytes;
    for (const bool mtp : {false, true}) {
        const ds4_gguf *f = mtp ? m.mtp_file.get() : m.file.get();
        if (!f) continue;
        for (const ds4_gguf_tensor &t : f->tensors)
            if (!scan.tensor(t, mtp ? m.mtp_layout : m.layout)) return fail(err, DS4_E_CANCELLED, "the check of the weights was stopped");
    }
    if (pulse) pulse(ud, &scan.progress);
    if (!scan.n_tensors) return DS4_OK;
    return fail(err, DS4_E_DATA, "damaged weights in %zu tensor(s); download or convert the file again%s", scan.n_tensors,
                scan.findings.c_str());
}

}  // namespace ds4
