/* ds4: running DeepSeek V4 (Flash, Pro) locally. This header includes the whole public interface. */
#ifndef DS4_H
#define DS4_H
#include "status.h"
#include "gguf.h"
#include "backends.h"
#include "model.h"
#include "session.h"
#include "experts.h"
#include "quantize.h"
#endif
