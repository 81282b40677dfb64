// How much every expert is worth keeping in memory: how often the next tokens will select it, as the past tells.
//
// Two averages of the selections of a token are mixed. The near one halves within a few tokens and follows a sentence,
// the far one within a hundred and knows the topic and the model's likings. Together they beat any single half-life, at
// small caches and large ones (benchmarks/expert_trace.py); the far one is what is remembered from run to run.
//
// Tokens are those of the expert's layer: a layer that comes later in a pass does not look older for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ds4::stream {

struct HeatScales {
    double near = 4, far = 128;  // half-lives, in tokens
    double near_share = 0.7;     // of the worth
};

class ExpertHeat {
public:
    // first: the number of each layer's expert 0, and that of all experts.
    ExpertHeat(std::vector<uint32_t> first, const HeatScales &scales);

    // n tokens of a layer selected its expert e counts[e] times. They are taken as spread evenly over the chunk.
    void selected(uint32_t layer, const std::vector<uint32_t> &counts, size_t n);
    // Expected selections by the next token, of expert k of all.
    double worth(uint32_t layer, uint32_t k) const {
        const Scale &s = scales_[layer];
        return s.near_worth * sums_[k].near + s.far_worth * sums_[k].far;
    }

    // The far sums: selections that count half after `far` tokens. Setting them forgets what is near.
    void get(float *out) const;
    void set(const float *values);

private:
    struct Sum {
        double near = 0, far = 0;  // of selections that weigh 1 / scale: old ones need not be touched
    };
    struct Scale {
        double near = 1, far = 1;  // what a weight of the sums is worth now
        double near_worth = 0, far_worth = 0;
    };
    void rescale(uint32_t layer, double near, double far);

    const std::vector<uint32_t> first_;
    const HeatScales options_;
    const double near_rate_, far_rate_;  // selections of a token from a sum
    std::vector<Sum> sums_;
    std::vector<Scale> scales_;
};

}  // namespace ds4::stream
