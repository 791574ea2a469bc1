#include "core/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace dflash2 {

static constexpr double  far_off       = 0.25;  // log; beyond it a sample is taken for an accident
static constexpr double  accident      = 0.08;  // log; what it counts as
static constexpr int32_t n_far_change  = 6;     // accidents in a row that are a change
static constexpr double  level_gain    = 0.05;
static constexpr double  cell_gain     = 1.0 / 32;  // least
static constexpr double  sd_one_sample = 0.25;      // log
static constexpr double  sd_untried    = 0.3;
static constexpr double  lone_most     = 1.2;
static constexpr double  concave       = 0.75;  // slope beyond what is known, relative to that before
static constexpr double  drift         = 1e-4;  // growth of the variance per round

cost_table::cost_table(int32_t n_most, double prior_ms, double prior_slope)
    : cells_(size_t(n_most) + 1),
      guess_(cells_.size()),
      mean_(cells_.size()),
      prior_ms_(prior_ms),
      prior_slope_(prior_slope) {}

double cost_table::add(int32_t count, double ms, int64_t now) {
    const double change = learn(count, ms, now);
    if (change != 0.0) {
        doubt(change);
    }
    cells_[count].doubt = 0.0;
    estimate();
    return change;
}

void cost_table::doubt(double change) {
    for (cell & c : cells_) {
        c.doubt = std::abs(change);
    }
}

void cost_table::shift_doubtful(double off) {
    for (cell & c : cells_) {
        if (c.doubt > 0.0) {
            c.log_ms += off;
            std::for_each(c.first, c.first + n_known, [=](double & x) { x += off; });
        }
    }
}

double cost_table::learn(int32_t count, double ms, int64_t now) {
    cell &       c   = cells_[count];
    const double x   = std::log(ms > 1e-3 ? std::min(ms, 1e9) : 1e-3) - level_;  // NaN counts as 0
    double       off = x - c.log_ms;
    const bool   far = std::abs(off) > far_off;
    c.last           = now;
    most_tried_      = std::max(most_tried_, count);
    if (far && c.doubt > 0.0) {
        if (off <
            0.0) {  // the other doubtful ones are off likewise, as far as one can tell; above it may be an accident
            shift_doubtful(off);
        }
        c.n = 0;
    }
    if (c.n < n_known) {
        c.first[c.n] = x;
        c.n += 1;
        std::sort(c.first, c.first + c.n);
        c.log_ms = c.first[(c.n - 1) / 3];  // a low one: accidents only slow down
        return 0.0;
    }
    if (!far) {
        n_far_ = 0;
    } else {
        const bool same_side = n_far_ != 0 && (n_far_ > 0) == (off > 0.0);
        n_far_               = (same_side ? n_far_ : 0) + (off > 0.0 ? 1 : -1);
        change_              = same_side && std::abs(change_) < std::abs(off) ? change_ : off;
        if (std::abs(n_far_) == n_far_change) {
            n_far_ = 0;
            level_ += change_;
            return change_;
        }
        off = std::copysign(accident, off);
    }
    level_ += level_gain * off;
    c.n += 1;
    c.log_ms += std::max(1.0 / c.n, cell_gain) * off;
    return 0.0;
}

// From the smallest count up, so that each estimate can rest on those below it.
void cost_table::estimate() {
    const auto measured = [&](int32_t i) { return std::exp(cells_[i].log_ms + level_); };

    int32_t first = 0, below = 0;  // counts with samples
    for (int32_t i = 1; i <= n_most(); ++i) {
        int32_t above = i + 1;  // with more than one sample
        while (above <= n_most() && cells_[above].n < 2) {
            above++;
        }
        if (below > 0 && above <= n_most()) {
            guess_[i] = mean_[below] + (measured(above) - mean_[below]) * (i - below) / (above - below);
        } else if (below > 0) {
            const double slope =
                first == below ? prior_slope_ * mean_[first] : (mean_[below] - mean_[first]) / (below - first);
            guess_[i] = mean_[below] + concave * std::max(slope, 0.0) * (i - below);
        } else {
            guess_[i] = above <= n_most() ? measured(above) : prior_ms_;
        }
        const int32_t n = cells_[i].n;
        mean_[i]        = n == 0 ? guess_[i] : n == 1 ? std::min(measured(i), lone_most * guess_[i]) : measured(i);
        if (n > 0) {
            first = first == 0 ? i : first;
            below = i;
        }
    }
}

double cost_table::low(int32_t count, int64_t now) const {
    const cell & c     = cells_[count];
    const double doubt = std::exp(-c.doubt);
    if (c.n < 2) {
        return std::min(mean_[count], guess_[count] * std::exp(-sd_untried)) * doubt;
    }
    const double own = sd_one_sample / c.n;
    return mean_[count] * std::exp(-std::sqrt(own * own + drift * double(now - c.last))) * doubt;
}

}  // namespace dflash2
