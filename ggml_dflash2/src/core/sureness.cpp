#include "core/sureness.h"

#include <algorithm>

namespace dflash2 {

// Priors (sureness.h) are those of SmolLM2-135M and its drafter on 48 requests: z = 0.7 level - 0.75 at every position,
// with a correlation of 0.47.
static constexpr double  gap_most    = 6.0;  // larger ones say no more
static constexpr double  level_gain  = 0.2;
static constexpr int64_t n_prior     = 2;    // tokens that the usual level counts as when a text begins
static constexpr int64_t n_usual     = 500;  // tokens that the usual level is averaged over
static constexpr int64_t n_usual_pri = 8;    // that its prior counts as
static constexpr double  moment_gain = 1.0 / 64;
static constexpr double  var_least   = 0.1;
static constexpr double  slope_most  = 1.5;

void sureness::begin_text() {
    n_text_ = 0;
    level_  = usual_;
}

void sureness::add(double logit_gap) {
    if (!(logit_gap >= 0.0)) {
        return;
    }
    const double gap = std::min(logit_gap, gap_most);
    n_ += 1;
    n_text_ += 1;
    level_ += (gap - level_) * std::max(level_gain, 1.0 / double(n_text_ + n_prior));
    usual_ += (gap - usual_) / double(std::min(n_ + n_usual_pri, n_usual));
}

void sureness::learn(double z) {
    if (n_ == 0) {
        return;
    }
    mean_level_ += moment_gain * (level_ - mean_level_);
    mean_z_ += moment_gain * (z - mean_z_);
    var_ += moment_gain * ((level_ - mean_level_) * (level_ - mean_level_) - var_);
    cov_ += moment_gain * ((level_ - mean_level_) * (z - mean_z_) - cov_);
    slope_ = std::clamp(cov_ / std::max(var_, var_least), 0.0, slope_most);
}

}  // namespace dflash2
