// The length controller on simulated machines and texts.
#include "core/length.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "sanitized.h"
#include "sim.h"
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

// Machines: ms of a pass by rows. A flat one; an H200 with Q4_K, where 9 rows cost less
// than 8; one CPU core with SmolLM2 in Q4_1 and in Q4_0, drafter fast and slow; experts on a CPU.
static const sim::machine flat     = {{{1, 20.0}, {16, 21.5}}, 3.0, 0.05};
static const sim::machine h200     = {{{1, 9.1},
                                       {2, 9.95},
                                       {3, 11.8},
                                       {4, 14.1},
                                       {5, 15.1},
                                       {6, 16.9},
                                       {7, 18.7},
                                       {8, 20.8},
                                       {9, 18.4},
                                       {12, 18.7},
                                       {16, 19.0}},
                                      5.0,
                                      0.1};
static const sim::machine q4_1     = {{{1, 30.3}, {2, 47.6}, {4, 83.3}, {8, 150.9}, {16, 300.0}}, 12.0, 5.0};
static const sim::machine q4_1slow = {{{1, 30.3}, {2, 47.6}, {4, 83.3}, {8, 150.9}, {16, 300.0}}, 30.0, 10.0};
static const sim::machine q4_0     = {{{1, 19.6}, {2, 29.4}, {4, 30.1}, {8, 50.0}, {16, 95.0}}, 6.0, 1.5};
static const sim::machine moe      = {{{1, 50.0}, {2, 72.0}, {4, 100.0}, {8, 137.5}, {16, 190.0}}, 8.0, 0.3};

static const std::vector<const sim::machine *> machines = {&flat, &h200, &q4_1, &q4_1slow, &q4_0, &moe};

// Texts.
static sim::text even(double accept) {
    return {[=](int64_t, int32_t) { return accept; }};
}

static double trained(int64_t, int32_t pos) {
    static const double survival[] = {1.0, .638, .396, .256, .178, .127, .089, .059};
    return survival[pos + 1] / survival[pos];
}

static double fading(int64_t, int32_t pos) {
    return std::pow(0.85, pos + 1);
}

static sim::text informed(sim::text t) {
    t.spread   = 1.5;
    t.informed = true;
    return t;
}

static constexpr int64_t phase = 300;  // tokens

static sim::text phases(double first, double second) {
    return {[=](int64_t token, int32_t) { return token / phase % 2 == 0 ? first : second; }};
}

static sim::scenario on(const sim::machine & m, const sim::text & t, uint32_t seed, int64_t n_rounds,
                        int64_t n_tokens = 0) {
    return {[&m](int64_t) -> const sim::machine & { return m; }, t, {0.05, 0.02, seed}, n_tokens, n_rounds};
}

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
        const sim::trace  tr   = sim::run(on(m, t, seed, 600, n_tokens), sim::controlled(length));
        const sim::score  late = n_tokens > 0 ? tr.from_token(4 * phase) : tr.from_round(200);
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
            CHECK_OUTCOME(o.worst > 0.97, o, m, t);
            close += close_race(o) ? o.late : 0.0;
            n_close += close_race(o);
        }
    }
    CHECK(n_close > 10);
    CHECK(close / n_close > 0.98);
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
static const sim::machine q4_0_small = {{{1, 16.0}, {2, 21.6}, {4, 30.4}, {8, 72.0}, {16, 144.0}}, 4.4, 0.4};

static const sim::text explains[] = {informed(even(0.3)), informed(even(0.4)), informed(even(0.5))};
static const sim::text repeats    = informed(even(0.9));

