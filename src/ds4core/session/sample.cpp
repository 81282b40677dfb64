// Drawing a token from logits. The arithmetic is fixed (docs/python.md, sampling), so that a seed gives the same tokens
// on every backend with equal logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.h"
#include "session/sample.h"

namespace ds4 {

namespace {

// xorshift64*; 24 bits a draw, so that the uniform number is exact in float32.
float uniform(uint64_t *state) {
    uint64_t x = *state ? *state : 0x9E3779B97F4A7C15ull;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return static_cast<float>((x * 0x2545F4914F6CDD1Dull) >> 40) / 16777216.0f;
}

ds4_status check(const ds4_sampling &p, ds4_error *err) {
    if (!std::isfinite(p.temperature)) return fail(err, DS4_E_ARGUMENT, "temperature is not finite");
    if (p.top_k > 1024) return fail(err, DS4_E_ARGUMENT, "top_k is %u, at most 1024", p.top_k);
    if (!(p.top_p > 0 && p.top_p <= 1))
        return fail(err, DS4_E_ARGUMENT, "top_p is %g, it must be above 0 and at most 1", static_cast<double>(p.top_p));
    if (!(p.min_p >= 0 && p.min_p <= 1))
        return fail(err, DS4_E_ARGUMENT, "min_p is %g, it must be in 0..1", static_cast<double>(p.min_p));
    return DS4_OK;
}

struct Candidate {
    int32_t id;
    float logit;
    float p;  // relative to the best token, whose p is 1
};

// By logit, not by p: exp rounds different logits to equal numbers.
bool better(const Candidate &a, const Candidate &b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

double mass(const std::vector<Candidate> &c) {
    double total = 0;
    for (const Candidate &x : c) total += x.p;
    return total;
}

// The best top_k, and of these the fewest whose share reaches top_p. Sorts no more than it needs: the vocabulary is
// large and the nucleus small.
void cut(std::vector<Candidate> &c, uint32_t top_k, float top_p) {
    size_t sorted = top_k ? std::min<size_t>(top_k, c.size()) : std::min<size_t>(64, c.size());
    std::partial_sort(c.begin(), c.begin() + static_cast<ptrdiff_t>(sorted), c.end(), better);
    if (top_k) c.resize(sorted);
    if (top_p >= 1) return;
    const double wanted = top_p * mass(c);
    double sum = 0;
    for (size_t keep = 0; keep < c.size();) {
        if (keep == sorted) {
            const size_t more = std::min(4 * sorted, c.size());
            std::partial_sort(c.begin() + static_cast<ptrdiff_t>(sorted), c.begin() + static_cast<ptrdiff_t>(more), c.end(),
                              better);
            sorted = more;
        }
        sum += c[keep++].p;
        if (sum < wanted) continue;
        c.resize(keep);
        return;
    }
}

int32_t draw(const std::vector<Candidate> &c, uint64_t *rng) {
    double at = uniform(rng) * mass(c);
    for (const Candidate &x : c) {
        at -= x.p;
        if (at < 0) return x.id;
    }
    return c.back().id;
}

}  // namespace

ds4_status sample(const float *logits, size_t n, const ds4_sampling &p, uint64_t *rng, int32_t *token, float *logprob,
                  ds4_error *err) {
    ds4_status st = check(p, err);
    if (st != DS4_OK) return st;
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (std::isfinite(logits[i]) && (best == n || logits[i] > logits[best])) best = i;
    if (best == n) return fail(err, DS4_E_DATA, "no logit of %zu is finite: nothing can be sampled", n);
    const float top = logits[best];
    *token = static_cast<int32_t>(best);
    if (p.temperature > 0) {
        std::vector<Candidate> c;
        for (size_t i = 0; i < n; i++) {
            if (!std::isfinite(logits[i])) continue;
            float q = std::exp((logits[i] - top) / p.temperature);
            if (q >= p.min_p && q > 0) c.push_back({static_cast<int32_t>(i), logits[i], q});
        }
        if (p.top_p < 1 || p.top_k > 0) cut(c, p.top_k, p.top_p);
        *token = draw(c, rng);
    }
    if (logprob) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            if (std::isfinite(logits[i])) sum += std::exp(static_cast<double>(logits[i]) - top);
        *logprob = static_cast<float>(static_cast<double>(logits[*token]) - top - std::log(sum));
    }
    return DS4_OK;
}

}  // namespace ds4
