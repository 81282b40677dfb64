// Pieces of rows are handed out in order to whoever is free. Blocks are independent, so who encodes a piece does not
// show in the bytes; and since earlier pieces are always taken first, the first bad value is found whoever sees it.
#include "quant/rows.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/thread_pool.h"
#include "quant/encode.h"
#include "quant/quant.h"

namespace ds4 {
namespace {

constexpr uint64_t kPiece = 1 << 14;  // values; a multiple of every block, 16 ms of the slowest encoder

using Clock = std::chrono::steady_clock;

class Pulse {
  public:
    Pulse(ds4_pulse call, void *ud, uint64_t total) : call_(call), ud_(ud), total_(total) {}

    // On the calling thread only. True when the work has to stop.
    bool stops(uint64_t done) {
        if (!call_ || Clock::now() < next_) return false;
        next_ = Clock::now() + std::chrono::milliseconds(50);
        const ds4_progress progress{done, total_};
        return call_(ud_, &progress) != 0;
    }

  private:
    ds4_pulse call_;
    void *ud_;
    uint64_t total_;
    Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(50);
};

constexpr uint64_t kNone = UINT64_MAX;

}  // namespace

ds4_status encode_rows(const EncodeJob &job, unsigned n_threads, ds4_pulse pulse, void *ud, ds4_place *place) {
    if (job.n_rows == 0 || job.n_columns == 0) return DS4_OK;
    const uint64_t n = job.n_columns, width = std::min(n, kPiece);  // of a piece, whose rows are parts of rows if long
    const uint64_t per_row = (n + width - 1) / width, rows = per_row > 1 ? 1 : std::max<uint64_t>(kPiece / n, 1);
    const uint64_t n_pieces = per_row > 1 ? job.n_rows * per_row : (job.n_rows + rows - 1) / rows;
    uint64_t row_size = 0;
    row_bytes(job.type, n, &row_size);

    std::atomic<uint64_t> next{0}, done{0}, bad{kNone};  // bad: number of a value in reading order
    std::atomic<bool> cancelled{false};
    Pulse report(pulse, ud, job.n_rows * n);

    const auto work = [&](bool calling) {
        while (bad.load() == kNone && !cancelled.load()) {
            const uint64_t piece = next.fetch_add(1);
            if (piece >= n_pieces) return;
            const uint64_t first = piece / per_row * rows, last = std::min(first + rows, job.n_rows);
            const uint64_t begin = piece % per_row * width, count = std::min(width, n - begin);
            uint64_t offset = 0;
            row_bytes(job.type, begin, &offset);
            for (uint64_t row = first; row < last; ++row) {
                const float *src = job.src + row * n + begin;
                const uint64_t at = first_unstorable(job.type, src, count, job.allow_nonfinite);
                if (at < count) {
                    const uint64_t number = row * n + begin + at;
                    uint64_t least = bad.load();
                    while (number < least && !bad.compare_exchange_weak(least, number)) {
                    }
                    return;
                }
                encode_values(job.type, src, job.weights ? job.weights + begin : nullptr,
                              job.dst + row * row_size + offset, count);
            }
            const uint64_t so_far = done.fetch_add((last - first) * count) + (last - first) * count;
            if (calling && report.stops(so_far)) cancelled = true;
        }
    };
    ThreadPool pool(static_cast<unsigned>(std::clamp<uint64_t>(n_threads, 1, n_pieces)));
    // One job a thread. One that starts late finds its job done by another; the calling thread always begins with its own.
    pool.run(pool.size(), 1, UINT64_MAX, [&](size_t begin, size_t end, unsigned thread) {
        for (size_t i = begin; i < end; ++i) work(thread == 0);
    });
    if (bad.load() != kNone) {
        *place = {bad.load() / n, bad.load() % n};
        return DS4_E_DATA;
    }
    return cancelled ? DS4_E_CANCELLED : DS4_OK;
}

void decode_values(uint32_t type, const uint8_t *src, float *dst, uint64_t n, unsigned n_threads) {
    const uint64_t n_pieces = (n + kPiece - 1) / kPiece;
    uint64_t piece_bytes = 0;
    row_bytes(type, kPiece, &piece_bytes);
    ThreadPool pool(static_cast<unsigned>(std::clamp<uint64_t>(n_threads, 1, std::max<uint64_t>(n_pieces, 1))));
    pool.run(n_pieces, n, [&](size_t begin, size_t end, unsigned) {
        const uint64_t from = begin * kPiece;
        dequantize_row(type, src + begin * piece_bytes, dst + from, std::min(end * kPiece, n) - from);
    });
}

}  // namespace ds4
