// Names of status codes and the version of the library.
#include "ds4/status.h"

const char *ds4_status_name(int status) {
    switch (status) {
#define DS4_CASE(name) \
    case name: return #name;
        DS4_CASE(DS4_OK)
        DS4_CASE(DS4_E_ARGUMENT)
        DS4_CASE(DS4_E_IO)
        DS4_CASE(DS4_E_FORMAT)
        DS4_CASE(DS4_E_UNSUPPORTED)
        DS4_CASE(DS4_E_MEMORY)
        DS4_CASE(DS4_E_STATE)
        DS4_CASE(DS4_E_BUSY)
        DS4_CASE(DS4_E_CANCELLED)
        DS4_CASE(DS4_E_CONTEXT)
        DS4_CASE(DS4_E_SNAPSHOT)
        DS4_CASE(DS4_E_UNAVAILABLE)
        DS4_CASE(DS4_E_DEVICE)
        DS4_CASE(DS4_E_DATA)
        DS4_CASE(DS4_E_INTERNAL)
        DS4_CASE(DS4_E_DEVICE_MEMORY)
#undef DS4_CASE
    }
    return "unknown status";
}

const char *ds4_version(void) { return DS4_VERSION_TEXT; }
