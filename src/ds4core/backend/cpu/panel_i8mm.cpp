// Panels for arm64 with 8-bit matrix products (FEAT_I8MM; flags are set on this file only).
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define DS4_NAME "i8mm"
#define DS4_PANELS panels_i8mm
#include "backend/cpu/panel_arm.inc"
#else
#include "backend/cpu/panel.h"
const ds4::cpu::PanelKernels *ds4::cpu::panels_i8mm() { return nullptr; }
#endif
