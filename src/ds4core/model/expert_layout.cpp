// Reading the expert-adjacent layout: as strictly as the tensors that it replaces.
#include "model/expert_layout.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "quant/quant.h"

namespace ds4 {

namespace {

constexpr uint64_t kPartAlignment = 64, kRecordAlignment = 4096;  // powers of two
const std::string kLayoutKey = "deepseek4.expert_layout";

std::string part_key(int part, const char *what) { return kLayoutKey + "." + expert_part_name(part) + what; }

uint64_t aligned(uint64_t n, uint64_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

std::string expert_name(const std::string &prefix, int part) {
    return prefix + "ffn_" + expert_part_name(part) + "_exps.weight";
}

// The prefix of the block when `name` is that of its stacked gate, else "".
std::string prefix_of_gate(const std::string &name) {
    const size_t n = name.find("ffn_gate_exps.weight");
    return n == std::string::npos ? "" : name.substr(0, n);
}

// An array of exactly n whole numbers.
bool read_array(const ds4_gguf &g, const std::string &key, size_t n, std::vector<uint64_t> *values, Findings &out) {
    const ds4_gguf_kv *kv = g.find_kv(key);
    values->resize(n);
    bool ok = kv && kv->type == DS4_KV_ARRAY && kv->count == n;
    for (size_t i = 0; ok && i < n; i++) ok = read_u64(*kv, i, &(*values)[i]);
    if (!ok)
        out.add("metadata " + key + (kv ? " is not an array of " + std::to_string(n) + " numbers" : " is missing"));
    return ok;
}

class Reader {
public:
    Reader(const ds4_gguf &g, const std::vector<TensorSpec> &specs, Findings &out) : g_(g), out_(out) {
        for (const TensorSpec &s : specs) {
            if (s.kind != TensorKind::expert) continue;
            const std::string prefix = prefix_of_gate(s.name);
            if (prefix.empty()) continue;
            layout_.blocks.push_back(prefix);
            dims_.push_back({s.ne[0], s.ne[1], s.ne[2]});
        }
    }

    // False when the experts lie in the standard way (or the file does not say how).
    bool adjacent() {
        std::string_view value = "standard";
        if (g_.find_kv(kLayoutKey) && !g_.kv_string(kLayoutKey, &value)) value = "no text";
        if (value == "adjacent") return true;
        if (value != "standard")
            out_.add("metadata " + kLayoutKey + " is '" + escape_name(value) + "', ds4 knows standard and adjacent");
        for (const std::string &p : layout_.blocks)
            if (g_.find_tensor(record_name(p)))
                out_.add("tensor " + record_name(p) + " needs metadata " + kLayoutKey + " to be adjacent");
        return false;
    }

    ExpertLayout read() {
        if (g_.info.alignment % kRecordAlignment)
            out_.add("general.alignment is " + std::to_string(g_.info.alignment) + ", adjacent experts need " +
                     std::to_string(kRecordAlignment));
        for (const std::string &p : layout_.blocks)
            for (int i = 0; i < kExpertParts; i++)
                if (g_.find_tensor(expert_name(p, i)))
                    out_.add("tensor " + expert_name(p, i) + " stands beside records of its block");
        read_types();
        read_standard_form();
        return std::move(layout_);
    }

private:
    struct Dims {
        uint64_t n_embd, n_ff, n_expert;
    };

    void read_types() {
        std::vector<uint64_t> types[kExpertParts];
        bool ok = true;
        for (int i = 0; i < kExpertParts; i++)
            ok = read_array(g_, part_key(i, "_type"), layout_.blocks.size(), &types[i], out_) && ok;
        if (!ok) return;
        for (size_t b = 0; b < layout_.blocks.size(); b++) {
            ExpertRecord r{};
            uint64_t end = 0;
            bool sound = true;
            for (int i = 0; i < kExpertParts; i++) {
                ExpertPart &part = r.part[i];
                part.type = static_cast<uint32_t>(std::min<uint64_t>(types[i][b], UINT32_MAX));
                part.n_in = static_cast<uint32_t>(i == 2 ? dims_[b].n_ff : dims_[b].n_embd);
                part.n_out = static_cast<uint32_t>(i == 2 ? dims_[b].n_embd : dims_[b].n_ff);
                const TypeInfo *info = type_info(part.type);
                if (!info || !info->computable || !row_bytes(part.type, part.n_in, &part.row_stride)) {
                    out_.add("metadata " + part_key(i, "_type") + "[" + std::to_string(b) + "] is " +
                             (info ? info->name : "type " + std::to_string(types[i][b])) + ", wanted " +
                             wanted_types(TensorKind::expert));
                    sound = false;
                }
                part.offset = aligned(end, kPartAlignment);
                end = part.offset + part.bytes();
            }
            if (sound && r.part[0].type != r.part[1].type)
                out_.add("metadata " + part_key(1, "_type") + "[" + std::to_string(b) + "] is " +
                         type_info(r.part[1].type)->name + " and the gate is " + type_info(r.part[0].type)->name +
                         ": they must share a type");
            r.bytes = aligned(end, kRecordAlignment);
            r.n_expert = static_cast<uint32_t>(dims_[b].n_expert);
            if (sound) layout_.records.emplace(layout_.blocks[b], r);
        }
    }

    // What the way back needs. The engine itself uses it for the fingerprint only.
    void read_standard_form() {
        const std::string alignment = kLayoutKey + ".standard_alignment", order = kLayoutKey + ".standard_order";
        const uint64_t a_max = kMaxAlignment;
        uint64_t &a = layout_.standard_alignment;
        if (!g_.kv_u64(alignment, &a))
            out_.add("metadata " + alignment + " is missing or no number");
        else if (a && (a & (a - 1) || a < kMinAlignment || a > a_max))
            out_.add("metadata " + alignment + " is " + std::to_string(a) + ", no alignment");
        if (!read_array(g_, order, kExpertParts * layout_.blocks.size(), &layout_.standard_order, out_)) return;
        std::vector<uint64_t> sorted = layout_.standard_order;
        std::sort(sorted.begin(), sorted.end());
        const uint64_t total = g_.info.n_tensors + 2 * layout_.blocks.size();
        if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() || (!sorted.empty() && sorted.back() >= total))
            out_.add("metadata " + order + " does not name " + std::to_string(sorted.size()) + " places among " +
                     std::to_string(total));
    }

    const ds4_gguf &g_;
    Findings &out_;
    ExpertLayout layout_;
    std::vector<Dims> dims_;
};

}  // namespace

const char *expert_part_name(int part) {
    static const char *const names[kExpertParts] = {"gate", "up", "down"};
    return names[part];
}

std::string record_name(const std::string &prefix) { return prefix + "ffn_exps.weight"; }

bool is_layout_key(std::string_view key) {
    return key.substr(0, kLayoutKey.size()) == kLayoutKey && (key.size() == kLayoutKey.size() || key[kLayoutKey.size()] == '.');
}

const ExpertRecord *ExpertLayout::find(std::string_view prefix) const {
    const auto at = records.find(prefix);
    return at == records.end() ? nullptr : &at->second;
}

ExpertLayout read_expert_layout(const ds4_gguf &g, std::vector<TensorSpec> *specs, Findings &out) {
    Reader reader(g, *specs, out);
    if (!reader.adjacent()) return {};
    ExpertLayout layout = reader.read();
    std::vector<TensorSpec> changed;
    for (TensorSpec &s : *specs) {
        if (s.kind != TensorKind::expert) {
            changed.push_back(std::move(s));
            continue;
        }
        const std::string prefix = prefix_of_gate(s.name);
        const ExpertRecord *r = prefix.empty() ? nullptr : layout.find(prefix);
        if (r) changed.push_back({record_name(prefix), TensorKind::record, {r->bytes, r->n_expert, 1}});
    }
    *specs = std::move(changed);
    return layout;
}

std::vector<DirectoryEntry> standard_directory(const ds4_gguf &g, const ExpertLayout &layout) {
    std::map<uint64_t, DirectoryEntry> placed;
    std::map<std::string, bool, std::less<>> records;
    size_t at = 0;
    for (const std::string &p : layout.blocks) {
        const ExpertRecord *r = layout.find(p);
        const ds4_gguf_tensor *t = g.find_tensor(record_name(p));
        if (!r || !t) continue;
        records.emplace(record_name(p), true);
        for (int i = 0; i < kExpertParts; i++) {
            const ExpertPart &part = r->part[i];
            placed.emplace(layout.standard_order[at++],
                           DirectoryEntry{expert_name(p, i), {part.n_in, part.n_out, r->n_expert, 1}, part.type,
                                          t->data + part.offset, part.bytes()});
        }
    }
    std::vector<DirectoryEntry> out;
    auto next = placed.begin();
    auto put_placed = [&] {
        for (; next != placed.end() && next->first == out.size(); ++next) out.push_back(next->second);
    };
    for (const ds4_gguf_tensor &t : g.tensors) {
        put_placed();
        if (records.count(name_of(t))) continue;
        out.push_back({std::string(name_of(t)), {t.ne[0], t.ne[1], t.ne[2], t.ne[3]}, t.type, t.data, t.n_bytes});
    }
    put_placed();
    return out;
}

}  // namespace ds4
