#include "engine/round.h"

#include <algorithm>
#include <map>

#include "engine/timer.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

// One pass per width: a block's drafts must not depend on its neighbours.
void round_runner::draft(std::vector<turn> & turns) {
    std::map<int32_t, std::vector<turn *>> by_width;
    for (turn & t : turns) {
        const sequence & seq = *t.s->seq();
        if (seq.drafting() && seq.room() > 0) {
            // Whole, even when there is room for less: a block's drafts depend on its width.
            by_width[seq.n_draft].push_back(&t);
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
    const sequence & seq = *t.s->seq();
    if (lat.n_pos > seq.n_draft) {
        throw error(errc::argument, "drafter: expected up to " + std::to_string(seq.n_draft) + " positions, got " +
                                        std::to_string(lat.n_pos));
    }
    validate(lat, tgt_.n_vocab());
    t.path = seq.walk(lat, params_);
    // Known before the draft: never a function of what was drawn.
    t.path.token.resize(std::min(t.path.token.size(), (size_t) seq.room()));
    t.path.q.resize(t.path.token.size());
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

std::vector<progress> round_runner::run(const std::vector<slot *> & running) {
    std::vector<turn> turns;
    for (slot * s : running) {
        turns.emplace_back();
        turns.back().s = s;
    }
    draft(turns);
    verify(turns);

    std::vector<progress> out;
    for (const turn & t : turns) {
        progress p;
        t.s->accept(t.path, params_.rule, t.first_row, p.tokens);
        p.id     = t.s->seq()->id;
        p.reason = t.s->seq()->reason;
        out.push_back(std::move(p));
    }
    return out;
}

}  // namespace dflash2
