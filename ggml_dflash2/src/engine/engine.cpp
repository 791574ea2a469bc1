#include "ggml_dflash2/engine.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "engine/sampler.h"
#include "ggml_dflash2/error.h"
#include "ggml_dflash2/lattice.h"
#include "ggml_dflash2/text.h"
#include "ggml_dflash2/verify.h"

namespace dflash2 {

namespace {

// Adds the time of its scope to a counter.
class timer {
  public:
    explicit timer(double & ms) : ms_(ms), start_(clock::now()) {}

    ~timer() { ms_ += std::chrono::duration<double, std::milli>(clock::now() - start_).count(); }

    timer(const timer &)             = delete;
    timer & operator=(const timer &) = delete;

  private:
    using clock = std::chrono::steady_clock;
    double &          ms_;
    clock::time_point start_;
};

// Rows [first, first + n) of a decode.
features slice(const features & f, int32_t first, int32_t n) {
    features out = f;
    for (const float *& tap : out.tap) {
        tap += (size_t) first * f.n_embd;
    }
    out.n_rows   = n;
    out.position = f.position + first;
    return out;
}

}  // namespace

// Between rounds: tokens 0 .. n - 1 are decoded, the anchor stands at position n and is committed but not decoded.
struct engine::impl {
    target &      tgt;
    drafter *     dft;
    engine_params params;
    int32_t       n_draft_max = 0;

    // of the current request
    request                    req;
    std::optional<law_sampler> sampler;
    random_source              random;
    text_stream                text;
    token_id                   anchor   = -1;  // -1: the first token is still to be picked from the prompt's last row
    int32_t                    n        = 0;
    int32_t                    last_row = 0;  // of the prompt's last token in the last prompt decode
    int32_t                    n_draft_req = 0;
    uint32_t                   round       = 0;
    int64_t                    n_left      = 0;  // tokens that may still be emitted
    bool                       running     = false;
    finish_reason              reason      = finish_reason::none;
    stats                      now;
    stats                      total;

    impl(target & t, drafter * d, const engine_params & p) : tgt(t), dft(d), params(p) {}

    bool drafting() const { return n_draft_req > 0; }

    void prefill(const std::function<void()> & poll) {
        timer         time(now.ms_prompt);
        const int32_t n_prompt = (int32_t) req.prompt.size();
        const int32_t window   = drafting() ? dft->context_window() : 0;
        // What no later draft can see is not injected.
        const int32_t first = window > 0 ? std::max(0, n_prompt - window) : 0;
        for (int32_t i = 0; i < n_prompt;) {
            if (poll) {
                poll();
            }
            const int32_t count = std::min(tgt.n_batch(), n_prompt - i);
            tgt.decode(req.prompt.data() + i, count, i, /*all_logits =*/false);
            if (drafting() && i + count > first) {
                const int32_t skip = std::max(0, first - i);
                dft->inject(slice(tgt.tapped(), skip, count - skip));
            }
            i += count;
        }
        n            = n_prompt;
        now.n_prompt = n_prompt;
    }

    token_id pick(const float * logits, int32_t position) {
        if (sampler->greedy()) {
            return sampler->argmax(logits);
        }
        return draw(sampler->distribution(logits), random.uniform(random_stream::residual, (uint32_t) position));
    }

    // Drafted tokens of this round. Known before the draft, so never a function of what it draws.
    int32_t draft_length() const {
        const int64_t room = std::min<int64_t>(n_left - 1, tgt.n_ctx() - n - 1);
        return (int32_t) std::max<int64_t>(0, std::min<int64_t>(n_draft_req, room));
    }

    bool sampled_walk() const { return !sampler->greedy() && params.rule == accept_rule::rejection; }

    draft_path make_path(int32_t n_draft) {
        timer         time(now.ms_draft);
        const lattice lat = dft->draft(anchor, n, n_draft);
        return sampled_walk() ? walk_sample(lat, req.sampling.temperature, random, (uint32_t) n, round)
                              : walk_greedy(lat, params.p_min);
    }

    // The chain is advanced along kept tokens only, row by row, so it never has to be rolled back.
    verdict verify(const draft_path & path) {
        timer      time(now.ms_sample);
        const auto advance = [&](int32_t row) {
            if (row > 0) {
                sampler->accept(path.token[row - 1]);
            }
        };
        verdict v;
        if (sampled_walk()) {
            const law_at p = [&](int32_t row) -> const law & {
                advance(row);
                return sampler->distribution(tgt.logits(row));
            };
            v = verify_rejection(path, p, random, (uint32_t) n);
        } else {
            const pick_at p = [&](int32_t row) {
                advance(row);
                return pick(tgt.logits(row), n + 1 + row);
            };
            v = verify_match(path.token, p);
        }
        sampler->accept(v.next);
        return v;
    }

    // Emits a committed token. False when it ends the request.
    bool emit(token_id id, bool from_draft, std::vector<emitted> & out) {
        const bool eog = tgt.is_eog(id);
        out.push_back({id, eog ? "" : text.push(tgt.piece(id)), from_draft});
        now.n_generated++;
        n_left--;
        if (eog || text.stopped()) {
            finish(finish_reason::stop, out);
        } else if (n_left == 0) {
            finish(finish_reason::length, out);
        }
        return running;
    }

    void finish(finish_reason why, std::vector<emitted> & out) {
        out.back().text += text.finish();
        running = false;
        reason  = why;
    }

