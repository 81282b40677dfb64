#include "stream/expert_heat.h"

#include <cmath>
#include <utility>

namespace ds4::stream {

namespace {

constexpr double kSmallest = 0x1p-500;  // of a scale; sums are brought up to date below it

// 1 - 2^(-tokens / half_life)
double lost(double tokens, double half_life) { return -std::expm1(-tokens / half_life * std::log(2.0)); }

}  // namespace

ExpertHeat::ExpertHeat(std::vector<uint32_t> first, const HeatScales &scales)
    : first_(std::move(first)), options_(scales), near_rate_(lost(1, scales.near)), far_rate_(lost(1, scales.far)),
      sums_(first_.back()), scales_(first_.size() - 1) {
    for (uint32_t l = 0; l < scales_.size(); l++) rescale(l, 1, 1);
}

void ExpertHeat::rescale(uint32_t layer, double near, double far) {
    Scale &s = scales_[layer];
    s.near = near;
    s.far = far;
    if (near < kSmallest || far < kSmallest) {
        for (uint32_t k = first_[layer]; k < first_[layer + 1]; k++) {
            sums_[k].near *= near;
            sums_[k].far *= far;
        }
        s.near = s.far = 1;
    }
    s.near_worth = options_.near_share * near_rate_ * s.near;
    s.far_worth = (1 - options_.near_share) * far_rate_ * s.far;
}

void ExpertHeat::selected(uint32_t layer, const std::vector<uint32_t> &counts, size_t n) {
    if (!n) return;
    const double tokens = static_cast<double>(n), near = lost(tokens, options_.near), far = lost(tokens, options_.far);
    rescale(layer, scales_[layer].near * (1 - near), scales_[layer].far * (1 - far));
    const Scale &s = scales_[layer];
    for (uint32_t e = 0; e < counts.size(); e++) {
        if (!counts[e]) continue;
        const double share = counts[e] / tokens;
        sums_[first_[layer] + e].near += share * near / near_rate_ / s.near;
        sums_[first_[layer] + e].far += share * far / far_rate_ / s.far;
    }
}

void ExpertHeat::get(float *out) const {
    for (uint32_t l = 0; l < scales_.size(); l++)
        for (uint32_t k = first_[l]; k < first_[l + 1]; k++) out[k] = static_cast<float>(sums_[k].far * scales_[l].far);
}

void ExpertHeat::set(const float *values) {
    for (uint32_t l = 0; l < scales_.size(); l++) {
        rescale(l, 1, 1);
        for (uint32_t k = first_[l]; k < first_[l + 1]; k++) sums_[k] = {0, values[k] > 0 ? double{values[k]} : 0};
    }
}

}  // namespace ds4::stream
