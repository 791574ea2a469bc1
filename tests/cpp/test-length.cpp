// The length controller on simulated machines and texts.
#include "core/length.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "sanitized.h"
#include "sim-cases.h"
#include "testing.h"
#include "traffic.h"

using namespace dflash2;

#if defined(__SANITIZE_ADDRESS__)
static constexpr int    n_seed      = 4;
static constexpr double close_races = 0.95;  // of the best fixed length; fewer seeds, wider
#else
static constexpr int    n_seed      = 12;
static constexpr double close_races = 0.96;
#endif

struct outcome {
    double late = 0.0;  // rate after 200 rounds over that of the best fixed length; mean over seeds
    double plain =
        0.0;  // rate after 400 rounds, or of all where it is lower, over that of plain decoding; mean over seeds
    double worst = 9.0;  // the same, of the worst seed
    double best  = 0.0;  // the best fixed length's rate over that of plain decoding
};

static outcome simulate(const sim::machine & m, const sim::text & t, int64_t n_tokens = 0) {
    outcome      o;
    const double plain = sim::run(on(m, t, 1, 1000, 2 * n_tokens), sim::fixed(m, 0)).from_round(0).rate();
    double       best  = plain;
    for (int32_t n = 1; n <= sim::n_max; ++n) {
        best = std::max(best, sim::run(on(m, t, 1, 3000, 2 * n_tokens), sim::fixed(m, n)).from_round(0).rate());
    }
    for (uint32_t seed = 1; seed <= n_seed; ++seed) {
        length_controller length({sim::n_max});
        tell(length, m);
        const sim::trace tr   = sim::run(on(m, t, seed, 600, n_tokens), sim::controlled(length));
        const sim::score late = n_tokens > 0 ? tr.from_token(4 * phase) : tr.from_round(200);
        o.late += late.rate() / best / n_seed;
        const double whole = std::min(tr.sum[400].rate(), tr.sum.back().rate()) / plain;
        o.plain += whole / n_seed;
        o.worst = std::min(o.worst, whole);
    }
    o.best = best / plain;
    return o;
}

// A difference of 20 % or less between lengths takes more than a few hundred rounds to tell from the luck of the text.
static bool close_race(const outcome & o) {
    return o.best > 1.0 && o.best < 1.2;
}

static std::string describe(const outcome & o, size_t machine, size_t text) {
    return "machine " + std::to_string(machine) + " text " + std::to_string(text) + ": " + std::to_string(o.late) +
           " of the best fixed length, " + std::to_string(o.plain) + " of plain decoding (worst " +
           std::to_string(o.worst) + "), best fixed length " + std::to_string(o.best) + " of plain decoding";
}

