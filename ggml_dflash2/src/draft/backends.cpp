#include "draft/backends.h"

#include <algorithm>

#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

std::string size_2d(const ggml_tensor * t) {
    return "[" + std::to_string(t->ne[0]) + ", " + std::to_string(t->ne[1]) + "]";
}

}  // namespace

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
}

std::vector<ggml_backend_ptr> make_backends(const draft_model::impl & m, const shared_tensors & shared,
                                            int32_t n_threads) {
    std::vector<ggml_backend_dev_t> devices = {m.device};
    for (const ggml_tensor * t : {shared.tok_embd, shared.output}) {
        if (t && t->buffer) {
            if (ggml_backend_dev_t d = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(t->buffer))) {
                devices.push_back(d);
            }
        }
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

}  // namespace dflash2
