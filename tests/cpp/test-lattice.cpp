#include "core/walk.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "testing.h"

namespace dflash2 {
inline bool operator==(const token_prob & a, const token_prob & b) {
    return a.id == b.id && a.p == b.p;
}
}  // namespace dflash2

using namespace dflash2;

static const float nan_score = std::numeric_limits<float>::quiet_NaN();
static const float inf_score = std::numeric_limits<float>::infinity();

static float & score_at(lattice & lat, int32_t pos, int32_t from, int32_t to) {
    return lat.score[(pos * lat.top_k + from) * lat.top_k + to];
}

// Scores are multiples of 1/2, so ties are common.
static lattice random_lattice(int32_t top_k, int32_t n_pos, std::mt19937 & rng) {
    lattice lat;
    lat.top_k = top_k;
    lat.n_pos = n_pos;
    for (int32_t pos = 0; pos < n_pos; ++pos) {
        std::vector<token_id> ids(3 * top_k);
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), rng);
        lat.cand.insert(lat.cand.end(), ids.begin(), ids.begin() + top_k);
    }
    for (int32_t i = 0; i < top_k * top_k * n_pos; ++i) {
        lat.score.push_back(0.5f * float(rng() % 11) - 2.5f);
    }
    return lat;
}

// The same lattice with the candidates of each position in another order.
static lattice shuffled(const lattice & lat, std::mt19937 & rng) {
    const int32_t        k   = lat.top_k;
    lattice              out = lat;
    std::vector<int32_t> from(k), to(k);
    std::iota(from.begin(), from.end(), 0);
    for (int32_t pos = 0; pos < lat.n_pos; ++pos) {
        std::iota(to.begin(), to.end(), 0);
        std::shuffle(to.begin(), to.end(), rng);
        for (int32_t i = 0; i < k; ++i) {
            out.cand[pos * k + i] = lat.cand[pos * k + to[i]];
            for (int32_t j = 0; j < k; ++j) {
                out.score[(pos * k + j) * k + i] = lat.score[(pos * k + from[j]) * k + to[i]];
            }
        }
        from = to;
    }
    return out;
}

static int32_t index_of(const lattice & lat, int32_t pos, token_id id) {
    const auto row = lat.cand.begin() + pos * lat.top_k;
    return int32_t(std::find(row, row + lat.top_k, id) - row);
}

TEST(the_greedy_walk_takes_the_best_step_of_all_paths) {
    std::mt19937 rng(1);
    for (int t = 0; t < 200; ++t) {
        lattice lat = random_lattice(1 + t % 4, 1 + t % 3, rng);
        // of all top_k ^ n_pos paths: the highest first score, then the smallest first id, then the second step, ..
        std::vector<std::pair<float, token_id>> best;
        const int32_t                           n_paths = int32_t(std::pow(lat.top_k, lat.n_pos));
        for (int32_t code = 0; code < n_paths; ++code) {
            std::vector<std::pair<float, token_id>> steps;
            for (int32_t pos = 0, from = 0, rest = code; pos < lat.n_pos; ++pos, rest /= lat.top_k) {
                const int32_t to = rest % lat.top_k;
                steps.push_back({-score_at(lat, pos, from, to), lat.cand[pos * lat.top_k + to]});
                from = to;
            }
            best = best.empty() ? steps : std::min(best, steps);
        }
        const draft_path path = walk_greedy(lat);
        CHECK(path.token.size() == best.size() && path.q.size() == best.size());
        for (size_t i = 0; i < best.size(); ++i) {
            CHECK(path.token[i] == best[i].second);
            CHECK((path.q[i] == law{{path.token[i], 1.0f}}));
        }
    }
}

TEST(walks_do_not_depend_on_the_order_of_candidates) {
    std::mt19937 rng(2);
    for (uint32_t t = 0; t < 200; ++t) {
        const lattice       a = random_lattice(8, 5, rng);
        const lattice       b = shuffled(a, rng);
        const random_source random(3, t);
        CHECK(walk_greedy(a).token == walk_greedy(b).token);
        const draft_path wa = walk_sample(a, 0.7f, random, 10, t);
        const draft_path wb = walk_sample(b, 0.7f, random, 10, t);
        CHECK(wa.token == wb.token);
        CHECK(wa.q == wb.q);
    }
}

