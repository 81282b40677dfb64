// Reading the directory of a GGUF v3 file that nobody vouches for.
//
// Each check of docs/formats.md ("Hostile or corrupt files") stands here once. Rules that hold throughout: lengths
// are compared with what is left (never added to a position, which could wrap), nothing is allocated from a number
// that was not compared with the file's size before, and a failure names the thing, its value and its byte offset.
// Time is O(n log n) in the number of records.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/utf8.h"
#include "gguf/gguf.h"
#include "quant/quant.h"

namespace ds4 {
namespace {

using ull = unsigned long long;  // for %llu

constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kMinKvBytes = 13;      // key length, value type, one byte
constexpr uint64_t kMinTensorBytes = 32;  // name length, n_dims, one dimension, type, offset

// A cursor over the mapping that cannot leave it.
struct Cursor {
    const uint8_t *base;
    uint64_t size, pos;

    uint64_t left() const { return size - pos; }
    const uint8_t *here() const { return base + pos; }

    template <class T> bool take(T *out) {
        if (left() < sizeof(T)) return false;
        std::memcpy(out, here(), sizeof(T));
        pos += sizeof(T);
        return true;
    }
};

struct Reader {
    ds4_gguf *g;
    ds4_error *err;
    Cursor in;
    std::vector<uint64_t> tensor_records;  // where each tensor info starts, for messages

    ds4_status header();
    ds4_status kv_records();
    ds4_status kv_record(uint64_t index);
    ds4_status value(ds4_gguf_kv *kv, const std::string &what);
    ds4_status skip_elements(uint32_t type, uint64_t count, int depth, const std::string &what);
    ds4_status alignment();
    ds4_status tensor_records_all();
    ds4_status tensor_record(uint64_t index);
    ds4_status tensor_places();
    ds4_status overlaps();
    template <class Record, class Name, class Offset>
    ds4_status index_names(const std::vector<Record> &records, std::vector<uint32_t> *sorted, const char *kind,
                           Name name, Offset offset);

