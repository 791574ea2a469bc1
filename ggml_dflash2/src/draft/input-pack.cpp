#include "draft/input-pack.h"

#include <string>

#include "ggml_dflash2/error.h"

namespace dflash2 {

ggml_tensor * input_pack::add(ggml_context * ctx, ggml_type type, const std::array<int64_t, 4> & ne,
                              const char * name) {
    ggml_tensor * t = ggml_new_tensor(ctx, type, GGML_MAX_DIMS, ne.data());
    ggml_set_name(t, name);
    tensors_.push_back(t);
    return t;
}

void input_pack::place(ggml_backend_dev_t device, bool plan_only) {
    ggml_backend_buffer_type_t buft = ggml_backend_dev_buffer_type(device);

    std::vector<size_t> offsets;
    for (const ggml_tensor * t : tensors_) {
        offsets.push_back(size_);
        size_ += GGML_PAD(ggml_backend_buft_get_alloc_size(buft, t), ggml_backend_buft_get_alignment(buft));
    }
    buffer_.reset(ggml_backend_buft_alloc_buffer(buft, plan_only ? 0 : size_));
    ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
    if (!buffer_ || !ctx_) {
        throw error(errc::memory,
                    std::string("draft graph: cannot allocate its inputs on ") + ggml_backend_dev_name(device));
    }
    if (plan_only) {
        for (ggml_tensor * t : tensors_) {
            t->buffer = buffer_.get();
        }
        return;
    }
    base_ = (uint8_t *) ggml_backend_buffer_get_base(buffer_.get());
    all_  = ggml_new_tensor_1d(ctx_.get(), GGML_TYPE_I8, (int64_t) size_);
    ggml_backend_tensor_alloc(buffer_.get(), all_, base_);
    for (size_t i = 0; i < tensors_.size(); ++i) {
        ggml_backend_tensor_alloc(buffer_.get(), tensors_[i], base_ + offsets[i]);
    }
    ggml_backend_buffer_clear(buffer_.get(), 0);

    host_      = host_buffer(device, size_);
    host_data_ = (uint8_t *) ggml_backend_buffer_get_base(host_.get());
}

void input_pack::send(ggml_backend_t backend) {
    ggml_backend_tensor_set_async(backend, all_, host_data_, 0, ggml_nbytes(all_));
}

ggml_backend_buffer_ptr host_buffer(ggml_backend_dev_t device, size_t size) {
    ggml_backend_buffer_type_t buft = ggml_backend_dev_host_buffer_type(device);
    if (!buft) {
        buft = ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    }
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(buft, size));
    if (!buffer) {
        throw error(errc::memory, "draft graph: cannot allocate " + std::to_string(size) + " bytes of host memory");
    }
    ggml_backend_buffer_clear(buffer.get(), 0);
    return buffer;
}

}  // namespace dflash2
