#include "draft/graph-warm-up.h"

#include <algorithm>
#include <chrono>

namespace dflash2 {

// Milliseconds of a graph. Its first passes load kernels and record what is replayed later.
static double time_of(draft_graph & g) {
    double best = 1e9;
    for (int32_t i = 0; i < 6; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        g.compute();
        g.wait();
        const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
        best                                               = std::min(best, ms.count());
    }
    return best;
}

void warm_up(graph_store & graphs, graph_shapes & shapes, const std::vector<draft_context> & contexts, int32_t widest) {
    const auto time_draft = [&](int32_t n_draft) { return time_of(*graphs.get(shapes.draft(contexts, 1, n_draft))); };
    time_of(*graphs.get(shapes.inject(feature_stage::N_STAGED)));
    time_of(*graphs.get(shapes.inject_piece()));
    const double ms = time_draft(widest);
    shapes.pad      = true;
    shapes.pad      = time_draft(widest) < 0.98 * ms;
    for (int32_t n_draft = 1; n_draft < widest; ++n_draft) {
        time_draft(n_draft);
    }
}

}  // namespace dflash2
