#include "draft/top-k.h"

#include <cmath>

namespace dflash2 {

namespace {

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

top_rows build_top_k(ggml_context * ctx, ggml_tensor * x, int32_t k, int32_t n_sort) {
    const int64_t n      = x->ne[0];
    const int64_t n_rows = x->ne[1];
    if (n <= n_sort || 4 * k > n_sort) {
        ggml_tensor * id = ggml_top_k(ctx, x, k);
        return {id, gather(ctx, x, id)};
    }
    const int64_t n_piece = (n + n_sort - 1) / n_sort;
    const int64_t width   = (n + n_piece - 1) / n_piece;

    ggml_tensor * pieces = ggml_reshape_2d(ctx, widen(ctx, x, n_piece * width), width, n_piece * n_rows);
    ggml_tensor * local  = ggml_top_k(ctx, pieces, k);  // [k, n_piece * n_rows]
    ggml_tensor * value  = ggml_reshape_2d(ctx, gather(ctx, pieces, local), k * n_piece, n_rows);

    // There is no integer addition; rows have fewer than 2^24 entries, so F32 is exact.
    ggml_tensor * start = ggml_arange(ctx, 0.0f, (float) (n_piece * width), (float) width);
    ggml_tensor * id    = ggml_reshape_3d(ctx, ggml_cast(ctx, local, GGML_TYPE_F32), k, n_piece, n_rows);
    id                  = ggml_add(ctx, id, ggml_reshape_2d(ctx, start, 1, n_piece));
    id                  = ggml_reshape_2d(ctx, id, k * n_piece, n_rows);

    const top_rows best = build_top_k(ctx, value, k, n_sort);
    // NaN may bring the padding to the top.
    id = ggml_clamp(ctx, gather(ctx, id, best.id), 0.0f, (float) (n - 1));
    return {ggml_cast(ctx, id, GGML_TYPE_I32), best.value};
}

}  // namespace dflash2
