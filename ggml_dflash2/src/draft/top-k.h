// The largest entries of wide rows in stock ggml ops.
#pragma once

#include "ggml.h"

namespace dflash2 {

struct top_rows {
    ggml_tensor * id    = nullptr;  // [k, n_rows] I32, in no particular order
    ggml_tensor * value = nullptr;  // [k, n_rows] F32
};

// x: [n, n_rows] F32, contiguous, k <= n < 2^24. Both give the same entries, ties aside: the first in one op, which
// ggml-cuda does by sorting whole rows, the second without sorting anything wide.
top_rows build_top_k(ggml_context * ctx, ggml_tensor * x, int32_t k);
top_rows build_top_k_by_groups(ggml_context * ctx, ggml_tensor * x, int32_t k);

}  // namespace dflash2
