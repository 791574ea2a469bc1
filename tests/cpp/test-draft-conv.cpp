#include "draft/draft-conv.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "testing.h"

using namespace dflash2;

struct sizes {
    int32_t kernel, group;
    int64_t n_embd, n_block, n_seq;
};

static std::vector<float> random_values(size_t n, uint32_t seed) {
    std::mt19937                    rng(seed);
    std::normal_distribution<float> law;
    std::vector<float>              v(n);
    for (float & x : v) {
        x = law(rng);
    }
    return v;
}

// y[c, t] = sum over tap of (base[c, tap, side] + coeff[c / group, tap, side, t]) * x[c, t - tap], in plain loops.
static std::vector<float> plain_conv(const std::vector<float> & x, const std::vector<float> & coeff,
                                     const std::vector<float> & base, const sizes & s, int32_t side) {
    const int64_t      n_group = s.n_embd / s.group;
    std::vector<float> y;
    for (int64_t seq = 0; seq < s.n_seq; ++seq) {
        for (int64_t t = 0; t < s.n_block; ++t) {
            for (int64_t c = 0; c < s.n_embd; ++c) {
                double sum = 0.0;
                for (int64_t tap = 0; tap < s.kernel && tap <= t; ++tap) {
                    const int64_t slot    = side * s.kernel + tap;
                    const int64_t column  = seq * s.n_block + t;
                    const float   dynamic = coeff[(column * 2 * s.kernel + slot) * n_group + c / s.group];
                    sum += (base[slot * s.n_embd + c] + dynamic) * x[(column - tap) * s.n_embd + c];
                }
                y.push_back((float) sum);
            }
        }
    }
    return y;
}

static std::vector<float> graph_conv(const std::vector<float> & x, const std::vector<float> & coeff,
                                     const std::vector<float> & base, const sizes & s, conv_side side) {
    ggml_context_ptr ctx(ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    const int64_t    n_coeff = s.n_embd / s.group * s.kernel * 2;
    ggml_tensor *    x_in    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, s.n_embd, s.n_block, s.n_seq);
    ggml_tensor *    c_in    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, n_coeff, s.n_block, s.n_seq);
    ggml_tensor *    b_in    = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, s.n_embd, s.kernel, 2);
    ggml_tensor *    both    = build_conv_coefficients(ctx.get(), b_in, c_in, {s.kernel, s.group});
    ggml_tensor *    y       = build_conv(ctx.get(), x_in, both, side);
    ggml_cgraph *    graph   = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, y);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), cpu.get()));
    ggml_backend_tensor_set(x_in, x.data(), 0, ggml_nbytes(x_in));
    ggml_backend_tensor_set(c_in, coeff.data(), 0, ggml_nbytes(c_in));
    ggml_backend_tensor_set(b_in, base.data(), 0, ggml_nbytes(b_in));
    CHECK(ggml_backend_graph_compute(cpu.get(), graph) == GGML_STATUS_SUCCESS);
    CHECK(y->ne[0] == s.n_embd && y->ne[1] == s.n_block && y->ne[2] == s.n_seq && y->ne[3] == 1);
    std::vector<float> out((size_t) ggml_nelements(y));
    ggml_backend_tensor_get(y, out.data(), 0, ggml_nbytes(y));
    return out;
}

TEST(the_graph_is_the_formula) {
    for (const int32_t kernel : {1, 2, 3}) {
        for (const int32_t group : {1, 16, 48}) {
            for (const int64_t n_block : {1, 2, 7}) {  // 1, 2: shorter than the kernel, zeros before the block
                for (const int64_t n_seq : {1, 3}) {
                    const sizes  s = {kernel, group, 48, n_block, n_seq};
                    const size_t n = (size_t) (n_block * n_seq);
                    const auto   x = random_values(48 * n, 1), base = random_values(48 * kernel * 2, 2);
                    const auto   coeff = random_values(48 / group * kernel * 2 * n, 3);
                    for (const conv_side side : {conv_side::before, conv_side::after}) {
                        const auto want = plain_conv(x, coeff, base, s, (int32_t) side);
                        const auto got  = graph_conv(x, coeff, base, s, side);
                        CHECK(got.size() == want.size());
                        double worst = 0.0;
                        for (size_t i = 0; i < want.size(); ++i) {
                            worst = std::max(worst, (double) std::abs(got[i] - want[i]));
                        }
                        CHECK_NEAR(worst, 0.0, 1e-5);
                    }
                }
            }
        }
    }
}

TEST(a_token_sees_only_its_own_sequence_and_the_kernel_before_it) {
    const sizes        s     = {3, 16, 32, 6, 2};
    const auto         coeff = random_values(2 * 3 * 2 * 12, 1), base = random_values(32 * 3 * 2, 2);
    std::vector<float> x      = random_values(32 * 12, 3);
    const auto         before = graph_conv(x, coeff, base, s, conv_side::after);
    for (int64_t c = 0; c < 32; ++c) {
        x[5 * 32 + c] += 1.0f;  // the last token of sequence 0
        x[8 * 32 + c] += 1.0f;  // token 2 of sequence 1
    }
    const auto after = graph_conv(x, coeff, base, s, conv_side::after);
    for (int64_t column = 0; column < 12; ++column) {
        const bool same =
            std::equal(before.begin() + column * 32, before.begin() + (column + 1) * 32, after.begin() + column * 32);
        CHECK(same == (column != 5 && column != 8 && column != 9 && column != 10));
    }
}
