#include "engine/pass-times.h"

#include <algorithm>
#include <cstddef>

namespace dflash2 {

static constexpr int32_t n_first = 3, n_first_cpu = 1, n_timed = 3, n_changes = 6;
static constexpr double  most_ms_cpu = 1000.0;  // after which no other number of rows is timed

static double median(std::vector<double> x) {
    const auto middle = x.begin() + std::ptrdiff_t(x.size() / 2);
    std::nth_element(x.begin(), middle, x.end());
    return *middle;
}

// 1, 2, 4 and so on, then the others: what lies between can be guessed.
static std::vector<int32_t> by_use(int32_t n_most) {
    std::vector<int32_t> order;
    for (int32_t n = 1; n <= n_most; n *= 2) {
        order.push_back(n);
    }
    for (int32_t n = 1; n <= n_most; ++n) {
        if ((n & (n - 1)) != 0) {
            order.push_back(n);
        }
    }
    return order;
}

pass_times time_passes(target & tgt, int32_t n_most, const std::function<double()> & clock) {
    n_most           = std::min(n_most, tgt.n_ctx());
    const auto timed = [&](int32_t n) {
        std::vector<target_row> rows;
        for (int32_t i = 0; i < n; ++i) {
            rows.push_back({0, 0, i, true});
        }
        const double begin = clock();
        tgt.decode(rows);
        const double ms = clock() - begin;
        tgt.truncate(0, 0);
        return ms;
    };
    tgt.truncate(0, 0);
    const bool   cpu   = tgt.head_device() == "CPU";
    const double begin = clock();
    pass_times   out;
    out.ms.resize(size_t(n_most) + 1);
    for (const int32_t n : by_use(n_most)) {
        for (int32_t i = 0; i < (cpu ? n_first_cpu : n_first); ++i) {
            timed(n);
        }
        std::vector<double> samples(n_timed);
        for (double & ms : samples) {
            ms = timed(n);
        }
        out.ms[n] = median(samples);
        if (cpu && clock() - begin > most_ms_cpu) {
            break;
        }
    }
    if (cpu) {  // captures no graphs
        return out;
    }
    std::vector<double> changed;
    for (int32_t i = 0; i < n_changes; ++i) {
        const int32_t n = std::max(1, n_most - (i + 1) % 2);
        changed.push_back(timed(n) / out.ms[n]);
    }
    out.change = median(changed);
    return out;
}

}  // namespace dflash2
