// The CPU backend's tables of kernels by name.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels.h"

// A variant by name, only if the machine can run it.
inline const ds4::cpu::Kernels *variant(const std::string &name) {
    const int best = ds4::best_level(ds4::detect_features());
    const ds4::cpu::Kernels *all[] = {ds4::cpu::kernels_base(), ds4::cpu::kernels_avx2(), ds4::cpu::kernels_avx512()};
    for (int level = 0; level <= best && level < 3; ++level)
        if (all[level] && name == all[level]->name) return all[level];
    return nullptr;
}

inline const ds4::cpu::Kernels *need(const std::string &name) {
    const ds4::cpu::Kernels *k = variant(name);
    if (!k) throw pybind11::value_error("this machine cannot run " + name);
    return k;
}
