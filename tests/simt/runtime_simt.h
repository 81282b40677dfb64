// The device that the host executor plays, under the names of cuda/runtime.h.
//
// A stream keeps what is enqueued and runs it when somebody waits, as late as a real one ever could: who reads a result
// too early or reuses host memory too soon is found out. Memory is counted against a size that tests choose, new memory
// holds what is no number, and the bytes behind every allocation are looked after.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "simt.h"

namespace ds4::gpu::rt {

using Result = int;
enum { kOk = 0, kOutOfMemory = 2, kFailed = 700 };

struct Step {
    std::function<void()> host;  // or
    simt::Launch launch;
};
using Graph = std::vector<Step> *;
using GraphExec = int;  // nothing is kept from one graph to the next

class Queue {
  public:
    explicit Queue(unsigned n_threads) : executor_(n_threads) {}
    Queue(const Queue &) = delete;
    ~Queue() { delete captured_; }
    void add(std::function<void()> step) { add(Step{std::move(step), {}}); }
    void add(simt::Launch launch) { add(Step{{}, std::move(launch)}); }
    void add(Step step) { (captured_ ? *captured_ : steps_).push_back(std::move(step)); }
    Result capture_begin();
    Result capture_end(Graph *out);
    Result run();  // all that was added; stops at the first error
    const char *error() const { return error_.c_str(); }

  private:
    simt::Executor executor_;
    std::vector<Step> steps_;
    Graph captured_ = nullptr;
    std::string error_;
};
using Stream = Queue *;

const char *text(Result);
Result open(int index, Info *info);
inline void explain_open(Result, char *out, size_t size) { snprintf(out, size, "there is one executor"); }
Result memory(uint64_t *free, uint64_t *total);
Result allocate(void **out, uint64_t bytes);
void release(void *p);
Result allocate_pinned(void **out, uint64_t bytes);
void release_pinned(void *p);
Result stream_create(Stream *out, unsigned n_threads);
void stream_destroy(Stream s);
Result copy(Stream s, void *dst, const void *src, uint64_t bytes);
Result fill(Stream s, void *dst, int value, uint64_t bytes);
Result map_host(const void *host, uint64_t bytes, void **device);  // refused unless the card is unified
void unmap_host(const void *host);
Result clear(void *p, uint64_t bytes);                             // at once
Result upload_now(void *dst, const void *src, uint64_t bytes);     // at once
Result capture_begin(Stream s);
Result capture_end(Stream s, Graph *out);
Result graph_run(Stream s, Graph g, GraphExec *exec);
void graph_destroy(Graph g);
inline void exec_destroy(GraphExec) {}
Result wait(Stream s);
const char *explain(Stream s, Result r);  // of what `wait` gave: more than text() knows

template <class... P, class... A>
Result launch(Stream s, const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t bytes, A... args) {
    s->add(simt::Launch{name, grid, block, bytes, 0, [kernel, values = std::tuple<P...>(args...)] { std::apply(kernel, values); }});
    return kOk;
}

}  // namespace ds4::gpu::rt
