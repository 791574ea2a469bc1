#include "core/length.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "core/acceptance.h"
#include "core/budget.h"
#include "core/context-costs.h"
#include "core/outlook.h"
#include "core/row-stay.h"
#include "core/sureness.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

static constexpr double infinity = std::numeric_limits<double>::infinity();

static constexpr int32_t n_first_plain = 5;      // plain rounds before anything else
static constexpr double  gain_start    = 1.01;   // over plain decoding, to begin drafting
static constexpr double  gain_stay     = 0.99;   // to go on
static constexpr double  gain_change   = 1.12;   // over the width that is kept, where changes are dear
static constexpr double  plain_age     = 300.0;  // rounds for which its time is trusted, per gain over it
static constexpr double  hope_least    = 1.10;   // hoped for over the rate of the best known way, for a probe
static constexpr size_t  n_drafts      = 24;     // recent ones that a width is judged by
static constexpr size_t  n_drafts_old  = 2;      // that count even if they are old or another request's
static constexpr int64_t draft_age     = 64;     // rounds, from which on they are old
static constexpr int64_t look_gap      = 8;      // rounds without a look after a draft that did not pay
static constexpr double  z_look        = 2.0;    // log odds of the confidences that a look hopes for at most
static constexpr double  z_hope        = 1.5;    // over typical ones
static constexpr double  luck_share    = 0.25;   // of what came out in the account of drafting; the rest is expected
static constexpr double  z_prior       = 1.5;    // log odds of a confidence, until some have been seen
static constexpr double  z_gain        = 1.0 / 32;

static double log_odds(float confidence) {
    const double p = std::clamp(double(confidence), 0.01, 0.99);
    return std::log(p / (1.0 - p));
}

struct length_controller::impl {
    enum class kind { best, probe, look };  // of a round

    struct past_draft {
        int64_t             round;
        std::vector<double> z;     // log odds of the confidences
        double              sure;  // level of the sureness
    };

    length_params          params;
    context_costs          known;
    acceptance_model       model;
    sureness               sure;
    std::vector<double>    z_typical;         // [n_max]
    double                 sure_typical = 0;  // level of the sureness that belongs to it
    std::deque<past_draft> drafts;
    budget                 account;
    int64_t                now       = 0;   // number of the round
    int64_t                begun     = -1;  // first round of the request; -1: nothing is known of requests
    int64_t                next_look = 0;   // first round that may be one

    row_stay stay;
    kind     stay_kind = kind::best;

    // of the running round
    outlook             plan;           // decides
    double              price  = 0.0;   // tokens per ms of the best known way
    double              late   = 0.0;   // ms that a draft would take longer, for rows put off
    bool                plain  = true;  // it is plain decoding
    int32_t             chosen = 0;     // width, if there is room for it
    kind                round_ = kind::best;
    std::vector<double> z;  // [n_draft]

    explicit impl(const length_params & p)
        : params(p),
          known(p.n_rows_max, p.n_max),
          model(p.n_max),
          z_typical(size_t(p.n_max), z_prior),
          sure_typical(sure.level()),
          account(p.probe_share, p.look_share, p.probe_grant),
          stay(p.n_stay) {}

    bool whole() const { return params.whole || stay.on(); }

    // That may be tried: step by step where the costs of rows are unknown.
    int32_t widest(const context_costs::costs & c) const {
        return std::min(std::max(2 * c.draft.most_tried() + 1, c.pass.most_tried() - 1), params.n_max);
    }

    // Of the next draft.
    double expected_z(int32_t i) const { return z_typical[i] + sure.shift_from(sure_typical); }

    outlook look(const context_costs::costs & c, bool hope_costs, bool hope_accept) const {
        outlook o = passes(c, hope_costs);
        o.draft.assign(size_t(params.n_max) + 1, infinity);
        o.draft[0] = 0.0;
        for (int32_t w = 1; w <= widest(c); ++w) {
            o.draft[w] = hope_costs ? c.draft.low(w, now) : c.draft.mean(w);
        }
        const auto accept = [&](int32_t i, double zi) { return hope_accept ? model.high(i, zi) : model.mean(i, zi); };
        for (int32_t i = 0; i < params.n_max; ++i) {
            o.typical.push_back(accept(i, expected_z(i)));
        }
        o.accept.assign(std::max<size_t>(drafts.size(), 1), o.typical);
        for (size_t k = 0; k < drafts.size(); ++k) {
            const double shift = sure.shift_from(drafts[k].sure);
            for (size_t i = 0; i < drafts[k].z.size(); ++i) {
                o.accept[k][i] = accept(int32_t(i), drafts[k].z[i] + shift);
            }
        }
        return o;
    }

