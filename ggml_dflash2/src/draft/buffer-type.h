// Where a matrix lies best on a device.
#pragma once

#include <cstdint>

#include "ggml-backend.h"

namespace dflash2 {

// For a matrix [n_in, n_out] that is multiplied only: a buffer type of the device that keeps it in the order of its
// kernels for several rows, as libllama would choose it; the device's usual type where there is none.
ggml_backend_buffer_type_t matrix_buffer_type(ggml_backend_dev_t device, ggml_type type, int64_t n_in, int64_t n_out);

// Whether a matrix lies in such a buffer of the CPU.
bool is_packed(const ggml_tensor * m);

}  // namespace dflash2
