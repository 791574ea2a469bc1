#include "draft/feature-stage.h"

#include "draft/backends.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

// Accelerators need many rows to be busy; on a CPU padding costs as much as rows do.
feature_stage::feature_stage(const draft_hparams & hp, int32_t n_seq, ggml_backend_dev_t device, bool plan_only)
    : n_seq_(n_seq), n_prompt_(is_cpu(device) ? N_STAGED : 8 * N_STAGED) {
    ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
    if (!ctx_) {
        throw error(errc::memory, "hidden states: cannot allocate tensor headers");
    }
    rows_   = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, (int64_t) hp.n_taps() * hp.n_embd, zero_row() + 1);
    buffer_ = tensor_buffer(ctx_.get(), ggml_backend_dev_buffer_type(device), plan_only, "hidden states");
    ggml_backend_buffer_clear(buffer_.get(), 0);
}

void feature_stage::put(ggml_backend_t backend, const features & f, int32_t first, int32_t n, int32_t at) {
    const size_t width = (size_t) f.n_embd * sizeof(float);
    for (size_t tap = 0; tap < f.tap.size(); ++tap) {
        ggml_backend_tensor_set_2d_async(backend, rows_, f.tap[tap] + (size_t) first * f.n_embd,
                                         (size_t) at * rows_->nb[1] + tap * width, width, (size_t) n, rows_->nb[1],
                                         width);
    }
    ggml_backend_synchronize(backend);
}

}  // namespace dflash2
