// The largest entries of wide rows in stock ggml ops.
#pragma once

#include "ggml.h"

namespace dflash2 {

struct top_rows {
    ggml_tensor * id    = nullptr;  // [k, n_rows] I32, in no particular order
    ggml_tensor * value = nullptr;  // [k, n_rows] F32
};

// x: [n, n_rows] F32, contiguous, n < 2^24. Rows wider than n_sort are cut into pieces whose largest entries are
// merged, unless k is too large for that to help.
top_rows build_top_k(ggml_context * ctx, ggml_tensor * x, int32_t k, int32_t n_sort);

}  // namespace dflash2