    // Nothing is said about rows beyond twice the largest number tried.
    outlook passes(const context_costs::costs & c, bool hope) const {
        outlook o;
        o.whole = whole();
        o.row_ms.assign(size_t(params.n_rows_max) + 1, infinity);
        for (int32_t r = 1; r <= std::min(2 * c.pass.most_tried(), params.n_rows_max); ++r) {
            o.row_ms[r] = hope ? c.pass.low(r, now) : c.pass.mean(r);
        }
        if (hope) {  // that one row never costs more than several
            o.row_ms[1] = *std::min_element(o.row_ms.begin() + 1, o.row_ms.end());
        }
        o.pad(params.n_max);
        return o;
    }

    void begin_request() {
        stay.interrupt();  // passes over its prompt come between
        begun = next_look = now + 1;
        model.begin_text();
        sure.begin_text();
    }

    int32_t draft_width(int32_t n_context, int32_t n_most, int32_t n_put_off) {
        context_costs::costs & c    = known.at(n_context);
        const int32_t          most = std::clamp(n_most, 0, params.n_max);
        now += 1;
        round_ = kind::best;
        late   = known.late_ms(n_put_off);
        z.clear();
        if (c.pass.n_samples(1) < n_first_plain) {
            return 0;
        }
        if (c.draft.most_tried() == 0) {
            c.guess_draft();
        }
        if (stay.holds(now)) {
            round_ = stay_kind;
            return std::min(stay.width(), most);
        }
        chosen = choose_width(c, stay.on() ? params.n_max : most);
        if (stay.on() && round_ != kind::look) {
            keep();
        }
        return std::min(chosen, most);
    }

    void keep() {
        stay.choose(chosen, changes(chosen), now);
        stay_kind = round_ == kind::look ? kind::best : round_;
    }

    bool changes(int32_t width) const { return stay.on() && plan.rows[width + 1] != plan.rows[stay.width() + 1]; }

    // Those of the last pass, but where others are clearly sooner. At the end of a request there is less room, which
    // changes nothing either.
    int32_t kept_rows(int32_t n_rows) const {
        const int32_t best = std::max(plan.rows[n_rows], plan.rows[stay.width() + 1]), last = stay.rows();
        return last >= n_rows && plan.row_ms[last] < gain_change * plan.row_ms[best] ? last : best;
    }

    int32_t choose_width(const context_costs::costs & c, int32_t most) {
        plan                    = look(c, false, false);
        const double plain_rate = 1.0 / plan.pass[1];
        price                   = plain_rate * (plain ? gain_start : stay.on() ? gain_stay / gain_change : gain_stay);
        int32_t    width        = 0;
        bool       better       = true;
        const auto weigh        = [&](int32_t w) {
            const double rate = value(plan, plan, w, price).rate();
            if (rate > price * (changes(w) ? gain_change : 1.0 + 1e-6)) {
                price  = rate;
                width  = w;
                better = true;
            }
        };
        if (stay.width() > 0) {
            weigh(stay.width());
        }
        // The objective is a ratio: a better rate is a higher price of time, which asks for other lengths.
        while (better) {
            better = false;
            for (int32_t w = 1; w <= std::min(c.draft.most_tried(), most); ++w) {
                weigh(w);
            }
        }
        plain = width == 0;
        price = plain ? plain_rate : std::max(price, plain_rate);
        // The promise rests on the time of plain decoding, so that is measured now and then, oftener in a close race.
        if (double(c.pass.age(1, now)) / params.n_stay >
            std::clamp(plain_age * (price / plain_rate - 1.0), plain_age / 20.0, plain_age / 2.0)) {
            round_ = kind::probe;
            return 0;
        }
        if (plain && begun >= 0 && now >= next_look) {
            const int32_t w = look_width(c, most);
            if (w > 0) {
                round_ = kind::look;
                return w;
            }
        }
        return account.for_probes() > 0.0 ? probe(c, width, most) : width;
    }

    // Of a draft that is verified only where its confidences say that it pays; 0: none. Worth it where drafts as sure
    // as one can hope for would pay, and the cheaper the better.
    int32_t look_width(const context_costs::costs & c, int32_t most) const {
        outlook hope = plan;
        for (int32_t i = 0; i < params.n_max; ++i) {
            hope.typical[i] = model.mean(i, std::min(z_look, expected_z(i) + z_hope));
        }
        hope.accept  = {hope.typical};
        double  best = 0.0;
        int32_t to   = 0;
        for (int32_t w = 1; w <= std::min(widest(c), most); ++w) {
            const double hoped = value(hope, hope, w, price).rate() / price;
            const double score = (hoped - hope_least) / (c.draft.mean(w) / plan.pass[1] + 0.1);
            if (score > best) {
                best = score;
                to   = w;
            }
        }
        const double n_kept = next_look > begun ? 1.0 : 0.0;  // the first look of the next request
        return to > 0 && (1.0 + n_kept) * c.draft.mean(to) + std::min(late, plan.pass[1]) <= account.for_looks() ? to
                                                                                                                 : 0;
    }

