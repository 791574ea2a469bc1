// What stays at the border of a cut, by the rules of libllama's samplers (src/llama-sampler.cpp): top-k keeps k logits,
// top-p the fewest largest ones whose probabilities add up to p or more, min-p those of max + log(min_p) or more. Its
// sort compares logits only, so which of equal ones stay is left open there; ours are the first.
#include <algorithm>
#include <cmath>
#include <random>

#include "core/row-scan.h"
#include "llama-cpp.h"
#include "testing.h"

using namespace dflash2;

// Ids that a sampler of libllama leaves, in ascending order.
static std::vector<int32_t> left_by(llama_sampler * sampler, const std::vector<float> & x) {
    const llama_sampler_ptr       owner(sampler);
    std::vector<llama_token_data> data;
    for (size_t i = 0; i < x.size(); ++i) {
        data.push_back({(llama_token) i, x[i], 0.0f});
    }
    llama_token_data_array cur = {data.data(), data.size(), -1, false};
    llama_sampler_apply(sampler, &cur);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < cur.size; ++i) {
        ids.push_back(cur.data[i].id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
}

// ours: all that libllama keeps above the smallest kept value, and as many of that value, the first ones.
static void check_border(const std::vector<float> & x, std::vector<int32_t> ours, const std::vector<int32_t> & theirs) {
    std::sort(ours.begin(), ours.end());
    CHECK(ours.size() == theirs.size() && !ours.empty());
    float border = INFINITY;
    for (const int32_t id : theirs) {
        border = std::min(border, x[id]);
    }
    std::vector<int32_t> want;
    size_t               n_ties = 0;
    for (const int32_t id : theirs) {
        n_ties += x[id] == border;
    }
    for (int32_t id = 0; id < (int32_t) x.size(); ++id) {
        if (x[id] > border || (x[id] == border && n_ties > 0)) {
            want.push_back(id);
            n_ties -= x[id] == border;
        }
    }
    CHECK(ours == want);
}

TEST(of_equal_logits_at_the_end_of_top_k_the_first_stay) {
    for (const int32_t n : {8, 130, 3000}) {
        for (const int32_t k : {1, 3, 40, 200}) {
            for (uint32_t seed = 0; seed < 10; ++seed) {
                std::mt19937       rng(seed);
                std::vector<float> x(n);
                std::generate(x.begin(), x.end(), [&] { return (float) (rng() % 4); });  // many ties at every border
                std::vector<int32_t> top;
                CHECK(!find_top(x.data(), n, k, top));
                check_border(x, top, left_by(llama_sampler_init_top_k(k), x));
            }
        }
    }
}

// Equal logits have equal probabilities, and those of powers of two add up without rounding.
TEST(top_p_keeps_the_token_that_reaches_it_and_none_after_it) {
    for (const int32_t n : {64, 3000}) {
        for (const int32_t n_equal : {1, 2, 8, 64}) {
            std::vector<float> x(n, -200.0f);  // of no probability in F32
            for (int32_t i = 0; i < n_equal; ++i) {
                x[(i * 37 + 5) % n] = 1.5f;
            }
            for (int32_t n_kept = 1; n_kept <= n_equal; ++n_kept) {
                const float          p = (float) n_kept / (float) n_equal;
                std::vector<int32_t> nucleus;
                for (const float least : {std::nextafter(p, 0.0f), p}) {
                    if (least < 1.0f) {  // top_p = 1 is off
                        CHECK(find_nucleus(x.data(), n, least, nucleus));
                        CHECK((int32_t) nucleus.size() == n_kept);
                        check_border(x, nucleus, left_by(llama_sampler_init_top_p(least, 1), x));
                    }
                }
                if (p < 1.0f) {
                    const float more = std::nextafter(p, 1.0f);
                    CHECK(find_nucleus(x.data(), n, more, nucleus));
                    CHECK((int32_t) nucleus.size() == n_kept + 1);
                    check_border(x, nucleus, left_by(llama_sampler_init_top_p(more, 1), x));
                }
            }
        }
    }
}

TEST(of_equal_logits_at_the_end_of_top_p_the_first_stay) {
    constexpr int32_t n = 3000, n_equal = 64;
    for (uint32_t seed = 0; seed < 5; ++seed) {
        std::mt19937       rng(seed);
        std::vector<float> x(n, -7.0f);
        std::fill_n(x.begin(), n_equal, 1.0f);
        x[n_equal] = 2.0f;
        std::shuffle(x.begin(), x.end(), rng);
        const double total = std::exp(2.0) + n_equal * std::exp(1.0) + (n - n_equal - 1) * std::exp(-7.0);
        for (const int32_t n_before : {0, 1, 20, 63}) {
            const float          p = (float) ((std::exp(2.0) + (n_before + 0.5) * std::exp(1.0)) / total);
            std::vector<int32_t> nucleus;
            CHECK(find_nucleus(x.data(), n, p, nucleus));
            CHECK((int32_t) nucleus.size() == 1 + n_before + 1);
            check_border(x, nucleus, left_by(llama_sampler_init_top_p(p, 1), x));
        }
    }
}

TEST(min_p_keeps_what_is_at_the_threshold_and_nothing_below) {
    for (const int32_t n : {8, 3000}) {
        for (const float min_p : {0.01f, 0.05f, 0.1f, 0.5f, 0.99f}) {
            for (const float max : {-3.0f, 0.0f, 17.3f}) {
                const float        least = max + std::log(min_p);
                std::vector<float> x(n, -INFINITY);
                x[1] = least;
                x[2] = std::nextafter(least, -INFINITY);
                x[4] = std::nextafter(least, INFINITY);
                x[5] = max;
                x[7] = least;
                std::vector<int32_t> above;
                find_above(x.data(), n, least, above);
                CHECK((above == std::vector<int32_t>{1, 4, 5, 7}));
                CHECK(above == left_by(llama_sampler_init_min_p(min_p, 1), x));
            }
        }
    }
}
