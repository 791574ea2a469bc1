// Fast passes over a row give what sorting and listing it give.
#include "core/row-scan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "llama-cpp.h"
#include "testing.h"

using namespace dflash2;

static std::vector<float> random_row(int32_t n, uint32_t seed, float scale = 3.0f) {
    std::mt19937                    rng(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float>              x(n);
    std::generate(x.begin(), x.end(), [&] { return normal(rng); });
    return x;
}

static law softmax(const std::vector<float> & x, double temperature) {
    const double        max = *std::max_element(x.begin(), x.end());
    std::vector<double> w(x.size());
    double              sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
        sum += w[i] = std::exp((x[i] - max) / temperature);
    }
    law l;
    for (size_t i = 0; i < x.size(); ++i) {
        l.push_back({(token_id) i, (float) (w[i] / sum)});
    }
    return l;
}

TEST(the_peak_is_the_first_of_the_largest) {
    for (const int32_t n : {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000}) {
        for (uint32_t seed = 0; seed < 20; ++seed) {
            std::vector<float> x = random_row(n, seed);
            if (seed % 2) {
                std::for_each(x.begin(), x.end(), [](float & v) { v = std::round(v); });  // ties
            }
            const row_peak peak = find_peak(x.data(), n);
            CHECK(peak.index == std::max_element(x.begin(), x.end()) - x.begin());
            CHECK(peak.value == x[peak.index] && !peak.nan);
            x[seed * 7 % n] = NAN;
            CHECK(find_peak(x.data(), n).nan);
        }
    }
    const std::vector<float> none(40, -INFINITY);
    CHECK(find_peak(none.data(), 40).index == -1);
}

TEST(the_top_is_that_of_a_sort) {
    for (const int32_t n : {1, 5, 130, 5000}) {
        for (const int32_t k : {1, 3, 40, 10000}) {
            for (uint32_t seed = 0; seed < 10; ++seed) {
                std::vector<float> x = random_row(n, seed);
                if (seed % 2) {
                    std::for_each(x.begin(), x.end(), [](float & v) { v = std::round(v); });
                }
                x[seed % n] = -INFINITY;
                std::vector<int32_t> want(n), got;
                std::iota(want.begin(), want.end(), 0);
                std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) { return x[a] > x[b]; });
                want.resize(std::min(k, n - 1));
                std::sort(want.begin(), want.end());
                CHECK(!find_top(x.data(), n, k, got));
                CHECK(got == want);
                x[(seed + 1) % n] = NAN;
                CHECK(find_top(x.data(), n, k, got));
            }
        }
    }
}

TEST(the_gap_is_that_of_a_sort) {
    for (const int32_t n : {2, 5, 130, 5000}) {
        for (uint32_t seed = 0; seed < 10; ++seed) {
            std::vector<float> x = random_row(n, seed), sorted = x;
            std::sort(sorted.begin(), sorted.end(), std::greater<float>());
            CHECK(peak_gap(x.data(), n) == double(sorted[0]) - sorted[1]);
            x[seed % n] = NAN;
            CHECK(std::isnan(peak_gap(x.data(), n)));
        }
    }
    std::vector<float> one(40, -INFINITY);
    CHECK(std::isnan(peak_gap(one.data(), 40)));
    one[7] = 1.0f;
    CHECK(std::isinf(peak_gap(one.data(), 40)));
    one[30] = 1.0f;
    CHECK(peak_gap(one.data(), 40) == 0.0);
}

TEST(the_nucleus_is_that_of_a_sort) {
    for (const int32_t n : {1, 5, 130, 5000}) {
        for (const float p : {0.1f, 0.5f, 0.95f, 0.9999f}) {
            for (uint32_t seed = 0; seed < 10; ++seed) {
                std::vector<float> x        = random_row(n, seed, seed < 5 ? 3.0f : 0.1f);  // of few and of most values
                x[seed % n]                 = n > 1 ? -INFINITY : 0.0f;
                const auto           before = [&](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; };
                const law            l      = softmax(x, 1.0);
                std::vector<int32_t> want, order(n), got;
                std::iota(order.begin(), order.end(), 0);
                std::stable_sort(order.begin(), order.end(), before);
                double share = 0.0;
                for (const int32_t id : order) {
                    if (share < p) {
                        want.push_back(id);
                        share += l[id].p;
                    }
                }
                CHECK(find_nucleus(x.data(), n, p, got));
                // Where the sums differ in the last bits, one value more or less.
                CHECK(std::abs((int32_t) got.size() - (int32_t) want.size()) <= 1);
                std::sort(got.begin(), got.end(), before);
                CHECK(std::equal(got.begin(), got.begin() + std::min(got.size(), want.size()), want.begin()));
                x[(seed + 1) % n] = NAN;
                CHECK(!find_nucleus(x.data(), n, p, got));
            }
        }
    }
}

