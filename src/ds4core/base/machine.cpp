// Masks, control groups and topology, read from the files that Linux gives; other systems have one plain core count.
#include "base/machine.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/error.h"

namespace ds4 {

namespace {

constexpr unsigned kMostCpus = 8192, kMostDefault = 64;

std::optional<std::string> first_line(const std::string &path) {
    std::ifstream in(path);
    std::string line;
    if (!in || !std::getline(in, line)) return std::nullopt;
    return line;
}

// A number of at most 9 digits at text[at], which moves behind it.
std::optional<unsigned> number_at(const std::string &text, size_t &at) {
    const size_t begin = at;
    unsigned value = 0;
    while (at < text.size() && at - begin < 9 && text[at] >= '0' && text[at] <= '9')
        value = value * 10 + static_cast<unsigned>(text[at++] - '0');
    if (at == begin) return std::nullopt;
    return value;
}

// "0-3,8" in its own order, as the kernel and users write sets of processors. Nothing when it is malformed.
std::optional<std::vector<unsigned>> parse_list(const std::string &text) {
    std::vector<unsigned> out;
    for (size_t at = 0;; at++) {
        const auto first = number_at(text, at);
        auto last = first;
        if (first && at < text.size() && text[at] == '-') last = number_at(text, ++at);
        if (!first || !last || *last < *first || *last >= kMostCpus) return std::nullopt;
        for (unsigned cpu = *first; cpu <= *last; cpu++) out.push_back(cpu);
        if (at == text.size()) return out;
        if (text[at] != ',') return std::nullopt;
    }
}

std::string show_list(const std::vector<unsigned> &cpus) {
    std::string out;
    for (size_t i = 0; i < cpus.size();) {
        size_t j = i;
        while (j + 1 < cpus.size() && cpus[j + 1] == cpus[j] + 1) j++;
        out += (out.empty() ? "" : ",") + std::to_string(cpus[i]) + (j > i ? "-" + std::to_string(cpus[j]) : "");
        i = j + 1;
    }
    return out;
}

// ---- control groups

// Cores' worth of time, rounded up, of "200000 100000"; 0 for "max 100000" and for what is no limit.
unsigned cores_of(const std::string &quota, const std::string &period) {
    char *end = nullptr;
    const long long q = std::strtoll(quota.c_str(), &end, 10);
    if (end == quota.c_str() || q <= 0) return 0;
    const long long p = std::strtoll(period.c_str(), &end, 10);
    if (end == period.c_str() || p <= 0) return 0;
    return static_cast<unsigned>(std::min<long long>((q - 1) / p + 1, kMostCpus));
}

unsigned group_limit(const std::string &folder, bool v2) {
    if (v2) {
        std::istringstream line(first_line(folder + "/cpu.max").value_or(""));
        std::string quota, period = "100000";
        line >> quota >> period;
        return cores_of(quota, period);
    }
    return cores_of(first_line(folder + "/cpu.cfs_quota_us").value_or(""),
                    first_line(folder + "/cpu.cfs_period_us").value_or(""));
}

// mountinfo writes blanks and backslashes of paths as \ooo.
std::string unescape(const std::string &text) {
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            out += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

bool has_word(const std::string &list, const std::string &word) {
    return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// The tightest limit of the group `path` and of all groups above it, below the mount point.
unsigned tightest(const std::string &root, const std::string &mount, const std::string &mount_root, std::string path,
                  bool v2) {
    // A container sees its own group at the mount point; the path may then be that of the host.
    if (mount_root != "/" && path.rfind(mount_root, 0) == 0) path = path.substr(mount_root.size());
    if (path.find("/..") != std::string::npos) path.clear();  // the group lies outside of what this process can see
    unsigned least = 0;
    for (;;) {
        while (!path.empty() && path.back() == '/') path.pop_back();
        const unsigned limit = group_limit(root + mount + path, v2);
        if (limit && (!least || limit < least)) least = limit;
        if (path.empty()) return least;
        const size_t cut = path.rfind('/');
        path = cut == std::string::npos ? "" : path.substr(0, cut);
    }
}

unsigned read_quota(const std::string &root) {
    std::string v1_path, v2_path, line;
    bool has_v1 = false, has_v2 = false;
    std::ifstream groups(root + "/proc/self/cgroup");
    while (std::getline(groups, line)) {  // number:controllers:path
        const size_t a = line.find(':'), b = a == std::string::npos ? a : line.find(':', a + 1);
        if (b == std::string::npos) continue;
        const std::string controllers = line.substr(a + 1, b - a - 1);
        if (controllers.empty()) {
            has_v2 = true;
            v2_path = line.substr(b + 1);
        } else if (has_word(controllers, "cpu")) {
            has_v1 = true;
            v1_path = line.substr(b + 1);
        }
    }
    unsigned least = 0;
    std::ifstream mounts(root + "/proc/self/mountinfo");
    while (std::getline(mounts, line)) {  // id parent device root mount options... - type source super-options
        const size_t dash = line.find(" - ");
        if (dash == std::string::npos) continue;
        std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
        std::string skip, mount_root, mount, type, source, options;
        left >> skip >> skip >> skip >> mount_root >> mount;
        right >> type >> source >> options;
        const bool v2 = type == "cgroup2";
        if (!(v2 ? has_v2 : type == "cgroup" && has_v1 && has_word(options, "cpu"))) continue;
        const unsigned limit = tightest(root, unescape(mount), unescape(mount_root), v2 ? v2_path : v1_path, v2);
        if (limit && (!least || limit < least)) least = limit;
    }
    return least;
}

}  // namespace

// ---- the machine

Machine read_machine(const std::vector<unsigned> &mask, const std::string &root) {
    Machine out;
    out.cpus = mask;
    std::sort(out.cpus.begin(), out.cpus.end());
    std::vector<unsigned> seconds, covered;  // covered: processors whose core has a thread already
    for (unsigned cpu : out.cpus) {
        if (std::find(covered.begin(), covered.end(), cpu) != covered.end()) {
            seconds.push_back(cpu);
            continue;
        }
        out.order.push_back(cpu);
        const std::string place = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        auto siblings = parse_list(first_line(place + "core_cpus_list").value_or(""));
        if (!siblings) siblings = parse_list(first_line(place + "thread_siblings_list").value_or(""));  // before 5.2
        if (siblings) covered.insert(covered.end(), siblings->begin(), siblings->end());
    }
    out.n_cores = static_cast<unsigned>(out.order.size());
    out.order.insert(out.order.end(), seconds.begin(), seconds.end());
    out.quota = read_quota(root);
    out.nodes = parse_list(first_line(root + "/sys/devices/system/node/has_memory").value_or(""))
                    .value_or(std::vector<unsigned>{});
    return out;
}

unsigned default_threads(const Machine &machine) {
    unsigned n = std::max(machine.n_cores, 1u);
    if (machine.quota) n = std::min(n, machine.quota);
    return std::min(n, kMostDefault);
}

unsigned usable_cpus() {
    static const unsigned n = [] {
        const Machine machine = read_machine(affinity_mask());
        const unsigned cpus = std::max(static_cast<unsigned>(machine.cpus.size()), 1u);
        return machine.quota ? std::min(cpus, machine.quota) : cpus;
    }();
    return n;
}

ds4_status choose_placement(const char *affinity, bool interleave, unsigned n_threads, const Machine &machine,
                            Placement *out, ds4_error *err) {
    const std::string text = affinity ? affinity : "";
    Placement chosen;
    if (interleave && machine.nodes.empty())
        return fail(err, DS4_E_UNAVAILABLE, "interleaving needs NUMA support, which this system does not have");
    if (interleave) chosen.nodes = machine.nodes;
    if (text == "auto") {
        chosen.cpus = machine.order;
    } else if (!text.empty() && text != "none") {
        auto list = parse_list(text);
        if (!list)
            return fail(err, DS4_E_ARGUMENT,
                        "affinity \"%s\" is neither none, auto nor a list of processors such as 0-3,8",
                        escape_name(text).c_str());
        chosen.cpus = std::move(*list);
        std::vector<unsigned> sorted = chosen.cpus;
        std::sort(sorted.begin(), sorted.end());
        const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
        if (twice != sorted.end())
            return fail(err, DS4_E_ARGUMENT, "affinity \"%s\" names processor %u twice", escape_name(text).c_str(), *twice);
        for (unsigned cpu : chosen.cpus)
            if (!std::binary_search(machine.cpus.begin(), machine.cpus.end(), cpu))
                return fail(err, DS4_E_ARGUMENT, "affinity names processor %u, this process may use %s", cpu,
                            show_list(machine.cpus).c_str());
    }
    if (!chosen.cpus.empty()) {
        if (chosen.cpus.size() < n_threads)
            return fail(err, DS4_E_ARGUMENT, "affinity \"%s\" gives %zu processor(s) to %u threads",
                        escape_name(text).c_str(), chosen.cpus.size(), n_threads);
        chosen.cpus.resize(n_threads);
    }
    *out = std::move(chosen);
    return DS4_OK;
}

// ---- system calls

#if defined(__linux__)

namespace {

constexpr int kDefaultPolicy = 0, kInterleavePolicy = 3;  // of the kernel's mempolicy.h, which few systems install
constexpr unsigned kWordBits = 8 * sizeof(unsigned long), kNodeBits = 1024;

struct CpuSet {
    std::vector<unsigned long> words = std::vector<unsigned long>(kMostCpus / kWordBits);
    cpu_set_t *set() { return reinterpret_cast<cpu_set_t *>(words.data()); }
    size_t bytes() const { return words.size() * sizeof(unsigned long); }
};

long set_policy(int mode, const std::vector<unsigned long> &nodes) {
    const bool any = std::any_of(nodes.begin(), nodes.end(), [](unsigned long w) { return w != 0; });
    return syscall(SYS_set_mempolicy, mode, any ? nodes.data() : nullptr, any ? kNodeBits : 0);
}

}  // namespace

std::vector<unsigned> affinity_mask() {
    CpuSet cpus;
    std::vector<unsigned> out;
    if (sched_getaffinity(0, cpus.bytes(), cpus.set()) == 0)
        for (unsigned i = 0; i < kMostCpus; i++)
            if (CPU_ISSET_S(i, cpus.bytes(), cpus.set())) out.push_back(i);
    if (out.empty())
        for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); i++) out.push_back(i);
    return out;
}

void set_affinity(const std::vector<unsigned> &cpus) {
    CpuSet set;
    for (unsigned cpu : cpus) CPU_SET_S(cpu, set.bytes(), set.set());
    if (sched_setaffinity(0, set.bytes(), set.set()) != 0)
        throw std::system_error(errno, std::generic_category(), "the system refused processor " + show_list(cpus));
}

int memory_policy() noexcept {
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

void CallerPlacement::apply(const Placement &placement) {
    if (!placement.nodes.empty()) {
        nodes_.assign(kNodeBits / kWordBits, 0);
        std::vector<unsigned long> wanted = nodes_;
        for (unsigned node : placement.nodes)
            if (node < kNodeBits - 1) wanted[node / kWordBits] |= 1ul << node % kWordBits;
        if (syscall(SYS_get_mempolicy, &policy_, nodes_.data(), kNodeBits, nullptr, 0) != 0 ||
            set_policy(kInterleavePolicy, wanted) != 0)
            throw std::system_error(errno, std::generic_category(),
                                    "the system refused to interleave memory over nodes " + show_list(placement.nodes));
        policy_kept_ = true;
    }
    if (!placement.cpus.empty()) {
        mask_ = affinity_mask();
        try {
            set_affinity({placement.cpus[0]});
        } catch (...) {
            restore();
            throw;
        }
        mask_kept_ = true;
    }
}

void CallerPlacement::restore() noexcept {
    if (policy_kept_ && set_policy(policy_, nodes_) != 0) set_policy(kDefaultPolicy, {});
    policy_kept_ = false;
    if (!mask_kept_) return;
    mask_kept_ = false;
    try {
        set_affinity(mask_);
    } catch (const std::exception &) {  // the old processors were taken from the process meanwhile: keep what is
    }
}

#else

std::vector<unsigned> affinity_mask() {
    std::vector<unsigned> out;
    for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); i++) out.push_back(i);
    return out;
}

void set_affinity(const std::vector<unsigned> &) {
    throw std::system_error(ENOSYS, std::generic_category(), "threads cannot be put on chosen processors here");
}

int memory_policy() noexcept { return -1; }

void CallerPlacement::apply(const Placement &placement) {
    if (!placement.cpus.empty()) set_affinity(placement.cpus);
}
void CallerPlacement::restore() noexcept {}

#endif

}  // namespace ds4