TEST(q_is_the_softmax_of_scores_over_temperature_after_the_token_drawn) {
    std::mt19937 rng(4);
    for (float temperature : {0.3f, 1.0f, 2.5f}) {
        for (uint32_t t = 0; t < 50; ++t) {
            lattice          lat  = random_lattice(6, 4, rng);
            const draft_path path = walk_sample(lat, temperature, random_source(5, t), 0, 0);
            CHECK(path.token.size() == 4 && path.q.size() == 4);
            for (int32_t pos = 0, from = 0; pos < 4; ++pos) {
                double sum = 0.0;
                for (int32_t to = 0; to < 6; ++to) {
                    sum += std::exp(score_at(lat, pos, from, to) / temperature);
                }
                for (const token_prob & q : path.q[pos]) {
                    const int32_t to = index_of(lat, pos, q.id);
                    CHECK_NEAR(q.p, std::exp(score_at(lat, pos, from, to) / temperature) / sum, 1e-6);
                }
                CHECK(path.q[pos].size() == 6);
                from = index_of(lat, pos, path.token[pos]);
                CHECK(from < 6);
            }
        }
    }
}

TEST(draws_differ_by_sequence_position_and_round) {
    std::mt19937  rng(6);
    const lattice lat    = random_lattice(16, 7, rng);
    const auto    tokens = [&](uint64_t seed, uint32_t sequence, uint32_t position, uint32_t round) {
        return walk_sample(lat, 5.0f, random_source(seed, sequence), position, round).token;
    };
    CHECK(tokens(1, 1, 1, 1) == tokens(1, 1, 1, 1));
    CHECK(tokens(1, 1, 1, 1) != tokens(2, 1, 1, 1));
    CHECK(tokens(1, 1, 1, 1) != tokens(1, 2, 1, 1));
    CHECK(tokens(1, 1, 1, 1) != tokens(1, 1, 2, 1));
    CHECK(tokens(1, 1, 1, 1) != tokens(1, 1, 1, 2));
}

TEST(a_cold_walk_is_the_greedy_walk) {
    std::mt19937 rng(7);
    lattice      lat = random_lattice(8, 4, rng);
    std::iota(lat.score.begin(), lat.score.end(), 0.0f);  // no ties
    std::shuffle(lat.score.begin(), lat.score.end(), rng);
    for (float temperature : {1e-3f, std::numeric_limits<float>::denorm_min()}) {
        CHECK(walk_sample(lat, temperature, random_source(1), 0, 0).token == walk_greedy(lat).token);
    }
}

TEST(a_sampled_walk_needs_a_temperature) {
    std::mt19937  rng(8);
    const lattice lat = random_lattice(2, 1, rng);
    for (float temperature : {0.0f, -1.0f, nan_score}) {
        CHECK_THROWS(walk_sample(lat, temperature, random_source(1), 0, 0), errc::argument);
    }
}

TEST(the_greedy_walk_stops_before_a_pick_below_p_min) {
    // picks with softmax probabilities 1 / (1 + e^-2) = 0.88, then 1 / (1 + 1) = 0.5
    const lattice lat = {2, 2, {10, 11, 20, 21}, {2, 0, 0, 0, 1, 1, 0, 0}};
    CHECK((walk_greedy(lat, 0.0f).token == std::vector<token_id>{10, 20}));
    CHECK((walk_greedy(lat, 0.49f).token == std::vector<token_id>{10, 20}));
    CHECK((walk_greedy(lat, 0.51f).token == std::vector<token_id>{10}));
    CHECK(walk_greedy(lat, 0.89f).token.empty() && walk_greedy(lat, 0.89f).q.empty());
}

