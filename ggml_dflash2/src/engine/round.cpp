#include "engine/round.h"

#include <algorithm>
#include <utility>

#include "core/row-scan.h"
#include "engine/pass-times.h"
#include "engine/timer.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

round_runner::round_runner(target & tgt, drafter * dft, const engine_params & params, int32_t n_draft_max)
    : tgt_(tgt),
      dft_(dft),
      params_(params),
      n_draft_max_(n_draft_max),
      clock_(params.clock ? params.clock : std::function<double()>(steady_ms)) {}

void round_runner::warm_up() {
    const pass_times times = time_passes(tgt_, std::max(n_draft_max_ + 1, 9), clock_);
    n_stay_                = times.change > 1.1 ? 8 : 1;
    for (int32_t n = 1; n < (int32_t) times.ms.size(); ++n) {
        for (int32_t i = 0; i < 5 && times.ms[n] > 0.0; ++i) {  // as sure as of five samples
            controller(1).know_pass(n, times.ms[n]);
        }
    }
}

void round_runner::turn::shorten(int32_t n) {
    const size_t n_keep = std::min(path.token.size(), (size_t) n);
    path.token.resize(n_keep);
    path.q.resize(n_keep);
    confidence.resize(n_keep);
    n_rows = (int32_t) n_keep + 1;
}

length_controller & round_runner::controller(size_t n_turns) {
    length_params p;
    p.n_max  = n_draft_max_;
    p.n_stay = n_stay_;
    p.whole  = n_turns > 1;  // lengths would differ, and costs are shared
    if (n_stay_ > 1) {
        p.probe_grant = 8.0;  // a first try is a stay, and two changes
    }
    return lengths_.try_emplace(n_turns, p).first->second;
}

// Rows that a draft for these requests would have to inject first.
int32_t round_runner::n_put_off(const std::vector<turn *> & turns) {
    int32_t n = 0;
    for (const turn * t : turns) {
        n += t->s->n_put_off();
    }
    return n;
}

// The adaptive requests share one width, which one of them decides, in turns. Returns that one; null: there is none.
round_runner::turn * round_runner::choose_widths(std::vector<turn> & turns) {
    std::vector<turn *> adaptive;
    for (turn & t : turns) {
        const sequence & seq = *t.s->seq();
        if (seq.adaptive) {
            adaptive.push_back(&t);
        } else if (seq.room() > 0) {
            // Whole, even when there is room for less: a block's drafts depend on its width.
            t.n_draft = seq.n_draft;
        }
    }
    if (adaptive.empty()) {
        return nullptr;
    }
    turn *              leader = adaptive[n_rounds_ % adaptive.size()];
    const sequence &    seq    = *leader->s->seq();
    length_controller & length = controller(turns.size());
    if (turns.size() == 1 && seq.id != alone_) {  // a look needs a length of its own
        alone_ = seq.id;
        length.begin_request();
    }
    const int32_t width = length.draft_width(seq.n(), seq.room(), n_put_off(adaptive));
    for (turn * t : adaptive) {
        t->n_draft = t->s->seq()->room() > 0 ? width : 0;
    }
    return leader;
}

// One pass per width: a block's drafts must not depend on its neighbours.
void round_runner::draft(std::vector<turn> & turns) {
    std::map<int32_t, std::vector<turn *>> by_width;
    for (turn & t : turns) {
        if (t.n_draft > 0) {
            by_width[t.n_draft].push_back(&t);
        }
    }
    for (const auto & [width, members] : by_width) {
        double ms = 0.0;
        {
            const timer            time(ms);
            std::vector<draft_job> jobs;
            for (const turn * t : members) {
                jobs.push_back({t->s->index(), t->s->seq()->anchor, t->s->seq()->n()});
            }
            const std::vector<lattice> lattices = dft_->draft(jobs, width);
            if (lattices.size() != jobs.size()) {
                throw error(errc::argument, "drafter: expected " + std::to_string(jobs.size()) + " lattices, got " +
                                                std::to_string(lattices.size()));
            }
            for (size_t i = 0; i < members.size(); ++i) {
                walk(*members[i], lattices[i]);
            }
        }
        for (const turn * t : members) {
            t->s->seq()->counters.ms_draft += ms / (double) members.size();
        }
    }
}

