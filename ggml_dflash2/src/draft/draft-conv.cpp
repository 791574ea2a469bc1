#include "draft/draft-conv.h"

#include <algorithm>

namespace dflash2 {

ggml_tensor * build_conv_coefficients(ggml_context * ctx, ggml_tensor * base, ggml_tensor * dynamic,
                                      const conv_shape & shape) {
    const int64_t n_embd  = base->ne[0];
    const int64_t n_group = n_embd / shape.group;
    const int64_t n_slot  = 2 * shape.kernel;  // (side, tap)
    const int64_t n_block = dynamic->ne[1];
    const int64_t n_seq   = dynamic->ne[2];

    base    = ggml_repeat_4d(ctx, ggml_reshape_4d(ctx, base, shape.group, n_group, n_slot, 1), shape.group, n_group,
                             n_slot, n_block * n_seq);
    dynamic = ggml_reshape_4d(ctx, dynamic, 1, n_group, n_slot, n_block * n_seq);
    return ggml_reshape_4d(ctx, ggml_add(ctx, base, dynamic), n_embd, n_slot, n_block, n_seq);
}

ggml_tensor * build_conv(ggml_context * ctx, ggml_tensor * x, ggml_tensor * coeff, conv_side side) {
    const int64_t n_embd  = x->ne[0];
    const int64_t n_block = x->ne[1];
    const int64_t n_seq   = x->ne[2];
    const int64_t kernel  = coeff->ne[1] / 2;

    ggml_tensor * sum = nullptr;  // [n_embd, n_block, n_seq]
    for (int64_t tap = 0; tap < std::min(kernel, n_block); ++tap) {
        // Tokens tap .. n_block - 1; the ones before see nothing.
        const int64_t n    = n_block - tap;
        const int64_t slot = (int64_t) side * kernel + tap;
        ggml_tensor * c    = ggml_view_3d(ctx, coeff, n_embd, n, n_seq, coeff->nb[2], coeff->nb[3],
                                          slot * coeff->nb[1] + tap * coeff->nb[2]);
        ggml_tensor * past = tap == 0 ? x : ggml_view_3d(ctx, x, n_embd, n, n_seq, x->nb[1], x->nb[2], 0);
        ggml_tensor * term = ggml_mul(ctx, c, past);
        sum = tap == 0 ? term : ggml_acc(ctx, sum, term, sum->nb[1], sum->nb[2], sum->nb[3], tap * sum->nb[1]);
    }
    return sum;
}

}  // namespace dflash2