static std::vector<sim::request> traffic(uint32_t seed, bool mixed) {
    std::mt19937              rng(seed);
    std::vector<sim::request> requests;
    for (int i = 0; i < 60; ++i) {
        requests.push_back({mixed && i % 4 == 3 ? &repeats : &explains[rng() % 3], int64_t(64 + rng() % 193)});
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
        double best = 0.0;
        for (int32_t n = 0; n <= sim::n_max; ++n) {
            const std::vector<sim::request> many(100, {&repeats, 160});
            best = std::max(best, sim::serve(*m, many, {}, sim::fixed(*m, n))[&repeats].late.rate());
        }
        double late = 0.0, whole = 0.0;
        for (uint32_t seed = 1; seed <= n_seed; ++seed) {
            length_controller length({sim::n_max});
            auto              got = sim::serve(*m, traffic(seed, true), {0.05, 0.02, seed}, sim::controlled(length));
            late += got[&repeats].late.rate() / best / n_seed;
            whole += over_plain(*m, got) / n_seed;
        }
        CHECK(late > 0.96);
        CHECK(whole > (m == &h200 ? 1.07 : 1.035));  // 0.97 of the best fixed length for each request
    }
}

TEST(traffic_that_cannot_pay_is_not_slowed) {
    constexpr uint32_t n_first = 60;  // requests that are the first of their engine
    for (const sim::machine * m : {&q4_0_small, &h200, &q4_1}) {
        double mean = 0.0, first = 0.0;
        for (uint32_t seed = 1; seed <= n_seed; ++seed) {
            length_controller length({sim::n_max});
            const sim::noise  timing = {0.05, 0.02, seed};
            mean += over_plain(*m, sim::serve(*m, traffic(seed, false), timing, sim::controlled(length))) / n_seed;
        }
        for (uint32_t seed = 1; seed <= n_first; ++seed) {
            length_controller length({sim::n_max});
            const sim::noise  timing = {0.05, 0.02, seed};
            first +=
                over_plain(*m, sim::serve(*m, {{&explains[seed % 3], 64}}, timing, sim::controlled(length))) / n_first;
        }
        CHECK(mean > 0.98);
        CHECK(first > 0.975);
    }
}

// A GPU that captures a graph anew when the number of rows changes: a large target in Q4_K, and a small one.
static sim::machine captures(sim::machine m) {
    m.change = 0.4;
    return m;
}

static const sim::machine h200_small = {{{1, 1.19}, {2, 1.4}, {4, 1.72}, {8, 2.03}, {9, 1.95}, {16, 2.1}}, 0.5, 0.01};

static length_params staying(int32_t n_stay) {
    length_params params;
    params.n_stay = n_stay;
    if (n_stay > 1) {
        params.probe_grant = 8.0;
    }
    return params;
}

// The steady pace of a machine.
static void tell(length_controller & length, const sim::machine & m) {
    for (int32_t rows = 1; rows <= 9; ++rows) {
        for (int i = 0; i < 3; ++i) {
            length.know_pass(rows, m.pass_ms(rows, 0));
        }
    }
}

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

TEST(a_pass_is_padded_where_more_rows_cost_less) {
    length_controller length({sim::n_max});
    sim::run_rounds(length, 100, [](int32_t rows) { return h200.pass_ms(rows, 0); });
    CHECK(length.draft_width(100) == 7);
    CHECK(length.padded_rows(8) == 9);
    CHECK(length.padded_rows(1) == 1);
    CHECK_NEAR(length.pass_ms(9, 100), 18.4, 0.01);
    CHECK_NEAR(length.draft_ms(7, 100), 5.0, 0.01);
    CHECK(length.acceptance(0) > 0.9);
}

TEST(a_pass_of_a_length_chosen_elsewhere_is_padded_too) {
    length_controller length({sim::n_max});
    CHECK(length.fastest_rows(8, 100) == 8);  // nothing is known
    for (int32_t n = 9; n >= 1; --n) {
        round_outcome r;
        r.n_rows    = n;
        r.ms_verify = h200.pass_ms(n, 0);
        length.observe(r);
    }
    CHECK(length.fastest_rows(8, 100) == 9);
    CHECK(length.fastest_rows(4, 100) == 4);
    CHECK(length.fastest_rows(20, 100) == 20);
}

TEST(kept_rows_hold_to_the_end_of_a_request) {
    length_controller length(staying(8));
    tell(length, h200);
    sim::run_rounds(length, 100, [](int32_t rows) { return h200.pass_ms(rows, 0); });
    CHECK(length.draft_width(100, 2) == 2);
    CHECK(length.verify_length({0.1f, 0.1f}) == 2);
    CHECK(length.padded_rows(3) == 9);
    CHECK(length.padded_rows(1) == 1);
}

