#include "draft/top-k.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

namespace {

constexpr int32_t N_SORT = 1024;  // GPUs sort rows up to here in one workgroup each

// The values at `id` [k, n_rows] of x [n, n_rows].
ggml_tensor * gather(ggml_context * ctx, ggml_tensor * x, ggml_tensor * id) {
    ggml_tensor * rows = ggml_get_rows(ctx, ggml_reshape_3d(ctx, x, 1, x->ne[0], x->ne[1]), id);
    return ggml_reshape_2d(ctx, rows, id->ne[0], id->ne[1]);
}

ggml_tensor * widen(ggml_context * ctx, ggml_tensor * x, int64_t n) {
    if (n == x->ne[0]) {
        return x;
    }
    const int64_t n_pad = n - x->ne[0];
    ggml_tensor * pad   = ggml_view_1d(ctx, x, n_pad * x->ne[1], 0);
    pad                 = ggml_fill(ctx, ggml_reshape_2d(ctx, pad, n_pad, x->ne[1]), -INFINITY);
    return ggml_concat(ctx, x, pad, 0);
}

}  // namespace

top_rows build_top_k(ggml_context * ctx, ggml_tensor * x, int32_t k) {
    ggml_tensor * id = ggml_top_k(ctx, x, k);
    return {id, gather(ctx, x, id)};
}

// The k groups with the largest peaks hold the k largest entries.
top_rows build_top_k_by_groups(ggml_context * ctx, ggml_tensor * x, int32_t k) {
    const int64_t n      = x->ne[0];
    const int64_t n_rows = x->ne[1];
    const int32_t size   = std::min(32, N_SORT / k);
    if (n <= N_SORT || size < 2) {
        return build_top_k(ctx, x, k);
    }
    const int64_t n_group = (n + size - 1) / size;

    x                   = widen(ctx, x, n_group * size);
    ggml_tensor *  peak = ggml_pool_2d(ctx, x, GGML_OP_POOL_MAX, size, 1, size, 1, 0, 0);  // [n_group, n_rows]
    const top_rows best = build_top_k_by_groups(ctx, peak, k);
    ggml_tensor *  rest = ggml_get_rows(ctx, ggml_reshape_3d(ctx, x, size, n_group, n_rows), best.id);
    const top_rows top  = build_top_k(ctx, ggml_reshape_2d(ctx, rest, size * k, n_rows), k);

    // Ids of the entries in `rest`. There is no integer arithmetic; F32 is exact below 2^24.
    ggml_tensor * first = ggml_scale(ctx, ggml_cast(ctx, best.id, GGML_TYPE_F32), (float) size);
    ggml_tensor * id    = ggml_arange(ctx, 0.0f, (float) size, 1.0f);
    id                  = ggml_repeat_4d(ctx, id, size, k, n_rows, 1);
    id                  = ggml_add(ctx, id, ggml_reshape_3d(ctx, first, 1, k, n_rows));
    id                  = gather(ctx, ggml_reshape_2d(ctx, id, size * k, n_rows), top.id);
    id                  = ggml_clamp(ctx, id, 0.0f, (float) (n - 1));  // NaN may bring the padding to the top
    return {ggml_cast(ctx, id, GGML_TYPE_I32), top.value};
}

}  // namespace dflash2
