// Sessions on several threads over one model, each with its own pool, one of them cancelled from outside and two
// callers in one session. Made for DS4_SANITIZE=thread; it also checks that concurrency changes no logit, and neither does
// streaming of experts through a cache that holds 1, a few, half or all of them, with io_uring (where there is one) and threads.
//
// usage: session_threads MODEL.gguf
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "ds4/ds4.h"

namespace {

void need(ds4_status status, const ds4_error &err, const char *what) {
    if (status == DS4_OK) return;
    fprintf(stderr, "%s: %s\n", what, err.message);
    exit(1);
}

ds4_session *make_session(ds4_model *model, uint32_t n_threads) {
    auto err = std::make_unique<ds4_error>();
    ds4_session_options options;
    ds4_session_options_init(&options);
    options.n_ctx = 256;
    options.chunk = 16;
    options.n_threads = n_threads;
    ds4_session *session = nullptr;
    need(ds4_session_create(model, &options, &session, err.get()), *err, "create");
    return session;
}

// Leave the session's timeline and come back to it, over a checkpoint, a copy and an export; none may change the logits.
void wander(ds4_session *session, const std::vector<int32_t> &tokens) {
    auto err = std::make_unique<ds4_error>();
    ds4_session *copy = nullptr;
    need(ds4_session_checkpoint(session, err.get()), *err, "checkpoint");
    need(ds4_session_fork(session, &copy, err.get()), *err, "fork");
    need(ds4_session_eval(session, tokens.data(), 20, nullptr, err.get()), *err, "eval");
    size_t reached = 0;
    need(ds4_session_rewind(session, tokens.size() + 3, &reached, err.get()), *err, "rewind");
    const uint32_t n = static_cast<uint32_t>(tokens.size());
    if (reached != n) {
        fprintf(stderr, "rewound to %zu, not to %u\n", reached, n);
        exit(1);
    }
    std::vector<uint8_t> rows(ds4_session_rows_bytes(copy, 0, n)), tail(ds4_session_tail_bytes(copy, n));
    ds4_blob part{rows.data(), 0}, end{tail.data(), 0};
    need(ds4_session_export_rows(copy, 0, n, rows.data(), rows.size(), &part.n_bytes, err.get()), *err, "export rows");
    need(ds4_session_export_tail(copy, n, tail.data(), tail.size(), &end.n_bytes, err.get()), *err, "export tail");
    ds4_session_free(copy);
    need(ds4_session_import(session, tokens.data(), n, &part, 1, &end, &reached, err.get()), *err, "import");
    tail[end.n_bytes / 2] ^= 1;
    if (ds4_session_import(session, tokens.data(), n, &part, 1, &end, &reached, nullptr) != DS4_E_SNAPSHOT) {
        fprintf(stderr, "a damaged tail was imported\n");
        exit(1);
    }
}

// The last logits of a prompt in a session of its own, and the importance statistics of its first layer in float32.
std::vector<float> run(ds4_model *model, const std::vector<int32_t> &tokens, uint32_t n_threads) {
    auto err = std::make_unique<ds4_error>();
    auto shape = std::make_unique<ds4_shape>();
    ds4_model_get_shape(model, shape.get());
    ds4_session *session = make_session(model, n_threads);
    need(ds4_session_importance_start(session, err.get()), *err, "importance start");
    need(ds4_session_sync(session, tokens.data(), tokens.size(), nullptr, err.get()), *err, "sync");
    std::vector<double> sum_in(size_t{shape->n_expert} * shape->n_embd), sum_mid(size_t{shape->n_expert} * shape->n_ff);
    std::vector<uint64_t> counts(shape->n_expert);
    need(ds4_session_importance(session, 0, sum_in.data(), sum_mid.data(), counts.data(), err.get()), *err, "importance");
    wander(session, tokens);
    const float *logits = nullptr;
    need(ds4_session_logits(session, &logits, err.get()), *err, "logits");
    std::vector<float> copy(logits, logits + shape->n_vocab);
    for (double sum : sum_in) copy.push_back(static_cast<float>(sum));
    for (double sum : sum_mid) copy.push_back(static_cast<float>(sum));
    for (uint64_t count : counts) copy.push_back(static_cast<float>(count));
    ds4_session_free(session);
    return copy;
}

// One session alone, or several at once, over an open model: all have to give `alone`, which is set when it is empty.
bool agree(ds4_model *model, std::vector<float> *alone) {
    auto err = std::make_unique<ds4_error>();
    auto shape = std::make_unique<ds4_shape>();
    ds4_model_get_shape(model, shape.get());

    std::vector<int32_t> tokens(40);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 37 + 11) % shape->n_vocab);
    if (alone->empty()) *alone = run(model, tokens, 1);

    std::vector<std::vector<float>> results(3);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); ++i)
        threads.emplace_back([&, i] { results[i] = run(model, tokens, static_cast<uint32_t>(i + 1)); });

    // Two callers in one session: each call ends with OK, BUSY or CANCELLED, and the session survives.
    ds4_session *shared = make_session(model, 2);
    int unexpected[2] = {0, 0};
    std::vector<std::thread> callers;
    for (int &bad : unexpected)
        callers.emplace_back([&] {
            for (int round = 0; round < 4; ++round) {
                const ds4_status s = ds4_session_sync(shared, tokens.data(), 20, nullptr, nullptr);
                bad += s != DS4_OK && s != DS4_E_BUSY && s != DS4_E_CANCELLED;
            }
        });
    for (int i = 0; i < 50; ++i) {
        ds4_session_cancel(shared);
        std::this_thread::yield();
    }
    if (ds4_model_streams(model)) {  // looks at the cache while it works
        auto stats = std::make_unique<ds4_expert_stats>();
        need(ds4_model_expert_stats(model, stats.get(), err.get()), *err, "stats");
        std::vector<uint8_t> map(stats->n_experts);
        std::vector<float> heat(stats->n_experts);
        need(ds4_model_expert_map(model, map.data(), map.size(), err.get()), *err, "map");
        need(ds4_model_expert_heat(model, heat.data(), heat.size(), err.get()), *err, "heat");
        need(ds4_model_expert_preload(model, 0, nullptr, nullptr, err.get()), *err, "preload");
    }
    for (std::thread &thread : callers) thread.join();
    for (std::thread &thread : threads) thread.join();
    // A cancel that came between two calls may still stop the first of these.
    ds4_status last = ds4_session_sync(shared, tokens.data(), tokens.size(), nullptr, err.get());
    if (last == DS4_E_CANCELLED) last = ds4_session_sync(shared, tokens.data(), tokens.size(), nullptr, err.get());
    need(last, *err, "sync after cancel");
    const float *logits = nullptr;
    need(ds4_session_logits(shared, &logits, err.get()), *err, "logits after cancel");
    results.emplace_back(logits, logits + shape->n_vocab);
    ds4_session_free(shared);

    for (const std::vector<float> &result : results)
        if (std::memcmp(result.data(), alone->data(), result.size() * sizeof(float)) != 0) {
            fprintf(stderr, "a session beside others gives other logits or statistics than one alone\n");
            return false;
        }
    if (unexpected[0] || unexpected[1]) {
        fprintf(stderr, "a concurrent call ended with an unexpected status\n");
        return false;
    }
    printf("%zu sessions on threads, %zu tokens each: equal logits\n", results.size(), tokens.size());
    return true;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: session_threads MODEL.gguf\n");
        return 2;
    }
    auto err = std::make_unique<ds4_error>();
    ds4_model_options options;
    ds4_model_options_init(&options);
    std::vector<float> alone;
    uint64_t slot = 0;
    for (const uint64_t slots : {0, 1, 5, 24, 1000}) {  // 24: room for guesses
        for (const int32_t io : {DS4_READ_AUTO, DS4_READ_THREADS}) {
            if (!slots && io) continue;  // mapped
            options.expert_cache_bytes = slots == 1000 ? uint64_t{1} << 40 : slots * slot;
            options.read_io = io;
            options.read_depth = 4;
            ds4_model *model = nullptr;
            need(ds4_model_open(argv[1], &options, &model, err.get()), *err, "open");
            const bool ok = agree(model, &alone);
            ds4_model_close(model);
            if (!ok) return 1;
        }
        if (slot) continue;
        options.expert_cache_bytes = uint64_t{1} << 40;
        ds4_model *model = nullptr;
        need(ds4_model_open(argv[1], &options, &model, err.get()), *err, "open");
        ds4_expert_stats stats;
        need(ds4_model_expert_stats(model, &stats, err.get()), *err, "stats");
        slot = stats.slot_bytes;
        ds4_model_close(model);
    }
    return 0;
}
