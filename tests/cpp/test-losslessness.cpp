// Speculative decoding emits exactly the target's law: chi-square tests of whole generations against the exact law, and
// of faulty variants, which the same test must catch.
#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "core/verify.h"
#include "sanitized.h"
#include "testing.h"

using namespace dflash2;

// generations per test; every fault shows in n_few
#if defined(__SANITIZE_ADDRESS__)
static constexpr int n_many = 10000;
static constexpr int n_few  = 10000;
#else
static constexpr int n_many = 1000000;
static constexpr int n_few  = 60000;
#endif
static constexpr double p_pass = 1e-3;  // the seeds are fixed, so a pass stays a pass
static constexpr double p_fail = 1e-6;

static constexpr int32_t top_k    = 4;
static constexpr int32_t n_pos    = 3;
static constexpr int32_t n_tokens = 3;  // tested jointly

static constexpr float temperature = 0.5f;  // of the draft

// A target whose law depends on the last two tokens, and the drafter's lattice in each of these states.
struct world {
    int32_t              n_vocab;
    std::vector<law>     target;  // [n_vocab * n_vocab]
    std::vector<lattice> draft;   // [n_vocab * n_vocab]

    const law & after(token_id a, token_id b) const { return target[a * n_vocab + b]; }
};

enum class draft_kind { related, disjoint };  // disjoint: in every other state all candidates have p = 0

// Half of the vocabulary has p = 0 in each state, as after top-k or top-p. sharpness: scale of the logits.
static world make_world(int32_t n_vocab, float sharpness, draft_kind kind, uint32_t seed) {
    std::mt19937 rng(seed);
    const auto   noise = [&] { return sharpness * (float(rng() % 2001) / 1000.0f - 1.0f); };

    world w = {n_vocab, {}, {}};
    for (int32_t state = 0; state < n_vocab * n_vocab; ++state) {
        law    p(n_vocab);
        double sum = 0.0;
        for (int32_t id = 0; id < n_vocab; ++id) {
            p[id] = {id, (id + state) % 2 ? std::exp(noise()) : 0.0f};
            sum += p[id].p;
        }
        for (token_prob & t : p) {
            t.p = float(t.p / sum);
        }
        w.target.push_back(std::move(p));
    }
    for (int32_t state = 0; state < n_vocab * n_vocab; ++state) {
        const bool disjoint = kind == draft_kind::disjoint && rng() % 2;
        lattice    lat      = {top_k, n_pos, {}, {}};
        for (int32_t pos = 0; pos < n_pos; ++pos) {
            for (const size_t end = lat.cand.size() + top_k; lat.cand.size() < end;) {
                const token_id id = token_id(rng() % n_vocab);
                if (std::find(lat.cand.end() - (top_k + lat.cand.size() - end), lat.cand.end(), id) == lat.cand.end() &&
                    !(disjoint && w.target[state][id].p > 0.0f)) {
                    lat.cand.push_back(id);
                }
            }
            for (int32_t from = 0; from < top_k; ++from) {
                // what precedes the candidates `from` is not known to the lattice; any token will do
                const token_id a = pos == 0 ? state / n_vocab : pos == 1 ? state % n_vocab : lat.cand[0];
                const token_id b = pos == 0 ? state % n_vocab : lat.cand[(pos - 1) * top_k + from];
                for (int32_t to = 0; to < top_k; ++to) {
                    const float p = w.after(a, b)[lat.cand[pos * top_k + to]].p;
                    lat.score.push_back(0.5f * std::log(std::max(p, 0.01f)) + 0.5f * noise());
                }
            }
        }
        w.draft.push_back(std::move(lat));
    }
    return w;
}

// The draws of one round, all keyed by where the anchor stands.
struct round_draws {
    random_source random;
    uint32_t      position;
    uint32_t      round;

    double uniform(random_stream stream, int32_t i) const { return random.uniform(stream, position + 1 + i, round); }
};

using draft_rule  = std::function<draft_path(const lattice &, const round_draws &)>;
using verify_rule = std::function<verdict(const draft_path &, const law_at &, const round_draws &)>;

// Rounds until n_tokens are emitted after the context (0, 0).
static std::vector<token_id> generate(const world & w, const draft_rule & draft, const verify_rule & verify,
                                      const random_source & random) {
    std::vector<token_id> seq = {0, 0};
    for (uint32_t round = 0; seq.size() < 2 + n_tokens; ++round) {
        const size_t      n     = seq.size();
        const round_draws draws = {random, uint32_t(n - 1), round};
        const draft_path  path  = draft(w.draft[seq[n - 2] * w.n_vocab + seq[n - 1]], draws);
        seq.insert(seq.end(), path.token.begin(), path.token.end());
        const auto    p = [&](int32_t i) -> const law & { return w.after(seq[n - 2 + i], seq[n - 1 + i]); };
        const verdict v = verify(path, p, draws);
        seq.resize(n + v.n_accept);
        seq.push_back(v.next);
    }
    return {seq.begin() + 2, seq.begin() + 2 + n_tokens};
}

