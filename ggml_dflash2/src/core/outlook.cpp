#include "core/outlook.h"

#include <algorithm>

namespace dflash2 {

static constexpr double pad_most = 0.97;  // of the time without padding

void outlook::pad(int32_t n_max) {
    rows.resize(size_t(n_max) + 2);
    pass.resize(size_t(n_max) + 2);
    for (int32_t r = 1; r <= n_max + 1; ++r) {
        const auto best = std::min_element(row_ms.begin() + r, row_ms.end());
        const bool pays = r > 1 && *best < pad_most * row_ms[r];
        rows[r]         = pays ? int32_t(best - row_ms.begin()) : r;
        pass[r]         = row_ms[rows[r]];
    }
}

bool stop_rule::goes_on(double accept) {
    if (o_.whole) {
        return true;
    }
    double reach = survival_, gain = 0.0;
    for (int32_t i = n_; i < n_draft_; ++i) {
        reach *= i == n_ ? accept : o_.typical[i];
        gain += reach;
        if (gain > price_ * (o_.pass[i + 2] - o_.pass[n_ + 1])) {
            survival_ *= accept;
            n_ += 1;
            return true;
        }
    }
    return false;
}

worth value(const outlook & decides, const outlook & holds, int32_t n_draft, double price) {
    worth        sum = {0.0, 0.0};
    const double n   = double(decides.accept.size());
    for (size_t k = 0; k < decides.accept.size(); ++k) {
        stop_rule rule(decides, n_draft, price);
        double    survival = 1.0;
        int32_t   n_verify = 0;
        sum.tokens += 1.0;
        for (; n_verify < n_draft && rule.goes_on(decides.accept[k][n_verify]); ++n_verify) {
            survival *= holds.accept[k][n_verify];
            sum.tokens += survival;
        }
        sum.ms += holds.draft[n_draft] + holds.row_ms[decides.rows[n_verify + 1]];
    }
    return {sum.tokens / n, sum.ms / n};
}

}  // namespace dflash2
