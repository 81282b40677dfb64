/* What computes: the CPU, and shared objects for GPUs that are opened when they are asked for. */
#ifndef DS4_BACKENDS_H
#define DS4_BACKENDS_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds4_backend_info {
    uint32_t struct_size;
    char name[32];         /* for ds4_model_options.backend */
    int32_t available;     /* 0: `reason` says why not */
    char reason[1024];
    char device[128], arch[64];
    /* Memory of the device, in bytes; 0 where it is the host's. */
    uint64_t total_bytes, free_bytes;
    int32_t unified;       /* 1: the device computes in the host's memory */
} ds4_backend_info;

/* The backends that this library knows, at most cap of them; returns how many there are. Opens those that can be opened. */
DS4_API size_t ds4_backend_list(ds4_backend_info *out, size_t cap);
/* Open the shared object of another backend, built for this version of ds4. From now on its name, copied to `name`
 * (cap bytes), may be given to ds4_model_open. DS4_E_UNAVAILABLE says why it cannot be used, DS4_E_STATE that another
 * object has that name. */
DS4_API ds4_status ds4_backend_load(const char *path, char *name, size_t cap, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