    // Whether to verify a whole look. The later confidences are functions of tokens that would not be verified then.
    bool look_pays(int32_t n_draft) const {
        double reach = 1.0, gain = 0.0;
        for (int32_t i = 0; i < n_draft; ++i) {
            reach *= i == 0 ? model.mean(0, z[0]) : plan.typical[i];
            gain += reach;
        }
        return gain > price * (plan.pass[n_draft + 1] - plan.pass[1]);
    }

    // Returns the width of a probe instead when one is hopeful and can be paid. The acceptance is hoped about only
    // where it is not watched anyway.
    int32_t probe(const context_costs::costs & c, int32_t width, int32_t most) {
        outlook hope = look(c, true, plain);
        double  best = 0.0, best_loss = 0.0;
        int32_t to = width;
        for (int32_t w = plain ? 1 : 0; w <= std::min(widest(c), most); ++w) {
            const worth  v     = value(hope, plan, w, price);
            const double loss  = std::max(v.ms + late - v.tokens / price, 0.0) / plan.pass[1];
            const double hoped = value(hope, hope, w, price).rate() / price;
            const double score = (hoped - hope_least) / (loss + 0.1);
            if (score > best && loss * params.n_stay < account.most_for_probes()) {
                best      = score;
                best_loss = loss * plan.pass[1] * params.n_stay;
                to        = w;
            }
        }
        if (best == 0.0 || best_loss > account.for_probes()) {  // saves up for the best one
            return width;
        }
        round_ = kind::probe;
        plan   = std::move(hope);
        return to;
    }

    int32_t verify_length(const std::vector<float> & confidence) {
        for (const float p : confidence) {
            z.push_back(log_odds(p));
        }
        const int32_t n_draft = int32_t(confidence.size());
        if (whole()) {
            if (round_ == kind::look) {
                if (!look_pays(n_draft)) {
                    return 0;
                }
                if (n_draft == chosen) {
                    keep();
                }
            }
            return n_draft;
        }
        const bool hoping = round_ == kind::probe && plain;
        stop_rule  rule(plan, n_draft, price);
        int32_t    n = 0;
        while (n < n_draft && rule.goes_on(hoping ? model.high(n, z[n]) : model.mean(n, z[n]))) {
            n += 1;
        }
        return n;
    }

    int32_t padded_rows(int32_t n_rows) const {
        if (n_rows < 1 || n_rows >= int32_t(plan.rows.size())) {
            return n_rows;
        }
        return n_rows > 1 && stay.on() ? kept_rows(n_rows) : plan.rows[n_rows];
    }

    void know_pass(int32_t n_rows, double ms) {
        known.at(0).pass.add(std::clamp(n_rows, 1, params.n_rows_max), ms, now);
    }

    int32_t fastest_rows(int32_t n_rows, int32_t n_context) {
        const context_costs::costs & c          = known.at(n_context);
        const bool                   known_rows = c.pass.most_tried() > 0 && n_rows > 1 && n_rows <= params.n_max + 1;
        return known_rows ? passes(c, false).rows[n_rows] : n_rows;
    }

    void observe(round_outcome r) {
        r.n_draft                      = std::min(r.n_draft, params.n_max);
        r.n_verify                     = std::min(r.n_verify, int32_t(z.size()));
        r.n_accept                     = std::min(r.n_accept, r.n_verify);
        r.n_rows                       = std::clamp(r.n_rows, 1, params.n_rows_max);
        context_costs::costs & c       = known.at(r.n_context);
        const double           ms_pass = r.n_draft > 0 ? r.ms_verify : r.ms_draft + r.ms_verify;
        const bool             usual   = stay.settled(r.n_rows);
        const double           change  = usual ? c.pass.add(r.n_rows, ms_pass, now) : 0.0;
        if (change != 0.0) {
            c.draft.doubt(change);
        }
        if (usual && r.n_draft > 0) {
            c.draft.add(r.n_draft, r.ms_draft, now);
        }
        if (r.n_draft > 0 && r.n_put_off > 0) {
            known.add_late(r.n_put_off, r.ms_late);
        }
        model.tick(r.n_verify > 0);
        for (int32_t i = 0; i < std::min(r.n_accept + 1, r.n_verify); ++i) {
            model.add(i, z[i], i < r.n_accept);
        }
        if (!z.empty()) {
            remember_draft();
        }
        sure.add(r.logit_gap);
        const int64_t young = std::max(begun, now - draft_age);
        while (drafts.size() > n_drafts || (drafts.size() > n_drafts_old && drafts.front().round < young)) {
            drafts.pop_front();
        }
        if (c.pass.n_samples(1) >= n_first_plain) {
            settle(c, r, usual || now < begun + row_stay::n_unsettled);
        }
    }