    std::vector<emitted> step() {
        std::vector<emitted> out;
        if (anchor < 0) {
            token_id first;
            {
                timer time(now.ms_sample);
                first = pick(tgt.logits(last_row), n);
                sampler->accept(first);
            }
            anchor = first;
            emit(first, false, out);
            return out;
        }
        const int32_t    n_draft = draft_length();
        const draft_path path    = n_draft > 0 ? make_path(n_draft) : draft_path{};
        const int32_t    n_path  = (int32_t) path.token.size();

        std::vector<token_id> rows = {anchor};
        rows.insert(rows.end(), path.token.begin(), path.token.end());
        {
            timer time(now.ms_verify);
            tgt.decode(rows.data(), n_path + 1, n, /*all_logits =*/true);
        }
        const verdict v = verify(path);

        now.n_rounds++;
        round++;
        int32_t n_kept = 0;  // drafted tokens that are emitted or end the generation
        while (n_kept < v.n_accept && running) {
            emit(path.token[n_kept++], true, out);
        }
        if (n_path > 0) {
            now.add_draft(n_path, n_kept);
        }
        if (running && emit(v.next, false, out)) {
            commit(v, out);
        }
        return out;
    }

    void commit(const verdict & v, std::vector<emitted> & out) {
        const int32_t n_rows = v.n_accept + 1;
        if (n + n_rows >= tgt.n_ctx()) {  // no room to decode the next anchor
            finish(finish_reason::context, out);
            return;
        }
        tgt.truncate(n + n_rows);
        if (drafting()) {
            timer time(now.ms_draft);
            dft->inject(slice(tgt.tapped(), 0, n_rows));
        }
        n += n_rows;
        anchor = v.next;
    }
};

engine::engine(target & tgt, drafter * dft, const engine_params & params)
    : impl_(std::make_unique<impl>(tgt, dft, params)) {
    if (params.n_draft_max < -1 || params.p_min < 0.0f || params.p_min > 1.0f) {
        throw error(errc::argument, "engine: n_draft_max must be -1 or more, p_min in [0, 1]");
    }
    if (!dft) {
        return;
    }
    if (!tgt.can_rollback()) {
        throw error(errc::incompatible, tgt.path() +
                                            ": a recurrent, hybrid or encoder target cannot be rolled back to "
                                            "the accepted tokens yet; use it without a drafter");
    }
    tgt.set_taps(dft->target_layers());
    const int32_t most = std::min(dft->max_draft(), tgt.max_logit_rows() - 1);
    impl_->n_draft_max = params.n_draft_max < 0 ? most : std::min(params.n_draft_max, most);
}

engine::~engine() = default;

void engine::begin(const request & req, const std::function<void()> & poll) {
    impl & e  = *impl_;
    e.running = false;
    if (req.prompt.empty()) {
        throw error(errc::argument, "prompt: expected at least one token, got none");
    }
    if (req.max_tokens < -1 || req.n_draft_max < -1) {
        throw error(errc::argument, "max_tokens and n_draft_max must be -1 or more");
    }
    if ((int64_t) req.prompt.size() >= e.tgt.n_ctx()) {
        throw error(errc::context_full, "prompt: " + std::to_string(req.prompt.size()) +
                                            " tokens do not fit into the context of " + std::to_string(e.tgt.n_ctx()) +
                                            " with room to generate; use a larger n_ctx or a shorter prompt");
    }
    e.sampler.emplace(e.tgt, req);
    e.text        = text_stream(req.stop);
    e.req         = req;
    e.n_draft_req = req.n_draft_max < 0 ? e.n_draft_max : std::min(req.n_draft_max, e.n_draft_max);
    if (e.sampled_walk() && e.params.p_min > 0.0f && e.drafting()) {
        throw error(errc::argument,
                    "p_min cuts greedy drafts only: with a temperature above 0 it would make the length "
                    "depend on drawn tokens; use p_min = 0 or accept_rule match");
    }
    e.random = random_source(req.sampling.seed);
    e.anchor = -1;
    e.n      = 0;
    e.round  = 0;
    e.n_left = req.max_tokens < 0 ? INT32_MAX : req.max_tokens;
    e.reason = finish_reason::none;
    e.total.add(e.now);
    e.now = stats{};
    e.now.accepted_per_pos.assign(e.n_draft_max, 0);

    e.tgt.truncate(0);
    if (e.dft) {
        e.dft->reset();
        e.tgt.set_taps(e.drafting() ? e.dft->target_layers() : std::vector<int32_t>());
    }
    for (const token_id id : req.prompt) {
        e.sampler->accept(id);
    }
    e.prefill(poll);
    e.last_row = ((int32_t) req.prompt.size() - 1) % e.tgt.n_batch();
    e.running  = true;
    if (e.n_left == 0) {
        e.running = false;
        e.reason  = finish_reason::length;
    }
}

std::vector<emitted> engine::next() {
    if (!impl_->running) {
        throw error(errc::argument, "next: no request is running; call begin() first");
    }
    try {
        return impl_->step();
    } catch (...) {
        impl_->running = false;
        throw;
    }
}

bool engine::done() const {
    return !impl_->running;
}

finish_reason engine::reason() const {
    return impl_->reason;
}

const stats & engine::request_stats() const {
    return impl_->now;
}

stats engine::total_stats() const {
    stats sum = impl_->total;
    sum.add(impl_->now);
    return sum;
}

int32_t engine::n_draft_max() const {
    return impl_->n_draft_max;
}

}  // namespace dflash2
