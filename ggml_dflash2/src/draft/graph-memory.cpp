#include "draft/graph-memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

namespace dflash2 {

// Drafts of the largest shape stand for those a step of the context, a width or a sequence smaller, which take little
// less: on one sequence the twelve largest shapes together 93 % of twelve times the largest.
std::vector<memory_use> plan_graphs(graph_store & graphs, const graph_shapes & shapes, int32_t n_seq) {
    std::vector<graph_shape> possible(graph_store::N_KEPT, shapes.largest(n_seq));
    possible.push_back(shapes.inject(feature_stage::N_STAGED));
    possible.push_back(shapes.inject_piece());

    std::map<std::string, std::vector<size_t>> sizes;  // by device
    for (const graph_shape & shape : possible) {
        for (const memory_use & use : graphs.get(shape)->memory()) {
            sizes[use.device].push_back(use.bytes);
        }
    }
    std::vector<memory_use> uses;
    for (auto & [device, bytes] : sizes) {
        std::sort(bytes.begin(), bytes.end(), std::greater<>());
        const auto end = bytes.begin() + (ptrdiff_t) std::min(bytes.size(), graph_store::N_KEPT);
        uses.push_back({"draft graphs", device, std::accumulate(bytes.begin(), end, size_t(0))});
    }
    return uses;
}

}  // namespace dflash2