    void remember_draft() {
        double sum = 0.0;
        for (size_t i = 0; i < z.size(); ++i) {
            z_typical[i] += z_gain * (z[i] - z_typical[i]);
            sum += z[i];
        }
        sure_typical += z_gain * (sure.level() - sure_typical);
        sure.learn(sum / double(z.size()));
        drafts.push_back({now, z, sure.level()});
    }

    // Pays for the round, at the prices and acceptances believed after it. by_belief: not at what it took.
    void settle(const context_costs::costs & c, const round_outcome & r, bool by_belief) {
        const double plain_ms = c.pass.mean(1);
        double       ms = c.pass.mean(r.n_rows), tokens = 1.0, survival = 1.0;
        if (r.n_draft > 0) {
            ms += c.draft.mean(r.n_draft);
        }
        if (!by_belief && std::isfinite(r.ms_draft + r.ms_verify)) {
            ms = std::clamp(r.ms_draft + r.ms_verify, ms, ms + budget::probes_most * plain_ms);
        }
        // At most a plain round, as looks are weighed: rows pile up faster than the purse fills.
        const double ms_late = std::isfinite(r.ms_late) ? std::clamp(r.ms_late, 0.0, plain_ms) : 0.0;
        for (int32_t i = 0; i < r.n_verify; ++i) {
            survival *= model.mean(i, z[i]);
            tokens += survival;
        }
        // What came out is noisy, what is expected may be wrong. Looks come too seldom to learn from, so they pay for
        // what came out.
        const double luck  = round_ == kind::look ? 1.0 : luck_share;
        const double saved = (tokens + luck * (1.0 + r.n_accept - tokens)) * plain_ms - ms;
        if (round_ == kind::probe) {
            account.probe(std::max(ms - tokens / price, 0.0) + ms_late);
        } else if (round_ == kind::look) {
            account.look(saved - ms_late);
        } else {
            account.draft(saved);
        }
        account.earn(plain_ms, 1 + r.n_accept);
        if (r.n_draft > 0) {
            next_look = now + 1 + (tokens < ms * price ? look_gap : 0);
        }
    }
};

length_controller::length_controller(const length_params & params) {
    length_params p = params;
    if (p.n_rows_max == 0) {
        p.n_rows_max = std::max(p.n_max + 1, 9);
    }
    const auto check = [](bool ok, const std::string & what, int32_t found) {
        if (!ok) {
            throw error(errc::argument, "length: expected " + what + ", found " + std::to_string(found));
        }
    };
    check(p.n_max >= 0 && p.n_max < 1024, "n_max in 0..1023", p.n_max);
    check(p.n_rows_max > p.n_max && p.n_rows_max <= 4096, "n_rows_max 0 or in n_max + 1..4096", p.n_rows_max);
    check(p.n_stay >= 1 && p.n_stay <= 1024, "n_stay in 1..1024", p.n_stay);
    check(p.probe_share >= 0.0 && p.probe_share <= 1.0, "probe_share in 0..1", int32_t(p.probe_share));
    check(p.look_share >= 0.0 && p.look_share <= 1.0, "look_share in 0..1", int32_t(p.look_share));
    check(p.probe_grant >= 0.0 && p.probe_grant <= 1e3, "probe_grant in 0..1000", int32_t(p.probe_grant));
    impl_ = std::make_unique<impl>(p);
}

length_controller::~length_controller() = default;

void length_controller::know_pass(int32_t n_rows, double ms) {
    impl_->know_pass(n_rows, ms);
}

void length_controller::begin_request() {
    impl_->begin_request();
}

int32_t length_controller::draft_width(int32_t n_context, int32_t n_most, int32_t n_put_off) {
    return impl_->draft_width(n_context, n_most, n_put_off);
}

int32_t length_controller::verify_length(const std::vector<float> & confidence) {
    return impl_->verify_length(confidence);
}

int32_t length_controller::padded_rows(int32_t n_rows) const {
    return impl_->padded_rows(n_rows);
}

int32_t length_controller::fastest_rows(int32_t n_rows, int32_t n_context) {
    return impl_->fastest_rows(n_rows, n_context);
}

void length_controller::observe(const round_outcome & outcome) {
    impl_->observe(outcome);
}

double length_controller::pass_ms(int32_t n_rows, int32_t n_context) const {
    return impl_->known.pass_ms(n_rows, n_context);
}

double length_controller::draft_ms(int32_t n_draft, int32_t n_context) const {
    return impl_->known.draft_ms(n_draft, n_context);
}

double length_controller::acceptance(int32_t position) const {
    return impl_->model.mean(position, impl_->z_typical.at(size_t(position)));
}

}  // namespace dflash2
