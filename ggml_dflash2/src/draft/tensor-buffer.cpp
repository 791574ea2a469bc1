#include "draft/tensor-buffer.h"

#include "ggml-alloc.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

tensor_buffer::tensor_buffer(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool plan_only,
                             const std::string & what) {
    const size_t size = ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, buft);
    if (plan_only) {
        planned_ = size;
        buffer_.reset(ggml_backend_buft_alloc_buffer(buft, 0));
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
            t->buffer = buffer_.get();
        }
    } else {
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx, buft));
    }
    if (!buffer_) {
        throw error(errc::memory,
                    what + ": cannot allocate " + std::to_string(size) + " bytes on " + ggml_backend_buft_name(buft));
    }
}

size_t tensor_buffer::size_bytes() const {
    return buffer_ ? planned_ + ggml_backend_buffer_get_size(buffer_.get()) : 0;
}

}  // namespace dflash2
