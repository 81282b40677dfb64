// The searches for the instruction set every machine of the architecture has.
#define DS4_VARIANT "base"
#define DS4_WIDTH 4
#include "quant/search.inc"

const ds4::quant::Searches *ds4::quant::searches_base() { return &table; }
