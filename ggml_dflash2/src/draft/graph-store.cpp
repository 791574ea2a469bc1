#include "draft/graph-store.h"

#include <algorithm>
#include <utility>

namespace dflash2 {

graph_store::graph_store(const draft_model::impl & model, const draft_cache & cache, const feature_stage & stage,
                         ggml_tensor * head, const std::vector<ggml_backend_ptr> & backends)
    : model_(model),
      cache_(cache),
      stage_(stage),
      head_(head),
      watch_(std::make_unique<node_watch>(std::vector<std::string>())) {
    for (const ggml_backend_ptr & b : backends) {
        backends_.push_back(b.get());
    }
}

const std::shared_ptr<draft_graph> & graph_store::get(const graph_shape & shape) {
    auto it = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto & g) { return g->shape() == shape; });
    if (it == graphs_.end()) {
        auto g = std::make_shared<draft_graph>(model_, cache_, stage_, head_, backends_, shape);
        n_built_++;
        g->watch(wanted());
        if (graphs_.size() == N_KEPT) {
            graphs_.pop_back();
        }
        it = graphs_.insert(graphs_.end(), std::move(g));
    }
    std::rotate(graphs_.begin(), it, it + 1);
    return graphs_.front();
}

std::vector<memory_use> graph_store::memory() const {
    std::vector<memory_use> uses;
    for (const auto & g : graphs_) {
        for (const memory_use & use : g->memory()) {
            add_use(uses, use);
        }
    }
    return uses;
}

void graph_store::watch(const std::vector<std::string> & names) {
    watch_ = std::make_unique<node_watch>(names);
    for (const auto & g : graphs_) {
        g->watch(wanted());
    }
}

}  // namespace dflash2
