// Keeps a width, and with it the number of rows, where passes are slow for a while after that number has changed.
#pragma once

#include <cstdint>

namespace dflash2 {

class row_stay {
  public:
    static constexpr int32_t n_unsettled = 2;  // passes after a change that are slow

    // n_stay: rounds; 1: nothing is kept.
    explicit row_stay(int32_t n_stay) : n_stay_(n_stay) {}

    bool    on() const { return n_stay_ > 1; }
    int32_t width() const { return width_; }
    int32_t rows() const { return rows_; }  // of the last pass; 0: others came between

    // Whether it is too early for another width in this round.
    bool holds(int64_t now) const { return now < end_; }

    void choose(int32_t width, bool changes_rows, int64_t now) {
        width_ = width;
        end_   = changes_rows ? now + n_stay_ : end_;
    }

    // Other passes come between.
    void interrupt() { rows_ = 0; }

    // Of a pass that is over: whether its time says what such passes take.
    bool settled(int32_t n_rows) {
        n_same_ = n_rows == rows_ ? n_same_ + 1 : 0;
        rows_   = n_rows;
        return !on() || n_same_ >= n_unsettled;
    }

  private:
    int32_t n_stay_;
    int32_t width_  = 0;
    int64_t end_    = 0;  // first round in which another width may be chosen
    int32_t rows_   = 0;  // of the last pass
    int32_t n_same_ = 0;  // passes in a row before it with as many
};

}  // namespace dflash2
