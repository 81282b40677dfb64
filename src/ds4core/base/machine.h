// What this process may use of the machine: cores, CPU time, memory nodes; and where threads and pages are put.
#pragma once

#include <string>
#include <vector>

#include "ds4/status.h"

namespace ds4 {

struct Machine {
    std::vector<unsigned> cpus;  // that the process may run on, ascending
    std::vector<unsigned> order; // the same, one of each physical core first: where threads go one after another
    unsigned n_cores = 0;        // physical cores among them
    unsigned quota = 0;          // cores' worth of time that the control groups grant, rounded up; 0: no limit
    std::vector<unsigned> nodes; // NUMA nodes with memory; empty when the system does not say
};

// From the mask of the process and the files below `root` (proc/self/cgroup, proc/self/mountinfo, the mounts named there,
// sys/devices/system); a file that is missing or says nothing sensible limits nothing. Tests feed trees of their own.
Machine read_machine(const std::vector<unsigned> &mask, const std::string &root = "");

std::vector<unsigned> affinity_mask();  // of the calling thread; the machine's processors where masks do not exist

// One a physical core, not more than the quota, 1 to 64. The second thread of a core shares its caches and its vector
// units, and the products that a step is made of saturate them.
unsigned default_threads(const Machine &machine);
// Threads that can run at the same time; read once.
unsigned usable_cpus();

// Where the threads of a pool run. Thread i runs on cpus[i]; empty: where the system likes.
struct Placement {
    std::vector<unsigned> cpus;
    std::vector<unsigned> nodes;  // pages that the threads are first to touch go to these nodes in turn; empty: as usual
    bool none() const { return cpus.empty() && nodes.empty(); }
};

// `affinity`: NULL, "" or "none"; "auto" (the machine's order); or a list as "0-3,8". DS4_E_ARGUMENT for a malformed
// list, one with fewer processors than threads, a processor twice or one that the process may not use.
ds4_status choose_placement(const char *affinity, bool interleave, unsigned n_threads, const Machine &machine,
                            Placement *out, ds4_error *err);

// The placement of the calling thread: `apply` keeps what was there, `restore` brings it back.
// Threads that are started in between inherit both.
class CallerPlacement {
  public:
    // The first thread's part of `placement`. Throws std::system_error when the system refuses; nothing is changed then.
    void apply(const Placement &placement);
    void restore() noexcept;

  private:
    bool mask_kept_ = false, policy_kept_ = false;
    std::vector<unsigned> mask_;
    int policy_ = 0;
    std::vector<unsigned long> nodes_;
};

// Put the calling thread on these processors. Throws std::system_error when the system refuses.
void set_affinity(const std::vector<unsigned> &cpus);

// The memory policy of the calling thread: 0 default, 3 interleave. -1 where policies do not exist.
int memory_policy() noexcept;

}  // namespace ds4
