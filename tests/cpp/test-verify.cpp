#include "core/verify.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <random>

#include "testing.h"

using namespace dflash2;

static const float nan_p = std::numeric_limits<float>::quiet_NaN();

// About half of the probabilities are 0.
static law random_law(int32_t n, std::mt19937 & rng) {
    std::vector<double> w(n);
    double              sum = 0.0;
    for (double & x : w) {
        x = rng() % 2 ? double(1 + rng() % 1000) : 0.0;
        sum += x;
    }
    w[rng() % n] += 1.0;
    sum += 1.0;
    law l(n);
    for (int32_t i = 0; i < n; ++i) {
        l[i] = {i, float(w[i] / sum)};
    }
    return l;
}

static double sum_of(const law & l) {
    double sum = 0.0;
    for (const token_prob & t : l) {
        sum += t.p;
    }
    return sum;
}

// Gives laws by row and checks that they are asked for in order and only as far as needed.
struct target_laws {
    std::vector<law> laws;
    int32_t          n_asked = 0;

    law_at asker() {
        return [this](int32_t i) -> const law & {
            CHECK(i == n_asked);
            n_asked += 1;
            return laws.at(i);
        };
    }
};

TEST(matching_keeps_the_draft_up_to_the_first_difference) {
    for (int32_t n = 0; n <= 8; ++n) {
        const std::vector<token_id> draft(n, 5);
        for (int32_t pattern = 0; pattern < 1 << n; ++pattern) {
            int32_t n_match = 0;
            while (n_match < n && (pattern >> n_match & 1)) {
                n_match += 1;
            }
            int32_t       n_asked = 0;
            const verdict v       = verify_match(draft, [&](int32_t i) {
                CHECK(i == n_asked);
                n_asked += 1;
                return i < n && (pattern >> i & 1) ? 5 : 100 + i;
            });
            CHECK(v.n_accept == n_match);
            CHECK(v.next == 100 + n_match);
            CHECK(n_asked == n_match + 1);
        }
    }
}

TEST(one_hot_laws_make_rejection_the_matching_rule) {
    const random_source random(1);
    for (int32_t n = 0; n <= 6; ++n) {
        for (int32_t pattern = 0; pattern < 1 << n; ++pattern) {
            draft_path  path;
            target_laws p;
            for (int32_t i = 0; i <= n; ++i) {
                path.token.push_back(5);
                path.q.push_back({{5, 1.0f}});
                p.laws.push_back({{i < n && (pattern >> i & 1) ? 5 : 100 + i, 1.0f}});
            }
            path.token.pop_back();
            path.q.pop_back();
            const verdict match = verify_match(path.token, [&](int32_t i) { return p.laws[i][0].id; });
            const verdict v     = verify_rejection(path, p.asker(), random, 10 * pattern);
            CHECK(v.n_accept == match.n_accept && v.next == match.next);
            CHECK(p.n_asked == v.n_accept + 1);
        }
    }
}

TEST(a_draft_token_with_p_0_is_never_accepted) {
    const draft_path path = {{3}, {{{3, 1e-30f}, {4, 1.0f}}}};  // a tiny q: p / q is undecided by rounding
    for (uint32_t t = 0; t < 20000; ++t) {
        for (const law & p : {law{{0, 1.0f}}, law{{3, 0.0f}, {0, 1.0f}}, law{{3, nan_p}, {0, 1.0f}}}) {
            target_laws   laws = {{p}};
            const verdict v    = verify_rejection(path, laws.asker(), random_source(1, t), t);
            CHECK(v.n_accept == 0 && v.next == 0);
        }
    }
}

TEST(a_draft_token_with_p_0_is_not_accepted_even_with_q_0) {
    target_laws   laws = {{{{0, 1.0f}}}};
    const verdict v    = verify_rejection({{3}, {{{4, 1.0f}}}}, laws.asker(), random_source(1), 0);
    CHECK(v.n_accept == 0 && v.next == 0);
}

TEST(a_draft_token_with_p_at_least_q_is_always_accepted) {
    const law        q    = {{3, 0.25f}, {4, 0.75f}};
    const draft_path path = {{3}, {q}};
    for (uint32_t t = 0; t < 20000; ++t) {
        for (float p3 : {0.25f, 0.9f}) {
            target_laws laws = {{{{3, p3}, {4, 1.0f - p3}}, {{6, 1.0f}}}};
            CHECK(verify_rejection(path, laws.asker(), random_source(1, t), t).n_accept == 1);
        }
    }
}

TEST(a_bonus_token_is_the_plain_draw_of_its_position) {
    law any(1000);
    for (int32_t i = 0; i < 1000; ++i) {
        any[i] = {i, 0.001f};
    }
    const random_source random(4, 2);
    for (int32_t n = 0; n <= 3; ++n) {
        const draft_path path = {std::vector<token_id>(n, 5), std::vector<law>(n, law{{5, 1.0f}})};
        target_laws      laws = {std::vector<law>(n, law{{5, 1.0f}})};
        laws.laws.push_back(any);
        const verdict v = verify_rejection(path, laws.asker(), random, 20);
        CHECK(v.n_accept == n && laws.n_asked == n + 1);
        CHECK(v.next == draw(any, random.uniform(random_stream::residual, 21 + n)));
    }
}

