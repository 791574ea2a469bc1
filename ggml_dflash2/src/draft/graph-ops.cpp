#include "draft/graph-ops.h"

#include <algorithm>

namespace dflash2 {

namespace {

graph_operand operand(const ggml_tensor * t) {
    graph_operand o = {ggml_type_name(t->type), {}, ggml_is_contiguous_rows(t)};
    std::copy_n(t->ne, o.ne.size(), o.ne.begin());
    return o;
}

}  // namespace

bool is_computed(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return false;
        default:
            return true;
    }
}

graph_op describe(const ggml_tensor * node) {
    graph_op out = {ggml_op_desc(node), node->name, operand(node), {}, {}};
    for (const ggml_tensor * src : node->src) {
        if (src) {
            out.src.push_back(operand(src));
        }
    }
    static_assert(sizeof(node->op_params) == sizeof(out.params));
    std::copy_n(node->op_params, out.params.size(), out.params.begin());
    return out;
}

}  // namespace dflash2