// P(chi-square with df degrees of freedom > x), by Wilson and Hilferty's cube root.
static double chi_square_tail(double x, double df) {
    const double v = 2.0 / (9.0 * df);
    return 0.5 * std::erfc((std::cbrt(x / df) - (1.0 - v)) / std::sqrt(2.0 * v));
}

// p-value of the joint counts of n generations under the target's law.
static double p_value(const world & w, const draft_rule & draft, const verify_rule & verify, int n = n_few) {
    const int32_t    v = w.n_vocab;
    std::vector<int> count(v * v * v);
    for (int run = 0; run < n; ++run) {
        const std::vector<token_id> t = generate(w, draft, verify, random_source(2026, run));
        count[(t[0] * v + t[1]) * v + t[2]] += 1;
    }
    struct cell {
        double expected, observed;
    };
    std::vector<cell> cells = {{0.0, 0.0}};  // neighbours are pooled until 10 are expected
    for (int32_t i = 0; i < v * v * v; ++i) {
        const token_id a = i / v / v, b = i / v % v, c = i % v;
        const double   p = double(w.after(0, 0)[a].p) * w.after(0, a)[b].p * w.after(a, b)[c].p;
        if (p == 0.0 && count[i] > 0) {
            return 0.0;
        }
        if (cells.back().expected >= 10.0) {
            cells.push_back({0.0, 0.0});
        }
        cells.back().expected += n * p;
        cells.back().observed += count[i];
    }
    if (cells.back().expected < 10.0) {
        const cell last = cells.back();
        cells.pop_back();
        cells.back().expected += last.expected;
        cells.back().observed += last.observed;
    }
    double x = 0.0;
    for (const cell & c : cells) {
        x += (c.observed - c.expected) * (c.observed - c.expected) / c.expected;
    }
    return chi_square_tail(x, double(cells.size() - 1));
}

// The methods under test.

static draft_path sampled(const lattice & lat, const round_draws & draws) {
    return walk_sample(lat, temperature, draws.random, draws.position, draws.round);
}

static draft_path greedy(const lattice & lat, const round_draws &) {
    return walk_greedy(lat);
}

static verdict rejection(const draft_path & path, const law_at & p, const round_draws & draws) {
    return verify_rejection(path, p, draws.random, draws.position);
}

static verdict match(const draft_path & path, const law_at & p, const round_draws & draws) {
    return verify_match(path.token, [&](int32_t i) { return draw(p(i), draws.uniform(random_stream::residual, i)); });
}

TEST(a_sampled_draft_emits_the_law_of_the_target) {
    const world w = make_world(8, 2.0f, draft_kind::related, 1);
    CHECK(p_value(w, sampled, rejection, n_many) > p_pass);
}

TEST(a_sampled_draft_emits_the_law_of_a_target_with_more_tokens) {
    const world w = make_world(32, 2.0f, draft_kind::related, 2);
    CHECK(p_value(w, sampled, rejection, n_many) > p_pass);
}

TEST(peaked_laws_are_emitted_exactly) {
    const world w = make_world(8, 6.0f, draft_kind::related, 3);
    CHECK(p_value(w, sampled, rejection) > p_pass);
}

TEST(a_drafter_that_proposes_impossible_tokens_changes_nothing) {
    const world w = make_world(16, 2.0f, draft_kind::disjoint, 4);
    CHECK(p_value(w, sampled, rejection) > p_pass);
}

TEST(a_greedy_draft_emits_the_law_of_the_target) {
    const world w = make_world(8, 2.0f, draft_kind::related, 5);
    CHECK(p_value(w, greedy, rejection) > p_pass);
}

TEST(the_matching_rule_emits_the_law_of_the_target) {
    const world w = make_world(8, 2.0f, draft_kind::related, 6);
    CHECK(p_value(w, greedy, match) > p_pass);
    CHECK(p_value(w, sampled, match) > p_pass);
}

// Cuts the path before the first position whose confidence is below 0.4.
static draft_rule cut_by(const std::function<float(const law & q, token_id drawn)> & confidence) {
    return [=](const lattice & lat, const round_draws & draws) {
        draft_path path = sampled(lat, draws);
        size_t     n    = 0;
        while (n < path.token.size() && confidence(path.q[n], path.token[n]) >= 0.4f) {
            n += 1;
        }
        path.token.resize(n);
        path.q.resize(n);
        return path;
    };
}

TEST(a_length_that_looks_at_distributions_changes_nothing) {
    const world w       = make_world(8, 2.0f, draft_kind::related, 1);
    const auto  largest = [](const law & q, token_id) { return q[0].p; };
    CHECK(p_value(w, cut_by(largest), rejection) > p_pass);
}

