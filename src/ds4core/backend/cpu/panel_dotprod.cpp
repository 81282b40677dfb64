// Panels for arm64 with dot products (ARMv8.2, FEAT_DotProd; flags are set on this file only).
#if defined(__ARM_FEATURE_DOTPROD)
#define DS4_NAME "dotprod"
#define DS4_PANELS panels_dotprod
#include "backend/cpu/panel_arm.inc"
#else
#include "backend/cpu/panel.h"
const ds4::cpu::PanelKernels *ds4::cpu::panels_dotprod() { return nullptr; }
#endif
