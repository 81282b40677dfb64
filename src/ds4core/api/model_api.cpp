// The extern "C" functions of ds4/model.h, and the choice of the CPU variant.
#include <algorithm>
#include <cstring>

#include "api/guard.h"
#include "base/isa.h"
#include "model/model.h"

using ds4::fail;
using ds4::guarded;

const char *ds4_cpu_isa(void) { return ds4::isa_name(ds4::active_isa()); }

ds4_status ds4_set_cpu_isa(const char *name, ds4_error *err) { return ds4::limit_isa(name, err); }

void ds4_model_options_init(ds4_model_options *o) {
    if (!o) return;
    *o = {};
    o->struct_size = sizeof(*o);
    o->backend = "auto";
}

ds4_status ds4_model_open(const char *path, const ds4_model_options *o, ds4_model **out, ds4_error *err) {
    if (!path || !out) return fail(err, DS4_E_ARGUMENT, "ds4_model_open: path and out must not be NULL");
    ds4_model_options options;
    ds4_model_options_init(&options);
    const ds4_status st = ds4::take_options("ds4_model_options", o, &options, err);
    if (st != DS4_OK) return st;
    return guarded("ds4_model_open", err, [&] { return ds4::open_model(path, options, out, err); });
}

void ds4_model_close(ds4_model *m) { ds4::release_model(m); }

void ds4_model_get_shape(const ds4_model *m, ds4_shape *out) {
    if (m && out) *out = m->shape;
}
const ds4_gguf *ds4_model_gguf(const ds4_model *m) { return m ? m->file.get() : nullptr; }
int ds4_model_has_mtp(const ds4_model *m) { return m && m->mtp; }
const char *ds4_model_warnings(const ds4_model *m) { return m ? m->warnings.c_str() : ""; }
const char *ds4_model_backend(const ds4_model *m) { return m ? m->ops->name : ""; }
void ds4_model_fingerprint(const ds4_model *m, uint8_t out[16]) {
    if (m && out) memcpy(out, m->fingerprint, 16);
}

ds4_status ds4_model_diagnose(const ds4_gguf *g, ds4_shape *shape, char *report, size_t cap, ds4_error *err) {
    if (!g || !shape || !report || !cap) return fail(err, DS4_E_ARGUMENT, "ds4_model_diagnose: NULL argument");
    return guarded("ds4_model_diagnose", err, [&] {
        ds4::Findings f;
        ds4_status st = ds4::find_problems(*g, shape, &f, err);
        if (st != DS4_OK) return st;
        const std::string text = f.text(cap - 1);
        const size_t n = std::min(text.size(), cap - 1);
        memcpy(report, text.data(), n);
        report[n] = 0;
        return DS4_OK;
    });
}

ds4_status ds4_model_check(const ds4_model *m, ds4_pulse pulse, void *ud, ds4_error *err) {
    if (!m) return fail(err, DS4_E_ARGUMENT, "ds4_model_check: model is NULL");
    return guarded("ds4_model_check", err, [&] { return ds4::check_weights(*m, pulse, ud, err); });
}