    ds4_status ends_early(const std::string &what, uint64_t wanted, uint64_t at) {
        return fail_at(err, DS4_E_FORMAT, at,
                       "%s at offset %llu needs %llu bytes, but the file ends at byte %llu; the file looks truncated",
                       what.c_str(), ull{at}, ull{wanted}, ull{in.size});
    }
};

std::string quoted(std::string_view name) { return "\"" + escape_name(name) + "\""; }

// Position of the first byte that is not part of well-formed UTF-8, or npos.
size_t bad_utf8(std::string_view text) {
    for (size_t pos = 0; pos < text.size();) {
        const size_t step = utf8_step(text, pos);
        if (step == 0) return pos;
        pos += step;
    }
    return std::string_view::npos;
}

ds4_status Reader::header() {
    if (in.size < kHeaderBytes)
        return fail_at(err, DS4_E_FORMAT, 0, "the file has %llu bytes, a GGUF header alone has %llu; the file looks "
                       "truncated", ull{in.size}, ull{kHeaderBytes});
    if (std::memcmp(in.base, "GGUF", 4) != 0) {
        const std::string_view start(reinterpret_cast<const char *>(in.base), 8);
        const char *hint = "";
        if (start.substr(0, 8) == "version ") hint = "; it looks like a Git LFS pointer, not the file it stands for";
        if (start[0] == '<') hint = "; it looks like a web page";
        return fail_at(err, DS4_E_FORMAT, 0, "not a GGUF file: it starts with %s, not \"GGUF\"%s",
                       quoted(start.substr(0, 4)).c_str(), hint);
    }
    in.pos = 4;
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_kv = 0;
    in.take(&version);
    if (version == 0x03000000u)
        return fail_at(err, DS4_E_FORMAT, 4, "GGUF version 0x%08x at offset 4: this is a big-endian GGUF file; ds4 "
                       "reads little-endian ones", version);
    if (version != 3)
        return fail_at(err, DS4_E_FORMAT, 4, "GGUF version %u at offset 4; ds4 reads version 3", version);
    in.take(&n_tensors);
    in.take(&n_kv);
    if (n_tensors > in.left() / kMinTensorBytes || n_tensors > kMaxRecords)
        return fail_at(err, DS4_E_FORMAT, 8, "tensor count %llu at offset 8 is more than the file can hold (%llu bytes "
                       "are left, a tensor record has at least %llu, at most %llu records are read); the file looks truncated "
                       "or damaged", ull{n_tensors},
                       ull{in.left()}, ull{kMinTensorBytes}, ull{kMaxRecords});
    if (n_kv > in.left() / kMinKvBytes || n_kv > kMaxRecords)
        return fail_at(err, DS4_E_FORMAT, 16, "metadata count %llu at offset 16 is more than the file can hold (%llu "
                       "bytes are left, a record has at least %llu, at most %llu records are read); the file looks truncated or "
                       "damaged", ull{n_kv},
                       ull{in.left()}, ull{kMinKvBytes}, ull{kMaxRecords});
    g->info.file_bytes = in.size;
    g->info.version = version;
    g->info.n_kv = n_kv;
    g->info.n_tensors = n_tensors;
    return DS4_OK;
}

ds4_status Reader::skip_elements(uint32_t type, uint64_t count, int depth, const std::string &what) {
    const uint32_t size = kv_type_bytes(type);
    const uint64_t start = in.pos;
    if (size != 0) {
        if (count > in.left() / size)
            return fail_at(err, DS4_E_FORMAT, start, "%s: %llu elements of type %s at offset %llu need more than the "
                           "%llu bytes that are left; the file looks truncated", what.c_str(), ull{count},
                           kv_type_name(type), ull{start}, ull{in.left()});
        if (type == DS4_KV_BOOL) {
            for (uint64_t i = 0; i < count; ++i)
                if (in.here()[i] > 1)
                    return fail_at(err, DS4_E_FORMAT, start + i, "%s: bool value %u at offset %llu is neither 0 nor 1",
                                   what.c_str(), static_cast<unsigned>(in.here()[i]), ull{start + i});
        }
        in.pos += count * size;
        return DS4_OK;
    }
    if (type == DS4_KV_STRING) {
        if (count > in.left() / 8)
            return fail_at(err, DS4_E_FORMAT, start, "%s: %llu strings at offset %llu need more than the %llu bytes "
                           "that are left; the file looks truncated", what.c_str(), ull{count}, ull{start},
                           ull{in.left()});
        for (uint64_t i = 0; i < count; ++i) {
            const uint64_t at = in.pos;
            uint64_t n = 0;
            if (!in.take(&n)) return ends_early(what + ": string length", 8, at);
            if (n > in.left())
                return fail_at(err, DS4_E_FORMAT, at, "%s: string length %llu at offset %llu exceeds the %llu bytes "
                               "that are left; the file looks truncated", what.c_str(), ull{n}, ull{at},
                               ull{in.left()});
            in.pos += n;
        }
        return DS4_OK;
    }
    // An array of arrays: each element has its own type and count.
    if (depth >= kMaxArrayDepth)
        return fail_at(err, DS4_E_FORMAT, start, "%s: arrays nested more than %d deep at offset %llu", what.c_str(),
                       kMaxArrayDepth, ull{start});
    if (count > in.left() / 12)
        return fail_at(err, DS4_E_FORMAT, start, "%s: %llu arrays at offset %llu need more than the %llu bytes that "
                       "are left; the file looks truncated", what.c_str(), ull{count}, ull{start}, ull{in.left()});
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = in.pos;
        uint32_t inner = 0;
        uint64_t n = 0;
        if (!in.take(&inner) || !in.take(&n)) return ends_early(what + ": array header", 12, at);
        if (inner > DS4_KV_F64)
            return fail_at(err, DS4_E_FORMAT, at, "%s: unknown element type %u at offset %llu", what.c_str(), inner,
                           ull{at});
        if (const ds4_status s = skip_elements(inner, n, depth + 1, what)) return s;
    }
    return DS4_OK;
}

ds4_status Reader::value(ds4_gguf_kv *kv, const std::string &what) {
    const uint64_t type_at = in.pos;
    if (!in.take(&kv->type)) return ends_early(what + ": value type", 4, type_at);
    if (kv->type > DS4_KV_F64)
        return fail_at(err, DS4_E_FORMAT, type_at, "%s: unknown value type %u at offset %llu", what.c_str(), kv->type,
                       ull{type_at});
    kv->elem_type = kv->type;
    kv->count = 1;
    if (kv->type == DS4_KV_ARRAY) {
        const uint64_t at = in.pos;
        if (!in.take(&kv->elem_type) || !in.take(&kv->count)) return ends_early(what + ": array header", 12, at);
        if (kv->elem_type > DS4_KV_F64)
            return fail_at(err, DS4_E_FORMAT, at, "%s: unknown element type %u at offset %llu", what.c_str(),
                           kv->elem_type, ull{at});
    }
    const uint64_t start = in.pos;
    kv->data = in.here();
    if (const ds4_status s = skip_elements(kv->elem_type, kv->count, 1, what)) return s;
    kv->n_bytes = in.pos - start;
    return DS4_OK;
}

ds4_status Reader::kv_record(uint64_t index) {
    ds4_gguf_kv kv{};
    kv.offset = in.pos;
    const std::string which = "metadata record " + std::to_string(index);
    uint64_t key_len = 0;
    if (!in.take(&key_len)) return ends_early(which + ": key length", 8, kv.offset);
    if (key_len == 0 || key_len > kMaxKeyBytes)
        return fail_at(err, DS4_E_FORMAT, kv.offset, "%s: key length %llu at offset %llu; a key has 1 to %llu bytes",
                       which.c_str(), ull{key_len}, ull{kv.offset}, ull{kMaxKeyBytes});
    if (key_len > in.left()) return ends_early(which + ": key", key_len, in.pos);
    kv.key = reinterpret_cast<const char *>(in.here());
    kv.key_len = static_cast<size_t>(key_len);
    const size_t bad = bad_utf8(key_of(kv));
    if (bad != std::string_view::npos)
        return fail_at(err, DS4_E_FORMAT, in.pos + bad, "%s: key %s is not UTF-8 at offset %llu", which.c_str(),
                       quoted(key_of(kv)).c_str(), ull{in.pos + bad});
    in.pos += key_len;
    if (const ds4_status s = value(&kv, "metadata key " + quoted(key_of(kv)))) return s;
    g->kvs.push_back(kv);
    return DS4_OK;
}

ds4_status Reader::kv_records() {
    g->kvs.reserve(static_cast<size_t>(g->info.n_kv));
    for (uint64_t i = 0; i < g->info.n_kv; ++i)
        if (const ds4_status s = kv_record(i)) return s;
    return index_names(g->kvs, &g->kvs_by_key, "metadata key", key_of,
                       [](const ds4_gguf_kv &kv, uint32_t) { return kv.offset; });
}

// Sort by name and refuse duplicates: two readers could disagree on which one counts.
template <class Record, class Name, class Offset>
ds4_status Reader::index_names(const std::vector<Record> &records, std::vector<uint32_t> *sorted, const char *kind,
                               Name name, Offset offset) {
    sorted->resize(records.size());
    std::iota(sorted->begin(), sorted->end(), 0u);
    std::sort(sorted->begin(), sorted->end(), [&](uint32_t a, uint32_t b) {
        const int order = name(records[a]).compare(name(records[b]));
        return order != 0 ? order < 0 : a < b;
    });
    for (size_t i = 1; i < sorted->size(); ++i) {
        const uint32_t a = (*sorted)[i - 1], b = (*sorted)[i];
        if (name(records[a]) == name(records[b]))
            return fail_at(err, DS4_E_FORMAT, offset(records[b], b), "duplicate %s %s at offsets %llu and %llu", kind,
                           quoted(name(records[a])).c_str(), ull{offset(records[a], a)}, ull{offset(records[b], b)});
    }
    return DS4_OK;
}

// Read after all metadata, whatever its place among the keys.
ds4_status Reader::alignment() {
    g->info.alignment = kDefaultAlignment;
    const ds4_gguf_kv *kv = g->find_kv("general.alignment");
    if (!kv) return DS4_OK;
    if (kv->type != DS4_KV_U32)
        return fail_at(err, DS4_E_FORMAT, kv->offset, "general.alignment at offset %llu has type %s; it must be a u32",
                       ull{kv->offset}, kv_type_name(kv->type));
    uint64_t align = 0;
    read_u64(*kv, 0, &align);
    if (align < kMinAlignment || align > kMaxAlignment || (align & (align - 1)) != 0)
        return fail_at(err, DS4_E_FORMAT, kv->offset, "general.alignment %llu at offset %llu; it must be a power of "
                       "two from %llu to %llu", ull{align}, ull{kv->offset}, ull{kMinAlignment}, ull{kMaxAlignment});
    g->info.alignment = align;
    return DS4_OK;
}

ds4_status Reader::tensor_record(uint64_t index) {
    ds4_gguf_tensor t{};
    const uint64_t record = in.pos;
    const std::string which = "tensor record " + std::to_string(index);
    uint64_t name_len = 0;
    if (!in.take(&name_len)) return ends_early(which + ": name length", 8, record);
    if (name_len == 0 || name_len > kMaxTensorNameBytes)
        return fail_at(err, DS4_E_FORMAT, record, "%s: name length %llu at offset %llu; a name has 1 to %llu bytes",
                       which.c_str(), ull{name_len}, ull{record}, ull{kMaxTensorNameBytes});
    if (name_len > in.left()) return ends_early(which + ": name", name_len, in.pos);
    t.name = reinterpret_cast<const char *>(in.here());
    t.name_len = static_cast<size_t>(name_len);
    const size_t bad = bad_utf8(name_of(t));
    if (bad != std::string_view::npos)
        return fail_at(err, DS4_E_FORMAT, in.pos + bad, "%s: name %s is not UTF-8 at offset %llu", which.c_str(),
                       quoted(name_of(t)).c_str(), ull{in.pos + bad});
    in.pos += name_len;

    const std::string what = "tensor " + quoted(name_of(t));
    const uint64_t dims_at = in.pos;
    if (!in.take(&t.n_dims)) return ends_early(what + ": number of dimensions", 4, dims_at);
    if (t.n_dims < 1 || t.n_dims > 4)
        return fail_at(err, DS4_E_FORMAT, dims_at, "%s: %u dimensions at offset %llu; a tensor has 1 to 4",
                       what.c_str(), t.n_dims, ull{dims_at});
    uint64_t n_values = 1;
    for (uint32_t d = 0; d < 4; ++d) {
        t.ne[d] = 1;
        if (d >= t.n_dims) continue;
        const uint64_t at = in.pos;
        if (!in.take(&t.ne[d])) return ends_early(what + ": dimension", 8, at);
        if (t.ne[d] < 1 || t.ne[d] > kMaxDimension)
            return fail_at(err, DS4_E_FORMAT, at, "%s: dimension %u is %llu at offset %llu; it must be 1 to %llu",
                           what.c_str(), d, ull{t.ne[d]}, ull{at}, ull{kMaxDimension});
        if (!mul(n_values, t.ne[d], &n_values))
            return fail_at(err, DS4_E_FORMAT, at, "%s: the product of its dimensions up to number %u (%llu, offset "
                           "%llu) exceeds 64 bits", what.c_str(), d, ull{t.ne[d]}, ull{at});
    }
    const uint64_t type_at = in.pos;
    uint64_t relative = 0;
    if (!in.take(&t.type) || !in.take(&relative)) return ends_early(what + ": type and offset", 12, type_at);
    const TypeInfo *type = type_info(t.type);
    if (!type)
        return fail_at(err, DS4_E_FORMAT, type_at, "%s: %s tensor type %u at offset %llu", what.c_str(),
                       is_removed_type(t.type) ? "removed" : "unknown", t.type, ull{type_at});
    if (t.ne[0] % type->block != 0)
        return fail_at(err, DS4_E_FORMAT, dims_at, "%s: rows of %llu values are not whole %s blocks of %u (offset "
                       "%llu)", what.c_str(), ull{t.ne[0]}, type->name, type->block, ull{dims_at});
    if (!mul(n_values / type->block, type->bytes, &t.n_bytes))
        return fail_at(err, DS4_E_FORMAT, dims_at, "%s: the size of %llu %s values exceeds 64 bits (offset %llu)",
                       what.c_str(), ull{n_values}, type->name, ull{dims_at});
    if (relative % g->info.alignment != 0)
        return fail_at(err, DS4_E_FORMAT, type_at + 4, "%s: data offset %llu (record at offset %llu) is not a multiple "
                       "of the alignment %llu", what.c_str(), ull{relative}, ull{record}, ull{g->info.alignment});
    t.offset = relative;  // becomes absolute in tensor_places
    g->tensors.push_back(t);
    tensor_records.push_back(record);
    return DS4_OK;
}

ds4_status Reader::tensor_records_all() {
    const uint64_t n = g->info.n_tensors;
    if (n > in.left() / kMinTensorBytes)
        return fail_at(err, DS4_E_FORMAT, in.pos, "%llu tensor records at offset %llu need more than the %llu bytes "
                       "that are left; the file looks truncated", ull{n}, ull{in.pos}, ull{in.left()});
    g->tensors.reserve(static_cast<size_t>(n));
    tensor_records.reserve(static_cast<size_t>(n));
    for (uint64_t i = 0; i < n; ++i)
        if (const ds4_status s = tensor_record(i)) return s;
    return index_names(g->tensors, &g->tensors_by_name, "tensor name", name_of,
                       [this](const ds4_gguf_tensor &, uint32_t i) { return tensor_records[i]; });
}

// Turn relative offsets into places in the mapping. A file whose last tensors are missing is the usual sight after
// an interrupted download, so the message says where it should end.
ds4_status Reader::tensor_places() {
    uint64_t data = 0;
    if (!round_up(in.pos, g->info.alignment, &data)) data = UINT64_MAX;
    g->info.data_offset = data;
    for (size_t i = 0; i < g->tensors.size(); ++i) {
        ds4_gguf_tensor &t = g->tensors[i];
        const uint64_t room = data <= in.size ? in.size - data : 0;
        if (t.offset <= room && t.n_bytes <= room - t.offset) {
            t.offset += data;
            t.data = in.base + t.offset;
            continue;
        }
        uint64_t end = 0;
        const std::string what = "tensor " + quoted(name_of(t));
        if (!add(t.offset, data, &end) || !add(end, t.n_bytes, &end))
            return fail_at(err, DS4_E_FORMAT, tensor_records[i], "%s: data offset %llu (record at offset %llu) with "
                           "%llu bytes ends beyond any file; this one has %llu bytes", what.c_str(), ull{t.offset},
                           ull{tensor_records[i]}, ull{t.n_bytes}, ull{in.size});
        return fail_at(err, DS4_E_FORMAT, tensor_records[i], "%s: data offset %llu (record at offset %llu) with %llu "
                       "bytes ends at byte %llu, but the file has %llu bytes; the file looks truncated", what.c_str(),
                       ull{t.offset}, ull{tensor_records[i]}, ull{t.n_bytes}, ull{end}, ull{in.size});
    }
    return DS4_OK;
}

// Two names over the same bytes are corruption, or an attack on code that writes in place.
ds4_status Reader::overlaps() {
    std::vector<uint32_t> order(g->tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
        const uint64_t x = g->tensors[a].offset, y = g->tensors[b].offset;
        return x != y ? x < y : a < b;
    });
    for (size_t i = 1; i < order.size(); ++i) {
        const ds4_gguf_tensor &a = g->tensors[order[i - 1]], &b = g->tensors[order[i]];
        if (b.offset - a.offset < a.n_bytes)
            return fail_at(err, DS4_E_FORMAT, tensor_records[order[i]], "tensors %s and %s overlap: the first lies at "
                           "offset %llu with %llu bytes, the second at offset %llu", quoted(name_of(a)).c_str(),
                           quoted(name_of(b)).c_str(), ull{a.offset}, ull{a.n_bytes}, ull{b.offset});
    }
    return DS4_OK;
}

}  // namespace

