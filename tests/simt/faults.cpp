// Kernels that break one rule each, and some that keep all of them: what the host executor says of them.
// simt_try(name, seed, threads, message, bytes) runs one and writes the executor's message; empty: it ended well.
#include <cstdio>
#include <cstring>
#include <string>

#include "portable.h"

namespace ds4::gpu {
namespace {

float results[4096];

void well_behaved() {
    DS4_SHARED(float, parts, kMostWarps);
    DS4_SHARED(int, turned, 1024);
    const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
    turned[t] = t;
    const float sum = block_sum(static_cast<float>(t), parts);
    const int most = block_max<int>(t, Shared<int>(turned));  // scratch of its own would be better, but this is allowed
    turned[n - 1 - t] = warp_from(t, (lane() + 1) % kWarp);
    sync_block();
    results[blockIdx.x * blockDim.x + threadIdx.x] = sum + static_cast<float>(most) + static_cast<float>(int(turned[t]));
}

void missing_barrier() {
    DS4_SHARED(float, line, 256);
    line[threadIdx.x] = 1.0f;
    results[threadIdx.x] = line[(threadIdx.x + kWarp) % blockDim.x];
}
void missing_warp_barrier() {
    DS4_SHARED(float, line, 256);
    line[threadIdx.x] = 1.0f;
    warp_any(true);  // orders no memory
    results[threadIdx.x] = line[threadIdx.x ^ 1];
}
void warp_barrier_is_enough() {
    DS4_SHARED(float, line, 1024);
    line[threadIdx.x] = 1.0f;
    sync_warp();
    results[threadIdx.x] = line[threadIdx.x ^ 1];
}
void warp_barrier_for_another_warp() {
    DS4_SHARED(float, line, 256);
    line[threadIdx.x] = 1.0f;
    sync_warp();
    results[threadIdx.x] = line[(threadIdx.x + kWarp) % blockDim.x];
}
// Reads, then a write without a barrier: of one reader, of a warp, of the block.
void write_after_read() {
    DS4_SHARED(float, line, 256);
    line[threadIdx.x] = 1.0f;
    sync_block();
    results[threadIdx.x] = line[(threadIdx.x + kWarp) % blockDim.x];
    line[threadIdx.x] = 2.0f;
}
void write_after_reads_of_all() {
    DS4_SHARED(float, line, 256);
    if (threadIdx.x == 0) line[0] = 1.0f;
    sync_block();
    results[threadIdx.x] = line[0];
    if (threadIdx.x == 0) line[0] = 2.0f;
}
void two_writers() {
    DS4_SHARED(float, line, 4);
    line[threadIdx.x % 4] = 1.0f;
}
void divergent_barrier() {
    if (threadIdx.x < 40) sync_block();
}
void divergent_barriers() {
    if (threadIdx.x < 40)
        sync_block();
    else
        sync_block();
}
void barrier_against_shuffle() {
    if (threadIdx.x % kWarp < 5)
        sync_block();
    else
        warp_xor(1, 1);
}
void divergent_shuffle() {
    if (lane() != 3) warp_xor(1.0f, 1);
}
void different_shuffles() {
    if (lane() < 7)
        results[threadIdx.x] = warp_xor(1.0f, 1);
    else
        results[threadIdx.x] = warp_xor(1.0f, 2);
}
void wrong_lane() { results[threadIdx.x] = warp_from(1.0f, lane() + 1); }
void wrong_mask() { results[threadIdx.x] = warp_xor(1.0f, kWarp); }
void early_return() {
    if (threadIdx.x == 9) return;
    sync_block();
}
void behind_the_end() {
    DS4_SHARED(float, line, 32);
    line[threadIdx.x] = 1.0f;
}
void before_the_start() {
    DS4_SHARED(float, line, 32);
    if (threadIdx.x == 0) line[static_cast<int>(threadIdx.x) - 1] = 1.0f;
}
void unset() {
    DS4_SHARED(float, line, 256);
    if (threadIdx.x) line[threadIdx.x] = 1.0f;
    sync_block();
    results[threadIdx.x] = line[(threadIdx.x + 1) % blockDim.x];
}
void unset_dynamic() {
    DS4_DYNAMIC_SHARED(float, line);
    results[threadIdx.x] = line[threadIdx.x];
}
// What another block wrote is not there.
void unset_in_later_blocks() {
    DS4_SHARED(float, line, 1);
    if (blockIdx.x == 2 && threadIdx.x == 0) results[0] = line[0];
    if (threadIdx.x == 0) line[0] = 1.0f;
}
void beyond_the_dynamic() {
    DS4_DYNAMIC_SHARED(float, line);
    line[threadIdx.x + 1] = 1.0f;
}
void overlapping_parts() {
    DS4_DYNAMIC_PART(float, first, 0, 8);
    DS4_DYNAMIC_PART(short, second, 28, 4);
    if (threadIdx.x == 0) first[0] = 1.0f, second[0] = 1;
}
void part_too_long() {
    DS4_DYNAMIC_PART(float, first, 64, 1024);
    if (threadIdx.x == 0) first[0] = 1.0f;
}
void raw_race() {
    DS4_SHARED(float, tile, 64);
    if (threadIdx.x < 64) tile[threadIdx.x] = 1.0f;
    touch_read(tile, 0, 64);
}
void raw_after_barrier() {
    DS4_SHARED(float, tile, 64);
    if (threadIdx.x < 64) tile[threadIdx.x] = static_cast<float>(threadIdx.x);
    sync_block();
    touch_read(tile, 8, 8);
    results[threadIdx.x] = shared_ptr_of(tile)[8];
}
void deep_stack() {
    volatile char much[66 * 1024];
    much[0] = 1;
    sync_block();
    results[threadIdx.x] = much[0];
}
void too_much_shared() {
    DS4_SHARED(float, huge, 1 << 20);
    huge[0] = 1.0f;
}
void thrown() {
    if (threadIdx.x == 3) throw std::string("no");
    sync_block();
}

struct Try {
    const char *name;
    void (*kernel)();
};
#define TRY(name) {#name, name}
const Try tries[] = {
    TRY(well_behaved),       TRY(missing_barrier),     TRY(missing_warp_barrier),
    TRY(warp_barrier_is_enough), TRY(warp_barrier_for_another_warp), TRY(write_after_read),
    TRY(write_after_reads_of_all), TRY(two_writers),   TRY(divergent_barrier),
    TRY(divergent_barriers), TRY(barrier_against_shuffle), TRY(divergent_shuffle),
    TRY(different_shuffles), TRY(wrong_lane),          TRY(wrong_mask),
    TRY(early_return),       TRY(behind_the_end),      TRY(before_the_start),
    TRY(unset),              TRY(unset_dynamic),       TRY(unset_in_later_blocks),
    TRY(beyond_the_dynamic), TRY(overlapping_parts),   TRY(part_too_long),
    TRY(raw_race),           TRY(raw_after_barrier),   TRY(deep_stack),
    TRY(too_much_shared),    TRY(thrown),
};

}  // namespace
}  // namespace ds4::gpu

#define EXPORT extern "C" __attribute__((visibility("default")))

// 0: it ran and `message` says how it ended; 1: no such kernel. `executor`: NULL, or what simt_executor gave.
EXPORT int simt_try(void *executor, const char *name, uint32_t seed, uint32_t grid, uint32_t block, char *message, uint32_t bytes);
EXPORT void *simt_executor(uint32_t threads);
EXPORT void simt_executor_free(void *executor);
EXPORT void simt_results(float *out, uint32_t n);

int simt_try(void *executor, const char *name, uint32_t seed, uint32_t grid, uint32_t block, char *message, uint32_t bytes) {
    for (const auto &t : ds4::gpu::tries) {
        if (strcmp(t.name, name)) continue;
        const std::string error =
            static_cast<simt::Executor *>(executor)->run({t.name, dim3(grid), dim3(block), block * sizeof(float), seed, t.kernel});
        snprintf(message, bytes, "%s", error.c_str());
        return 0;
    }
    return 1;
}
void *simt_executor(uint32_t threads) { return new simt::Executor(threads); }
void simt_executor_free(void *executor) { delete static_cast<simt::Executor *>(executor); }
void simt_results(float *out, uint32_t n) { memcpy(out, ds4::gpu::results, n * sizeof(float)); }