TEST(a_first_token_is_accepted_with_the_overlap_of_p_and_q) {
    const world w       = make_world(8, 2.0f, draft_kind::related, 1);
    double      overlap = 0.0;
    int         n_kept  = 0;
    for (int run = 0; run < n_few; ++run) {
        const round_draws draws = {random_source(1, run), 0, 0};
        const law &       p     = w.target[run % w.target.size()];
        draft_path        path  = sampled(w.draft[run % w.target.size()], draws);
        for (const token_prob & t : path.q[0]) {
            overlap += std::min(t.p, prob_of(p, t.id));
        }
        path.token.resize(1);
        n_kept += rejection(path, [&](int32_t) -> const law & { return p; }, draws).n_accept;
    }
    CHECK(overlap > 0.1 * n_few && overlap < 0.9 * n_few);
    CHECK_NEAR(n_kept, overlap, 2.5 * std::sqrt(n_few));  // 5 standard errors at least
}

// Planted faults: the exact method, written out with public functions, so that one piece at a time can be replaced.

// Softmax of one row of scores, as the walk computes it.
static law row_law(const lattice & lat, int32_t pos, const std::vector<float> & row, float t) {
    lattice one = {top_k, 1, {}, row};
    one.cand.assign(lat.cand.begin() + pos * top_k, lat.cand.begin() + (pos + 1) * top_k);
    one.score.resize(top_k * top_k);
    return walk_sample(one, t, random_source(), 0, 0).q[0];
}

// Reports q from scores [from, to] read with these strides, at temperature t.
static draft_rule report_q(int32_t stride_from, int32_t stride_to, float t) {
    return [=](const lattice & lat, const round_draws & draws) {
        draft_path path = sampled(lat, draws);
        for (int32_t pos = 0, from = 0; pos < n_pos; ++pos) {
            std::vector<float> row(top_k);
            for (int32_t to = 0; to < top_k; ++to) {
                row[to] = lat.score[pos * top_k * top_k + from * stride_from + to * stride_to];
            }
            path.q[pos]     = row_law(lat, pos, row, t);
            const auto cand = lat.cand.begin() + pos * top_k;
            from            = int32_t(std::find(cand, cand + top_k, path.token[pos]) - cand);
        }
        return path;
    };
}

using draw_at = std::function<double(const round_draws &, int32_t i)>;

static draw_at stream(random_stream s) {
    return [=](const round_draws & draws, int32_t i) { return draws.uniform(s, i); };
}

static verify_rule rejection_with(const draw_at & accept, const draw_at & correct,
                                  const std::function<law(const law &, const law &)> & correction = residual) {
    return [=](const draft_path & path, const law_at & p, const round_draws & draws) -> verdict {
        const int32_t n = int32_t(path.token.size());
        for (int32_t i = 0; i < n; ++i) {
            const law & pi = p(i);
            if (accept(draws, i) * prob_of(path.q[i], path.token[i]) > prob_of(pi, path.token[i])) {
                return {i, draw(correction(pi, path.q[i]), correct(draws, i))};
            }
        }
        return {n, draw(p(n), correct(draws, n))};
    };
}

static world fault_world() {
    return make_world(8, 2.0f, draft_kind::related, 1);
}

TEST(the_method_that_faults_are_planted_in_is_exact) {
    const world w      = fault_world();
    const auto  verify = rejection_with(stream(random_stream::accept), stream(random_stream::residual));
    CHECK(p_value(w, report_q(top_k, 1, temperature), verify) > p_pass);
}

TEST(q_from_the_wrong_scores_is_caught) {
    CHECK(p_value(fault_world(), report_q(1, top_k, temperature), rejection) < p_fail);
}

TEST(q_without_temperature_is_caught) {
    CHECK(p_value(fault_world(), report_q(top_k, 1, 1.0f), rejection) < p_fail);
}

TEST(draft_and_accept_sharing_a_stream_is_caught) {
    const auto verify = rejection_with(stream(random_stream::draft), stream(random_stream::residual));
    CHECK(p_value(fault_world(), sampled, verify) < p_fail);
}

TEST(draft_and_residual_sharing_a_stream_is_caught) {
    const auto verify = rejection_with(stream(random_stream::accept), stream(random_stream::draft));
    CHECK(p_value(fault_world(), sampled, verify) < p_fail);
}

TEST(accept_and_residual_sharing_a_stream_is_caught) {
    const auto verify = rejection_with(stream(random_stream::accept), stream(random_stream::accept));
    CHECK(p_value(fault_world(), sampled, verify) < p_fail);
}

TEST(a_length_that_looks_at_the_drawn_token_is_caught) {
    CHECK(p_value(fault_world(), cut_by(prob_of), rejection) < p_fail);
}

TEST(a_u_of_0_that_accepts_p_0_is_caught) {
    // a coarse grid, so that u = 0 comes up in a test
    const auto coarse = [](const round_draws & draws, int32_t i) {
        return std::floor(255.0 * draws.uniform(random_stream::accept, i)) / 256.0;
    };
    const auto verify = rejection_with(coarse, stream(random_stream::residual));
    CHECK(p_value(fault_world(), sampled, verify) < p_fail);
}

TEST(a_correction_drawn_from_the_whole_law_is_caught) {
    const auto whole  = [](const law & p, const law &) { return p; };
    const auto verify = rejection_with(stream(random_stream::accept), stream(random_stream::residual), whole);
    CHECK(p_value(fault_world(), sampled, verify) < p_fail);
}
