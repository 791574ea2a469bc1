// The graphs of a drafter, built and allocated once per shape. Only a few are kept: the one used longest ago goes
// first.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "draft/draft-graph.h"

namespace dflash2 {

class graph_store {
  public:
    static constexpr size_t N_KEPT = 12;

    // As for draft_graph; everything must outlive the store.
    graph_store(const draft_model::impl & model, const draft_cache & cache, const feature_stage & stage,
                ggml_tensor * head, const std::vector<ggml_backend_ptr> & backends);

    // Throws as draft_graph does.
    const std::shared_ptr<draft_graph> & get(const graph_shape & shape);

    int64_t n_built() const { return n_built_; }

    std::vector<memory_use> memory() const;  // of the graphs that are kept

    // Copies these nodes whenever a graph computes them; none: stops.
    void                                        watch(const std::vector<std::string> & names);
    const std::map<std::string, watched_node> & watched() const { return watch_->nodes(); }

  private:
    node_watch * wanted() { return watch_->nodes().empty() ? nullptr : watch_.get(); }

    const draft_model::impl &                 model_;
    const draft_cache &                       cache_;
    const feature_stage &                     stage_;
    ggml_tensor *                             head_;
    std::vector<ggml_backend_t>               backends_;
    std::vector<std::shared_ptr<draft_graph>> graphs_;  // most recently used first
    std::unique_ptr<node_watch>               watch_;
    int64_t                                   n_built_ = 0;
};

}  // namespace dflash2
