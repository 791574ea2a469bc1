// What a draft graph computes, node by node: for reports, and for checks against the ops that a backend supports.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace dflash2 {

struct graph_operand {
    std::string            type;  // as ggml prints it: "f32", "q4_K"
    std::array<int64_t, 4> ne              = {};
    bool                   contiguous_rows = true;  // false: permuted, its ne[0] is not the innermost in memory
};

struct graph_op {
    std::string                op;    // as ggml prints it: "MUL_MAT", "SWIGLU"
    std::string                name;  // of the node, may be empty
    graph_operand              dst;
    std::vector<graph_operand> src;
    std::array<int32_t, 16>    params = {};  // ggml_tensor::op_params, floats as their bits
};

}  // namespace dflash2
