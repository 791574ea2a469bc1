// The grouped dynamic causal convolution around attention and FFN (dflash 0.1.0, GroupedDynamicCausalConv).
#pragma once

#include "ggml.h"

namespace dflash2 {

enum class conv_side { before = 0, after = 1 };

struct conv_shape {
    int32_t kernel = 0;  // taps
    int32_t group  = 0;  // channels that share one dynamic coefficient
};

// What both sides multiply with: base[c, tap, side] + dynamic[c / group, tap, side, t].
//   base     [n_embd, kernel, 2]
//   dynamic  [n_embd / group * kernel * 2, n_block, n_seq], from conv_weights::proj
// Returns [n_embd, kernel * 2, n_block, n_seq].
ggml_tensor * build_conv_coefficients(ggml_context * ctx, ggml_tensor * base, ggml_tensor * dynamic,
                                      const conv_shape & shape);

// y[c, t] = sum over tap of coeff[c, tap, side, t] * x[c, t - tap], x = 0 before the block
//   x      [n_embd, n_block, n_seq], each sequence's block on its own
//   coeff  from build_conv_coefficients
// Returns [n_embd, n_block, n_seq].
ggml_tensor * build_conv(ggml_context * ctx, ggml_tensor * x, ggml_tensor * coeff, conv_side side);

}  // namespace dflash2
