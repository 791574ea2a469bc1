#include "core/budget.h"

#include <algorithm>

namespace dflash2 {

// In plain rounds.
static constexpr double looks_most = 2.0;
static constexpr double saved_most = 32.0;

void budget::settle(double saved_ms, double & purse) {
    saved_ += saved_ms;
    purse += std::min(saved_, 0.0);
    saved_ = std::max(saved_, 0.0);
}

void budget::earn(double plain_ms, int32_t n_tokens) {
    probes_ += plain_ms * (granted_ ? probe_share_ * n_tokens : grant_);
    looks_ += plain_ms * look_share_ * n_tokens;
    granted_ = true;
    probes_  = std::min(probes_, most_for_probes() * plain_ms);
    looks_   = std::min(looks_, looks_most * plain_ms);
    saved_   = std::min(saved_, saved_most * plain_ms);
}

}  // namespace dflash2
