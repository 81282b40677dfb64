// Look-ups in a checked directory and lenient readers of its metadata values.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/gguf.h"

namespace ds4 {
namespace {

template <class T> T load(const uint8_t *p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// One number of a file in the widest form of its kind.
struct Number {
    enum Kind { kNone, kUnsigned, kSigned, kFloat } kind = kNone;
    uint64_t u = 0;
    int64_t i = 0;
    double f = 0;
};

Number of_unsigned(uint64_t v) {
    Number n;
    n.kind = Number::kUnsigned;
    n.u = v;
    return n;
}

Number of_signed(int64_t v) {
    if (v >= 0) return of_unsigned(static_cast<uint64_t>(v));
    Number n;
    n.kind = Number::kSigned;
    n.i = v;
    return n;
}

Number of_float(double v) {
    Number n;
    n.kind = Number::kFloat;
    n.f = v;
    return n;
}

Number number_at(const ds4_gguf_kv &kv, uint64_t index) {
    const uint32_t size = kv_type_bytes(kv.elem_type);
    if (size == 0 || index >= kv.count) return {};
    const uint8_t *p = kv.data + index * size;
    switch (kv.elem_type) {
        case DS4_KV_U8: return of_unsigned(*p);
        case DS4_KV_U16: return of_unsigned(load<uint16_t>(p));
        case DS4_KV_U32: return of_unsigned(load<uint32_t>(p));
        case DS4_KV_U64: return of_unsigned(load<uint64_t>(p));
        case DS4_KV_I8: return of_signed(load<int8_t>(p));
        case DS4_KV_I16: return of_signed(load<int16_t>(p));
        case DS4_KV_I32: return of_signed(load<int32_t>(p));
        case DS4_KV_I64: return of_signed(load<int64_t>(p));
        case DS4_KV_F32: return of_float(static_cast<double>(load<float>(p)));
        case DS4_KV_F64: return of_float(load<double>(p));
        default: return {};  // BOOL is not a number
    }
}

template <class View, class Names> const View *find(const std::vector<View> &records,
                                                    const std::vector<uint32_t> &sorted, std::string_view name,
                                                    Names name_of_record) {
    const auto it = std::lower_bound(sorted.begin(), sorted.end(), name, [&](uint32_t i, std::string_view wanted) {
        return name_of_record(records[i]) < wanted;
    });
    if (it == sorted.end() || name_of_record(records[*it]) != name) return nullptr;
    return &records[*it];
}

}  // namespace

bool read_u64(const ds4_gguf_kv &kv, uint64_t i, uint64_t *out) {
    const Number n = number_at(kv, i);
    if (n.kind == Number::kUnsigned) {
        *out = n.u;
        return true;
    }
    if (n.kind != Number::kFloat || !(n.f >= 0 && n.f < 0x1p64) || n.f != std::floor(n.f)) return false;
    *out = static_cast<uint64_t>(n.f);
    return true;
}

bool read_f64(const ds4_gguf_kv &kv, uint64_t i, double *out) {
    const Number n = number_at(kv, i);
    switch (n.kind) {
        case Number::kUnsigned: *out = static_cast<double>(n.u); return true;
        case Number::kSigned: *out = static_cast<double>(n.i); return true;
        case Number::kFloat: *out = n.f; return true;
        case Number::kNone: break;
    }
    return false;
}

}  // namespace ds4

const ds4_gguf_kv *ds4_gguf::find_kv(std::string_view key) const {
    return ds4::find(kvs, kvs_by_key, key, ds4::key_of);
}

const ds4_gguf_tensor *ds4_gguf::find_tensor(std::string_view name) const {
    return ds4::find(tensors, tensors_by_name, name, ds4::name_of);
}

bool ds4_gguf::kv_u64(std::string_view key, uint64_t *out) const {
    const ds4_gguf_kv *kv = find_kv(key);
    return kv && kv->type != DS4_KV_ARRAY && ds4::read_u64(*kv, 0, out);
}

bool ds4_gguf::kv_f64(std::string_view key, double *out) const {
    const ds4_gguf_kv *kv = find_kv(key);
    return kv && kv->type != DS4_KV_ARRAY && ds4::read_f64(*kv, 0, out);
}

bool ds4_gguf::kv_bool(std::string_view key, bool *out) const {
    const ds4_gguf_kv *kv = find_kv(key);
    if (!kv || kv->type == DS4_KV_ARRAY) return false;
    if (kv->type == DS4_KV_BOOL) {
        *out = kv->data[0] != 0;
        return true;
    }
    uint64_t number = 0;  // some writers store flags as integers
    if (!ds4::read_u64(*kv, 0, &number) || number > 1) return false;
    *out = number == 1;
    return true;
}

bool ds4_gguf::kv_string(std::string_view key, std::string_view *out) const {
    const ds4_gguf_kv *kv = find_kv(key);
    if (!kv || kv->type != DS4_KV_STRING) return false;
    *out = std::string_view(reinterpret_cast<const char *>(kv->data) + 8, static_cast<size_t>(kv->n_bytes - 8));
    return true;
}

bool ds4_gguf::kv_f64_array(std::string_view key, std::vector<double> *out) const {
    const ds4_gguf_kv *kv = find_kv(key);
    if (!kv || kv->type != DS4_KV_ARRAY || ds4::kv_type_bytes(kv->elem_type) == 0) return false;
    std::vector<double> values(static_cast<size_t>(kv->count));
    for (uint64_t i = 0; i < kv->count; ++i)
        if (!ds4::read_f64(*kv, i, &values[static_cast<size_t>(i)])) return false;
    out->swap(values);
    return true;
}