#define CHECK_OUTCOME(condition, o, machine, text) \
    check(condition, __FILE__, __LINE__, std::string(#condition) + ", " + describe(o, machine, text))

TEST(it_comes_near_the_best_fixed_length_and_is_never_slower_than_plain_decoding) {
    const std::vector<sim::text> texts = {even(0.9), even(0.6),           even(0.2),           {trained},
                                          {fading},  informed(even(0.9)), informed(even(0.2)), informed({trained})};
    double                       close = 0.0, n_close = 0.0;
    for (size_t m = 0; m < machines.size(); ++m) {
        for (size_t t = 0; t < texts.size(); ++t) {
            const outcome o = simulate(*machines[m], texts[t]);
            CHECK_OUTCOME(o.late > (close_race(o) ? close_races : 0.98), o, m, t);
            CHECK_OUTCOME(o.plain > 0.98, o, m, t);
            CHECK_OUTCOME(o.worst > 0.96, o, m, t);
            close += close_race(o) ? o.late : 0.0;
            n_close += close_race(o);
        }
    }
    CHECK(n_close > 10);
    CHECK(close / n_close > 0.99);
}

TEST(it_beats_every_fixed_length_when_the_text_changes) {
    for (const sim::machine * m : {&h200, &q4_0, &moe}) {
        const outcome o = simulate(*m, phases(0.9, 0.2), 20 * phase);
        CHECK_OUTCOME(o.late > 1.1, o, 0, 0);
        CHECK_OUTCOME(o.plain > 0.98, o, 0, 0);
    }
    const outcome o = simulate(flat, phases(0.2, 0.9), 20 * phase);
    CHECK_OUTCOME(o.late > 0.98, o, 0, 0);
    const outcome none = simulate(q4_1, phases(0.2, 0.9), 20 * phase);
    CHECK_OUTCOME(none.late > 0.98, none, 0, 0);
    CHECK_OUTCOME(none.plain > 0.98, none, 0, 0);
}

TEST(it_beats_every_fixed_length_when_rows_cost_and_the_selector_knows) {
    for (const sim::machine * m : {&h200, &moe}) {
        const outcome o = simulate(*m, informed(even(0.9)));
        CHECK_OUTCOME(o.late > 1.01, o, 0, 0);
    }
}

TEST(it_follows_costs_that_grow_with_the_context) {
    sim::machine m = q4_0;
    m.context      = 0.5;
    double best    = 0.0;
    for (int32_t n = 0; n <= sim::n_max; ++n) {
        best = std::max(best, sim::run(on(m, even(0.8), 1, 0, 6000), sim::fixed(m, n)).from_token(600).rate());
    }
    length_controller length({sim::n_max});
    const sim::trace  tr = sim::run(on(m, even(0.8), 1, 0, 6000), sim::controlled(length));
    CHECK(tr.from_token(600).rate() > 0.98 * best);
}

TEST(it_recovers_when_the_machine_changes) {
    for (const auto & [before, after] : {std::pair(&q4_1, &flat), std::pair(&flat, &q4_1)}) {
        sim::scenario s = on(*before, even(0.8), 1, 0, 8000);
        s.machine_at    = [b = before, a = after](int64_t token) -> const sim::machine & {
            return token < 1500 ? *b : *a;
        };
        length_controller length({sim::n_max});
        const double      rate = sim::run(s, sim::controlled(length)).from_token(3000).rate();
        double            best = 0.0;
        for (int32_t n = 0; n <= sim::n_max; ++n) {
            best = std::max(best, sim::run(s, sim::fixed(*after, n)).from_token(3000).rate());
        }
        CHECK(rate > 0.97 * best);
    }
}

// Requests of 64 to 256 tokens that ask to explain, and of each four one that asks to repeat a text. One CPU core with
// a model in Q4_0, computing bound: 4 rows cost 1.9 plain rounds, a draft 0.35.
static const sim::machine q4_0_small = {{{1, 16.0}, {2, 21.6}, {4, 30.4}, {8, 72.0}, {16, 144.0}}, 4.4, 0.4, 0.15};

struct kinds {
    sim::text explains[3], repeats;
};

static const kinds hidden = {{informed(even(0.3)), informed(even(0.4)), informed(even(0.5))}, informed(even(0.9))};
static const kinds told   = {{shown(hidden.explains[0]), shown(hidden.explains[1]), shown(hidden.explains[2])},
                             shown(hidden.repeats)};

static std::vector<sim::request> traffic(const kinds & of, uint32_t seed, bool mixed) {
    std::mt19937              rng(seed);
    std::vector<sim::request> requests;
    for (int i = 0; i < 60; ++i) {
        requests.push_back({mixed && i % 4 == 3 ? &of.repeats : &of.explains[rng() % 3], int64_t(64 + rng() % 193)});
    }
    std::shuffle(requests.begin(), requests.end(), rng);
    return requests;
}

// Relative to plain decoding, of the traffic as a whole.
static double over_plain(const sim::machine & m, const std::map<const sim::text *, sim::served> & got) {
    sim::score sum;
    for (const auto & [words, s] : got) {
        sum.tokens += s.all.tokens;
        sum.ms += s.all.ms;
    }
    return sum.rate() * m.pass_ms(1, 0);
}

TEST(it_finds_the_requests_that_pay_among_others) {
    for (const sim::machine * m : {&q4_0_small, &h200}) {
        for (const kinds * of : {&hidden, &told}) {
            double best = 0.0;
            for (int32_t n = 0; n <= sim::n_max; ++n) {
                const std::vector<sim::request> many(100, {&of->repeats, 160});
                best = std::max(best, sim::serve(*m, many, {}, sim::fixed(*m, n))[&of->repeats].late.rate());
            }
            double late = 0.0, whole = 0.0;
            for (uint32_t seed = 1; seed <= n_seed; ++seed) {
                length_controller length({sim::n_max});
                tell(length, *m);
                auto got = sim::serve(*m, traffic(*of, seed, true), {0.05, 0.02, seed}, sim::controlled(length));
                late += got[&of->repeats].late.rate() / best / n_seed;
                whole += over_plain(*m, got) / n_seed;
            }
            CHECK(late > (of == &told ? 0.99 : 0.95));
            CHECK(whole > (m == &h200 ? 1.07 : 1.035));  // 0.97 of the best fixed length for each request
        }
    }
}

TEST(traffic_that_cannot_pay_is_not_slowed) {
    constexpr uint32_t n_first = 60;  // requests that are the first of their engine
    for (const sim::machine * m : {&q4_0_small, &h200, &q4_1}) {
        for (const kinds * of : {&hidden, &told}) {
            double mean = 0.0, first = 0.0;
            for (uint32_t seed = 1; seed <= n_seed; ++seed) {
                length_controller length({sim::n_max});
                tell(length, *m);
                const auto got = sim::serve(*m, traffic(*of, seed, false), {0.05, 0.02, seed}, sim::controlled(length));
                mean += over_plain(*m, got) / n_seed;
            }
            for (uint32_t seed = 1; seed <= n_first; ++seed) {
                length_controller length({sim::n_max});
                tell(length, *m);
                const std::vector<sim::request> one = {{&of->explains[seed % 3], 64}};
                first += over_plain(*m, sim::serve(*m, one, {0.05, 0.02, seed}, sim::controlled(length))) / n_first;
            }
            CHECK(mean > 0.98);
            CHECK(first > 0.975);
        }
    }
}

// Where passes are not timed at load, since a clock is injected, it finds out by itself.
TEST(a_controller_that_was_told_nothing_learns_what_rows_cost) {
    for (const sim::machine * m : {&flat, &h200, &q4_1, &q4_0_small}) {
        for (const sim::text & t : {even(0.9), even(0.3)}) {
            const double plain = sim::run(on(*m, t, 1, 1000), sim::fixed(*m, 0)).from_round(0).rate();
            double       best  = plain;
            for (int32_t n = 1; n <= sim::n_max; ++n) {
                best = std::max(best, sim::run(on(*m, t, 1, 3000), sim::fixed(*m, n)).from_round(0).rate());
            }
            double late = 0.0, whole = 0.0;
            for (uint32_t seed = 1; seed <= n_seed; ++seed) {
                length_controller length({sim::n_max});
                const sim::trace  tr = sim::run(on(*m, t, seed, 600), sim::controlled(length));
                late += tr.from_round(200).rate() / best / n_seed;
                whole += tr.sum.back().rate() / plain / n_seed;
            }
            CHECK(late > 0.93);
            CHECK(whole > 0.98);
        }
    }
}

// A GPU that captures a graph anew when the number of rows changes: a large target in Q4_K, and a small one.
static sim::machine captures(sim::machine m) {
    m.change = 0.4;
    return m;
}

static const sim::machine h200_small = {{{1, 1.19}, {2, 1.4}, {4, 1.72}, {8, 2.03}, {9, 1.95}, {16, 2.1}}, 0.5, 0.01};

TEST(rows_stay_where_changes_of_them_are_dear) {
    const std::vector<sim::text> texts = {even(0.9), even(0.6),           even(0.2),
                                          {trained}, informed(even(0.7)), informed({trained})};
    double                       gain  = 0.0;
    for (const sim::machine & m : {captures(h200), captures(h200_small)}) {
        for (size_t t = 0; t < texts.size(); ++t) {
            const double plain = sim::run(on(m, texts[t], 1, 1000), sim::fixed(m, 0)).from_round(0).rate();
            double       best  = plain;
            for (int32_t n = 1; n <= sim::n_max; ++n) {
                best = std::max(best, sim::run(on(m, texts[t], 1, 3000), sim::fixed(m, n)).from_round(0).rate());
            }
            outcome o;
            o.best = best / plain;
            for (uint32_t seed = 1; seed <= n_seed; ++seed) {
                length_controller kept(staying(8)), other(staying(1));
                tell(kept, m);
                tell(other, m);
                const sim::trace tr = sim::run(on(m, texts[t], seed, 600), sim::controlled(kept));
                o.late += tr.from_round(200).rate() / best / n_seed;
                o.plain += tr.sum.back().rate() / plain / n_seed;
                o.worst               = std::min(o.worst, tr.sum.back().rate() / plain);
                const sim::trace free = sim::run(on(m, texts[t], seed, 600), sim::controlled(other));
                gain += (tr.from_round(200).rate() - free.from_round(200).rate()) / best / n_seed;
            }
            CHECK_OUTCOME(o.late > 0.91, o, 0, t);
            CHECK_OUTCOME(o.plain > 0.96, o, 0, t);
        }
    }
    CHECK(gain / double(2 * texts.size()) > 0.05);
}
