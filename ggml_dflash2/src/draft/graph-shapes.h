// Which shapes of graphs a drafter asks for: accelerators do best with few shapes, CPUs with little padding.
#pragma once

#include <vector>

#include "draft/draft-cache.h"
#include "draft/draft-context.h"
#include "draft/draft-graph.h"
#include "draft/feature-stage.h"

namespace dflash2 {

class graph_shapes {
  public:
    // groups: see graph_shape.
    graph_shapes(const draft_hparams & hp, const draft_cache & cache, const feature_stage & stage, bool on_cpu,
                 bool groups)
        : hp_(hp), cache_(cache), stage_(stage), on_cpu_(on_cpu), groups_(groups) {}

    // Of a sequence's staged rows, those that its next draft injects: all, or none when they are too many.
    int32_t n_riding(const draft_context & c) const;

    // Injects n staged rows of one sequence.
    graph_shape inject(int32_t n) const;

    // Injects a piece of a prompt.
    graph_shape inject_piece() const;

    // Drafts for sequences 0 .. n_seq - 1.
    graph_shape draft(const std::vector<draft_context> & contexts, int32_t n_seq, int32_t n_draft) const;

    // No graph that drafts for n_seq sequences or fewer takes more memory.
    graph_shape largest(int32_t n_seq) const;

    bool pad = false;  // see graph_shape

  private:
    int32_t n_rows(int32_t n, int32_t most) const;

    const draft_hparams & hp_;
    const draft_cache &   cache_;
    const feature_stage & stage_;
    bool                  on_cpu_;
    bool                  groups_;
};

}  // namespace dflash2
