// The tensors of a ggml context in one buffer.
#pragma once

#include <string>

#include "ggml-backend.h"
#include "ggml-cpp.h"

namespace dflash2 {

class tensor_buffer {
  public:
    tensor_buffer() = default;

    // plan_only: the buffer is empty, and says only where the tensors would lie.
    // Throws errc::memory; what: begins the message.
    tensor_buffer(ggml_context * ctx, ggml_backend_buffer_type_t buft, bool plan_only, const std::string & what);

    ggml_backend_buffer_t get() const { return buffer_.get(); }
    size_t                size_bytes() const;  // allocated, or what would be

  private:
    ggml_backend_buffer_ptr buffer_;
    size_t                  planned_ = 0;
};

}  // namespace dflash2
