// The extern "C" functions of ds4/quantize.h: check arguments, call inside, let no exception out.
#include "ds4/quantize.h"

#include <algorithm>
#include <vector>

#include "api/guard.h"
#include "base/checked.h"
#include "ds4/gguf.h"
#include "quant/encode.h"
#include "quant/quant.h"
#include "quant/rows.h"

using ds4::fail;

namespace {

using ull = unsigned long long;

ds4_status check_type(uint32_t type, const ds4::TypeInfo **info, ds4_error *err) {
    *info = ds4::type_info(type);
    if (*info) return DS4_OK;
    return fail(err, DS4_E_ARGUMENT, "tensor type %u is %s", type,
                ds4::is_removed_type(type) ? "a removed type of the format" : "not a type of the format");
}

// Lays the weights that count into *out: a copy with ones where a block has no positive weight. NULL: no weights.
ds4_status prepare_weights(uint32_t type, const char *name, const float *importance, uint64_t n,
                           std::vector<float> *out, ds4_error *err) {
    if (!importance) {
        if (type != DS4_TYPE_IQ2_XXS) return DS4_OK;
        return fail(err, DS4_E_ARGUMENT,
                    "%s needs importance: one weight a column, from an imatrix, or the sums of squares of the columns",
                    name);
    }
    if (!ds4::takes_weights(type)) return DS4_OK;
    for (uint64_t i = 0; i < n; ++i)
        if (!ds4::is_weight(importance[i]))
            return fail(err, DS4_E_ARGUMENT, "importance of column %llu is %g; weights are finite, not negative, and at "
                        "most 2^64", ull{i}, static_cast<double>(importance[i]));
    out->assign(importance, importance + n);
    ds4::fill_unweighted_blocks(out->data(), n);
    return DS4_OK;
}

ds4_status unstorable(const char *name, uint32_t type, double value, const ds4_place &place, ds4_error *err) {
    const double limit = static_cast<double>(ds4::largest_value(type));
    return fail(err, DS4_E_DATA, "row %llu, column %llu: %g does not fit %s, which holds finite values up to %g",
                ull{place.row}, ull{place.column}, value, name, limit);
}

}  // namespace

void ds4_quantize_options_init(ds4_quantize_options *o) {
    if (!o) return;
    *o = ds4_quantize_options{};
    o->struct_size = sizeof *o;
    o->n_threads = 1;
}

ds4_status ds4_quantize(uint32_t type, const float *src, uint64_t n_rows, uint64_t n_columns,
                        const ds4_quantize_options *options, void *dst, uint64_t dst_bytes, ds4_place *place,
                        ds4_error *err) {
    const ds4::TypeInfo *info;
    if (const ds4_status status = check_type(type, &info, err)) return status;
    if (!ds4::has_encoder(type))
        return fail(err, DS4_E_UNSUPPORTED,
                    "ds4 encodes F32, F16, BF16, Q8_0, Q2_K, Q4_K, IQ2_XXS and MXFP4, not %s", info->name);
    ds4_quantize_options o;
    ds4_quantize_options_init(&o);
    if (const ds4_status status = ds4::take_options("ds4_quantize_options", options, &o, err)) return status;
    uint64_t row_size = 0, needed = 0, n_values = 0;
    if (!ds4::row_bytes(type, n_columns, &row_size))
        return fail(err, DS4_E_ARGUMENT, "%llu values are not whole %s blocks of %u", ull{n_columns}, info->name,
                    info->block);
    if (!ds4::mul(n_rows, row_size, &needed) || !ds4::mul(n_rows, n_columns, &n_values))
        return fail(err, DS4_E_ARGUMENT, "%llu rows of %llu values are too many", ull{n_rows}, ull{n_columns});
    if (dst_bytes < needed)
        return fail(err, DS4_E_ARGUMENT, "%llu rows of %llu values of %s need %llu bytes, there is room for %llu",
                    ull{n_rows}, ull{n_columns}, info->name, ull{needed}, ull{dst_bytes});
    if (n_values && (!src || !dst)) return fail(err, DS4_E_ARGUMENT, "ds4_quantize: NULL argument");
    return ds4::guarded("ds4_quantize", err, [&]() -> ds4_status {
        std::vector<float> weights;
        if (const ds4_status status = prepare_weights(type, info->name, o.importance, n_columns, &weights, err))
            return status;
        const ds4::EncodeJob job{type, src, n_rows, n_columns, weights.empty() ? nullptr : weights.data(),
                                 o.allow_nonfinite != 0, static_cast<uint8_t *>(dst)};
        ds4_place at{};
        const ds4_status status = ds4::encode_rows(job, std::max(o.n_threads, 1u), o.pulse, o.ud, &at);
        if (status == DS4_E_CANCELLED) return fail(err, status, "encoding was stopped");
        if (status != DS4_E_DATA) return status;
        const double value = static_cast<double>(src[at.row * n_columns + at.column]);
        at.row += o.first_row;
        if (place) *place = at;
        return unstorable(info->name, type, value, at, err);
    });
}

uint64_t ds4_unweighted_blocks(const float *importance, uint64_t n_columns) {
    return importance ? ds4::count_unweighted_blocks(importance, n_columns) : 0;
}

void ds4_add_column_squares(const float *src, uint64_t n_rows, uint64_t n_columns, float *sums) {
    if (!src || !sums) return;
    for (uint64_t row = 0; row < n_rows; ++row, src += n_columns)
        for (uint64_t i = 0; i < n_columns; ++i) sums[i] += src[i] * src[i];
}

ds4_status ds4_dequantize(uint32_t type, const void *src, uint64_t src_bytes, uint64_t n, uint32_t n_threads,
                          float *dst, ds4_error *err) {
    const ds4::TypeInfo *info;
    if (const ds4_status status = check_type(type, &info, err)) return status;
    if (!info->computable) return fail(err, DS4_E_UNSUPPORTED, "ds4 cannot decode tensor type %s", info->name);
    uint64_t needed = 0;
    if (!ds4::row_bytes(type, n, &needed))
        return fail(err, DS4_E_ARGUMENT, "%llu values are not whole %s blocks of %u", ull{n}, info->name, info->block);
    if (src_bytes < needed)
        return fail(err, DS4_E_ARGUMENT, "%llu values of %s need %llu bytes, %llu were given", ull{n}, info->name,
                    ull{needed}, ull{src_bytes});
    if (n == 0) return DS4_OK;
    if (!src || !dst) return fail(err, DS4_E_ARGUMENT, "ds4_dequantize: NULL argument");
    return ds4::guarded("ds4_dequantize", err, [&] {
        ds4::decode_values(type, static_cast<const uint8_t *>(src), dst, n, n_threads ? n_threads : 1);
        return DS4_OK;
    });
}
