// The inside of a ds4_gguf: the checked directory of a mapped GGUF v3 file.
//
// Everything that reaches these vectors has passed the checks of reader.cpp: pointers and lengths lie in the mapping,
// tensors are whole blocks, aligned, in range and do not overlap, names are unique valid UTF-8. What the values mean
// is left to the model room.
#pragma once

#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "ds4/gguf.h"

namespace ds4 {

// Upper bound on records of either kind, so that the directory of a hostile file cannot cost more than about 200 MB.
constexpr uint64_t kMaxRecords = 1u << 20;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 63;  // ggml keeps 64 with a terminator
constexpr uint64_t kMaxDimension = uint64_t{1} << 40;
constexpr uint64_t kMinAlignment = 8, kDefaultAlignment = 32, kMaxAlignment = 1u << 20;
constexpr int kMaxArrayDepth = 4;

inline std::string_view key_of(const ds4_gguf_kv &kv) { return {kv.key, kv.key_len}; }
inline std::string_view name_of(const ds4_gguf_tensor &t) { return {t.name, t.name_len}; }

// Bytes of a fixed-size value, 0 for strings, arrays and unknown types.
uint32_t kv_type_bytes(uint32_t type);
const char *kv_type_name(uint32_t type);  // "u32"; "unknown" for an unknown type

// Element i of a scalar or of an array of numbers, read leniently: writers differ in width, sign and int or float.
// False when the type is not numeric or the value does not fit (negative, fractional, too large).
bool read_u64(const ds4_gguf_kv &kv, uint64_t i, uint64_t *out);
bool read_f64(const ds4_gguf_kv &kv, uint64_t i, double *out);

}  // namespace ds4

struct ds4_gguf {
    ds4::MappedFile file;
    ds4_gguf_info info{};
    std::vector<ds4_gguf_kv> kvs;          // in file order
    std::vector<ds4_gguf_tensor> tensors;  // in file order
    std::vector<uint32_t> kvs_by_key, tensors_by_name;  // indices, sorted by name

    const ds4_gguf_kv *find_kv(std::string_view key) const;
    const ds4_gguf_tensor *find_tensor(std::string_view name) const;

    // Scalar values by key; false when the key is absent, or holds another kind of value or an array.
    bool kv_u64(std::string_view key, uint64_t *out) const;
    bool kv_f64(std::string_view key, double *out) const;
    bool kv_bool(std::string_view key, bool *out) const;
    bool kv_string(std::string_view key, std::string_view *out) const;
    // An array of numbers by key; false also when one element is none.
    bool kv_f64_array(std::string_view key, std::vector<double> *out) const;
};

namespace ds4 {

// Fill an empty ds4_gguf from a file: map, check, index. On failure *g is partly filled and must be dropped.
ds4_status read_gguf(const char *path, ds4_gguf *g, ds4_error *err);

}  // namespace ds4
