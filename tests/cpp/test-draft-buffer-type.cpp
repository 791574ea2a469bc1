// Matrices in the order of the CPU's kernels for several rows.
#include "draft/buffer-type.h"

#include <cmath>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "testing.h"

using namespace dflash2;

namespace {

constexpr int64_t N_IN = 64, N_OUT = 32;

ggml_backend_dev_t cpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

bool cpu_has(const std::string & name) {
    const auto get = (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(cpu()), "ggml_backend_get_features");
    for (const ggml_backend_feature * f = get(ggml_backend_dev_backend_reg(cpu())); f->name; ++f) {
        if (f->name == name) {
            return f->value == std::string("1");
        }
    }
    return false;
}

// [N_OUT, n_rows]: a Q4_0 matrix in a buffer of this type times n_rows rows.
std::vector<float> product(ggml_backend_buffer_type_t buft, int64_t n_rows) {
    std::vector<float> w(N_IN * N_OUT), x(N_IN * n_rows);
    for (size_t i = 0; i < w.size(); ++i) {
        w[i] = std::sin(0.37f * (float) i);
    }
    for (size_t i = 0; i < x.size(); ++i) {
        x[i] = std::cos(0.11f * (float) i);
    }
    std::vector<uint8_t> quantized(ggml_row_size(GGML_TYPE_Q4_0, N_IN) * N_OUT);
    ggml_quantize_chunk(GGML_TYPE_Q4_0, w.data(), quantized.data(), 0, N_OUT, N_IN, nullptr);

    const ggml_init_params params = {8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, /*no_alloc =*/true};
    const ggml_context_ptr weights(ggml_init(params)), work(ggml_init(params));
    ggml_tensor *          m = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q4_0, N_IN, N_OUT);
    const ggml_backend_buffer_ptr held(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), buft));
    ggml_backend_tensor_set(m, quantized.data(), 0, quantized.size());
    CHECK(is_repacked(m) ==
          (buft != ggml_backend_dev_buffer_type(cpu()) && !cpu_has("AMX_INT8") && !cpu_has("KLEIDIAI")));

    ggml_tensor * rows = ggml_new_tensor_2d(work.get(), GGML_TYPE_F32, N_IN, n_rows);
    ggml_tensor * out  = ggml_mul_mat(work.get(), m, rows);
    ggml_cgraph * g    = ggml_new_graph(work.get());
    ggml_build_forward_expand(g, out);
    const ggml_backend_buffer_ptr scratch(
        ggml_backend_alloc_ctx_tensors_from_buft(work.get(), ggml_backend_dev_buffer_type(cpu())));
    ggml_backend_tensor_set(rows, x.data(), 0, x.size() * sizeof(float));
    const ggml_backend_ptr backend(ggml_backend_dev_init(cpu(), nullptr));
    CHECK(ggml_backend_graph_compute(backend.get(), g) == GGML_STATUS_SUCCESS);
    std::vector<float> result(N_OUT * n_rows);
    ggml_backend_tensor_get(out, result.data(), 0, result.size() * sizeof(float));
    return result;
}

}  // namespace

TEST(q4_0_matrices_are_packed_where_the_cpu_has_kernels_for_it) {
    const ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(cpu());
    const ggml_backend_buffer_type_t best  = matrix_buffer_type(cpu(), GGML_TYPE_Q4_0, N_IN, N_OUT);
    if (cpu_has("AVX2") || cpu_has("DOTPROD")) {
        CHECK(best != plain);
    }
    CHECK(matrix_buffer_type(cpu(), GGML_TYPE_F32, N_IN, N_OUT) == plain);
    CHECK(matrix_buffer_type(cpu(), GGML_TYPE_Q4_0, N_IN, N_OUT - 1) == plain);  // rows come by eights or fours
}

TEST(packed_matrices_multiply_as_plain_ones) {
    const ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(cpu());
    const ggml_backend_buffer_type_t best  = matrix_buffer_type(cpu(), GGML_TYPE_Q4_0, N_IN, N_OUT);
    for (const int64_t n_rows : {1, 2, 4, 5, 8}) {
        const std::vector<float> a = product(best, n_rows), b = product(plain, n_rows);
        for (size_t i = 0; i < a.size(); ++i) {
            CHECK_NEAR(a[i], b[i], 0.02);  // of about 20: both round rows to 8 bits, some with scales in F16
        }
    }
}
