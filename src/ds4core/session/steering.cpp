// Setting the steering, and telling states of different steering apart.
#include "session/steering.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "session/session.h"

namespace ds4 {

SessionSteering::~SessionSteering() { ops_->buffer_free(buffer); }

void SteeringHistory::note(uint32_t pos, uint64_t digest) {
    if ((all_.empty() ? 0 : all_.back().digest) != digest) all_.push_back({pos, digest});
}

void SteeringHistory::cut(uint32_t pos) {
    std::erase_if(all_, [pos](const SteeredStretch &x) { return x.from >= pos; });
}

uint64_t SteeringHistory::identity(uint32_t n) const {
    const auto end = std::find_if(all_.begin(), all_.end(), [n](const SteeredStretch &x) { return x.from >= n; });
    if (end == all_.begin()) return 0;
    if (end - all_.begin() == 1 && all_[0].from == 0) return all_[0].digest;
    uint64_t h = kHashSeed;
    for (auto x = all_.begin(); x != end; ++x) h = hash_mix(hash_mix(h, x->from), x->digest);
    return h ? h : 1;
}

uint32_t SteeringHistory::uniform(uint64_t digest, uint32_t n) const {
    uint64_t first = 0;
    for (const SteeredStretch &x : all_) {
        if (x.from >= n) break;
        if (x.from == 0)
            first = x.digest;
        else
            return first == digest ? x.from : 0;
    }
    return first == digest ? n : 0;
}

namespace {

constexpr float kMostScale = 100.0f;

ds4_status check_direction(const ds4_shape &c, const ds4_steering &d, size_t i, ds4_error *err) {
    if (d.struct_size != sizeof(ds4_steering))
        return fail(err, DS4_E_ARGUMENT, "direction %zu: struct_size is %u, not %zu", i, d.struct_size,
                    sizeof(ds4_steering));
    if (!d.values || d.n_layer != c.n_layer || d.n_embd != c.n_embd)
        return fail(err, DS4_E_ARGUMENT, "direction %zu has %u layers of %u values, the model has %u of %u", i,
                    d.values ? d.n_layer : 0, d.n_embd, c.n_layer, c.n_embd);
    for (float scale : {d.ffn, d.attn})
        if (!(std::fabs(scale) <= kMostScale))
            return fail(err, DS4_E_ARGUMENT, "direction %zu: a scale is %g, it must be in -%g..%g", i,
                        static_cast<double>(scale), static_cast<double>(kMostScale), static_cast<double>(kMostScale));
    for (uint64_t v = 0; v < uint64_t{c.n_layer} * c.n_embd; v++)
        if (!(std::fabs(d.values[v]) <= 1.001f))
            return fail(err, DS4_E_ARGUMENT, "direction %zu: value %llu of layer %llu is %g; rows have length 1, or 0", i,
                        static_cast<unsigned long long>(v % c.n_embd), static_cast<unsigned long long>(v / c.n_embd),
                        static_cast<double>(d.values[v]));
    return DS4_OK;
}

}  // namespace

ds4_status set_steering(ds4_session &s, const ds4_steering *directions, size_t n, ds4_error *err) {
    const ds4_shape &c = s.model->shape;
    const ds4_backend_ops *ops = s.model->ops;
    if (n > DS4_MAX_STEERING)
        return fail(err, DS4_E_ARGUMENT, "%zu directions; at most %d act at a time", n, int{DS4_MAX_STEERING});
    std::vector<const ds4_steering *> used;  // those that change something
    std::vector<std::vector<bool>> present;
    for (size_t i = 0; i < n; i++) {
        const ds4_steering &d = directions[i];
        const ds4_status st = check_direction(c, d, i, err);
        if (st != DS4_OK) return st;
        if (d.ffn == 0.0f && d.attn == 0.0f) continue;
        std::vector<bool> layers(c.n_layer);
        for (uint32_t l = 0; l < c.n_layer; l++) {
            const float *row = d.values + uint64_t{l} * c.n_embd;
            layers[l] = std::any_of(row, row + c.n_embd, [](float v) { return v != 0.0f; });
        }
        if (std::find(layers.begin(), layers.end(), true) == layers.end()) continue;
        used.push_back(&d);
        present.push_back(std::move(layers));
    }
    std::shared_ptr<SessionSteering> made;
    if (!used.empty()) {
        const uint64_t one = uint64_t{c.n_layer} * c.n_embd * 4;
        made = std::make_shared<SessionSteering>(ops);
        made->bytes = one * used.size();
        ds4_status st = ops->buffer_alloc(s.model->device, made->bytes, &made->buffer, err);
        if (st != DS4_OK) return st;
        uint64_t h = hash_mix(kHashSeed, used.size());
        for (size_t i = 0; i < used.size(); i++) {
            const ds4_steering &d = *used[i];
            const ds4_ref place = ref(made->buffer, i * one);
            ops->upload(s.queue, place, d.values, one);
            made->plan.directions.push_back({place, std::move(present[i]), d.ffn, d.attn});
            const float scales[2] = {d.ffn + 0.0f, d.attn + 0.0f};  // one zero
            h = hash_bytes(scales, sizeof(scales), hash_bytes(d.values, one, h));
        }
        made->digest = h ? h : 1;
        st = ops->queue_wait(s.queue, err);
        if (st != DS4_OK) return st;
    }
    s.ahead.drop();  // it was computed with what was before
    s.steering = std::move(made);
    s.graph->steer(s.steering ? &s.steering->plan : nullptr);
    return DS4_OK;
}

ds4_status accept_steering(const ds4_session &s, uint64_t identity, uint32_t n, const char *what,
                           SteeringHistory *history, ds4_error *err) {
    history->make_uniform(s.steering_digest());
    if (history->identity(n) == identity) return DS4_OK;
    if (n <= s.tokens.size() && s.steered.identity(n) == identity) {
        *history = s.steered;
        return DS4_OK;
    }
    const char *there = identity == 0 ? "without steering" : "with steering";
    const char *here = !s.steering ? "has none" : identity == 0 ? "steers" : "steers with other directions or scales";
    return fail(err, DS4_E_SNAPSHOT, "%s was made %s, and this session %s", what, there, here);
}

}  // namespace ds4
