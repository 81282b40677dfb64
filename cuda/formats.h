// From the number of a tensor type to its Format.
#pragma once

#include "quant.cuh"

namespace ds4::gpu {

// do_it(Format<type>{}); false for a type that has none.
template <class Do> bool with_format(uint32_t type, const Do &do_it) {
    switch (type) {
        case DS4_TYPE_F32: do_it(Format<DS4_TYPE_F32>{}); return true;
        case DS4_TYPE_F16: do_it(Format<DS4_TYPE_F16>{}); return true;
        case DS4_TYPE_BF16: do_it(Format<DS4_TYPE_BF16>{}); return true;
        case DS4_TYPE_Q8_0: do_it(Format<DS4_TYPE_Q8_0>{}); return true;
        case DS4_TYPE_MXFP4: do_it(Format<DS4_TYPE_MXFP4>{}); return true;
        case DS4_TYPE_Q2_K: do_it(Format<DS4_TYPE_Q2_K>{}); return true;
        case DS4_TYPE_Q4_K: do_it(Format<DS4_TYPE_Q4_K>{}); return true;
        case DS4_TYPE_IQ2_XXS: do_it(Format<DS4_TYPE_IQ2_XXS>{}); return true;
        default: return false;
    }
}

}  // namespace ds4::gpu
