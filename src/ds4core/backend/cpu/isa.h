// The kernel variant that this process uses.
#pragma once

#include "backend/cpu/kernels.h"
#include "base/isa.h"

namespace ds4::cpu {

const Kernels *active_kernels();

}  // namespace ds4::cpu
