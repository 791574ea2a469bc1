// A simulated machine and text for the length controller: true costs, noisy timings, drafted tokens that are accepted
// with known probabilities. Scores are expectations under the truth, so a run is judged without its luck.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "core/length.h"

namespace sim {

static constexpr int32_t n_max = 7;  // block of 8

struct machine {
    std::map<int32_t, double> pass;               // rows -> ms, interpolated
    double                    draft_base  = 0.0;  // ms
    double                    draft_token = 0.0;  // ms per drafted token
    double                    late        = 0.0;  // ms per row of plain rounds, to be injected before a draft
    double                    context     = 0.0;  // growth of a pass per 1000 tokens of context
    double                    change      = 0.0;  // growth of the two passes after a change of rows, the second twice

    double pass_ms(int32_t rows, int64_t n_context) const {
        const auto   above = pass.lower_bound(rows);
        const double grown = 1.0 + context * double(n_context) / 1000.0;
        if (above->first == rows) {
            return above->second * grown;
        }
        const auto below = std::prev(above);
        return grown * (below->second +
                        (above->second - below->second) * (rows - below->first) / (above->first - below->first));
    }
    double draft_ms(int32_t width) const { return width > 0 ? draft_base + draft_token * width : 0.0; }

    int32_t best_rows(int32_t rows) const {
        int32_t best = rows;
        for (int32_t r = rows; r <= std::max(n_max + 1, 9); ++r) {
            best = pass_ms(r, 0) < pass_ms(best, 0) ? r : best;
        }
        return best;
    }
};

struct text {
    // acceptance at a position, when those before it were accepted, at this token of the text
    std::function<double(int64_t token, int32_t pos)> accept;
    double                                            spread = 0.0;  // of the log odds of single drafts around that
    bool informed = false;  // the selector knows these log odds, and is too sure of itself
    bool shown    = false;  // the target's own logits tell what the selector will be like here
};

struct noise {
    double   sd      = 0.05;  // log
    double   outlier = 0.02;  // probability of a pass that takes 3 to 12 times as long
    uint32_t seed    = 1;
};

struct score {
    double tokens = 0.0;
    double ms     = 0.0;

    double rate() const { return tokens / ms; }
};

struct trace {
    std::vector<int64_t> token;  // [n_rounds + 1], position in the text
    std::vector<score>   sum;    // [n_rounds + 1], of the rounds before

    score from_round(size_t first) const {
        return {sum.back().tokens - sum[first].tokens, sum.back().ms - sum[first].ms};
    }
    score from_token(int64_t first) const {
        return from_round(size_t(std::lower_bound(token.begin(), token.end(), first) - token.begin()));
    }
};

inline double log_odds(double p) {
    return std::log(p / (1.0 - p));
}
inline double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

// A way to choose lengths: told the confidences, it says what to draft, verify and run, and sees timings.
struct policy {
    std::function<void()>                               begin_request;
    std::function<int32_t(int64_t n_context, int32_t)>  width;  // of the context, of rows put off
    std::function<int32_t(const std::vector<float> &)>  verify;
    std::function<int32_t(int32_t rows)>                rows;
    std::function<void(const dflash2::round_outcome &)> observe;
};

inline policy fixed(const machine & m, int32_t n) {
    return {[] {}, [=](int64_t, int32_t) { return n; }, [](const std::vector<float> & c) { return int32_t(c.size()); },
            [&m](int32_t rows) { return m.best_rows(rows); }, [](const dflash2::round_outcome &) {}};
}

inline policy controlled(dflash2::length_controller & c) {
    return {
        [&c] { c.begin_request(); },
        [&c](int64_t n_context, int32_t n_put_off) { return c.draft_width(int32_t(n_context), INT32_MAX, n_put_off); },
        [&c](const std::vector<float> & confidence) { return c.verify_length(confidence); },
        [&c](int32_t rows) { return c.padded_rows(rows); }, [&c](const dflash2::round_outcome & r) { c.observe(r); }};
}

// What runs, until n_tokens are emitted and n_rounds are over. machine_at: by token, so that it can change.
struct scenario {
    std::function<const machine &(int64_t token)> machine_at;
    text                                          words;
    noise                                         timing;
    int64_t                                       n_tokens = 0;
    int64_t                                       n_rounds = 0;
};

// Times rounds of one request after another.
class stopwatch {
  public:
    explicit stopwatch(const noise & n) : n_(n), rng_(n.seed + 1000) {}

    void    begin_request() { n_put_off_ = 0; }
    int32_t n_put_off() const { return n_put_off_; }

