// Milliseconds of a piece of work as a function of a count (rows of a target pass, tokens of a draft), learned online.
#pragma once

#include <cstdint>
#include <vector>

namespace dflash2 {

class cost_table {
  public:
    // Counts 1..n_most. prior_ms: of the first count that is tried; prior_slope: growth per count relative to it, while
    // it is the only one known.
    cost_table(int32_t n_most, double prior_ms, double prior_slope);

    // now: number of the round, for ages. Robust: an accident counts as a small deviation. A lasting change shifts all
    // counts after a few rounds, and makes the other ones doubtful. Returns that change, as a log; 0: none.
    double add(int32_t count, double ms, int64_t now);

    // Something has changed by this log: until they are measured again, all counts may be off by as much.
    void doubt(double change);

    int32_t n_samples(int32_t count) const { return cells_[count].n; }
    int32_t n_most() const { return int32_t(cells_.size()) - 1; }
    int32_t most_tried() const { return most_tried_; }
    int64_t age(int32_t count, int64_t now) const { return now - cells_[count].last; }

    // Measured, or from the neighbours. A lone sample may have been an accident, so it cannot exceed by much what they
    // say. 0 before any sample, so that a first draft
    // counts as free: a trial that waits until it can be paid comes too late.
    double mean(int32_t count) const { return mean_[count]; }

    // What it may cost at best: below mean() by one standard deviation, which grows with the age of the samples.
    double low(int32_t count, int64_t now) const;

  private:
    double learn(int32_t count, double ms, int64_t now);
    void   shift_doubtful(double off);
    void   estimate();

    static constexpr int32_t n_known = 5;  // samples of a count that is well known

    struct cell {
        double  log_ms         = 0.0;  // relative to level_
        double  first[n_known] = {};   // samples until it is well known, in order
        double  doubt          = 0.0;
        int32_t n              = 0;
        int64_t last           = 0;
    };

    std::vector<cell>   cells_;  // [n_most + 1]
    std::vector<double> guess_;  // [n_most + 1] ms, own samples left out
    std::vector<double> mean_;   // [n_most + 1] ms
    double              prior_ms_;
    double              prior_slope_;
    double              level_      = 0.0;  // log of the speed that all counts have in common
    int32_t             most_tried_ = 0;
    int32_t             n_far_      = 0;    // latest samples in a row that were far off, negative: far below
    double              change_     = 0.0;  // the least of them, as a log
};

}  // namespace dflash2
