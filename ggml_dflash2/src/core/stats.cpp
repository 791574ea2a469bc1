#include "ggml_dflash2/stats.h"

#include <algorithm>

namespace dflash2 {

void stats::add_draft(int32_t n_drafted_now, int32_t n_verified_now, int32_t n_accepted_now) {
    if (n_drafted_now == 0) {
        return;
    }
    n_drafts += 1;
    n_drafted += n_drafted_now;
    n_verified += n_verified_now;
    n_accepted += n_accepted_now;
    accepted_per_pos.resize(std::max(accepted_per_pos.size(), size_t(n_drafted_now)));
    for (int32_t i = 0; i < n_accepted_now; ++i) {
        accepted_per_pos[i] += 1;
    }
}

void stats::add(const stats & other) {
    n_prompt += other.n_prompt;
    n_cached += other.n_cached;
    n_generated += other.n_generated;
    n_rounds += other.n_rounds;
    n_drafts += other.n_drafts;
    n_drafted += other.n_drafted;
    n_verified += other.n_verified;
    n_accepted += other.n_accepted;
    accepted_per_pos.resize(std::max(accepted_per_pos.size(), other.accepted_per_pos.size()));
    for (size_t i = 0; i < other.accepted_per_pos.size(); ++i) {
        accepted_per_pos[i] += other.accepted_per_pos[i];
    }
    ms_prompt += other.ms_prompt;
    ms_draft += other.ms_draft;
    ms_verify += other.ms_verify;
    ms_sample += other.ms_sample;
}

double stats::mean_accept_length() const {
    return n_drafts > 0 ? 1.0 + double(n_accepted) / double(n_drafts) : 0.0;
}

double stats::acceptance_rate() const {
    return n_verified > 0 ? double(n_accepted) / double(n_verified) : 0.0;
}

}  // namespace dflash2
