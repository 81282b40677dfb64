// Panels for every arm64 processor.
#if defined(__aarch64__)
#define DS4_NAME "neon"
#define DS4_PANELS panels_neon
#include "backend/cpu/panel_arm.inc"
#else
#include "backend/cpu/panel.h"
const ds4::cpu::PanelKernels *ds4::cpu::panels_neon() { return nullptr; }
#endif
