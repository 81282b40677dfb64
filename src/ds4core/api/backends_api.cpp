// The extern "C" functions of ds4/backends.h.
#include "ds4/backends.h"

#include <cstdio>
#include <cstring>
#include <memory>

#include "api/guard.h"
#include "backend/backend.h"

using ds4::fail;
using ds4::guarded;

namespace {

void describe(const std::string &name, ds4_backend_info *out, ds4_error *err) {
    snprintf(out->name, sizeof out->name, "%s", name.c_str());
    const ds4_backend_ops *ops = nullptr;
    ds4_device *device = nullptr;
    ds4_status st = ds4::find_backend(name.c_str(), &ops, err);
    if (st == DS4_OK) st = ops->device_open(&device, err);
    if (st != DS4_OK) {
        snprintf(out->reason, sizeof out->reason, "%.1000s", err->message);
        return;
    }
    ds4_device_info info{};
    ops->device_info(device, &info);
    ops->device_close(device);
    out->available = 1;
    snprintf(out->device, sizeof out->device, "%s", info.name);
    snprintf(out->arch, sizeof out->arch, "%s", info.arch);
    out->total_bytes = info.total_bytes;
    out->free_bytes = info.free_bytes;
    out->unified = info.unified != 0;
}

}  // namespace

size_t ds4_backend_list(ds4_backend_info *out, size_t cap) {
    size_t n = 0;
    guarded("ds4_backend_list", nullptr, [&] {
        const std::vector<std::string> names = ds4::backend_names();
        n = names.size();
        const auto err = std::make_unique<ds4_error>();
        for (size_t i = 0; i < n && i < cap && out; i++) {
            out[i] = {};
            out[i].struct_size = sizeof(out[i]);
            describe(names[i], &out[i], err.get());
        }
        return DS4_OK;
    });
    return n;
}

ds4_status ds4_backend_load(const char *path, char *name, size_t cap, ds4_error *err) {
    if (!path || (cap && !name)) return fail(err, DS4_E_ARGUMENT, "ds4_backend_load: path or name is NULL");
    return guarded("ds4_backend_load", err, [&] {
        const ds4_backend_ops *ops = nullptr;
        const ds4_status st = ds4::load_backend(path, &ops, err);
        if (st == DS4_OK && cap) snprintf(name, cap, "%s", ops->name);
        return st;
    });
}
