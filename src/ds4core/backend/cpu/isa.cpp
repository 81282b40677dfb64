// Reading the processor and choosing the kernels.
#include "backend/cpu/isa.h"

#include <atomic>
#include <cstring>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ds4::cpu {

CpuFeatures detect_features() {
    CpuFeatures f;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    f.fma = c >> 12 & 1;
    f.f16c = c >> 29 & 1;
    if (c >> 27 & 1) {
        unsigned lo, hi;
        __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        f.xcr0 = static_cast<uint64_t>(hi) << 32 | lo;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.avx2 = b >> 5 & 1;
        f.avx512f = b >> 16 & 1;
        f.avx512dq = b >> 17 & 1;
        f.avx512bw = b >> 30 & 1;
        f.avx512vl = b >> 31 & 1;
    }
#endif
    return f;
}

int best_level(const CpuFeatures &f) {
    const uint64_t ymm = 0x6, zmm = 0xe6;
    if (!f.avx2 || !f.fma || !f.f16c || (f.xcr0 & ymm) != ymm) return 0;
    if (!f.avx512f || !f.avx512bw || !f.avx512vl || !f.avx512dq || (f.xcr0 & zmm) != zmm) return 1;
    return 2;
}

namespace {

const Kernels *at_level(int level) {
    const Kernels *k = level >= 2 ? kernels_avx512() : nullptr;
    if (!k && level >= 1) k = kernels_avx2();
    return k ? k : kernels_base();
}

// The chosen table; set once from the machine, lowered on request. Not a device's state: it says what this
// process's processor can run.
std::atomic<const Kernels *> chosen{nullptr};

}  // namespace

const Kernels *active_kernels() {
    const Kernels *k = chosen.load();
    if (!k) {
        const Kernels *best = at_level(best_level(detect_features()));
        return chosen.compare_exchange_strong(k, best) ? best : k;  // a limit set meanwhile stays
    }
    return k;
}

ds4_status limit_isa(const char *name, ds4_error *err) {
    static const char *const names[] = {"base", "avx2", "avx512"};
    int best = best_level(detect_features());
    if (name && !strcmp(name, "auto")) {
        chosen.store(at_level(best));
        return DS4_OK;
    }
    for (int level = 0; name && level < 3; level++) {
        if (strcmp(name, names[level])) continue;
        const Kernels *k = at_level(level);
        if (level > best || strcmp(k->name, name))
            return fail(err, DS4_E_UNAVAILABLE, "this machine cannot run the CPU variant '%s'; the best here is '%s'",
                        name, at_level(best)->name);
        chosen.store(k);
        return DS4_OK;
    }
    return fail(err, DS4_E_ARGUMENT, "unknown CPU variant '%s'; known are auto, base, avx2, avx512",
                name ? name : "(null)");
}

}  // namespace ds4::cpu
