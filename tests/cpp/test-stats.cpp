#include "ggml_dflash2/stats.h"

#include "testing.h"

using namespace dflash2;
using counts = std::vector<int64_t>;

TEST(accept_length_counts_the_bonus_token) {
    stats s;
    s.add_draft(7, 7, 3);
    s.add_draft(7, 5, 0);
    CHECK(s.n_drafts == 2 && s.n_drafted == 14 && s.n_verified == 12 && s.n_accepted == 3);
    CHECK_NEAR(s.mean_accept_length(), 2.5, 1e-12);
    CHECK_NEAR(s.acceptance_rate(), 3.0 / 12, 1e-12);
}

TEST(positions_count_the_rounds_that_kept_them) {
    stats s;
    s.add_draft(3, 3, 2);
    s.add_draft(2, 2, 2);
    s.add_draft(4, 4, 0);
    CHECK((s.accepted_per_pos == counts{2, 2, 0, 0}));
}

TEST(an_empty_draft_is_no_draft) {
    stats s;
    s.add_draft(0, 0, 0);
    CHECK(s.n_drafts == 0 && s.accepted_per_pos.empty());
}

TEST(ratios_without_drafts_are_zero) {
    CHECK(stats().mean_accept_length() == 0.0);
    CHECK(stats().acceptance_rate() == 0.0);
}

TEST(adding_sums_every_field) {
    stats a, b;
    a.add_draft(2, 2, 1);
    b.add_draft(4, 3, 3);
    b.n_prompt    = 10;
    b.n_generated = 20;
    b.n_rounds    = 30;
    b.ms_prompt   = 1;
    b.ms_draft    = 2;
    b.ms_verify   = 3;
    b.ms_sample   = 4;
    a.add(b);
    a.add(b);
    CHECK(a.n_drafts == 3 && a.n_drafted == 10 && a.n_verified == 8 && a.n_accepted == 7);
    CHECK((a.accepted_per_pos == counts{3, 2, 2, 0}));
    CHECK(a.n_prompt == 20 && a.n_generated == 40 && a.n_rounds == 60);
    CHECK(a.ms_prompt == 2 && a.ms_draft == 4 && a.ms_verify == 6 && a.ms_sample == 8);
}
