// How far a machine lets threads scale: the speed of N threads over that of one, for work that lives in registers, in
// the caches of a core, in the cache that cores share, and in memory. What an engine can reach lies between the first
// and the last.
//
//   c++ -O3 -march=native -pthread -o scaling benchmarks/scaling.cpp
//   ./scaling THREADS [ROUNDS]
//
// Prints one JSON object: for each place the median ratio of the rounds, and the rate of one and of all threads in
// operations or bytes a second. Threads of one round run at the same time; one and all alternate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> sink{0};  // stands in the way of dropping the work

// Eight chains of additions and shifts of 16 numbers each: registers and nothing else.
void compute(uint64_t n) {
    uint32_t a[8][16];
    for (uint32_t c = 0; c < 8; c++)
        for (uint32_t i = 0; i < 16; i++) a[c][i] = c + i;
    for (uint64_t r = 0; r < n; r++)
        for (auto &chain : a)
            for (uint32_t &x : chain) x += x << 5 ^ static_cast<uint32_t>(r);
    for (auto &chain : a)
        for (uint32_t x : chain) sink.fetch_xor(x, std::memory_order_relaxed);
}

void read_area(const uint64_t *p, size_t bytes, uint64_t times) {
    uint64_t s[8] = {};
    for (uint64_t r = 0; r < times; r++)
        for (size_t i = 0; i + 8 <= bytes / 8; i += 8)
            for (size_t k = 0; k < 8; k++) s[k] ^= p[i + k];
    for (uint64_t x : s) sink.fetch_xor(x, std::memory_order_relaxed);
}

// Seconds of n threads that call work(thread) at the same time.
double seconds(unsigned n, const std::function<void(unsigned)> &work) {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> team;
    for (unsigned id = 0; id < n; id++)
        team.emplace_back([&, id] {
            ready.fetch_add(1);
            while (!go.load()) std::this_thread::yield();
            work(id);
        });
    while (ready.load() < n) std::this_thread::yield();
    const Clock::time_point begin = Clock::now();
    go.store(true);
    for (std::thread &t : team) t.join();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

}  // namespace

int main(int argc, char **argv) {
    const long threads = argc > 1 ? std::atol(argv[1]) : 0, rounds = argc > 2 ? std::atol(argv[2]) : 7;
    if (threads < 1 || threads > 1024 || rounds < 1 || rounds > 1000) {
        std::fprintf(stderr, "usage: scaling THREADS [ROUNDS]\n");
        return 2;
    }
    const unsigned n = static_cast<unsigned>(threads);
    const size_t part = size_t{512} << 20;
    void *area = mmap(nullptr, part * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        std::perror("scaling: mmap");
        return 1;
    }
#ifdef MADV_HUGEPAGE
    madvise(area, part * n, MADV_HUGEPAGE);
#endif
    uint64_t *p = static_cast<uint64_t *>(area);
    for (size_t i = 0; i < part * n / 8; i++) p[i] = i * 0x9E3779B97F4A7C15ull;

    struct Place {
        const char *name;
        double amount;  // of one thread
        std::function<void(unsigned)> work;
    };
    const auto reading = [&](const char *name, size_t bytes, uint64_t times) {
        return Place{name, static_cast<double>(bytes) * static_cast<double>(times),
                     [=](unsigned id) { read_area(p + id * (part / 8), bytes, times); }};
    };
    constexpr uint64_t kSteps = 8'000'000;
    const std::vector<Place> places = {
        {"registers", static_cast<double>(kSteps) * 8 * 16 * 3, [](unsigned) { compute(kSteps); }},
        reading("core_cache", size_t{256} << 10, 20'000),
        reading("shared_cache", size_t{6} << 20, 400),
        reading("memory", part, 2),
    };
    std::string out = "{\"threads\": " + std::to_string(n);
    for (const Place &place : places) {
        std::vector<double> one, all, ratio;
        for (long r = 0; r < rounds; r++) {
            one.push_back(place.amount / seconds(1, place.work));
            all.push_back(place.amount * n / seconds(n, place.work));
            ratio.push_back(all.back() / one.back());
        }
        char text[160];
        std::snprintf(text, sizeof text, ", \"%s\": {\"ratio\": %.3f, \"one\": %.4g, \"all\": %.4g}", place.name,
                      median(ratio), median(one), median(all));
        out += text;
    }
    std::printf("%s}\n", out.c_str());
    return 0;
}
