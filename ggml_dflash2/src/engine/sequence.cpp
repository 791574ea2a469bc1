#include "engine/sequence.h"

#include <algorithm>

namespace dflash2 {

sequence::sequence(const target & tgt, int64_t request_id, const request & r, int32_t n_draft_max, bool is_adaptive)
    : id(request_id),
      req(r),
      n_draft(n_draft_max),
      adaptive(is_adaptive),
      tgt_(tgt),
      sampler_(tgt, r),
      random_(r.sampling.seed),
      text_(r.stop),
      n_left_(r.max_tokens < 0 ? INT32_MAX : r.max_tokens) {
    counters.accepted_per_pos.assign(n_draft, 0);
}

token_id sequence::pick(const logit_row & logits, int32_t position) {
    if (sampler_.greedy()) {
        return sampler_.argmax(logits);
    }
    return sampler_.distribution(logits).draw(random_.uniform(random_stream::residual, (uint32_t) position));
}

void sequence::start(const logit_row & logits, std::vector<emitted> & out) {
    try {
        anchor = pick(logits, n());
    } catch (const dead_end &) {
        end_without_token(out);
        return;
    }
    sampler_.accept(anchor);
    emit(anchor, false, out);
}

int32_t sequence::room() const {
    return (int32_t) std::max<int64_t>(0, std::min<int64_t>(n_left_ - 1, tgt_.n_ctx() - n() - 1));
}

draft_path sequence::walk(const lattice & lat, const engine_params & params) const {
    if (!sampled_walk(params.rule)) {
        return walk_greedy(lat, params.p_min);
    }
    const sampling_params & s = req.sampling;
    const walk_cut          cut{s.top_k, s.top_p, s.min_p};
    return walk_sample(lat, s.temperature * params.draft_temperature, random_, (uint32_t) n(), round_, cut);
}

verdict sequence::verify(const draft_path & path, accept_rule rule, const std::function<logit_row(int32_t)> & logits) {
    round_++;
    int32_t    n_accept = 0;
    const auto advance  = [&](int32_t row) {
        if (row > 0) {
            sampler_.accept(path.token[row - 1]);
        }
        n_accept = row;
    };
    forced.begin(path);
    try {
        verdict v;
        if (sampled_walk(rule)) {
            const target_law_at p = [&](int32_t row) -> const target_law & {
                advance(row);
                return forced.law_of(row, sampler_.distribution(logits(row)));
            };
            v = verify_rejection(path, p, random_, (uint32_t) n());
        } else {
            const pick_at p = [&](int32_t row) {
                advance(row);
                return forced.pick(row, pick(logits(row), n() + 1 + row));
            };
            v = verify_match(path.token, p);
        }
        sampler_.accept(v.next);
        return v;
    } catch (const dead_end &) {
        return {n_accept, -1};
    }
}

int32_t sequence::commit(const draft_path & path, int32_t n_drafted, const verdict & v, std::vector<emitted> & out) {
    int32_t n_kept = 0;  // drafted tokens that are emitted
    while (n_kept < v.n_accept && reason == finish_reason::none) {
        emit(path.token[n_kept++], true, out);
    }
    counters.n_rounds++;
    counters.add_draft(n_drafted, (int32_t) path.token.size(), n_kept);
    tokens.push_back(anchor);
    tokens.insert(tokens.end(), path.token.begin(), path.token.begin() + n_kept);
    if (reason != finish_reason::none) {
        return n_kept + 1;
    }
    anchor = v.next;
    if (anchor < 0) {
        end_without_token(out);
    } else if (emit(v.next, false, out) && n() >= tgt_.n_ctx()) {
        finish(finish_reason::context, out);  // no room to decode the next anchor
    }
    return n_kept + 1;
}

// Emits a committed token. False when it ends the request.
bool sequence::emit(token_id token, bool from_draft, std::vector<emitted> & out) {
    const bool eog = tgt_.is_eog(token);
    out.push_back({token, eog ? "" : text_.push(tgt_.piece(token)), from_draft});
    counters.n_generated++;
    n_left_--;
    if (eog || text_.stopped()) {
        finish(finish_reason::stop, out);
    } else if (n_left_ == 0) {
        finish(finish_reason::length, out);
    }
    return reason == finish_reason::none;
}

void sequence::finish(finish_reason why, std::vector<emitted> & out) {
    out.back().text += text_.finish();
    reason = why;
}

void sequence::end_without_token(std::vector<emitted> & out) {
    out.push_back({-1, "", false});
    finish(finish_reason::dead_end, out);
}

}  // namespace dflash2
