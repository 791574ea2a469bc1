// Where a matrix lies best on a device.
#pragma once

#include <cstdint>

#include "ggml-backend.h"

namespace dflash2 {

// For a matrix [n_in, n_out] that is multiplied only: a buffer type of the device that keeps it in the order of its
// kernels for several rows, as libllama would choose it; the device's usual type where there is none.
ggml_backend_buffer_type_t matrix_buffer_type(ggml_backend_dev_t device, ggml_type type, int64_t n_in, int64_t n_out);

// Whether a matrix lies in a buffer of ggml-cpu's repack.cpp, whose kernels take four rows at once and those left over
// one by one. Those of AMX (tiles of 16 rows) and KleidiAI (a packed left side) know only one row and several.
bool is_repacked(const ggml_tensor * m);

}  // namespace dflash2
