// The kernels for the instruction set every machine of the architecture has.
#define DS4_VARIANT "base"
#include "backend/cpu/kernels.inc"

const ds4::cpu::Kernels *ds4::cpu::kernels_base() { return &table; }
