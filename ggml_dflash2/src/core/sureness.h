// How sure the target has been of its latest tokens, and what that says of a draft before there is one: plain rounds
// have the target's logits anyway.
#pragma once

#include <cstdint>

namespace dflash2 {

class sureness {
  public:
    void begin_text();

    // Difference of the two largest logits that a token was chosen from; NaN: not known.
    void add(double logit_gap);

    double level() const { return level_; }

    // By how much the log odds of a draft's confidences are higher than those of one that was made at `level`.
    double shift_from(double level) const { return n_ > 0 ? slope_ * (level_ - level) : 0.0; }

    // A draft that was made at this level has confidences of these log odds on average.
    void learn(double z);

  private:
    static constexpr double slope_prior = 0.7, level_prior = 2.3, z_prior = 0.9, var_prior = 1.2;

    double  level_  = level_prior;  // mean gap of recent tokens
    double  usual_  = level_prior;  // of all texts
    int64_t n_      = 0;            // tokens
    int64_t n_text_ = 0;            // of this text
    double  slope_  = slope_prior;

    // moments of level and log odds
    double mean_level_ = level_prior, mean_z_ = z_prior, var_ = var_prior, cov_ = slope_prior * var_prior;
};

}  // namespace dflash2
