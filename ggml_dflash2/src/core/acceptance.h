// Probability that a drafted token is accepted when those before it were, from the selector's confidence, the position
// and the recent past: logistic regression, tracked by an extended Kalman filter.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

class acceptance_model {
  public:
    explicit acceptance_model(int32_t n_pos);

    // z: log odds of the selector's confidence.
    double mean(int32_t pos, double z) const;
    double high(int32_t pos, double z) const;  // what it may be at best: two standard deviations more

    // An outcome at a position that was reached: all before it were accepted. Others say nothing and are not added.
    void add(int32_t pos, double z, bool accepted);

    // Another text begins: once it is known, the level goes half-way to the usual one.
    void begin_text();

    // A round has gone by. Text may change unseen, so the level becomes uncertain when nothing was verified.
    void tick(bool verified);

  private:
    double log_odds(int32_t pos, double z) const;
    double variance(int32_t pos, double z) const;

    int32_t             n_;                 // parameters: level, slope over z, offset of each position
    std::vector<double> mean_;              // [n]
    std::vector<double> cov_;               // [n, n]
    double              usual_      = 0.0;  // average of the level
    double              n_verified_ = 0.0;
    double              surprise_   = 0.0;  // recent outcomes less their expectation
    double              noise_      = 0.0;  // variance of surprise_ if the model holds
};

}  // namespace dflash2
