#include "draft/buffer-type.h"

#include <cstring>

#include "ggml-cpp.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

bool multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft, ggml_type type, int64_t n_in,
                int64_t n_out) {
    const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(buft, 0));
    const ggml_context_ptr        ctx(ggml_init({3 * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
    if (!empty || !ctx) {
        throw error(errc::memory, "weights: cannot allocate tensor headers");
    }
    ggml_tensor * m = ggml_new_tensor_2d(ctx.get(), type, n_in, n_out);
    m->buffer       = empty.get();
    return ggml_backend_dev_supports_op(
        device, ggml_mul_mat(ctx.get(), m, ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_in, 1)));
}

}  // namespace

ggml_backend_buffer_type_t matrix_buffer_type(ggml_backend_dev_t device, ggml_type type, int64_t n_in, int64_t n_out) {
    const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * it = extra ? extra(device) : nullptr; it && *it; ++it) {
        if (multiplies(device, *it, type, n_in, n_out)) {
            return *it;
        }
    }
    return ggml_backend_dev_buffer_type(device);
}

bool is_repacked(const ggml_tensor * m) {
    return std::strcmp(ggml_backend_buft_name(ggml_backend_buffer_get_type(m->buffer)), "CPU_REPACK") == 0;
}

}  // namespace dflash2