uint32_t kv_type_bytes(uint32_t type) {
    switch (type) {
        case DS4_KV_U8:
        case DS4_KV_I8:
        case DS4_KV_BOOL: return 1;
        case DS4_KV_U16:
        case DS4_KV_I16: return 2;
        case DS4_KV_U32:
        case DS4_KV_I32:
        case DS4_KV_F32: return 4;
        case DS4_KV_U64:
        case DS4_KV_I64:
        case DS4_KV_F64: return 8;
        default: return 0;
    }
}

const char *kv_type_name(uint32_t type) {
    static constexpr const char *names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                            "bool", "string", "array", "u64", "i64", "f64"};
    return type <= DS4_KV_F64 ? names[type] : "unknown";
}

ds4_status read_gguf(const char *path, ds4_gguf *g, ds4_error *err) {
    if (const ds4_status s = g->file.open(path, err)) return s;
    Reader r{g, err, Cursor{g->file.data(), g->file.size(), 0}, {}};
    if (const ds4_status s = r.header()) return s;
    if (const ds4_status s = r.kv_records()) return s;
    if (const ds4_status s = r.alignment()) return s;
    if (const ds4_status s = r.tensor_records_all()) return s;
    if (const ds4_status s = r.tensor_places()) return s;
    return r.overlaps();
}

}  // namespace ds4
