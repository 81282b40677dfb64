// Backends by name. Those of devices are shared objects of their own, opened when somebody asks for them; one that is
// missing or cannot be loaded answers with the reason, so nobody falls back in silence.
#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <string>

#include "backend/backend.h"
#include "base/error.h"

namespace ds4 {
namespace {

#ifdef __APPLE__
constexpr const char *kSuffix = ".dylib";
#else
constexpr const char *kSuffix = ".so";
#endif

struct Loaded {
    std::string path;
    const ds4_backend_ops *ops;
};

// Tables stay loaded until the process ends: models may hold them at any time.
std::mutex mutex;
std::deque<Loaded> &loaded() {
    static auto *all = new std::deque<Loaded>;
    return *all;
}

std::string own_folder() {
    Dl_info info{};
    if (!dladdr(reinterpret_cast<void *>(&find_backend), &info) || !info.dli_fname) return "";
    const std::string path = info.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool known(const char *name) {
    for (const char *gpu : {"cuda", "hip", "metal"})
        if (!strcmp(name, gpu)) return true;
    return false;
}

ds4_status load(const std::string &path, const char *expected_name, const ds4_backend_ops **out, ds4_error *err) {
    const std::string shown = escape_name(path, 400);
    for (const Loaded &l : loaded())
        if (l.path == path) {
            *out = l.ops;
            return DS4_OK;
        }
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return fail(err, DS4_E_UNAVAILABLE, "backend library %s cannot be loaded: %s", shown.c_str(),
                    why ? escape_name(why, 400).c_str() : "no reason given");
    }
    using Entry = const ds4_backend_ops *(*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "ds4_backend_entry"));
    const ds4_backend_ops *ops = entry ? entry() : nullptr;
    ds4_status st = DS4_OK;
    if (!ops)
        st = fail(err, DS4_E_UNAVAILABLE, "%s is no backend of ds4: it has no ds4_backend_entry", shown.c_str());
    else if (ops->abi_version != DS4_BACKEND_ABI || ops->struct_size != sizeof(ds4_backend_ops))
        st = fail(err, DS4_E_UNAVAILABLE,
                  "backend library %s speaks version %u of the interface (%u bytes), this ds4 version %u (%zu bytes); "
                  "install both from the same build",
                  shown.c_str(), ops->abi_version, ops->struct_size, DS4_BACKEND_ABI, sizeof(ds4_backend_ops));
    else if (expected_name && strcmp(ops->name, expected_name))
        st = fail(err, DS4_E_UNAVAILABLE, "backend library %s calls itself '%s', not '%s'", shown.c_str(),
                  escape_name(ops->name, 40).c_str(), expected_name);
    else
        for (const Loaded &l : loaded())
            if (!strcmp(l.ops->name, ops->name))
                st = fail(err, DS4_E_STATE, "backend '%s' is loaded already, from %s; %s is not taken beside it", ops->name,
                          escape_name(l.path, 400).c_str(), shown.c_str());
    if (st != DS4_OK) {
        dlclose(library);
        return st;
    }
    loaded().push_back({path, ops});
    *out = ops;
    return DS4_OK;
}

}  // namespace

ds4_status load_backend(const char *path, const ds4_backend_ops **out, ds4_error *err) {
    if (!path || !*path) return fail(err, DS4_E_ARGUMENT, "no path of a backend library was given");
    struct stat info {};
    if (stat(path, &info)) {
        const int why = errno;
        return fail(err, DS4_E_UNAVAILABLE, "backend library %s: %s", escape_name(path, 400).c_str(), strerror(why));
    }
    // A bare name would make the system look into its own folders.
    const std::string whole = strchr(path, '/') ? path : std::string("./") + path;
    std::lock_guard lock(mutex);
    return load(whole, nullptr, out, err);
}

std::vector<std::string> backend_names() {
    std::vector<std::string> names = {"cpu", "cuda", "hip", "metal"};
    std::lock_guard lock(mutex);
    for (const Loaded &l : loaded())
        if (!known(l.ops->name)) names.push_back(l.ops->name);
    return names;
}

ds4_status find_backend(const char *name, const ds4_backend_ops **out, ds4_error *err) {
    if (!name || !strcmp(name, "auto") || !strcmp(name, "cpu")) {
        *out = cpu_backend();
        return DS4_OK;
    }
    std::lock_guard lock(mutex);
    for (const Loaded &l : loaded())
        if (!strcmp(name, l.ops->name)) {
            *out = l.ops;
            return DS4_OK;
        }
    if (!known(name))
        return fail(err, DS4_E_ARGUMENT, "unknown backend '%s'; known are auto, cpu, cuda, hip, metal", name);
    const std::string path = own_folder() + "/libds4_" + name + kSuffix;
    struct stat info {};
    if (stat(path.c_str(), &info))
        return fail(err, DS4_E_UNAVAILABLE,
                    "backend '%s': this build of ds4 has none (no %s); use cpu, or build with DS4_%s=ON (docs/gpu.md)", name,
                    escape_name(path, 400).c_str(), !strcmp(name, "cuda") ? "CUDA" : !strcmp(name, "hip") ? "HIP" : "METAL");
    return load(path, name, out, err);
}

}  // namespace ds4