    // Fills in what a round of this draft and these rows takes, with noise. Returns the ms without.
    double run(const machine & m, dflash2::round_outcome & r) {
        const double pass = m.pass_ms(r.n_rows, r.n_context) * (1.0 + m.change * n_late(r.n_rows));
        const double late = r.n_draft > 0 ? m.late * n_put_off_ : 0.0;
        const double made = m.draft_ms(r.n_draft);
        r.n_put_off       = n_put_off_;
        r.ms_late         = slowed(late);
        r.ms_draft        = slowed(made);
        r.ms_verify       = slowed(pass);
        n_put_off_        = r.n_draft > 0 ? 0 : n_put_off_ + 1;
        return late + made + pass;
    }

  private:
    // 1, 2, then 0 in passes after a change of rows.
    int32_t n_late(int32_t rows) {
        n_same_ = rows == rows_ ? n_same_ + 1 : 0;
        rows_   = rows;
        return n_same_ < 2 ? n_same_ + 1 : 0;
    }

    double slowed(double ms) {
        const double factor   = std::exp(n_.sd * normal_(rng_));
        const double accident = uniform_(rng_) < n_.outlier ? 3.0 + 9.0 * uniform_(rng_) : 1.0;
        return ms * factor * accident;
    }

    noise                                  n_;
    int32_t                                rows_ = 0, n_same_ = 0, n_put_off_ = 0;
    std::mt19937                           rng_;
    std::normal_distribution<double>       normal_;
    std::uniform_real_distribution<double> uniform_;
};

class runner {
  public:
    explicit runner(const noise & n) : watch_(n), rng_(n.seed) {}

    void begin_request() { watch_.begin_request(); }

    // A round at this token of a text, with room for n_room drafted tokens. Returns the tokens emitted.
    int32_t round(const machine & m, const text & t, int64_t token, const policy & p, score & sum,
                  int32_t n_room = n_max) {
        const int64_t      n_context = 300 + token;
        double             accept[n_max];
        std::vector<float> confidence(n_max);
        for (int32_t i = 0; i < n_max; ++i) {
            const double z = log_odds(t.accept(token, i)) + t.spread * normal_(rng_);
            accept[i]      = sigmoid(z);
            confidence[i]  = float(sigmoid(t.informed ? informed_z(z) : 1.0 + normal_(rng_)));
        }
        dflash2::round_outcome r;
        r.n_context = int32_t(n_context);
        r.n_draft   = std::min(p.width(n_context, watch_.n_put_off()), n_room);
        confidence.resize(r.n_draft);
        r.n_verify      = r.n_draft > 0 ? p.verify(confidence) : 0;
        r.n_rows        = p.rows(r.n_verify + 1);
        double survival = 1.0;
        bool   alive    = true;
        sum.tokens += 1.0;
        for (int32_t i = 0; i < r.n_verify; ++i) {
            survival *= accept[i];
            sum.tokens += survival;
            alive = alive && uniform_(rng_) < accept[i];
            r.n_accept += alive;
        }
        sum.ms += watch_.run(m, r);
        if (t.shown) {
            const double z = informed_z(log_odds(t.accept(token, 0)));
            r.logit_gap    = std::max(0.0, (z + 0.75) / 0.7 + 2.0 * normal_(rng_));
        }
        p.observe(r);
        return 1 + r.n_accept;
    }

  private:
    static double informed_z(double z) { return 0.5 + 1.3 * z; }

    stopwatch                              watch_;
    std::mt19937                           rng_;
    std::normal_distribution<double>       normal_;
    std::uniform_real_distribution<double> uniform_;
};

inline trace run(const scenario & s, const policy & p) {
    runner  r(s.timing);
    trace   tr;
    score   sum;
    int64_t token = 0;
    p.begin_request();
    for (int64_t round = 0; token < s.n_tokens || round < s.n_rounds; ++round) {
        tr.token.push_back(token);
        tr.sum.push_back(sum);
        token += r.round(s.machine_at(token), s.words, token, p, sum);
    }
    tr.token.push_back(token);
    tr.sum.push_back(sum);
    return tr;
}

// Rounds of an ideal machine: every token is accepted, every pass takes what `pass` says.
inline void run_rounds(dflash2::length_controller & length, int n, const std::function<double(int32_t rows)> & pass,
                       const std::function<void(const dflash2::round_outcome &)> & see = {}) {
    for (int i = 0; i < n; ++i) {
        dflash2::round_outcome r;
        r.n_draft   = length.draft_width(100);
        r.n_verify  = r.n_draft > 0 ? length.verify_length(std::vector<float>(size_t(r.n_draft), 0.9f)) : 0;
        r.n_accept  = r.n_verify;
        r.n_rows    = length.padded_rows(r.n_verify + 1);
        r.n_context = 100;
        r.ms_draft  = r.n_draft > 0 ? 5.0 : 0.0;
        r.ms_verify = pass(r.n_rows);
        length.observe(r);
        if (see) {
            see(r);
        }
    }
}

}  // namespace sim
