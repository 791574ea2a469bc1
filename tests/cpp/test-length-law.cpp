// The length controller leaves the emitted law alone.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "core/length.h"
#include "core/verify.h"
#include "core/walk.h"
#include "sanitized.h"
#include "sim.h"
#include "testing.h"

using namespace dflash2;

#if defined(__SANITIZE_ADDRESS__)
static constexpr int n_generations = 10000;
#else
static constexpr int n_generations = 60000;
#endif

static constexpr int32_t n_vocab = 6, top_k = 3, n_pos = 3;

// A target whose law depends on the last token, and the drafter's lattice after each token.
struct world {
    std::vector<law>     target;  // [n_vocab]
    std::vector<lattice> draft;   // [n_vocab]
};

static world make_world(uint32_t seed) {
    std::mt19937 rng(seed);
    const auto   noise = [&] { return float(rng() % 2001) / 1000.0f - 1.0f; };
    world        w;
    for (int32_t last = 0; last < n_vocab; ++last) {
        law   p(n_vocab);
        float sum = 0.0f;
        for (int32_t id = 0; id < n_vocab; ++id) {
            p[id] = {id, std::exp(2.5f * noise())};
            sum += p[id].p;
        }
        for (token_prob & t : p) {
            t.p /= sum;
        }
        w.target.push_back(p);
    }
    for (int32_t last = 0; last < n_vocab; ++last) {
        lattice lat = {top_k, n_pos, {}, {}};
        for (int32_t pos = 0; pos < n_pos; ++pos) {
            std::vector<token_id> ids(n_vocab);
            for (int32_t id = 0; id < n_vocab; ++id) {
                ids[id] = id;
            }
            std::shuffle(ids.begin(), ids.end(), rng);
            lat.cand.insert(lat.cand.end(), ids.begin(), ids.begin() + top_k);
            for (int32_t from = 0; from < top_k; ++from) {
                const token_id before = pos == 0 ? last : lat.cand[(pos - 1) * top_k + from];
                for (int32_t to = 0; to < top_k; ++to) {
                    lat.score.push_back(std::log(w.target[before][lat.cand[pos * top_k + to]].p) + noise());
                }
            }
        }
        w.draft.push_back(lat);
    }
    return w;
}

using confidence_of = std::function<std::vector<float>(const lattice &, const draft_path &, token_id last)>;

static double logit_gap(const law & p) {
    float best = 0.0f, second = 0.0f;
    for (const token_prob & t : p) {
        second = std::max(second, std::min(t.p, best));
        best   = std::max(best, t.p);
    }
    return std::log(best / second);
}

// p-value of the pairs of tokens that follow token 0, and how often each length was verified.
static double p_value(const world & w, const confidence_of & confidence, std::vector<int> & n_verified,
                      length_params params = {}) {
    params.n_max = n_pos;
    length_controller length(params);
    std::vector<int>  count(n_vocab * n_vocab);
    n_verified.assign(n_pos + 1, 0);
    for (int g = 0; g < n_generations; ++g) {
        const random_source   random(7, uint32_t(g));
        std::vector<token_id> seq = {0};
        if (g % 1000 == 0) {
            length.begin_request();
        }
        for (uint32_t round = 0; seq.size() < 3; ++round) {
            const uint32_t  position = uint32_t(seq.size()) - 1;
            const lattice & lat      = w.draft[seq.back()];
            draft_path      path     = walk_sample(lat, 1.0f, random, position, round);
            round_outcome   r;
            r.n_draft = length.draft_width(0);
            path.token.resize(r.n_draft);
            path.q.resize(r.n_draft);
            r.n_verify = r.n_draft > 0 ? length.verify_length(confidence(lat, path, seq.back())) : 0;
            path.token.resize(r.n_verify);
            path.q.resize(r.n_verify);
            n_verified[r.n_verify] += 1;

            const auto p = [&](int32_t i) -> const law & { return w.target[i == 0 ? seq.back() : path.token[i - 1]]; };
            const verdict v = verify_rejection(path, p, random, position);
            r.n_accept      = v.n_accept;
            r.n_rows        = r.n_verify + 1;
            r.ms_draft      = r.n_draft > 0 ? 0.05 : 0.0;
            r.ms_verify     = 1.0 + 0.25 * r.n_verify;
            r.logit_gap     = logit_gap(p(v.n_accept));
            length.observe(r);
            seq.insert(seq.end(), path.token.begin(), path.token.begin() + v.n_accept);
            seq.push_back(v.next);
        }
        count[seq[1] * n_vocab + seq[2]] += 1;
    }
    double x = 0.0, df = -1.0;
    for (int32_t a = 0; a < n_vocab; ++a) {
        for (int32_t b = 0; b < n_vocab; ++b) {
            const double expected = double(n_generations) * w.target[0][a].p * w.target[a][b].p;
            if (expected >= 5.0) {
                x += std::pow(count[a * n_vocab + b] - expected, 2) / expected;
                df += 1.0;
            }
        }
    }
    const double v = 2.0 / (9.0 * df);  // Wilson and Hilferty's cube root
    return 0.5 * std::erfc((std::cbrt(x / df) - (1.0 - v)) / std::sqrt(2.0 * v));
}

