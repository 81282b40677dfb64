#include "model/expert_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "quant/quant.h"

namespace ds4 {

namespace {

constexpr uint64_t kReadAtOnce = uint64_t{64} << 20;
constexpr unsigned kDepth = 16;

uint64_t rounded(uint64_t n) { return (n + stream::kAlignment - 1) / stream::kAlignment * stream::kAlignment; }

}  // namespace

stream::ReaderOptions reader_options(const ds4_model_options &o) {
    stream::ReaderOptions out;
    if (o.read_io == DS4_READ_URING) out.io = stream::Io::uring;
    if (o.read_io == DS4_READ_THREADS) out.io = stream::Io::threads;
    out.depth = o.read_depth ? o.read_depth : kDepth;
    if (o.read_piece) out.piece_bytes = o.read_piece;
    return out;
}

bool is_expert_tensor(std::string_view name) {
    for (const char *end : {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_exps.weight"}) {
        const std::string_view e(end);
        if (name.size() >= e.size() && name.substr(name.size() - e.size()) == e) return true;
    }
    return false;
}

ds4_status ResidentWeights::plan(const ds4_gguf &g, ds4_error *err) {
    std::vector<Range> kept;
    for (const ds4_gguf_tensor &t : g.tensors)
        if (!is_expert_tensor(name_of(t))) kept.push_back({t.offset, t.n_bytes, 0});
    std::sort(kept.begin(), kept.end(), [](const Range &a, const Range &b) { return a.offset < b.offset; });
    uint64_t at = 0;
    for (const Range &r : kept) {
        if (!ranges_.empty() && r.offset - (ranges_.back().offset + ranges_.back().bytes) < stream::kAlignment)
            ranges_.back().bytes = r.offset + r.bytes - ranges_.back().offset;
        else
            ranges_.push_back(r);
    }
    for (Range &r : ranges_) {
        r.at = at + r.offset % stream::kAlignment;
        at = rounded(r.at + r.bytes);
        bytes_ += r.bytes;
    }
    // A multiple of the alignment begins somewhere in the first page: memory of less than a huge page is not aligned.
    mapped_bytes_ = at + stream::kAlignment;
    if (!memory_.allocate(mapped_bytes_))
        return fail(err, DS4_E_MEMORY, "out of memory: %llu bytes for the weights that are no routed experts were refused",
                    static_cast<unsigned long long>(at));
    const uint64_t first = rounded(reinterpret_cast<uintptr_t>(memory_.data())) - reinterpret_cast<uintptr_t>(memory_.data());
    for (Range &r : ranges_) r.at += first;
    return DS4_OK;
}

ds4_status ResidentWeights::read(stream::Reader &reader, const stream::SourceFile &file, ds4_error *err) {
    for (const Range &r : ranges_) {
        // Long ranges are read in parts, which the reader cuts into pieces that are under way together.
        for (uint64_t done = 0; done < r.bytes;) {
            const uint64_t begin = r.offset + done;
            const uint64_t end = std::min(r.offset + r.bytes, (begin + kReadAtOnce) / stream::kAlignment * stream::kAlignment);
            stream::Read part;
            part.file = &file;
            part.offset = begin;
            part.bytes = end - begin;
            part.into = memory_.data() + r.at + done;
            reader.read(part);
            if (!part.ok()) return stream::describe(part, "the weights that stay in memory", err);
            done += part.bytes;
        }
    }
    return DS4_OK;
}

const uint8_t *ResidentWeights::find(const ds4_gguf_tensor &t) const {
    auto after = std::upper_bound(ranges_.begin(), ranges_.end(), t.offset,
                                  [](uint64_t offset, const Range &r) { return offset < r.offset; });
    if (after == ranges_.begin()) return nullptr;
    const Range &r = *--after;
    return t.offset + t.n_bytes <= r.offset + r.bytes ? memory_.data() + r.at + (t.offset - r.offset) : nullptr;
}

ds4_status ExpertStream::add_file(const char *path, const ds4_gguf &g, bool direct, ds4_error *err) {
    auto f = std::make_unique<File>();
    f->gguf = &g;
    const ds4_status st = f->file.open(path, &g.file.identity(), direct, err);
    if (st != DS4_OK) return st;
    files_.push_back(std::move(f));
    return files_.back()->resident.plan(g, err);
}

const ExpertStream::File &ExpertStream::file_of(const ds4_gguf &g) const {
    return **std::find_if(files_.begin(), files_.end(), [&](const auto &f) { return f->gguf == &g; });
}

const ResidentWeights &ExpertStream::resident(const ds4_gguf &g) const { return file_of(g).resident; }

uint32_t ExpertStream::add_layer(const ds4_gguf &g, const ExpertLayout &layout, const std::string &prefix, std::string name) {
    stream::LayerSource l;
    l.name = std::move(name);
    l.file = &file_of(g).file;
    const ExpertRecord *r = layout.find(prefix);
    for (int i = 0; i < kExpertParts; i++) {
        const ds4_gguf_tensor *t =
            g.find_tensor(r ? record_name(prefix) : prefix + "ffn_" + expert_part_name(i) + "_exps.weight");
        if (r) {
            l.n_expert = r->n_expert;
            l.offset[i] = t->offset + r->part[i].offset;
            l.bytes[i] = r->part[i].bytes();
            l.stride[i] = r->bytes;
        } else {
            uint64_t row = 0;
            row_bytes(t->type, t->ne[0], &row);
            l.n_expert = static_cast<uint32_t>(t->ne[2]);
            l.offset[i] = t->offset;
            l.bytes[i] = l.stride[i] = row * t->ne[1];
        }
    }
    layers_.push_back(std::move(l));
    return static_cast<uint32_t>(layers_.size() - 1);
}

ds4_status ExpertStream::start(const ds4_model_options &o, ds4_error *err) {
    if (o.read_io < DS4_READ_AUTO || o.read_io > DS4_READ_THREADS)
        return fail(err, DS4_E_ARGUMENT, "read_io is %d; known are 0 (automatic), 1 (io_uring) and 2 (threads)", o.read_io);
    if (!(o.expert_half_life >= 0) || !std::isfinite(o.expert_half_life))
        return fail(err, DS4_E_ARGUMENT, "expert_half_life is %g, it must be a number of tokens", o.expert_half_life);
    guesses_ = !o.expert_no_guesses;
    stream::CacheOptions co;
    co.bytes = o.expert_cache_bytes;
    if (o.expert_half_life > 0) co.heat.near = o.expert_half_life;
    std::unique_ptr<stream::Reader> reader;
    ds4_status st = stream::Reader::create(reader_options(o), &reader, err);
    if (st == DS4_OK) st = stream::ExpertCache::create(layers_, std::move(reader), co, &cache_, err);
    for (const auto &f : files_)
        if (st == DS4_OK) st = f->resident.read(cache_->reader(), f->file, err);
    return st;
}

std::string ExpertStream::notices() const {
    std::string text;
    for (const auto &f : files_)
        if (!f->file.notice().empty()) text += (text.empty() ? "" : "\n") + f->file.notice();
    return text;
}

uint64_t ExpertStream::resident_bytes() const {
    uint64_t n = 0;
    for (const auto &f : files_) n += f->resident.bytes();
    return n;
}

}  // namespace ds4
