// Counters of speculative decoding, named as vLLM's metrics.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

struct stats {
    int64_t              n_prompt    = 0;   // prompt tokens
    int64_t              n_cached    = 0;   // of these, taken over from the request before
    int64_t              n_generated = 0;   // tokens emitted, those after a stop not counted
    int64_t              n_rounds    = 0;   // target passes after the prompt, drafted or not
    int64_t              n_drafts    = 0;   // rounds with a draft
    int64_t              n_drafted   = 0;   // tokens drafted
    int64_t              n_verified  = 0;   // of these, verified by the target
    int64_t              n_accepted  = 0;   // of these, kept and emitted
    std::vector<int64_t> accepted_per_pos;  // [block_size - 1]: rounds that kept the draft token at this position

    // wall time in milliseconds
    double ms_prompt = 0.0;
    double ms_draft  = 0.0;  // draft graph and walk
    double ms_verify = 0.0;  // target passes
    double ms_sample = 0.0;  // sampler chain, acceptance, text

    // Counts one draft: n_drafts and the counters after it; accepted_per_pos grows as needed. Nothing when none was
    // drafted.
    void add_draft(int32_t n_drafted_now, int32_t n_verified_now, int32_t n_accepted_now);
    void add(const stats & other);  // sums everything

    double mean_accept_length() const;  // 1 + accepted / drafts: the bonus token is included; 0 without drafts
    double acceptance_rate() const;     // accepted / verified; 0 when none was verified
};

}  // namespace dflash2
