// What the graphs of a drafter may come to take, before any is allocated.
#pragma once

#include <vector>

#include "draft/graph-shapes.h"
#include "draft/graph-store.h"

namespace dflash2 {

// By device, what as many of the largest graphs take as the store keeps. graphs: of a model that plans only.
std::vector<memory_use> plan_graphs(graph_store & graphs, const graph_shapes & shapes, int32_t n_seq);

}  // namespace dflash2