TEST(what_is_above_a_value_is_found) {
    for (const int32_t n : {1, 1023, 1024, 1025, 5000}) {
        const std::vector<float> x = random_row(n, 7);
        for (const float least : {-100.0f, 0.0f, x[n / 2], 9.0f}) {
            std::vector<int32_t> want, got;
            for (int32_t i = 0; i < n; ++i) {
                if (x[i] >= least) {
                    want.push_back(i);
                }
            }
            find_above(x.data(), n, least, got);
            CHECK(got == want);
        }
    }
}

// libllama's chain on the best k gives the law that it gives on the whole row.
TEST(a_chain_that_begins_with_top_k_needs_no_more_than_those) {
    constexpr int32_t n = 3000, k = 40;
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const std::vector<float> x = random_row(n, seed);
        std::vector<int32_t>     top, all(n);
        std::iota(all.begin(), all.end(), 0);
        find_top(x.data(), n, k, top);
        const auto law_of = [&](const std::vector<int32_t> & ids) {
            llama_sampler_ptr chain(llama_sampler_chain_init({true}));
            llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(k));
            llama_sampler_chain_add(chain.get(), llama_sampler_init_typical(0.9f, 1));
            llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(0.9f, 1));
            llama_sampler_chain_add(chain.get(), llama_sampler_init_min_p(0.01f, 1));
            llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(0.8f));
            std::vector<llama_token_data> data;
            for (const int32_t id : ids) {
                data.push_back({id, x[id], 0.0f});
            }
            llama_token_data_array cur = {data.data(), data.size(), -1, false};
            llama_sampler_apply(chain.get(), &cur);
            std::vector<std::pair<token_id, float>> kept;
            for (size_t i = 0; i < cur.size; ++i) {
                kept.push_back({cur.data[i].id, cur.data[i].logit});
            }
            std::sort(kept.begin(), kept.end());
            return kept;
        };
        CHECK(law_of(top) == law_of(all) && !law_of(top).empty());
    }
}

TEST(a_wide_law_is_the_softmax) {
    for (const int32_t n : {1, 100, 1024, 5000}) {
        for (const float temperature : {0.01f, 0.7f, 1.0f, 5.0f}) {
            std::vector<float> x = random_row(n, (uint32_t) n);
            if (n > 1) {
                x[n / 2] = -INFINITY;
            }
            const law want = softmax(x, temperature);
            wide_law  got;
            CHECK(got.assign(x.data(), n, temperature));
            double worst = 0.0, sum = 0.0;
            for (const token_prob & t : want) {
                sum += got.prob(t.id);
                worst = std::max(worst, std::abs(got.prob(t.id) - t.p) / std::max(1e-9, (double) t.p));
            }
            CHECK_NEAR(worst, 0.0, 1e-4 / temperature);  // of logits in F32
            CHECK_NEAR(sum, 1.0, 1e-6);
            CHECK(got.prob(-1) == 0.0 && got.prob(n) == 0.0);
        }
    }
    std::vector<float> x = random_row(100, 1);
    wide_law           l;
    x[5] = NAN;
    CHECK(!l.assign(x.data(), 100, 1.0f));
    x[5] = INFINITY;
    CHECK(!l.assign(x.data(), 100, 1.0f));
    std::fill(x.begin(), x.end(), -INFINITY);
    CHECK(!l.assign(x.data(), 100, 1.0f));
}

// The same u picks the same token, but where u falls within rounding of a border.
TEST(a_wide_law_draws_as_a_listed_one) {
    constexpr int32_t  n = 5000, n_draw = 4000;
    std::vector<float> x = random_row(n, 3);
    const law          p = softmax(x, 1.0);
    law                q;
    for (const token_id id : {17, 1023, 1024, 4999, (token_id) find_peak(x.data(), n).index}) {
        q.push_back({id, 0.2f});
    }
    const law_view listed(p);
    wide_law       wide;
    CHECK(wide.assign(x.data(), n, 1.0f));
    int32_t n_same = 0, n_same_left = 0;
    for (int32_t i = 1; i <= n_draw; ++i) {
        const double u = (double) i / n_draw;
        n_same += wide.draw(u) == listed.draw(u);
        n_same_left += wide.draw_residual(q, u) == listed.draw_residual(q, u);
    }
    CHECK(n_same >= n_draw - 20 && n_same_left >= n_draw - 20);
    CHECK(p[wide.draw(1.0)].p > 0.0f && p[wide.draw(1e-12)].p > 0.0f);
}

TEST(nothing_is_drawn_that_the_residual_leaves_out) {
    const std::vector<float> x = {1.0f, 1.0f, -INFINITY, 1.0f};
    wide_law                 l;
    CHECK(l.assign(x.data(), 4, 1.0f));
    const law q = {{0, 0.5f}, {1, 0.5f}};  // takes all of 0 and 1
    for (int32_t i = 1; i <= 100; ++i) {
        CHECK(l.draw_residual(q, i / 100.0) == 3);
        CHECK(l.draw(i / 100.0) != 2);
    }
    const std::vector<float> one = {-INFINITY, 0.0f};
    CHECK(l.assign(one.data(), 2, 1.0f));
    CHECK(l.draw_residual({{1, 1.0f}}, 0.5) == 1);  // nothing is left: from p
}