void round_runner::walk(turn & t, const lattice & lat) const {
    if (lat.n_pos > t.n_draft) {
        throw error(errc::argument, "drafter: expected up to " + std::to_string(t.n_draft) + " positions, got " +
                                        std::to_string(lat.n_pos));
    }
    validate(lat, tgt_.n_vocab());
    t.path       = t.s->seq()->walk(lat, params_);
    t.n_drafted  = (int32_t) t.path.token.size();
    t.confidence = path_confidence(lat, t.path);
    t.shorten(t.s->seq()->room());  // known before the draft: never a function of what was drawn
}

// For a request that runs alone. The pass gets more rows than it needs where that is faster, and where context and
// roll-back allow it.
void round_runner::choose_length(turn & t) {
    length_controller & length = controller(1);
    const sequence &    seq    = *t.s->seq();
    if (seq.adaptive && t.n_draft > 0) {
        t.shorten(length.verify_length(t.confidence));
    }
    const int32_t wanted = seq.adaptive ? length.padded_rows(t.n_rows) : length.fastest_rows(t.n_rows, seq.n());
    if (wanted <= std::min(tgt_.n_rollback() + 1, tgt_.n_ctx() - seq.n())) {
        t.n_rows = wanted;
    }
}

void round_runner::verify(std::vector<turn> & turns) {
    std::vector<target_row> rows;
    for (turn & t : turns) {
        const sequence & seq = *t.s->seq();
        t.first_row          = (int32_t) rows.size();
        rows.push_back({seq.anchor, t.s->index(), seq.n(), true});
        for (const token_id id : t.path.token) {
            rows.push_back({id, t.s->index(), rows.back().position + 1, true});
        }
        for (int32_t i = (int32_t) t.path.token.size() + 1; i < t.n_rows; ++i) {
            rows.push_back({seq.anchor, t.s->index(), rows.back().position + 1, true});
        }
    }
    double ms = 0.0;
    {
        const timer time(ms);
        tgt_.decode(rows);
    }
    for (const turn & t : turns) {
        t.s->seq()->counters.ms_verify += ms / (double) turns.size();
    }
}

// How sure the target was of its latest tokens, on average over the adaptive requests.
double round_runner::logit_gap(const std::vector<turn> & turns) const {
    double sum = 0.0, n = 0.0;
    for (const turn & t : turns) {
        if (t.s->seq()->adaptive) {
            const logit_row row = tgt_.row(t.first_row + t.accepted.n_draft);
            sum += std::min(peak_gap(row.logit, row.n), 100.0);
            n += 1.0;
        }
    }
    return sum / n;
}

std::vector<progress> round_runner::run(const std::vector<slot *> & running) {
    std::vector<turn> turns;
    for (slot * s : running) {
        turns.emplace_back();
        turns.back().s = s;
    }
    turn *        leader = choose_widths(turns);
    round_outcome o;
    o.n_context = leader ? leader->s->seq()->n() : 0;
    n_rounds_ += 1;

    const double begin = clock_();
    for (turn & t : turns) {
        if (t.n_draft > 0) {
            o.n_put_off += t.s->n_put_off();
            t.s->catch_up();
        }
    }
    const double caught_up = clock_();
    draft(turns);
    if (turns.size() == 1) {
        choose_length(turns[0]);
    } else if (leader && leader->n_draft > 0) {  // side by side drafts are verified whole: nothing but to learn from
        controller(turns.size()).verify_length(leader->confidence);
    }
    const double drafted = clock_();
    verify(turns);
    std::vector<progress> out;
    for (turn & t : turns) {
        progress p;
        t.accepted = t.s->accept(t.path, t.n_drafted, params_.rule, t.first_row, p.tokens);
        p.id       = t.s->seq()->id;
        p.reason   = t.s->seq()->reason;
        out.push_back(std::move(p));
    }
    const double verified = clock_();
    const double gap      = leader ? logit_gap(turns) : 0.0;
    for (turn & t : turns) {
        t.s->keep(t.first_row, t.accepted.n_rows, /*put_off =*/t.n_draft == 0);
    }
    const double kept = clock_();
    if (leader) {
        o.n_draft   = leader->n_draft;
        o.n_verify  = (int32_t) leader->path.token.size();
        o.n_accept  = leader->accepted.n_draft;
        o.n_rows    = leader->n_rows;
        o.ms_late   = caught_up - begin;
        o.ms_draft  = drafted - caught_up + kept - verified;
        o.ms_verify = verified - drafted;
        o.logit_gap = gap;
        controller(turns.size()).observe(o);
    }
    return out;
}

}  // namespace dflash2
