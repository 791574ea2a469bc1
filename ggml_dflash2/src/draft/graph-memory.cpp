#include "draft/graph-memory.h"

#include <algorithm>

namespace dflash2 {

// Drafts of the largest shape stand for those a step of the context, a width or a sequence smaller, which take little
// less: on one sequence the twelve largest shapes together 93 % of twelve times the largest. Graphs that only inject
// are kept in place of such drafts.
std::vector<memory_use> plan_graphs(graph_store & graphs, const graph_shapes & shapes, int32_t n_seq) {
    const std::vector<memory_use> draft = graphs.get(shapes.largest(n_seq))->memory();
    std::vector<memory_use>       uses  = draft;
    for (memory_use & use : uses) {
        use.bytes *= graph_store::N_KEPT;
    }
    for (const graph_shape & shape : {shapes.inject(feature_stage::N_STAGED), shapes.inject_piece()}) {
        const std::vector<memory_use> & inject = graphs.get(shape)->memory();
        for (size_t i = 0; i < uses.size(); ++i) {  // every graph names the same devices
            uses[i].bytes += std::max(inject[i].bytes, draft[i].bytes) - draft[i].bytes;
        }
    }
    return uses;
}

}  // namespace dflash2