TEST(passes_after_a_change_of_rows_or_a_prompt_teach_nothing) {
    length_controller length(staying(8));
    tell(length, h200);
    const auto plain = [&](double ms) {
        length.draft_width(100, 0);
        round_outcome r;
        r.n_context = 100;
        r.ms_verify = ms;
        length.observe(r);
    };
    plain(9.1), plain(9.1), plain(9.1), plain(9.1);
    CHECK_NEAR(length.pass_ms(1, 100), 9.1, 0.01);
    length.begin_request();
    plain(10.9), plain(10.9);
    CHECK_NEAR(length.pass_ms(1, 100), 9.1, 0.01);
    plain(10.9);
    CHECK(length.pass_ms(1, 100) > 9.15);
}

// How many of a look's tokens are verified by a controller that keeps rows, after drafts that did not pay. -1: no look.
static int32_t verified_look(float first, float rest) {
    length_controller length(staying(8));
    tell(length, h200);
    for (int i = 0; i < 300; ++i) {
        round_outcome r;
        if (i % 100 == 0) {
            length.begin_request();
        }
        r.n_draft   = length.draft_width(100);
        r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.1f)) : 0;
        r.n_rows    = length.padded_rows(r.n_verify + 1);
        r.n_context = 100;
        r.ms_draft  = r.n_draft > 0 ? 1.0 : 0.0;
        r.ms_verify = h200.pass_ms(r.n_rows, 0);
        length.observe(r);
    }
    length.begin_request();
    std::vector<float> confidence(size_t(length.draft_width(100)), rest);
    if (confidence.empty()) {
        return -1;
    }
    confidence[0] = first;
    return length.verify_length(confidence);
}

// The other confidences are functions of tokens that would not be verified.
TEST(a_whole_look_is_decided_by_its_first_confidence) {
    int n_whole = 0, n_none = 0;
    for (float first = 0.05f; first < 1.0f; first += 0.05f) {
        const int32_t n = verified_look(first, 0.05f);
        CHECK(n >= 0);
        CHECK(verified_look(first, 0.5f) == n);
        CHECK(verified_look(first, 0.99f) == n);
        n_whole += n > 0;
        n_none += n == 0;
    }
    CHECK(n_whole > 0);
    CHECK(n_none > 0);
}

TEST(an_accident_changes_nothing) {
    length_controller length({sim::n_max});
    sim::run_rounds(length, 100, [](int32_t rows) { return h200.pass_ms(rows, 0); });
    sim::run_rounds(length, 1, [](int32_t) { return 500.0; });
    sim::run_rounds(
        length, 20, [](int32_t rows) { return h200.pass_ms(rows, 0); },
        [](const round_outcome & r) { CHECK(r.n_verify >= 6); });
}

TEST(injecting_late_is_paid_for_like_a_probe) {
    const auto spent = [](double late_per_round) {  // ms, of 20 a plain round
        length_controller length({sim::n_max});
        double            sum    = 0.0;
        int               n_late = 0;
        for (int i = 0; i < 600; ++i) {
            round_outcome r;
            r.n_draft   = length.draft_width(100);
            r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.5f)) : 0;
            r.n_rows    = length.padded_rows(r.n_verify + 1);
            r.n_context = 100;
            r.ms_late   = r.n_draft > 0 ? late_per_round * n_late : 0.0;
            r.ms_draft  = r.n_draft > 0 ? 10.0 : 0.0;
            r.ms_verify = 20.0;
            n_late      = r.n_draft > 0 ? 0 : n_late + 1;
            sum += r.ms_late + r.ms_draft + r.ms_verify;
            length.observe(r);
        }
        return sum / 600;
    };
    CHECK(spent(0.0) > 20.0);
    CHECK(spent(0.0) < 1.02 * 20.0);
    CHECK(spent(0.25) < 1.02 * 20.0);  // as much as 1.25 % if all were injected
}

