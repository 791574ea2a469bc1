#include "draft/graph-shapes.h"

#include <algorithm>

namespace dflash2 {

// Rows of a graph that injects n of at most `most`.
int32_t graph_shapes::n_rows(int32_t n, int32_t most) const {
    int32_t rows = on_cpu_ ? 4 : most;
    while (rows < n) {
        rows *= 2;
    }
    return std::min(rows, most);
}

int32_t graph_shapes::n_riding(const draft_context & c) const {
    const int32_t n = c.n_staged();
    return n > hp_.block_size ? 0 : n;
}

graph_shape graph_shapes::inject(int32_t n) const {
    return {1, n_rows(n, feature_stage::N_STAGED), 0, 0, 0, false, false};
}

graph_shape graph_shapes::inject_piece() const {
    return {1, stage_.n_prompt(), 0, 0, 0, false, false};
}

graph_shape graph_shapes::draft(const std::vector<draft_context> & contexts, int32_t n_seq, int32_t n_draft) const {
    graph_shape shape = {n_seq, 0, n_draft, 0, 0, groups_, pad};
    for (int32_t seq = 0; seq < n_seq; ++seq) {
        const draft_context & c = contexts[seq];
        shape.n_rows            = std::max(shape.n_rows, n_seq * n_rows(n_riding(c), hp_.block_size));
        shape.n_kv_sliding      = std::max(shape.n_kv_sliding, cache_.layout(true).n_visible(c.begin, c.end));
        shape.n_kv_full         = std::max(shape.n_kv_full, cache_.layout(false).n_visible(c.begin, c.end));
    }
    return shape;
}

graph_shape graph_shapes::largest(int32_t n_seq) const {
    const int32_t B = hp_.block_size;
    return {n_seq, n_seq * B, B - 1, cache_.layout(true).n_cells, cache_.layout(false).n_cells, groups_, !on_cpu_};
}

}  // namespace dflash2
