// Operations that this back end does not have yet: they fail by name. A file that brings one takes its line out here.
#include "backend.h"

namespace ds4::gpu {

#define MISSING(op) \
    void op(ds4_queue *q, const ds4_args_##op *) { set_failed(q, DS4_E_UNSUPPORTED, "operation " #op " is missing in this back end"); }

MISSING(embed)
MISSING(rope)
MISSING(round_rows)
MISSING(store_rows)
MISSING(swiglu)
MISSING(add_rows)
MISSING(steer)

}  // namespace ds4::gpu
