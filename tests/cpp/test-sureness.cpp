// How sure the target is, as a forecast of drafts.
#include "core/sureness.h"

#include <cmath>
#include <limits>
#include <random>

#include "testing.h"

using namespace dflash2;

static sureness after(double gap, int n) {
    sureness s;
    for (int i = 0; i < n; ++i) {
        s.add(gap);
    }
    return s;
}

TEST(a_surer_target_promises_surer_drafts) {
    const sureness sure = after(5.0, 30), unsure = after(0.5, 30);
    CHECK_NEAR(sure.level(), 5.0, 0.05);
    CHECK_NEAR(unsure.level(), 0.5, 0.05);
    CHECK(sure.shift_from(unsure.level()) > 1.0);
    CHECK(unsure.shift_from(sure.level()) < -1.0);
    CHECK(sure.shift_from(sure.level()) == 0.0);
}

TEST(a_few_tokens_say_less_than_many) {
    const double before = sureness().level();
    CHECK(after(6.0, 1).level() > before);
    CHECK(after(6.0, 1).level() < after(6.0, 4).level());
    CHECK(after(6.0, 4).level() < after(6.0, 30).level());
}

TEST(another_text_begins_at_the_usual_level) {
    sureness s;
    for (int i = 0; i < 400; ++i) {
        s.add(3.0);
    }
    for (int i = 0; i < 20; ++i) {
        s.add(0.0);
    }
    CHECK(s.level() < 0.1);
    s.begin_text();
    CHECK(s.level() > 2.5 && s.level() < 3.0);
}

TEST(gaps_that_are_not_known_change_nothing) {
    sureness s;
    for (const double gap : {std::nan(""), -1.0}) {
        s.add(gap);
        s.learn(4.0);
        CHECK(s.level() == sureness().level());
        CHECK(s.shift_from(0.0) == 0.0);
    }
    s.add(std::numeric_limits<double>::infinity());  // one token is possible
    CHECK(s.level() > sureness().level() && s.level() <= 6.0);
}

// Drafts whose log odds are slope * level, with noise. Returns what is made of one nat.
static double learnt(double slope) {
    std::mt19937                     rng(1);
    std::normal_distribution<double> normal;
    sureness                         s;
    for (int text = 0; text < 200; ++text) {
        s.begin_text();
        for (int i = 0; i < 10; ++i) {
            s.add(1.0 + text % 5);
        }
        s.learn(slope * s.level() + 0.5 * normal(rng));
    }
    return s.shift_from(s.level() - 1.0);
}

TEST(it_learns_what_sureness_is_worth) {
    CHECK_NEAR(learnt(1.2), 1.2, 0.2);
    CHECK_NEAR(learnt(0.3), 0.3, 0.2);
    CHECK_NEAR(learnt(0.0), 0.0, 0.2);
    CHECK(learnt(-1.0) == 0.0);
}
