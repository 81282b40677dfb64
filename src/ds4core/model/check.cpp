// Looking for NaN and infinity in the weights themselves: hours of odd output have this cheap explanation.
#include <algorithm>
#include <chrono>
#include <cmath>
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

    // One line for a tensor: its first bad value and how many there are. False when asked to stop.
    bool tensor(const ds4_gguf_tensor &t) {
        const TypeInfo *info = type_info(t.type);
        if (!info || !info->computable) {
            progress.done += t.n_bytes;
            return true;
        }
        uint64_t stride = 0, n_rows = t.ne[1] * t.ne[2] * t.ne[3], bad = 0, first_row = 0, first_column = 0;
        if (!row_bytes(t.type, t.ne[0], &stride)) return true;
        std::vector<float> piece(std::min(t.ne[0], kPiece));
        uint64_t piece_bytes = 0;
        if (!row_bytes(t.type, piece.size(), &piece_bytes)) return true;  // the reader refuses such rows
        for (uint64_t r = 0; r < n_rows; r++)
            for (uint64_t c0 = 0; c0 < t.ne[0]; c0 += kPiece) {
                const uint64_t n = std::min(kPiece, t.ne[0] - c0);
                dequantize_row(t.type, t.data + r * stride + c0 / kPiece * piece_bytes, piece.data(), n);
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
            findings += "\n" + escape_name({t.name, t.name_len}) + ": " + std::to_string(bad) +
                        " value(s) are NaN or infinite, the first at row " + std::to_string(first_row) + ", column " +
                        std::to_string(first_column);
        return true;
    }
};

}  // namespace

ds4_status check_weights(const ds4_model &m, ds4_pulse pulse, void *ud, ds4_error *err) {
    Scan scan(pulse, ud);
    for (const ds4_gguf *f : {m.file.get(), m.mtp_file.get()})
        if (f)
            for (const ds4_gguf_tensor &t : f->tensors) scan.progress.total += t.n_bytes;
    for (const ds4_gguf *f : {m.file.get(), m.mtp_file.get()}) {
        if (!f) continue;
        for (const ds4_gguf_tensor &t : f->tensors)
            if (!scan.tensor(t)) return fail(err, DS4_E_CANCELLED, "the check of the weights was stopped");
    }
    if (pulse) pulse(ud, &scan.progress);
    if (!scan.n_tensors) return DS4_OK;
    return fail(err, DS4_E_DATA, "damaged weights in %zu tensor(s); download or convert the file again%s", scan.n_tensors,
                scan.findings.c_str());
}

}  // namespace ds4
