#include "quant/fit.h"

#include <cmath>

namespace ds4::quant {
namespace {

Lanes all(float x) { return Lanes{x, x, x, x}; }

Lanes magnitude(Lanes x) { return x < Lanes{} ? -x : x; }

template <bool Absolute>
Lanes weighted_error(const Lanes *x, const Lanes *w, unsigned n, Lanes scale, Lanes min, const Lanes *codes) {
    Lanes error{};
    for (unsigned i = 0; i < n; ++i) {
        const Lanes difference = scale * codes[i] + min - x[i];
        error += w[i] * (Absolute ? magnitude(difference) : difference * difference);
    }
    return error;
}

bool any(LaneMask mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }

template <bool Absolute>
AffineFit fit(const Lanes *x, const Lanes *w, unsigned n, float top, const Search &search, Lanes *codes) {
    const Lanes zero{};
    Lanes low = x[0], high = x[0], sum_w{}, sum_wx{};
    for (unsigned i = 0; i < n; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sum_w += w[i];
        sum_wx += w[i] * x[i];
    }
    low = low > zero ? zero : low;
    const Lanes first_low = low;
    const LaneMask flat = high <= low;

    Lanes inverse = all(top) / (high - low);
    for (unsigned i = 0; i < n; ++i) codes[i] = nearest_codes(inverse * (x[i] - low), top);
    Lanes scale = all(1.0f) / inverse;
    Lanes best = weighted_error<Absolute>(x, w, n, scale, low, codes);

    Lanes trial[32];
    for (int k = 0; k <= search.last; ++k) {
        const float wanted = search.first + search.step * static_cast<float>(k) + top;
        inverse = all(wanted) / (high - low);
        Lanes sum_l{}, sum_ll{}, sum_xl{};
        for (unsigned i = 0; i < n; ++i) {
            trial[i] = nearest_codes(inverse * (x[i] - low), top);
            const Lanes wl = w[i] * trial[i];
            sum_l += wl;
            sum_ll += wl * trial[i];
            sum_xl += wl * x[i];
        }
        const Lanes determinant = sum_w * sum_ll - sum_l * sum_l;
        Lanes s = (sum_w * sum_xl - sum_wx * sum_l) / determinant;
        Lanes m = (sum_ll * sum_wx - sum_l * sum_xl) / determinant;
        const LaneMask positive = m > zero;  // a minimum above zero cannot be stored
        s = positive ? sum_xl / sum_ll : s;
        m = positive ? zero : m;
        const Lanes error = weighted_error<Absolute>(x, w, n, s, m, trial);
        const LaneMask better = (determinant > zero) & (error < best);
        if (!any(better)) continue;
        best = better ? error : best;
        scale = better ? s : scale;
        low = better ? m : low;  // also where later candidates start: part of what defines the bytes
        for (unsigned i = 0; i < n; ++i) codes[i] = better ? trial[i] : codes[i];
    }

    for (unsigned i = 0; i < n; ++i) codes[i] = flat ? zero : codes[i];
    return {flat ? zero : scale, -(flat ? first_low : low)};
}

// Half to even for any x; infinities stay.
float round_any(float x) {
    if (std::fabs(x) < 0x1p22f) return (x + kRoundingMagic) - kRoundingMagic;
    return std::rint(x);
}

// What an integral x leaves in a byte. From 2^31 on floats are multiples of 256.
float wrap_to_byte(float x) {
    if (!(std::fabs(x) < 0x1p31f)) return 0.0f;
    return static_cast<float>(static_cast<uint8_t>(static_cast<int32_t>(x)));
}

float at_most(float x, float top) { return x > top ? top : x; }

}  // namespace

AffineFit fit_affine(const Lanes *x, const Lanes *w, unsigned n, float top, const Search &search, Lanes *codes) {
    return search.absolute ? fit<true>(x, w, n, top, search, codes) : fit<false>(x, w, n, top, search, codes);
}

float fit_scale(const float *x, const float *w, unsigned n, float top, uint8_t *codes) {
    float peak = 0;
    for (unsigned i = 0; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
    for (unsigned i = 0; i < n; ++i) codes[i] = 0;
    if (peak < 1e-15f) return 0;

    // The first candidate is measured with wrapped codes, the others without.
    float code[32], inverse = top / peak, scale = 1.0f / inverse, best = 0;
    for (unsigned i = 0; i < n; ++i) {
        const float difference = x[i] - scale * wrap_to_byte(round_any(inverse * x[i]));
        best += w[i] * difference * difference;
    }
    for (int k = -4; k <= 4; ++k) {
        if (k == 0) continue;
        const float candidate = (0.1f * static_cast<float>(k) + top) / peak;
        float error = 0;
        scale = 1.0f / candidate;
        for (unsigned i = 0; i < n; ++i) {
            const float difference = x[i] - scale * at_most(round_any(candidate * x[i]), top);
            error += w[i] * difference * difference;
        }
        if (error < best) {
            best = error;
            inverse = candidate;
        }
    }

    float sum_xl = 0, sum_ll = 0;
    for (unsigned i = 0; i < n; ++i) {
        const float l = at_most(round_any(inverse * x[i]), top);
        sum_xl += w[i] * x[i] * l;
        sum_ll += w[i] * l * l;
        code[i] = wrap_to_byte(l);
    }
    // One code at a time: maximize sum_xl^2 / sum_ll, which is what minimizes the error at the best scale.
    for (int pass = 0; pass < 5; ++pass) {
        bool changed = false;
        for (unsigned i = 0; i < n; ++i) {
            const float wx = w[i] * x[i];
            float xl = sum_xl - wx * code[i], ll = sum_ll - w[i] * code[i] * code[i];
            if (!(xl > 0) || !(ll > 0)) continue;
            const float l = at_most(round_any(x[i] * ll / xl), top);
            if (l == code[i]) continue;
            xl += wx * l;
            ll += w[i] * l * l;
            if (xl * xl * sum_ll > sum_xl * sum_xl * ll) {
                code[i] = wrap_to_byte(l);
                sum_xl = xl;
                sum_ll = ll;
                changed = true;
            }
        }
        if (!changed) break;
    }
    for (unsigned i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(code[i]);
    return sum_ll > 0 ? sum_xl / sum_ll : 0.0f;
}

}  // namespace ds4::quant
