#include "draft/node-watch.h"

#include <algorithm>

#include "ggml-backend.h"

namespace dflash2 {

node_watch::node_watch(const std::vector<std::string> & names) {
    for (const std::string & name : names) {
        nodes_[name] = {};
    }
}

bool node_watch::callback(ggml_tensor * node, bool ask, void * user_data) {
    auto &     nodes = static_cast<node_watch *>(user_data)->nodes_;
    const auto it    = nodes.find(node->name);
    const bool wants = it != nodes.end() && node->type == GGML_TYPE_F32 && ggml_is_contiguous(node);
    if (ask || !wants) {
        return ask ? wants : true;
    }
    watched_node & copy = it->second;
    std::copy_n(node->ne, copy.ne.size(), copy.ne.begin());
    copy.data.resize((size_t) ggml_nelements(node));
    ggml_backend_tensor_get(node, copy.data.data(), 0, ggml_nbytes(node));
    return true;
}

}  // namespace dflash2
