// Plain and YaRN rotation frequencies.
#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ds4 {

std::vector<float> rope_frequencies(const ds4_shape &s, bool compressed) {
    const float base = compressed ? s.compress_rope_base : s.rope_base;
    const uint32_t pairs = s.n_rot / 2;
    std::vector<float> f(pairs);
    for (uint32_t i = 0; i < pairs; i++)
        f[i] = 1.0f / std::pow(base, static_cast<float>(2 * i) / static_cast<float>(s.n_rot));
    if (!compressed) return f;
    // YaRN: dimensions that turn often keep their frequency, slow ones are stretched by the factor.
    const double n = s.n_rot, log_base = std::log(static_cast<double>(base));
    auto dimension = [&](double turns) {
        return n * std::log(static_cast<double>(s.yarn_original_ctx) / (turns * 2 * std::numbers::pi)) / (2 * log_base);
    };
    double low = std::max(std::floor(dimension(s.yarn_beta_fast)), 0.0);
    double high = std::min(std::ceil(dimension(s.yarn_beta_slow)), n - 1);
    float span = static_cast<float>(std::max(high - low, 0.001));
    for (uint32_t i = 0; i < pairs; i++) {
        float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(low)) / span, 0.0f, 1.0f);
        float keep = 1.0f - ramp;
        f[i] = f[i] / s.yarn_factor * (1.0f - keep) + f[i] * keep;
    }
    return f;
}

}  // namespace ds4
