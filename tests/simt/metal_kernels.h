// The table of kernels that metal2cpp.py makes.
#pragma once

#include <cstddef>

struct ds4_metal_kernel {
    const char *name;
    size_t record_bytes;
    void (*run)(const void *record);  // one thread
};

extern const ds4_metal_kernel ds4_metal_kernels[];
extern const unsigned ds4_metal_n_kernels;
