// From operations to dispatches: which kernels, grids and records. Plain C++ that knows no Metal (see driver.h).
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/resolved.h"
#include "driver.h"
#include "records.h"

struct ds4_device {
    std::unique_ptr<ds4::metal::Driver> driver;
    ds4::metal::DeviceInfo info;
};

struct ds4_buffer {
    ds4_device *device = nullptr;
    ds4::metal::Memory memory;
    uint64_t lead = 0;  // bytes of `memory` before the buffer, which begins inside a page
    bool imported = false;
};
inline uint64_t device_address(const ds4_buffer &b) { return b.memory.address + b.lead; }

namespace ds4::metal {

// Work space of a queue; each place grows to the largest need and stays.
enum Work {
    kRounded,  // activations rounded to 8 bits
    kMiddle,   // middle rows of the experts: they stay for the next call with other `work`
    kUp,       // results of the up product
    kSlots,    // pairs sorted by expert
    kTiles,    // tiles of them, behind their number
    kParts,    // of the down product
    kPartial,  // of attention
    kScores,   // of the indexer
    kGaps,     // at the boundaries of choices
    kWorks
};

constexpr uint64_t kSlabBytes = 64 << 20;  // of work space: more is done in portions of tokens or rows

class Encoder {
  public:
    Encoder(ds4_device *device, std::unique_ptr<Stream> stream, const Memory &margins, bool matrices);
    ~Encoder();
    Encoder(const Encoder &) = delete;

    void embed(const ds4_args_embed *);
    void rms_norm(const ds4_args_rms_norm *);
    void matmul(const ds4_args_matmul *);
    void hc_pre(const ds4_args_hc_pre *);
    void hc_post(const ds4_args_hc_post *);
    void hc_head(const ds4_args_hc_head *);
    void rope(const ds4_args_rope *);
    void round_rows(const ds4_args_round_rows *);
    void store_rows(const ds4_args_store_rows *);
    void compress(const ds4_args_compress *);
    void indexer(const ds4_args_indexer *);
    void attention(const ds4_args_attention *);
    void router(const ds4_args_router *);
    void experts(const ds4_args_experts *);
    void swiglu(const ds4_args_swiglu *);
    void add_rows(const ds4_args_add_rows *);
    void steer(const ds4_args_steer *);

    void upload(ds4_ref target, const void *source, uint64_t bytes);
    void download(void *target, ds4_ref source, uint64_t bytes);
    void copy(ds4_ref target, ds4_ref source, uint64_t bytes);
    void reset_margins();
    ds4_margins margins();
    // Returns when all has run; a failure stays until take_status().
    void drain();
    ds4_status take_status(ds4_error *err);

  private:
    bool usable() const { return status_ == DS4_OK; }
    void fail(ds4_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
    bool needs(const char *what, uint64_t value, uint64_t most);
    ds4_ref work(Work which, uint64_t bytes);
    template <class Record> void run(const char *kernel, Grid grid, uint32_t threads, const Record &record) {
        stream_->dispatch(kernel, grid, threads, &record, sizeof record);
    }
    // What was enqueued before is done before what comes.
    void barrier() { stream_->barrier(); }
    ds4_ref round(uint32_t type, ds4_ref x, uint32_t x_stride, uint32_t n_rows, uint64_t n_values);
    void fold_margin(uint32_t which, ds4_ref gaps, uint32_t n);
    void importance(const ds4_metal_experts &m);
    void experts_in(ds4_metal_experts &m, bool tiles);
    void experts_down(ds4_metal_experts &m, bool tiles);

    ds4_device *device_;
    std::unique_ptr<Stream> stream_;
    Memory margins_;  // indexer, router
    Memory works_[kWorks];
    std::vector<Memory> retired_;  // outgrown work space, until what uses it has run
    bool matrices_;
    ds4_status status_ = DS4_OK;
    std::string message_;
};

// An upper bound of the work space of a queue (backend.h, work_bytes).
uint64_t work_bytes(const ds4_shape *s, uint32_t n_ctx, uint32_t chunk);

}  // namespace ds4::metal
