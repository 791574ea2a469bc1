// The length controller on drafts of a real pair.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "recorded.h"
#include "sanitized.h"
#include "sim-cases.h"
#include "testing.h"

using namespace dflash2;

using requests = std::vector<const sim::recorded_request *>;

#if defined(__SANITIZE_ADDRESS__)
static constexpr uint32_t n_seed = 6;
#else
static constexpr uint32_t n_seed = 24;
#endif

// The pair itself on one CPU core: 4 rows cost less than 3.
static const sim::machine cpu = {
    {{1, 14.6}, {2, 24.5}, {3, 30.5}, {4, 29.5}, {5, 42.0}, {6, 47.0}, {7, 52.0}, {8, 50.0}, {9, 62.0}, {16, 110.0}},
    1.8,
    1.1,
    0.15};

static const std::vector<sim::recorded_request> & all() {
    static const auto read = sim::read_requests(TEST_DATA "/drafts-smollm2.txt");
    return read;
}

static requests labelled(const std::vector<std::string> & labels) {
    requests out;
    for (const sim::recorded_request & r : all()) {
        if (labels.empty() || std::find(labels.begin(), labels.end(), r.label) != labels.end()) {
            out.push_back(&r);
        }
    }
    return out;
}

static double rate_fixed(const sim::machine & m, const requests & of, int32_t n) {
    sim::stopwatch watch({});
    sim::score     sum;
    for (const sim::recorded_request * r : of) {
        const sim::score s = sim::serve(m, *r, watch, sim::fixed(m, n));
        sum.tokens += s.tokens;
        sum.ms += s.ms;
    }
    return sum.rate();
}

static double best_fixed(const sim::machine & m, const requests & of) {
    double best = 0.0;
    for (int32_t n = 0; n <= sim::n_max; ++n) {
        best = std::max(best, rate_fixed(m, of, n));
    }
    return best;
}

// New controllers serve them in other orders. The mean rate, and the least one.
struct chosen {
    double mean  = 0.0;
    double worst = 1e9;
};

static chosen rate_chosen(const sim::machine & m, requests of, bool tells_gap = true) {
    chosen out;
    for (uint32_t seed = 1; seed <= n_seed; ++seed) {
        std::mt19937 rng(seed);
        std::shuffle(of.begin(), of.end(), rng);
        length_controller length({sim::n_max});
        tell(length, m);
        sim::stopwatch watch({0.05, 0.02, seed});
        sim::score     sum;
        for (const sim::recorded_request * r : of) {
            const sim::score s = sim::serve(m, *r, watch, sim::controlled(length), tells_gap);
            sum.tokens += s.tokens;
            sum.ms += s.ms;
        }
        out.mean += sum.rate() / n_seed;
        out.worst = std::min(out.worst, sum.rate());
    }
    return out;
}

TEST(it_beats_every_fixed_length_on_real_drafts) {
    for (const sim::machine * m : {&cpu, &h200}) {
        const requests everything = labelled({}), repeats = labelled({"repeat"});
        CHECK(everything.size() == 42 && repeats.size() == 12);
        const chosen of_all = rate_chosen(*m, everything), of_repeats = rate_chosen(*m, repeats);
        CHECK(of_all.mean > 1.05 * best_fixed(*m, everything));
        CHECK(of_all.worst > 1.02 * best_fixed(*m, everything));
        CHECK(of_repeats.mean > 1.07 * best_fixed(*m, repeats));
        CHECK(of_repeats.worst > 0.98 * best_fixed(*m, repeats));
    }
    const requests everything = labelled({});
    CHECK(rate_chosen(flat, everything).worst > 0.98 * best_fixed(flat, everything));
}

TEST(it_is_not_slower_than_plain_decoding_on_real_drafts) {
    for (const sim::machine * m : {&cpu, &h200, &q4_1}) {
        const requests long_answers = labelled({"explain", "write"});
        const chosen   c            = rate_chosen(*m, long_answers);
        CHECK(c.mean > 0.985 * rate_fixed(*m, long_answers, 0));
        CHECK(c.worst > 0.975 * rate_fixed(*m, long_answers, 0));
    }
    const requests everything = labelled({});
    CHECK(rate_chosen(q4_1, everything).worst > 0.98 * rate_fixed(q4_1, everything, 0));
}

TEST(what_the_target_is_sure_of_tells_where_drafts_pay) {
    for (const sim::machine * m : {&cpu, &h200}) {
        const requests repeats = labelled({"repeat"});
        CHECK(rate_chosen(*m, repeats).mean > 1.02 * rate_chosen(*m, repeats, /*tells_gap =*/false).mean);
    }
}
