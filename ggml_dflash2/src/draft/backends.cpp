#include "draft/backends.h"

#include <algorithm>

#include "draft/graph-ops.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

std::string size_2d(const ggml_tensor * t) {
    return "[" + std::to_string(t->ne[0]) + ", " + std::to_string(t->ne[1]) + "]";
}

// Null: unknown. The CPU's plain buffers name no device.
ggml_backend_dev_t device_of(const ggml_tensor * t) {
    if (!t || !t->buffer) {
        return nullptr;
    }
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(t->buffer));
    if (!device && ggml_backend_buffer_is_host(t->buffer)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    return device;
}

}  // namespace

bool is_cpu(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

void check_shared(const draft_model::impl & m, const shared_tensors & s) {
    const auto check = [&](const char * name, const ggml_tensor * own, const ggml_tensor * theirs) {
        if (own) {
            return;
        }
        if (!theirs) {
            throw error(errc::incompatible, m.path + ": neither the drafter nor the target has " + name +
                                                "; open it together with its target");
        }
        if (theirs->ne[0] != m.hp.n_embd || theirs->ne[1] != m.hp.n_vocab) {
            throw error(errc::incompatible, m.path + ": the target's " + name + " is " + size_2d(theirs) +
                                                ", the drafter expects [" + std::to_string(m.hp.n_embd) + ", " +
                                                std::to_string(m.hp.n_vocab) + "]; this drafter is for another target");
        }
    };
    check("token_embd.weight", m.weights.tok_embd, s.tok_embd);
    check("output.weight", m.weights.output, s.output);
    if (!m.weights.tok_embd && !(s.tok_embd->buffer && ggml_backend_buffer_is_host(s.tok_embd->buffer))) {
        throw error(errc::incompatible,
                    m.path + ": the target's token_embd.weight is not in host memory, where drafts read it");
    }
    ggml_backend_dev_t head = m.weights.output ? m.device : device_of(s.output);
    if (!head || ggml_backend_dev_type(head) == GGML_BACKEND_DEVICE_TYPE_META) {
        throw error(errc::incompatible, m.path + ": the target's output head is split over devices (" +
                                            (head ? ggml_backend_dev_name(head) : "unknown") +
                                            "); split the target by layers, or use a drafter with its own head");
    }
}

std::vector<ggml_backend_ptr> make_backends(const draft_model::impl & m, const shared_tensors & shared,
                                            int32_t n_threads) {
    std::vector<ggml_backend_dev_t> devices = {m.device};
    if (!m.weights.output && shared.output) {
        devices.push_back(device_of(shared.output));
    }
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    devices.erase(std::remove(devices.begin(), devices.end(), cpu), devices.end());
    devices.push_back(cpu);

    std::vector<ggml_backend_ptr> backends;
    for (auto it = devices.begin(); it != devices.end(); ++it) {
        if (std::find(devices.begin(), it, *it) != it) {
            continue;
        }
        backends.emplace_back(ggml_backend_dev_init(*it, nullptr));
        if (!backends.back()) {
            throw error(errc::memory, std::string("device ") + ggml_backend_dev_name(*it) + ": cannot be initialised");
        }
    }
    using set_n_threads_t = void (*)(ggml_backend_t, int);
    if (auto set = (set_n_threads_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu),
                                                                       "ggml_backend_set_n_threads")) {
        set(backends.back().get(), n_threads);
    }
    return backends;
}

void check_ops(ggml_cgraph * graph, const std::vector<ggml_backend_t> & backends) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node   = ggml_graph_node(graph, i);
        ggml_backend_dev_t  device = ggml_backend_get_device(backends[0]);
        if (!is_computed(node)) {
            continue;
        }
        for (const ggml_tensor * src : node->src) {
            if (src && src->buffer && ggml_backend_buffer_get_usage(src->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
                device = device_of(src);
            }
        }
        if (!ggml_backend_dev_supports_op(device, node)) {
            const ggml_tensor * what = node->src[0] ? node->src[0] : node;
            throw error(errc::incompatible, std::string("draft graph: device ") + ggml_backend_dev_name(device) +
                                                " cannot run " + ggml_op_desc(node) + " on " +
                                                ggml_type_name(what->type) + " " + size_2d(what) + " (node '" +
                                                node->name +
                                                "'); draft on another device, or convert the drafter to another type");
        }
    }
}

}  // namespace dflash2
