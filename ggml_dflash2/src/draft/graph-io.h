// What goes into a draft graph, and the lattices that come out of it.
#pragma once

#include <vector>

#include "draft/draft-cache.h"
#include "draft/draft-context.h"
#include "draft/draft-graph.h"
#include "draft/embedding.h"
#include "draft/feature-stage.h"

namespace dflash2 {

// Staged rows of a sequence that a graph injects, in a block of n_rows with padding.
struct row_block {
    int32_t seq;
    int32_t position;  // of the first row
    int32_t staged;    // the row of the stage that it is in
    int32_t n;
    int32_t n_rows;
};

class graph_io {
  public:
    // tok_embd: null in plans only.
    graph_io(const draft_hparams & hp, const draft_cache & cache, const feature_stage & stage,
             const ggml_tensor * tok_embd);

    // blocks: as many rows as the graph injects.
    void set_rows(draft_graph & g, const std::vector<row_block> & blocks) const;

    // Blocks at the ends of the contexts; of sequences without a job with any anchor.
    void set_blocks(draft_graph & g, const std::vector<draft_context> & contexts, const std::vector<draft_job> & jobs);

    // Waits for the graph. One lattice per job.
    std::vector<lattice> read(draft_graph & g, const std::vector<draft_job> & jobs) const;

  private:
    const draft_hparams & hp_;
    const draft_cache &   cache_;
    const feature_stage & stage_;
    embedding             tok_embd_;
    std::vector<float>    mask_row_;  // [n_embd] embedding of the mask token
};

}  // namespace dflash2
