#include "core/acceptance.h"

#include <algorithm>
#include <cmath>

namespace dflash2 {

// Prior: the selector is about right, a little too sure of itself.
static constexpr double level_mean = -0.3, level_var = 1.0;
static constexpr double slope_mean = 1.0, slope_var = 0.1;
static constexpr double offset_var = 0.25;

// Random walk of the parameters per round.
static constexpr double level_drift        = 2e-5;
static constexpr double level_drift_unseen = 5e-3;
static constexpr double other_drift        = 2e-5;

static constexpr double usual_rounds  = 200.0;  // that the usual level is averaged over
static constexpr double forget_rounds = 100.0;  // without a verification, for the level to become the usual one again

static constexpr double surprise_decay = 0.85;
static constexpr double surprise_limit = 10.0;  // in variances
static constexpr double surprise_var   = 0.5;   // added to the level's variance

static double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

acceptance_model::acceptance_model(int32_t n_pos) : n_(n_pos + 2), mean_(n_, 0.0), cov_(size_t(n_) * n_, 0.0) {
    mean_[0] = usual_ = level_mean;
    mean_[1]          = slope_mean;
    for (int32_t i = 0; i < n_; ++i) {
        cov_[i * n_ + i] = i == 0 ? level_var : i == 1 ? slope_var : offset_var;
    }
}

double acceptance_model::log_odds(int32_t pos, double z) const {
    return mean_[0] + std::max(mean_[1], 0.0) * z + mean_[2 + pos];
}

double acceptance_model::variance(int32_t pos, double z) const {
    const int32_t k = 2 + pos;
    const auto    c = [&](int32_t i, int32_t j) { return cov_[i * n_ + j]; };
    return c(0, 0) + z * z * c(1, 1) + c(k, k) + 2.0 * (z * c(0, 1) + c(0, k) + z * c(1, k));
}

double acceptance_model::mean(int32_t pos, double z) const {
    return sigmoid(log_odds(pos, z));
}

double acceptance_model::high(int32_t pos, double z) const {
    return sigmoid(log_odds(pos, z) + 2.0 * std::sqrt(variance(pos, z)));
}

void acceptance_model::add(int32_t pos, double z, bool accepted) {
    const double p   = std::clamp(mean(pos, z), 0.01, 0.99);
    const double w   = p * (1.0 - p);
    const double off = (accepted ? 1.0 : 0.0) - p;

    surprise_ = surprise_decay * surprise_ + off;
    noise_    = surprise_decay * surprise_decay * noise_ + w;
    if (surprise_ * surprise_ > surprise_limit * noise_) {
        cov_[0]   = std::min(cov_[0] + surprise_var, level_var);
        surprise_ = noise_ = 0.0;
    }

    std::vector<double> gain(n_);  // covariance with the log odds
    for (int32_t i = 0; i < n_; ++i) {
        gain[i] = cov_[i * n_] + z * cov_[i * n_ + 1] + cov_[i * n_ + 2 + pos];
    }
    const double shrink = 1.0 / (1.0 + w * variance(pos, z));
    for (int32_t i = 0; i < n_; ++i) {
        mean_[i] += shrink * gain[i] * off;
        for (int32_t j = 0; j < n_; ++j) {
            cov_[i * n_ + j] -= shrink * w * gain[i] * gain[j];
        }
    }
}

void acceptance_model::begin_text() {
    mean_[0] += 0.5 * std::min(n_verified_ / usual_rounds, 1.0) * (usual_ - mean_[0]);
}

void acceptance_model::tick(bool verified) {
    if (verified) {
        n_verified_ += 1;
        usual_ += (mean_[0] - usual_) / std::min(n_verified_, usual_rounds);
    } else {
        mean_[0] += (usual_ - mean_[0]) / forget_rounds;
    }
    cov_[0] = std::min(cov_[0] + (verified ? level_drift : level_drift_unseen), std::max(cov_[0], level_var));
    for (int32_t i = 1; i < n_; ++i) {
        double & var = cov_[i * n_ + i];
        var          = std::min(var + other_drift, std::max(var, i == 1 ? slope_var : offset_var));
    }
}

}  // namespace dflash2
