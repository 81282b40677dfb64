// Choosing the variant of the searches.
#include "quant/search.h"

#include "base/isa.h"

namespace ds4::quant {

const Searches &active_searches() {
    const IsaLevel level = active_isa();
    const Searches *s = level >= kIsaAvx512 ? searches_avx512() : nullptr;
    if (!s && level >= kIsaAvx2) s = searches_avx2();
    return s ? *s : *searches_base();
}

}  // namespace ds4::quant
