#include "ggml_dflash2/draft-model.h"

#include "draft/draft-model-impl.h"
#include "draft/hparams.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

ggml_backend_dev_t find_device(const std::string & name) {
    if (ggml_backend_dev_count() == 0) {
        ggml_backend_load_all();  // builds with backends as loadable modules
    }
    if (name.empty()) {
        return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    if (ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str())) {
        return device;
    }
    std::string known;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        known += (i ? ", " : "") + std::string(ggml_backend_dev_name(ggml_backend_dev_get(i)));
    }
    throw error(errc::argument, "device " + name + ": not found; available devices: " + known);
}

}  // namespace

draft_model::draft_model(const std::string & path, const std::string & device, bool plan_only)
    : impl_(std::make_unique<impl>()) {
    const gguf_file file(path);
    impl_->path      = path;
    impl_->device    = find_device(device);
    impl_->plan_only = plan_only;
    impl_->hp        = read_hparams(file);
    impl_->pairing   = read_pairing(file);
    impl_->weights   = load_weights(file, impl_->hp, impl_->device, plan_only);
}

draft_model::~draft_model() = default;

const std::string & draft_model::path() const {
    return impl_->path;
}

const draft_hparams & draft_model::hparams() const {
    return impl_->hp;
}

const draft_pairing & draft_model::pairing() const {
    return impl_->pairing;
}

bool draft_model::has_head() const {
    return impl_->weights.output != nullptr;
}

bool draft_model::has_embd() const {
    return impl_->weights.tok_embd != nullptr;
}

size_t draft_model::size_bytes() const {
    return impl_->weights.size_bytes() + impl_->weights.embedding.buffer.size_bytes();
}

}  // namespace dflash2
