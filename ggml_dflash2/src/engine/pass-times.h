// What passes of the target take at their steady pace.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ggml_dflash2/target.h"

namespace dflash2 {

struct pass_times {
    std::vector<double> ms;            // [n_most + 1] by rows, medians; 0: not timed
    double              change = 1.0;  // of a pass after one over another number of rows, relative to that; median
};

// Of 1 .. n_most rows, as far as the context holds them, after the slow first ones. On a CPU, where a pass may take
// seconds, not all of them if they take long. clock: ms. Empties sequence 0.
pass_times time_passes(target & tgt, int32_t n_most, const std::function<double()> & clock);

}  // namespace dflash2