TEST(scores_that_are_not_finite_are_never_picked) {
    const lattice lat = {
        4, 1, {13, 12, 11, 10}, {nan_score, -3.0f, inf_score, -inf_score, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};
    CHECK(walk_greedy(lat).token[0] == 12);
    for (uint32_t t = 0; t < 100; ++t) {
        const draft_path path = walk_sample(lat, 100.0f, random_source(1, t), 0, 0);
        CHECK(path.token[0] == 12);
        CHECK((path.q[0] == law{{12, 1.0f}, {10, 0.0f}, {11, 0.0f}, {13, 0.0f}}));
    }
}

TEST(without_a_finite_score_the_smallest_id_is_picked) {
    lattice lat = {3, 2, {7, 5, 6, 9, 8, 4}, std::vector<float>(18, nan_score)};
    CHECK((walk_greedy(lat).token == std::vector<token_id>{5, 4}));
    CHECK((walk_greedy(lat, 0.9f).token == std::vector<token_id>{5, 4}));
    const draft_path path = walk_sample(lat, 1.0f, random_source(1), 0, 0);
    CHECK((path.token == std::vector<token_id>{5, 4}));
    CHECK((path.q[0] == law{{5, 1.0f}, {6, 0.0f}, {7, 0.0f}}));
}

TEST(a_cut_leaves_out_what_the_targets_own_cut_would) {
    // softmax(score) = .5 .25 .125 .125, listed out of order
    const lattice lat = {4, 1, {3, 1, 2, 4}, std::vector<float>(16)};
    lattice       one = lat;
    one.score[1]      = std::log(4.0f);  // id 1
    one.score[2]      = std::log(2.0f);  // id 2
    const auto ids    = [&](const walk_cut & cut, float temperature) {
        std::vector<token_id> out;
        float                 sum  = 0.0f;
        const draft_path      path = walk_sample(one, temperature, random_source(1), 0, 0, cut);
        for (const token_prob & t : path.q[0]) {
            out.push_back(t.id);
            sum += t.p;
        }
        CHECK(std::fabs(sum - 1.0f) < 1e-6f);
        return out;
    };
    CHECK((ids({}, 1.0f) == std::vector<token_id>{1, 2, 3, 4}));
    CHECK((ids({2, 1.0f, 0.0f}, 1.0f) == std::vector<token_id>{1, 2}));
    CHECK((ids({0, 0.6f, 0.0f}, 1.0f) == std::vector<token_id>{1, 2}));
    CHECK((ids({0, 0.6f, 0.0f}, 50.0f) == std::vector<token_id>{1, 2}));  // cut at temperature 1
    CHECK((ids({0, 1.0f, 0.4f}, 1.0f) == std::vector<token_id>{1, 2}));
    CHECK((ids({3, 0.9f, 0.0f}, 1.0f) == std::vector<token_id>{1, 2, 3}));
    CHECK((ids({0, 1e-6f, 1.0f}, 1.0f) == std::vector<token_id>{1}));  // never empty
}

TEST(huge_scores_do_not_overflow) {
    const float   big = std::numeric_limits<float>::max();
    const lattice lat = {3, 1, {1, 2, 3}, {big, -big, big, 0, 0, 0, 0, 0, 0}};
    CHECK((walk_sample(lat, 1.0f, random_source(1), 0, 0).q[0] == law{{1, 0.5f}, {3, 0.5f}, {2, 0.0f}}));
}

TEST(a_lattice_that_a_walk_cannot_trust_is_refused) {
    const lattice good = {2, 2, {0, 1, 4, 2}, std::vector<float>(8)};
    validate(good, 5);
    validate({2, 0, {}, {}}, 5);

    lattice bad = good;
    bad.cand[3] = 4;
    CHECK_THROWS(validate(bad, 5), errc::argument);  // twice at one position
    bad.cand[3] = -1;
    CHECK_THROWS(validate(bad, 5), errc::argument);
    CHECK_THROWS(validate(good, 4), errc::argument);  // beyond the vocabulary
    bad = good;
    bad.cand.pop_back();
    CHECK_THROWS(validate(bad, 5), errc::argument);
    bad = good;
    bad.score.pop_back();
    CHECK_THROWS(validate(bad, 5), errc::argument);
    CHECK_THROWS(validate({0, 1, {}, {}}, 5), errc::argument);
    CHECK_THROWS(validate({1, -1, {}, {}}, 5), errc::argument);
}
