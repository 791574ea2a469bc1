// Single decisions of the length controller.
#include <array>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "core/length.h"
#include "sim-cases.h"
#include "testing.h"

using namespace dflash2;

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

// 9 rows take so much less than 8 that it pays to pad, then a little more.
TEST(kept_rows_stay_until_others_are_clearly_sooner) {
    const auto with_nine = [](double ms) { return [ms](int32_t rows) { return rows == 9 ? ms : 18.0 + 0.3 * rows; }; };
    length_controller length(staying(8));
    for (int32_t rows = 1; rows <= 9; ++rows) {
        for (int i = 0; i < 3; ++i) {
            length.know_pass(rows, with_nine(19.5)(rows));
        }
    }
    sim::run_rounds(length, 40, with_nine(19.5));
    int32_t last = 1, n_drafts = 0;
    sim::run_rounds(length, 100, with_nine(20.6), [&](const round_outcome & r) {
        CHECK(r.n_rows == last || r.n_rows == 1 || last == 1);  // plain rounds come between now and then
        last = r.n_rows;
        n_drafts += r.n_draft > 0;
    });
    CHECK(n_drafts > 80);
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
            r.n_draft   = length.draft_width(100, INT32_MAX, n_late);
            r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.5f)) : 0;
            r.n_rows    = length.padded_rows(r.n_verify + 1);
            r.n_context = 100;
            r.n_put_off = n_late;
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

// After a request in which a draft has shown what 40 rows that were put off cost: does the next one begin with a look?
static bool looks(int32_t n_put_off) {
    length_controller length({sim::n_max});
    tell(length, h200);
    for (int i = 0; i < 200; ++i) {
        round_outcome r;
        r.n_put_off = 40;
        r.n_draft   = length.draft_width(100, INT32_MAX, r.n_put_off);
        r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.2f)) : 0;
        r.n_rows    = length.padded_rows(r.n_verify + 1);
        r.n_context = 100;
        r.ms_late   = r.n_draft > 0 ? 40.0 : 0.0;  // 4 plain rounds
        r.ms_draft  = r.n_draft > 0 ? 4.0 : 0.0;
        r.ms_verify = h200.pass_ms(r.n_rows, 0);
        length.observe(r);
    }
    length.begin_request();
    return length.draft_width(100, INT32_MAX, n_put_off) > 0;
}

TEST(looks_are_made_where_little_is_put_off) {
    CHECK(looks(0));
    CHECK(!looks(400));
}

// Of 600 rounds in which all is accepted, after 400 dull ones whose rows were put off. Nothing tells but looks.
TEST(a_request_that_becomes_worth_drafting_is_noticed) {
    length_controller length({sim::n_max});
    tell(length, h200);
    length.begin_request();
    int n_put_off = 0, n_drafts = 0;
    for (int i = 0; i < 1000; ++i) {
        const bool    dull = i < 400;
        round_outcome r;
        r.n_put_off = n_put_off;
        r.n_draft   = length.draft_width(100, INT32_MAX, n_put_off);
        r.n_verify =
            r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), dull ? 0.2f : 0.97f)) : 0;
        r.n_accept  = dull ? 0 : r.n_verify;
        r.n_rows    = length.padded_rows(r.n_verify + 1);
        r.n_context = 100;
        r.ms_late   = r.n_draft > 0 ? 0.1 * n_put_off : 0.0;  // 1.1 % of a plain round each
        r.ms_draft  = r.n_draft > 0 ? 3.0 : 0.0;
        r.ms_verify = h200.pass_ms(r.n_rows, 0);
        length.observe(r);
        n_put_off = r.n_draft > 0 ? 0 : n_put_off + 1;
        n_drafts += !dull && r.n_draft > 0;
    }
    CHECK(n_drafts > 100);
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
