#include "ggml_dflash2/engine.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "engine/round.h"
#include "engine/slot.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

struct engine::impl {
    target &          tgt;
    drafter *         dft;
    engine_params     params;
    int32_t           n_draft_max = 0;
    std::vector<slot> slots;
    stats             total;  // of requests that no slot knows any more
    int64_t           next_id = 1;

#ifdef DFLASH2_BENCH
    std::vector<double> synthetic_rates;
#endif

    std::vector<int32_t>                  taps;
    std::unique_ptr<round_runner>         rounds;
    std::deque<std::unique_ptr<sequence>> queue;  // checked when submitted, so that a bad request fails there

    impl(target & t, drafter * d, const engine_params & p) : tgt(t), dft(d), params(p) {
        for (int32_t i = 0; i < t.n_seq(); ++i) {
            slots.emplace_back(t, d, i);
        }
    }

    // The free slot whose memory shares most with a prompt; null: all are busy.
    slot * best_slot(const std::vector<token_id> & prompt) {
        slot *  best = nullptr;
        int32_t most = -1;
        for (slot & s : slots) {
            const int32_t n = s.running() ? -1 : s.shared_prefix(prompt);
            if (n > most) {
                best = &s;
                most = n;
            }
        }
        return best;
    }

    progress admit(slot & s, const std::function<void()> & poll) {
        std::unique_ptr<sequence> seq = std::move(queue.front());
        queue.pop_front();
        if (s.seq()) {
            total.add(s.seq()->counters);
        }
        progress p;
        p.id = seq->id;
        s.start(std::move(seq), poll, p.tokens);
        p.reason = s.seq()->reason;
        return p;
    }

    std::vector<progress> round(const std::function<void()> & poll) {
        if (poll) {
            poll();
        }
        std::vector<slot *> running;
        for (slot & s : slots) {
            if (s.running()) {
                running.push_back(&s);
            }
        }
        if (running.empty()) {
            return {};
        }
        try {
            return rounds->run(running);
        } catch (...) {
            for (slot & s : slots) {  // idle ones too: a failed draft pass may have lost their rows
                s.forget();
            }
            throw;
        }
    }

    // Features are copied to the host by every decode that has them on; not while nobody drafts.
    void set_taps() {
        const auto drafting = [](const sequence & seq) { return seq.drafting(); };
        const bool needed   = std::any_of(slots.begin(), slots.end(),
                                          [&](const slot & s) { return s.running() && drafting(*s.seq()); }) ||
                            std::any_of(queue.begin(), queue.end(), [&](const auto & seq) { return drafting(*seq); });
        tgt.set_taps(needed ? taps : std::vector<int32_t>());
    }

    const sequence * find(int64_t id) const {
        for (const slot & s : slots) {
            if (s.seq() && s.seq()->id == id) {
                return s.seq();
            }
        }
        for (const auto & seq : queue) {
            if (seq->id == id) {
                return seq.get();
            }
        }
        return nullptr;
    }
};

engine::engine(target & tgt, drafter * dft, const engine_params & params)
    : impl_(std::make_unique<impl>(tgt, dft, params)) {
    if (params.n_draft_max < -1 || !(params.p_min >= 0.0f && params.p_min <= 1.0f)) {
        throw error(errc::argument, "engine: n_draft_max must be -1 or more, p_min in [0, 1]");
    }
    if (!(params.draft_temperature > 0.0f && params.draft_temperature < 1e6f)) {
        throw error(errc::argument, "engine: draft_temperature must be above 0");
    }
    if (!dft) {
        impl_->rounds = std::make_unique<round_runner>(tgt, nullptr, params, 0);
        return;
    }
    if (dft->max_draft() < 1) {
        throw error(errc::argument, "engine: the drafter can draft " + std::to_string(dft->max_draft()) +
                                        " tokens, expected at least 1");
    }
    if (dft->n_seq() < tgt.n_seq()) {
        throw error(errc::argument, "engine: the target has " + std::to_string(tgt.n_seq()) +
                                        " sequences, the drafter " + std::to_string(dft->n_seq()));
    }
    tgt.set_taps(dft->target_layers());
    impl_->taps        = dft->target_layers();
    const int32_t most = std::min({dft->max_draft(), tgt.max_draft_rows() - 1, tgt.n_rollback()});
    if (most < 1) {
        throw error(errc::incompatible, tgt.path() +
                                            ": this model's memory cannot be rolled back to the accepted tokens; "
                                            "use it without a drafter");
    }
    impl_->n_draft_max = params.n_draft_max < 0 ? most : std::min(params.n_draft_max, most);
    impl_->rounds      = std::make_unique<round_runner>(tgt, dft, params, impl_->n_draft_max);
    if (impl_->n_draft_max > 0 && !params.clock) {
        impl_->rounds->warm_up();
    }
}