TEST(a_correction_is_never_a_token_that_the_draft_had_enough_of) {
    // p <= q for 1, so a rejected 1 is replaced by 0 or 2 only
    const draft_path path      = {{1}, {{{0, 0.1f}, {1, 0.9f}}}};
    const law        p         = {{0, 0.3f}, {1, 0.1f}, {2, 0.6f}};
    int32_t          n_next[3] = {0, 0, 0};
    for (uint32_t t = 0; t < 20000; ++t) {
        target_laws   laws = {{p, p}};
        const verdict v    = verify_rejection(path, laws.asker(), random_source(1, t), t);
        if (v.n_accept == 0) {
            n_next[v.next] += 1;
        }
    }
    CHECK(n_next[1] == 0);
    CHECK_NEAR(double(n_next[0]) / (n_next[0] + n_next[2]), 0.2 / 0.8, 0.015);  // 4.6 standard errors
}

TEST(a_draw_never_gives_a_token_with_p_0) {
    std::mt19937 rng(2);
    for (int t = 0; t < 500; ++t) {
        const law l = random_law(1 + t % 20, rng);
        for (double u : {1.0, 1.0 - 0x1p-53, 0.5, 0x1p-53, 1e-300, std::numeric_limits<double>::denorm_min(), 0.0}) {
            CHECK(prob_of(l, draw(l, u)) > 0.0f);
        }
    }
    CHECK(draw({{7, nan_p}, {8, 0.0f}, {9, 1.0f}, {10, nan_p}, {11, 0.0f}}, 1.0) == 9);
}

TEST(a_draw_inverts_the_cumulative_law) {
    const law l = {{9, 0.25f}, {4, 0.0f}, {2, 0.5f}, {6, 0.25f}};
    CHECK(draw(l, 0.25) == 9);
    CHECK(draw(l, 0.25 + 1e-15) == 2);
    CHECK(draw(l, 0.75) == 2);
    CHECK(draw(l, 0.75 + 1e-15) == 6);
    CHECK(draw({{1, 3.0f}, {2, 1.0f}}, 0.75) == 1);  // need not be normalised
    CHECK(draw({{1, 3.0f}, {2, 1.0f}}, 0.76) == 2);
}

TEST(a_law_without_mass_is_an_error_not_a_token) {
    for (const law & l : {law{}, law{{1, 0.0f}}, law{{1, nan_p}, {2, nan_p}}}) {
        CHECK_THROWS(draw(l, 0.5), errc::decode);
        target_laws laws = {{l}};
        CHECK_THROWS(verify_rejection({{1}, {{{1, 1.0f}}}}, laws.asker(), random_source(1), 0), errc::decode);
    }
}

TEST(the_residual_is_the_normalised_positive_part_of_p_minus_q) {
    std::mt19937 rng(3);
    for (int t = 0; t < 500; ++t) {
        const law p = random_law(12, rng);
        law       q = random_law(12, rng);
        std::shuffle(q.begin(), q.end(), rng);
        q.resize(1 + t % 12);
        double z = 0.0;
        for (const token_prob & x : p) {
            z += std::max(0.0, double(x.p) - prob_of(q, x.id));
        }
        const law r = residual(p, q);
        CHECK_NEAR(sum_of(r), 1.0, 1e-6);
        for (const token_prob & x : p) {
            CHECK_NEAR(prob_of(r, x.id), std::max(0.0, double(x.p) - prob_of(q, x.id)) / z, 1e-6);
        }
        for (const token_prob & x : r) {
            CHECK(x.p > 0.0f && prob_of(p, x.id) > 0.0f);
        }
    }
}

TEST(the_residual_of_equal_laws_is_the_law) {
    const law p = {{1, 0.5f}, {2, 0.5f}};
    CHECK(prob_of(residual(p, p), 1) == 0.5f);
    CHECK(prob_of(residual(p, p), 2) == 0.5f);
}

TEST(a_probability_is_found_wherever_it_stands) {
    const law direct = {{0, 0.1f}, {1, 0.2f}, {2, 0.7f}};
    const law other  = {{2, 0.7f}, {100, 0.1f}, {0, 0.2f}};
    CHECK(prob_of(direct, 1) == 0.2f && prob_of(direct, 3) == 0.0f);
    CHECK(prob_of(other, 2) == 0.7f && prob_of(other, 0) == 0.2f && prob_of(other, 100) == 0.1f);
    CHECK(prob_of(other, 1) == 0.0f && prob_of(other, -1) == 0.0f && prob_of({}, 0) == 0.0f);
}

TEST(laws_over_a_large_vocabulary_are_exact_and_quick) {
    const int32_t n = 250000;
    law           p(n);
    for (int32_t i = 0; i < n; ++i) {
        p[i] = {i, 1.0f / n};
    }
    CHECK(draw(p, 1.0) == n - 1);
    CHECK(draw(p, 0x1p-53) == 0);
    CHECK(std::abs(draw(p, 0.5) - n / 2) <= 1);  // float accumulation is off by hundreds here

    const auto start = std::chrono::steady_clock::now();
    double     sum   = 0.0;
    for (int i = 0; i < 200000; ++i) {
        sum += prob_of(p, n - 1 - i % 1000);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    CHECK_NEAR(sum, 200000.0 / n, 1e-4);
    CHECK(elapsed.count() < 1.0);  // a linear search takes minutes
}
