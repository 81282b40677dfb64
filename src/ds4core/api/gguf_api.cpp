// The extern "C" functions of ds4/gguf.h: check arguments, call inside, let no exception out.
#include <memory>

#include "api/guard.h"
#include "gguf/gguf.h"
#include "quant/quant.h"

using ds4::fail;

namespace {

using ull = unsigned long long;

ds4_status unknown_type(uint32_t type, ds4_error *err) {
    return fail(err, DS4_E_ARGUMENT, "tensor type %u is %s", type,
                ds4::is_removed_type(type) ? "a removed type of the format" : "not a type of the format");
}

}  // namespace

ds4_status ds4_gguf_open(const char *path, ds4_gguf **out, ds4_error *err) {
    if (!path || !out) return fail(err, DS4_E_ARGUMENT, "ds4_gguf_open: path and out must not be NULL");
    return ds4::guarded("ds4_gguf_open", err, [&] {
        auto g = std::make_unique<ds4_gguf>();
        const ds4_status status = ds4::read_gguf(path, g.get(), err);
        if (status == DS4_OK) *out = g.release();
        return status;
    });
}

void ds4_gguf_close(ds4_gguf *g) { delete g; }

void ds4_gguf_get_info(const ds4_gguf *g, ds4_gguf_info *out) {
    if (!out) return;
    *out = g ? g->info : ds4_gguf_info{};
}

ds4_status ds4_gguf_get_kv(const ds4_gguf *g, uint64_t i, ds4_gguf_kv *out, ds4_error *err) {
    if (!g || !out) return fail(err, DS4_E_ARGUMENT, "ds4_gguf_get_kv: NULL argument");
    if (i >= g->kvs.size())
        return fail(err, DS4_E_ARGUMENT, "metadata record %llu; the file has %llu", ull{i}, ull{g->kvs.size()});
    *out = g->kvs[static_cast<size_t>(i)];
    return DS4_OK;
}

ds4_status ds4_gguf_get_tensor(const ds4_gguf *g, uint64_t i, ds4_gguf_tensor *out, ds4_error *err) {
    if (!g || !out) return fail(err, DS4_E_ARGUMENT, "ds4_gguf_get_tensor: NULL argument");
    if (i >= g->tensors.size())
        return fail(err, DS4_E_ARGUMENT, "tensor %llu; the file has %llu", ull{i}, ull{g->tensors.size()});
    *out = g->tensors[static_cast<size_t>(i)];
    return DS4_OK;
}

const char *ds4_type_name(uint32_t type) {
    const ds4::TypeInfo *info = ds4::type_info(type);
    return info ? info->name : nullptr;
}

ds4_status ds4_type_block(uint32_t type, uint32_t *n_elems, uint32_t *n_bytes, ds4_error *err) {
    const ds4::TypeInfo *info = ds4::type_info(type);
    if (!info) return unknown_type(type, err);
    if (n_elems) *n_elems = info->block;
    if (n_bytes) *n_bytes = info->bytes;
    return DS4_OK;
}
