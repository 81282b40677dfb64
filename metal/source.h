// The kernels as text, for machines without Xcode's compiler: metal/ds4.metal with what it includes (metal/bundle.py).
#pragma once

namespace ds4::metal {
extern const char *const kSource;
}
