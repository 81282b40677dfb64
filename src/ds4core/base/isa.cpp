// Reading the processor, and the one setting that limits what is used of it.
#include "base/isa.h"

#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ds4 {

#if defined(__aarch64__) && defined(__APPLE__)
namespace {
bool has_feature(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, nullptr, 0) && value;
}
}  // namespace
#endif

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
        f.avx512vbmi = c >> 1 & 1;
        f.avx512vnni = c >> 11 & 1;
    }
#elif defined(__aarch64__) && defined(__linux__)
    f.dotprod = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
    f.i8mm = getauxval(AT_HWCAP2) >> 13 & 1;    // HWCAP2_I8MM
#elif defined(__aarch64__) && defined(__APPLE__)
    f.dotprod = has_feature("hw.optional.arm.FEAT_DotProd");
    f.i8mm = has_feature("hw.optional.arm.FEAT_I8MM");
#endif
    return f;
}

IsaLevel best_level(const CpuFeatures &f) {
    if (f.dotprod) return f.i8mm ? kIsaI8mm : kIsaDotprod;
    const uint64_t ymm = 0x6, zmm = 0xe6;
    if (!f.avx2 || !f.fma || !f.f16c || (f.xcr0 & ymm) != ymm) return kIsaBase;
    if (!f.avx512f || !f.avx512bw || !f.avx512vl || !f.avx512dq || (f.xcr0 & zmm) != zmm) return kIsaAvx2;
    return f.avx512vnni && f.avx512vbmi ? kIsaAvx512Vnni : kIsaAvx512;
}

namespace {

constexpr const char *kNames[] = {"base", "avx2", "avx512", "avx512vnni", "dotprod", "i8mm"};
// The levels of this architecture besides the base.
#if defined(__x86_64__)
constexpr int kFirst = kIsaAvx2, kLast = kIsaAvx512Vnni;
#elif defined(__aarch64__)
constexpr int kFirst = kIsaDotprod, kLast = kIsaI8mm;
#else
constexpr int kFirst = 1, kLast = 0;
#endif
constexpr int kAuto = -1;

// Set on request only. Not a device's state: it says what this process's processor may run.
std::atomic<int> chosen{kAuto};

IsaLevel machine_level() {
    static const IsaLevel level = best_level(detect_features());
    return level;
}

}  // namespace

const char *isa_name(IsaLevel level) { return kNames[level]; }

IsaLevel active_isa() {
    const int level = chosen.load();
    return level == kAuto ? machine_level() : static_cast<IsaLevel>(level);
}

ds4_status limit_isa(const char *name, ds4_error *err) {
    if (name && !strcmp(name, "auto")) {
        chosen.store(kAuto);
        return DS4_OK;
    }
    for (int level = kIsaBase; name && level <= kIsaI8mm; level++) {
        if (strcmp(name, kNames[level])) continue;
        const bool here = level == kIsaBase || (level >= kFirst && level <= kLast);
        if (!here || level > machine_level())
            return fail(err, DS4_E_UNAVAILABLE, "this machine cannot run the CPU variant '%s'; the best here is '%s'",
                        name, isa_name(machine_level()));
        chosen.store(level);
        return DS4_OK;
    }
    std::string known = "auto, base";
    for (int level = kFirst; level <= kLast; level++) known += std::string(", ") + kNames[level];
    return fail(err, DS4_E_ARGUMENT, "unknown CPU variant '%s'; known are %s", name ? name : "(null)", known.c_str());
}

}  // namespace ds4