engine::~engine() = default;

int64_t engine::submit(const request & req) {
    impl & e = *impl_;
    if (req.prompt.empty()) {
        throw error(errc::argument, "prompt: expected at least one token, got none");
    }
    for (const token_id id : req.prompt) {
        if (id < 0 || id >= e.tgt.n_vocab()) {
            throw error(errc::argument, "prompt: token " + std::to_string(id) + " is outside the vocabulary of " +
                                            std::to_string(e.tgt.n_vocab()));
        }
    }
    if (req.max_tokens < -1 || req.max_tokens == 0 || req.n_draft_max < -1) {
        throw error(errc::argument, "max_tokens must be 1 or more, or -1; n_draft_max must be -1 or more");
    }
    if ((int64_t) req.prompt.size() >= e.tgt.n_ctx()) {
        throw error(errc::context_full, "prompt: " + std::to_string(req.prompt.size()) +
                                            " tokens do not fit into the " + "context of " +
                                            std::to_string(e.tgt.n_ctx()) +
                                            " with room to generate; use a larger n_ctx or a shorter prompt");
    }
    const int32_t n_draft  = req.n_draft_max < 0 ? e.n_draft_max : std::min(req.n_draft_max, e.n_draft_max);
    const bool    adaptive = n_draft > 0 && req.n_draft_max < 0 && e.params.n_draft_max < 0;
    auto          seq      = std::make_unique<sequence>(e.tgt, e.next_id, req, n_draft, adaptive);
    if (seq->drafting() && seq->sampled_walk(e.params.rule) && e.params.p_min > 0.0f) {
        throw error(errc::argument,
                    "p_min cuts greedy drafts only: with a temperature above 0 it would make the length "
                    "depend on drawn tokens; use p_min = 0 or accept_rule match");
    }
#ifdef DFLASH2_BENCH
    seq->forced.set(e.synthetic_rates, req.sampling.seed);
#endif
    e.queue.push_back(std::move(seq));
    return e.next_id++;
}

#ifdef DFLASH2_BENCH
void engine::set_synthetic_acceptance(const std::vector<double> & rates) {
    impl_->synthetic_rates = rates;
}
#endif

std::vector<progress> engine::step(const std::function<void()> & poll) {
    impl & e = *impl_;
    e.set_taps();
    slot * free = e.queue.empty() ? nullptr : e.best_slot(e.queue.front()->req.prompt);
    if (free) {
        return {e.admit(*free, poll)};
    }
    return e.round(poll);
}

void engine::cancel(int64_t id) {
    impl & e = *impl_;
    e.queue.erase(std::remove_if(e.queue.begin(), e.queue.end(), [id](const auto & seq) { return seq->id == id; }),
                  e.queue.end());
    for (slot & s : e.slots) {
        if (s.running() && s.seq()->id == id) {
            s.stop();
        }
    }
}

bool engine::idle() const {
    return impl_->queue.empty() &&
           std::none_of(impl_->slots.begin(), impl_->slots.end(), [](const slot & s) { return s.running(); });
}

const stats & engine::request_stats(int64_t id) const {
    const sequence * seq = impl_->find(id);
    if (!seq) {
        throw error(errc::argument, "request " + std::to_string(id) + ": unknown, or another one ran in its place");
    }
    return seq->counters;
}

stats engine::total_stats() const {
    stats sum = impl_->total;
    for (const slot & s : impl_->slots) {
        if (s.seq()) {
            sum.add(s.seq()->counters);
        }
    }
    return sum;
}

int32_t engine::n_draft_max() const {
    return impl_->n_draft_max;
}

}  // namespace dflash2
