// Where the target's tensors lie, and what it takes.
#include "engine/llama-ext-shim.h"
#include "engine/target-impl.h"
#include "ggml-backend.h"

namespace dflash2 {

// The CPU's plain buffers name no device, and memory of the host that is pinned for another one names that.
static std::string device_name(ggml_backend_buffer_type_t buft) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
    if (!device || buft == ggml_backend_dev_host_buffer_type(device)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    return ggml_backend_dev_name(device);
}

shared_tensors target::shared() const {
    shared_tensors s;
    // The embedding is read row by row, so it must not be the copy in a repacked or device buffer.
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(impl_->model.get())) {
        if (name == "output.weight") {
            s.output = tensor;
        }
        const bool host = tensor->buffer && ggml_backend_buffer_is_host(tensor->buffer);
        if (name == "token_embd.weight" && (!s.tok_embd || host)) {
            s.tok_embd = tensor;
        }
    }
    if (!s.output) {  // tied: the other copy if there is one
        s.output = s.tok_embd;
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(impl_->model.get())) {
            if (name == "token_embd.weight" && tensor != s.tok_embd) {
                s.output = tensor;
            }
        }
    }
    return s;
}

std::string target::head_device() const {
    return device_name(ggml_backend_buffer_get_type(shared().output->buffer));
}

std::vector<memory_use> target::memory() const {
    std::vector<memory_use> uses;
    for (const auto & [buft, bytes] : llama_get_memory_breakdown(impl_->ctx.get())) {
        const std::string device = device_name(buft);
        add_use(uses, {"target weights", device, bytes.model, device == "CPU" && ggml_backend_buft_is_host(buft)});
        add_use(uses, {"target K/V", device, bytes.context});
        add_use(uses, {"target compute", device, bytes.compute});
    }
    // Where rows are cut on the device, libllama also keeps n_vocab sampled values, probabilities and ids of each.
    const size_t kept   = head_device() == "CPU" ? 1 : 4;
    const size_t logits = kept * impl::MAX_DRAFT_ROWS * n_seq() * n_vocab() * sizeof(float);
    const size_t hidden = impl_->taps.size() * n_batch() * n_embd() * sizeof(float);
    add_use(uses, {"target rows", "CPU", logits + hidden});
    if (impl_->plan_only) {
        add_use(uses, {"target compute", head_device(), hidden});
    }
    return uses;
}

}  // namespace dflash2
