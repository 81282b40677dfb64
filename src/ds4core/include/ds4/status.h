/* Status codes and the error record that every fallible call of ds4 fills.
 *
 * A call returns DS4_OK (0) or one of the codes below; with an `err` pointer it also leaves a message that names
 * the thing, the value found and the value wanted. There is no "last error" hidden in a thread. */
#ifndef DS4_STATUS_H
#define DS4_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define DS4_API __declspec(dllexport)
#else
#define DS4_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Values are part of the interface and never change meaning. */
typedef enum ds4_status {
    DS4_OK = 0,
    DS4_E_ARGUMENT = 1,    /* the caller passed a value outside its documented range */
    DS4_E_IO = 2,          /* the operating system refused a file operation; os_errno says why */
    DS4_E_FORMAT = 3,      /* a file is damaged or is not what it claims to be; offset says where */
    DS4_E_UNSUPPORTED = 4, /* a well formed file of a model, shape or tensor type that ds4 does not run */
    DS4_E_MEMORY = 5,      /* host memory is exhausted */
    DS4_E_STATE = 6,       /* the handle cannot do this now (no logits yet, used after fork, ...) */
    DS4_E_BUSY = 7,        /* another thread is inside this session */
    DS4_E_CANCELLED = 8,   /* stopped by cancel or by the pulse; the session is valid */
    DS4_E_CONTEXT = 9,     /* more positions than n_ctx */
    DS4_E_SNAPSHOT = 10,   /* a snapshot is damaged or belongs to another model or setting */
    DS4_E_UNAVAILABLE = 11,/* this build or machine has no such backend */
    DS4_E_DEVICE = 12,     /* a device failed */
    DS4_E_DATA = 13,       /* weights or logits hold NaN or infinity */
    DS4_E_INTERNAL = 14,   /* a bug in ds4; please report the message */
    DS4_E_DEVICE_MEMORY = 15 /* the memory of a device is exhausted, or has no room for what was asked for */
} ds4_status;

#define DS4_NO_OFFSET UINT64_MAX

/* Filled by the failing call; 32 KiB because a refused model file lists every difference at once. */
typedef struct ds4_error {
    int32_t status;    /* the ds4_status that was returned */
    int32_t os_errno;  /* errno of a failed system call, or 0 */
    uint64_t offset;   /* byte offset in the file, or DS4_NO_OFFSET */
    char message[32768]; /* UTF-8, zero terminated; names from files are escaped and cut */
} ds4_error;

/* The identifier of a status as text ("DS4_E_IO"), never NULL. */
DS4_API const char *ds4_status_name(int status);
/* Version of the native library, e.g. "0.1.0". */
DS4_API const char *ds4_version(void);
/* The CPU kernel variant in use: "base", on x86-64 "avx2", "avx512" or "avx512vnni", on arm64 "dotprod" or "i8mm". */
DS4_API const char *ds4_cpu_isa(void);
/* Use at most this variant from now on ("auto" undoes it). DS4_E_ARGUMENT for an unknown name, DS4_E_UNAVAILABLE
 * when the machine lacks it. Affects sessions created later, and encoding from now on. */
DS4_API ds4_status ds4_set_cpu_isa(const char *name, ds4_error *err);

#ifdef __cplusplus
}
#endif
#endif
