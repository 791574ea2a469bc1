#include "draft/draft-conv.h"

#include <algorithm>

namespace dflash2 {

ggml_tensor * build_conv(ggml_context * ctx, ggml_tensor * x, ggml_tensor * coeff, ggml_tensor * base,
                         const conv_shape & shape, conv_side side) {
    const int64_t n_embd  = x->ne[0];
    const int64_t n_block = x->ne[1];
    const int64_t n_seq   = x->ne[2];
    const int64_t n_group = n_embd / shape.group;
    const size_t  f32     = sizeof(float);

    ggml_tensor * sum = nullptr;  // [group, n_group, n_block, n_seq]
    for (int64_t tap = 0; tap < std::min<int64_t>(shape.kernel, n_block); ++tap) {
        ggml_tensor * shifted = x;  // [n_embd, n_block, n_seq], row t holds x[t - tap]
        if (tap > 0) {
            shifted = ggml_view_3d(ctx, x, n_embd, n_block - tap, n_seq, x->nb[1], x->nb[2], 0);
            shifted = ggml_pad_ext(ctx, shifted, 0, 0, (int) tap, 0, 0, 0, 0, 0);
        }
        shifted = ggml_reshape_4d(ctx, shifted, shape.group, n_group, n_block, n_seq);

        const int64_t slot  = (int64_t) side * shape.kernel + tap;
        ggml_tensor * fixed = ggml_view_2d(ctx, base, shape.group, n_group, shape.group * f32, slot * base->nb[1]);
        ggml_tensor * dynamic =
            ggml_view_4d(ctx, coeff, 1, n_group, n_block, n_seq, f32, coeff->nb[1], coeff->nb[2], slot * n_group * f32);

        ggml_tensor * term = ggml_add(ctx, ggml_mul(ctx, shifted, fixed), ggml_mul(ctx, shifted, dynamic));
        sum                = sum ? ggml_add(ctx, sum, term) : term;
    }
    return ggml_reshape_3d(ctx, sum, n_embd, n_block, n_seq);
}

}  // namespace dflash2
