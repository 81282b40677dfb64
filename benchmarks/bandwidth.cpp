// Read bandwidth of the memory: threads read their share of an area much larger than any cache, in order.
//
//   c++ -O3 -march=native -pthread -o bandwidth benchmarks/bandwidth.cpp
//   ./bandwidth THREADS [MIB] [ROUNDS]
//
// Prints one JSON object; "bandwidth" is that of the fastest round, in bytes a second. Huge pages are asked for, which
// saves address translations, as an engine with good pages has them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#include <sys/mman.h>

namespace {

using Clock = std::chrono::steady_clock;

// Stands in the way of dropping the reads.
std::atomic<uint64_t> sink{0};

uint64_t read_all(const uint64_t *p, size_t n) {
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        a ^= p[i], b ^= p[i + 1], c ^= p[i + 2], d ^= p[i + 3];
        e ^= p[i + 4], f ^= p[i + 5], g ^= p[i + 6], h ^= p[i + 7];
    }
    return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h;
}

// One thread to one of the processors that this process may use.
void pin(unsigned id) {
#ifdef __linux__
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    const unsigned n = static_cast<unsigned>(CPU_COUNT(&allowed));
    unsigned wanted = n ? id % n : 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && wanted-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
#else
    (void)id;
#endif
}

}  // namespace

int main(int argc, char **argv) {
    const long threads = argc > 1 ? std::atol(argv[1]) : 0;
    const long mib = argc > 2 ? std::atol(argv[2]) : 1024;
    const long rounds = argc > 3 ? std::atol(argv[3]) : 5;
    if (threads < 1 || threads > 1024 || mib < 1 || mib > 1 << 20 || rounds < 1 || rounds > 1000) {
        std::fprintf(stderr, "usage: bandwidth THREADS [MIB] [ROUNDS]\n");
        return 2;
    }
    const unsigned n = static_cast<unsigned>(threads);
    const size_t bytes = static_cast<size_t>(mib) << 20, part = bytes / n / 64 * 64;
    void *area = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        std::perror("bandwidth: mmap");
        return 1;
    }
    bool huge = false;
#ifdef MADV_HUGEPAGE
    huge = madvise(area, bytes, MADV_HUGEPAGE) == 0;
#endif
    uint64_t *p = static_cast<uint64_t *>(area);
    std::atomic<unsigned> ready{0};
    std::atomic<long> round{-1};
    std::atomic<unsigned> done{0};
    std::vector<std::thread> team;
    for (unsigned id = 0; id < n; id++)
        team.emplace_back([&, id] {
            pin(id);
            uint64_t *mine = p + id * (part / 8);
            for (size_t i = 0; i < part / 8; i++) mine[i] = i * 0x9E3779B97F4A7C15ull;  // a page lies where it is used
            ready.fetch_add(1);
            for (long r = 0; r < rounds; r++) {
                while (round.load() < r) std::this_thread::yield();
                sink.fetch_xor(read_all(mine, part / 8));
                done.fetch_add(1);
            }
        });
    while (ready.load() < n) std::this_thread::yield();
    std::vector<double> found;
    for (long r = 0; r < rounds; r++) {
        done.store(0);
        const Clock::time_point begin = Clock::now();
        round.store(r);
        // The waiting thread would take a processor from the readers.
        while (done.load() < n) std::this_thread::sleep_for(std::chrono::microseconds(100));
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        found.push_back(static_cast<double>(part) * n / seconds);
    }
    for (std::thread &t : team) t.join();
    std::sort(found.begin(), found.end());
    std::printf("{\"threads\": %u, \"mib\": %ld, \"huge_pages\": %s, \"bandwidth\": %.0f, \"median\": %.0f, \"least\": %.0f}\n",
                n, mib, huge ? "true" : "false", found.back(), found[found.size() / 2], found.front());
    return 0;
}