TEST(a_controlled_length_leaves_the_law_of_the_target_alone) {
    const auto own = [](const lattice & lat, const draft_path & path, token_id) { return path_confidence(lat, path); };
    std::vector<int> n;
    CHECK(p_value(make_world(3), own, n) > 1e-3);
    CHECK(std::count_if(n.begin(), n.end(), [](int k) { return k > n_generations / 50; }) >= 3);  // it did decide
}

TEST(a_kept_length_leaves_the_law_of_the_target_alone) {
    length_params kept;
    kept.n_stay      = 4;
    kept.probe_grant = 8.0;
    const auto own = [](const lattice & lat, const draft_path & path, token_id) { return path_confidence(lat, path); };
    std::vector<int> n;
    CHECK(p_value(make_world(3), own, n, kept) > 1e-3);
    CHECK(std::count_if(n.begin(), n.end(), [](int k) { return k > n_generations / 50; }) >= 2);
}

TEST(a_length_that_anticipates_is_caught) {
    const world w     = make_world(3);
    const auto  drawn = [&](const lattice &, const draft_path & path, token_id last) {
        std::vector<float> c;
        for (const token_id id : path.token) {
            c.push_back(w.target[last][id].p);
            last = id;
        }
        return c;
    };
    std::vector<int> n;
    CHECK(p_value(w, drawn, n) < 1e-6);
}

TEST(a_decision_does_not_depend_on_tokens_drawn_at_or_after_it) {
    const world   w = make_world(4);
    length_params params;
    params.n_max = n_pos;
    int n_cut = 0, n_changed = 0;
    for (uint32_t round = 0; round < 300; ++round) {
        const lattice &  lat  = w.draft[round % n_vocab];
        const draft_path path = walk_sample(lat, 1.0f, random_source(9), 0, round);
        for (int32_t cut = 0; cut < n_pos; ++cut) {
            // two controllers with the same history; the second sees other tokens from `cut` on
            length_controller a(params), b(params);
            for (length_controller * c : {&a, &b}) {
                sim::run_rounds(*c, 40, [](int32_t rows) { return 1.0 + 3.0 * rows; });
            }
            draft_path other = path;
            for (int32_t i = cut; i < n_pos; ++i) {
                const auto cand = lat.cand.begin() + i * top_k;
                other.token[i]  = *std::find_if(cand, cand + top_k, [&](token_id id) { return id != path.token[i]; });
            }
            a.draft_width(100);
            b.draft_width(100);
            const std::vector<float> ca = path_confidence(lat, path), cb = path_confidence(lat, other);
            CHECK(std::equal(ca.begin(), ca.begin() + cut + 1, cb.begin()));
            const int32_t na = a.verify_length(ca), nb = b.verify_length(cb);
            CHECK(std::min(na, cut + 1) == std::min(nb, cut + 1));
            n_cut += na < n_pos;
            n_changed += na != nb;
        }
    }
    CHECK(n_cut > 50);      // lengths were decided
    CHECK(n_changed > 10);  // and the tokens before a decision do matter
}

TEST(a_confidence_is_the_largest_probability_at_temperature_1) {
    const world      w    = make_world(5);
    const lattice &  lat  = w.draft[0];
    const draft_path path = walk_sample(lat, 1.0f, random_source(1), 0, 0);
    const auto       c    = path_confidence(lat, path);
    CHECK(c.size() == size_t(n_pos));
    for (int32_t i = 0; i < n_pos; ++i) {
        CHECK_NEAR(c[i], path.q[i][0].p, 1e-6);
    }
    const auto cold = path_confidence(lat, walk_greedy(lat));
    CHECK_NEAR(cold[0], c[0], 1e-6);  // of the distribution, not of the one-hot q
}
