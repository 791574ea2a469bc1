// The inputs of one graph: tensors in one buffer on the device, filled on the host and sent in one copy.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace dflash2 {

class input_pack {
  public:
    // A tensor without data until place().
    ggml_tensor * add(ggml_context * ctx, ggml_type type, const std::array<int64_t, 4> & ne, const char * name);

    // Once, after the last add(). Everything is zero then. plan_only: places nothing. Throws errc::memory.
    void place(ggml_backend_dev_t device, bool plan_only);

    size_t size_bytes() const { return size_; }  // on the device, and as much on the host

    // Host copy of a tensor of this pack, to be sent.
    template <typename T>
    T * data(const ggml_tensor * t) {
        return (T *) (host_data_ + ((const uint8_t *) t->data - base_));
    }

    template <typename T>
    void set(const ggml_tensor * t, const std::vector<T> & values) {
        if (t) {
            std::copy(values.begin(), values.end(), data<T>(t));
        }
    }

    // Asynchronous: the host copy must stay as it is until the backend has been synchronized.
    void send(ggml_backend_t backend);

  private:
    std::vector<ggml_tensor *> tensors_;
    size_t                     size_      = 0;
    uint8_t *                  base_      = nullptr;  // on the device
    uint8_t *                  host_data_ = nullptr;
    ggml_context_ptr           ctx_;
    ggml_tensor *              all_ = nullptr;  // [bytes] I8, over every tensor
    ggml_backend_buffer_ptr    buffer_;
    ggml_backend_buffer_ptr    host_;
};

// A buffer in host memory that the device copies from fastest. Throws errc::memory.
ggml_backend_buffer_ptr host_buffer(ggml_backend_dev_t device, size_t size);

}  // namespace dflash2