// Rows cost 0.3 plain rounds each, a draft 0.25, and one token in three is accepted. Returns tokens, ms and drafts.
static std::array<double, 3> explain(length_controller & length, int n_rounds_a_request) {
    std::array<double, 3> sum = {0.0, 0.0, 0.0};
    for (int i = 0; i < 600; ++i) {
        if (n_rounds_a_request > 0 && i % n_rounds_a_request == 0) {
            length.begin_request();
        }
        round_outcome r;
        r.n_draft   = length.draft_width(100);
        r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.3f)) : 0;
        r.n_rows    = length.padded_rows(r.n_verify + 1);
        r.n_accept  = r.n_verify > 0 && i % 3 == 0 ? 1 : 0;
        r.n_context = 100;
        r.ms_draft  = r.n_draft > 0 ? 5.0 : 0.0;
        r.ms_verify = 20.0 + 6.0 * (r.n_rows - 1);
        length.observe(r);
        sum[0] += 1 + r.n_accept;
        sum[1] += r.ms_draft + r.ms_verify;
        sum[2] += r.n_draft > 0;
    }
    return sum;
}

TEST(a_look_is_verified_only_where_its_confidences_say_that_it_pays) {
    for (const float confidence : {0.3f, 0.97f}) {
        length_params params;
        params.probe_grant = 4.0;
        params.probe_share = 0.0;
        length_controller length(params);
        explain(length, 100);
        length.begin_request();
        int32_t n_draft = length.draft_width(100);
        for (int i = 0; i < 100 && n_draft == 0; ++i) {  // until it can be paid
            round_outcome r;
            r.n_context = 100;
            r.ms_verify = 20.0;
            length.observe(r);
            n_draft = length.draft_width(100);
        }
        CHECK(n_draft > 0);
        CHECK((length.verify_length(std::vector<float>(size_t(n_draft), confidence)) > 0) == (confidence > 0.5f));
    }
}

TEST(looks_cost_little_however_short_the_requests_are) {
    for (const int n : {1, 4, 64, 600}) {
        length_controller looks({sim::n_max}), none({sim::n_max});
        const auto        with = explain(looks, n), without = explain(none, 0);
        CHECK(with[2] > without[2] + 5.0);
        CHECK(with[1] < 1.02 * 20.0 * with[0]);
    }
}

TEST(timings_that_are_no_numbers_do_no_harm) {
    length_controller length({sim::n_max});
    sim::run_rounds(length, 10, [](int32_t) { return std::nan(""); });
    sim::run_rounds(length, 10, [](int32_t) { return INFINITY; });
    sim::run_rounds(length, 10, [](int32_t) { return 0.0; });
    sim::run_rounds(length, 200, [](int32_t rows) { return h200.pass_ms(rows, 0); });
    CHECK(length.draft_width(100) == 7);
}

TEST(it_never_drafts_more_than_there_is_room_for) {
    length_controller length({sim::n_max});
    sim::run_rounds(length, 50, [](int32_t rows) { return flat.pass_ms(rows, 0); });
    CHECK(length.draft_width(100) == 7);
    CHECK(length.draft_width(100, 2) <= 2);
    CHECK(length.draft_width(100, 0) == 0);
    CHECK(length.draft_width(100, -5) == 0);
}

TEST(the_same_timings_give_the_same_lengths) {
    length_controller a({sim::n_max}), b({sim::n_max});
    const sim::trace  x = sim::run(on(moe, informed(even(0.7)), 5, 300), sim::controlled(a));
    const sim::trace  y = sim::run(on(moe, informed(even(0.7)), 5, 300), sim::controlled(b));
    CHECK(x.token == y.token);
    CHECK(x.sum.back().ms == y.sum.back().ms);
}

TEST(bad_parameters_are_refused) {
    const auto make = [](int32_t n_max, int32_t n_stay, int32_t n_rows_max) {
        length_params p;
        p.n_max      = n_max;
        p.n_stay     = n_stay;
        p.n_rows_max = n_rows_max;
        return length_controller(p).draft_width(0);
    };
    CHECK_THROWS(make(-1, 1, 0), errc::argument);
    CHECK_THROWS(make(7, 0, 0), errc::argument);
    CHECK_THROWS(make(7, 1, 7), errc::argument);
    CHECK(make(0, 1, 0) == 0);
}
