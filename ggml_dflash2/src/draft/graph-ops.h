#pragma once

#include "ggml.h"
#include "ggml_dflash2/graph-op.h"

namespace dflash2 {

bool     is_computed(const ggml_tensor * node);  // false: a view of its source
graph_op describe(const ggml_tensor * node);

}  // namespace dflash2
