// Drafters of tiny files, the texts that they are given, and the distance of two drafts.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "ggml_dflash2/graph-drafter.h"
#include "testing.h"
#include "tiny-drafter.h"

using namespace dflash2;

constexpr int32_t BLOCK = 6, N_EMBD = 32, N_VOCAB = 96;

inline tiny_shape with_window(int32_t window, std::vector<uint8_t> sliding) {
    tiny_shape s;
    s.window  = window;
    s.sliding = std::move(sliding);
    return s;
}

inline const tiny_shape full = with_window(0, {0, 0}), sliding = with_window(5, {1, 1}), mixed = with_window(9, {1, 0});

inline std::shared_ptr<const draft_model> make_model(const tiny_shape & shape) {
    silence_ggml();
    return std::make_shared<const draft_model>(temp_file(tiny_file(shape).content()).path());
}

inline graph_drafter_params params(int32_t n_seq = 1, int32_t n_ctx = 512) {
    return {n_ctx, n_seq, /*n_threads =*/1, /*kv_f32 =*/true};
}

inline graph_drafter make_drafter(std::shared_ptr<const draft_model> model, int32_t n_seq = 1, int32_t n_ctx = 512) {
    return graph_drafter(std::move(model), {}, params(n_seq, n_ctx));
}

// Hidden states of a text: a function of the text's number and the position.
inline void inject(drafter & d, int32_t seq, uint32_t text, int32_t first, int32_t n_rows) {
    const size_t                    n_taps = d.target_layers().size();
    std::vector<std::vector<float>> taps(n_taps);
    std::normal_distribution<float> law;
    for (int32_t i = 0; i < n_rows; ++i) {
        std::mt19937 rng(text * 1000003 + (uint32_t) (first + i));
        law.reset();
        for (std::vector<float> & tap : taps) {
            std::generate_n(std::back_inserter(tap), N_EMBD, [&] { return law(rng); });
        }
    }
    features f;
    f.n_embd   = N_EMBD;
    f.n_rows   = n_rows;
    f.position = first;
    for (const std::vector<float> & tap : taps) {
        f.tap.push_back(tap.data());
    }
    d.inject(seq, f);
}

inline lattice draft(drafter & d, int32_t seq, int32_t position, int32_t n_draft = BLOCK - 1, token_id anchor = 17) {
    return d.draft({{seq, anchor, position}}, n_draft)[0];
}

// A drafter of its own that got positions begin .. end - 1 of a text at once.
inline lattice fresh(std::shared_ptr<const draft_model> model, uint32_t text, int32_t begin, int32_t end,
                     int32_t n_draft = BLOCK - 1, token_id anchor = 17) {
    graph_drafter d = make_drafter(std::move(model));
    inject(d, 0, text, begin, end - begin);
    return draft(d, 0, end, n_draft, anchor);
}

// Largest difference of two lattices' scores over the largest score; infinite when the candidates are not the same.
inline double difference(const lattice & a, const lattice & b) {
    if (a.top_k != b.top_k || a.n_pos != b.n_pos || a.score.size() != b.score.size()) {
        return INFINITY;
    }
    const int32_t K    = a.top_k;
    const auto    rank = [K](const lattice & lat, int32_t pos) {
        std::vector<int32_t> order(K);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(),
                     [&](int32_t i, int32_t j) { return lat.cand[pos * K + i] < lat.cand[pos * K + j]; });
        return order;
    };
    double               worst = 0.0, largest = 0.0;
    std::vector<int32_t> from_a(K), from_b(K);
    for (int32_t pos = 0; pos < a.n_pos; ++pos) {
        const std::vector<int32_t> to_a = rank(a, pos), to_b = rank(b, pos);
        for (int32_t i = 0; i < K; ++i) {
            if (a.cand[pos * K + to_a[i]] != b.cand[pos * K + to_b[i]]) {
                return INFINITY;
            }
            for (int32_t j = 0; j < (pos ? K : 1); ++j) {
                const float x = a.score[(pos * K + from_a[j]) * K + to_a[i]];
                const float y = b.score[(pos * K + from_b[j]) * K + to_b[i]];
                worst         = std::max(worst, std::isfinite(x - y) ? (double) std::abs(x - y) : INFINITY);
                largest       = std::max(largest, (double) std::abs(x));
            }
        }
        from_a = to_a;
        from_b = to_b;
    }
    return worst / largest;
}

#define CHECK_SAME(a, b) CHECK_NEAR(difference(a, b), 0.0, 1e-5)
#define CHECK_OTHER(a, b) CHECK(difference(a, b) > 1e-3)
