#include "draft/top-k.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "testing.h"

using namespace dflash2;

struct found {
    std::vector<int32_t> id;
    std::vector<float>   value;
};

static found top_k(const std::vector<float> & x, int64_t n, int32_t k, bool by_groups) {
    ggml_context_ptr ctx(ggml_init({256 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    ggml_tensor *    in    = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n, (int64_t) x.size() / n);
    const top_rows   top   = by_groups ? build_top_k_by_groups(ctx.get(), in, k) : build_top_k(ctx.get(), in, k);
    ggml_cgraph *    graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, top.id);
    ggml_build_forward_expand(graph, top.value);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), cpu.get()));
    ggml_backend_tensor_set(in, x.data(), 0, ggml_nbytes(in));
    CHECK(ggml_backend_graph_compute(cpu.get(), graph) == GGML_STATUS_SUCCESS);
    CHECK(top.id->ne[0] == k && top.id->ne[1] == in->ne[1] && ggml_are_same_shape(top.id, top.value));
    found out = {std::vector<int32_t>(ggml_nelements(top.id)), std::vector<float>(ggml_nelements(top.value))};
    ggml_backend_tensor_get(top.id, out.id.data(), 0, ggml_nbytes(top.id));
    ggml_backend_tensor_get(top.value, out.value.data(), 0, ggml_nbytes(top.value));
    return out;
}

// Distinct values below zero, so that zeros of a padding would win.
static std::vector<float> shuffled(int64_t n, int64_t n_rows, uint32_t seed) {
    std::vector<float> x(n * n_rows);
    std::iota(x.begin(), x.end(), -1e6f);
    std::shuffle(x.begin(), x.end(), std::mt19937(seed));
    return x;
}

TEST(groups_find_what_a_sort_of_the_row_finds) {
    for (const int64_t n : {600, 1024, 1025, 4099, 49152, 248320}) {
        for (const int32_t k : {1, 4, 16, 100, 512, 600}) {
            for (const bool by_groups : {false, true}) {
                const int64_t            n_rows = 3;
                const std::vector<float> x      = shuffled(n, n_rows, (uint32_t) n);
                const found              got    = top_k(x, n, k, by_groups);
                for (int64_t row = 0; row < n_rows; ++row) {
                    std::vector<float> want(x.begin() + row * n, x.begin() + (row + 1) * n);
                    std::sort(want.rbegin(), want.rend());
                    std::set<float> best(want.begin(), want.begin() + k);
                    for (int64_t i = row * k; i < (row + 1) * k; ++i) {
                        CHECK(got.id[i] >= 0 && got.id[i] < n && x[row * n + got.id[i]] == got.value[i]);
                        CHECK(best.erase(got.value[i]) == 1);
                    }
                }
            }
        }
    }
}

TEST(rows_of_nan_give_ids_inside_the_row) {
    const std::vector<float> x(4099, NAN);
    for (const int32_t id : top_k(x, 4099, 16, true).id) {
        CHECK(id >= 0 && id < 4099);
    }
}
