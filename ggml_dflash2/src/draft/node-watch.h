#pragma once

#include <map>
#include <string>
#include <vector>

#include "ggml.h"
#include "ggml_dflash2/graph-drafter.h"

namespace dflash2 {

// Copies of named nodes, taken while a graph is computed. The addresses of entries must not change meanwhile.
class node_watch {
  public:
    explicit node_watch(const std::vector<std::string> & names);

    const std::map<std::string, watched_node> & nodes() const { return nodes_; }

    // For ggml_backend_sched_set_eval_callback, with the watch as user_data.
    static bool callback(ggml_tensor * node, bool ask, void * user_data);

  private:
    std::map<std::string, watched_node> nodes_;
};

}  // namespace dflash2
