// The first passes of a drafter on an accelerator.
#pragma once

#include <vector>

#include "draft/graph-shapes.h"
#include "draft/graph-store.h"

namespace dflash2 {

// First passes take many times as long as later ones: does them for every width on one sequence, up to `widest`. Which
// kernels are fast differs too: sets shapes.pad where padding pays.
void warm_up(graph_store & graphs, graph_shapes & shapes, const std::vector<draft_context> & contexts, int32_t widest);

}  // namespace dflash2
