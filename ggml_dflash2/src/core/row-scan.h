// Passes over a row of logits as wide as the vocabulary, in loops that compilers vectorise.
#pragma once

#include <cstdint>
#include <vector>

#include "core/verify.h"

namespace dflash2 {

struct row_peak {
    int32_t index = -1;  // of the first of the largest values; -1: there is none above -inf
    float   value = 0.0f;
    bool    nan   = false;  // some value is NaN
};

row_peak find_peak(const float * x, int32_t n);

// Indices of the k largest values in ascending order; of equal values the first ones; never -inf. Returns whether some
// value is NaN.
bool find_top(const float * x, int32_t n, int32_t k, std::vector<int32_t> & index);

// Difference of the two largest values; infinity: only one is above -inf. NaN: none is, or some value is NaN.
double peak_gap(const float * x, int32_t n);

// Indices of the values that are at least `least`, which is above -inf, in ascending order.
void find_above(const float * x, int32_t n, float least, std::vector<int32_t> & index);

// Indices of the fewest largest values that have a share of p in softmax(x), in no particular order; of equal values
// the first ones. False when the row has no finite law.
bool find_nucleus(const float * x, int32_t n, float p, std::vector<int32_t> & index);

// softmax(x / temperature) over a whole row, without a list of it: one sum for each piece of the row.
class wide_law final : public target_law {
  public:
    // x must stay as it is while the law is used. False when the row has no finite law.
    bool assign(const float * x, int32_t n, float temperature);

    double   prob(token_id id) const override;
    token_id draw(double u) const override;
    token_id draw_residual(const law & q, double u) const override;

  private:
    float    weight(token_id id) const;
    token_id pick(double goal, const law & instead) const;

    const float *       x_       = nullptr;
    int32_t             n_       = 0;
    float               max_     = 0.0f;
    float               inverse_ = 1.0f;  // of the temperature
    std::vector<double> sums_;            // of each piece's weights
    double              total_ = 0.0;
};

}  // namespace dflash2
