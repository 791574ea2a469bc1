// One request on one of the target's sequences: its text, its law, and what a round decides for it.
//
// Between rounds tokens 0 .. n - 1 are decoded; the anchor stands at position n and is committed but not decoded.
#pragma once

#include <functional>
#include <vector>

#include "core/text.h"
#include "core/verify.h"
#include "core/walk.h"
#include "engine/forced-acceptance.h"
#include "engine/sampler.h"
#include "ggml_dflash2/engine.h"

namespace dflash2 {

class sequence {
  public:
    // n_draft: tokens to draft per round, 0: plain decoding; adaptive: or fewer. Throws errc::argument.
    sequence(const target & tgt, int64_t request_id, const request & req, int32_t n_draft, bool adaptive);

    // Picks the first token from the prompt's last row, if one can follow. [n_vocab]
    void start(const logit_row & logits, std::vector<emitted> & out);

    // Drafted tokens that a round may verify: what max_tokens and the context leave room for.
    int32_t room() const;

    draft_path walk(const lattice & lat, const engine_params & params) const;

    // The accepted part of a path, and -1 where no token can follow it. The chain is advanced along kept tokens only,
    // row by row, so it never has to be rolled back. logits(i): row i of the pass over [anchor, path].
    verdict verify(const draft_path & path, accept_rule rule, const std::function<logit_row(int32_t)> & logits);

    // Emits what was accepted of a path, cut at the end of the request. n_drafted: tokens before the path was
    // shortened. Returns the decoded rows to keep.
    int32_t commit(const draft_path & path, int32_t n_drafted, const verdict & v, std::vector<emitted> & out);

    bool drafting() const { return n_draft > 0; }

    bool sampled_walk(accept_rule rule) const { return !sampler_.greedy() && rule == accept_rule::rejection; }

    const int64_t         id;
    const request         req;
    const int32_t         n_draft;
    const bool            adaptive;
    std::vector<token_id> tokens;  // decoded: prompt and committed tokens
    token_id              anchor = -1;
    finish_reason         reason = finish_reason::none;
    stats                 counters;

    int32_t n() const { return (int32_t) tokens.size(); }

    // Largest logits of a row that its law depends on; 0: on all.
    int32_t n_best() const { return sampler_.n_best(); }

    forced_acceptance forced;  // does nothing but in builds for benchmarks

  private:
    token_id pick(const logit_row & logits, int32_t position);
    bool     emit(token_id token, bool from_draft, std::vector<emitted> & out);
    void     finish(finish_reason why, std::vector<emitted> & out);
    void     end_without_token(std::vector<emitted> & out);

    const target & tgt_;
    law_sampler    sampler_;
    random_source  random_;
    text_stream    text_;
    uint32_t       round_  = 0;
    int64_t        n_left_ = 0;  // tokens that may still be emitted
};

}  // namespace dflash2
