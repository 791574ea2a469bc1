#include "core/context-costs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace dflash2 {

// Before any draft: its cost in plain rounds, and how costs grow per token and per row.
static constexpr double draft_prior = 0.3, draft_slope = 0.25, pass_slope = 0.1;

static constexpr double  late_most   = 2.0;  // over its mean; more is an accident
static constexpr int64_t n_late_mean = 8;

static int32_t bucket_of(int32_t n_context) {
    return n_context < 512 ? 0 : int32_t(std::log2(n_context / 256));
}

void context_costs::costs::guess_draft() {
    draft = cost_table(draft.n_most(), draft_prior * pass.mean(1), draft_slope);
}

context_costs::costs & context_costs::at(int32_t n_context) {
    const int32_t key = bucket_of(n_context);
    const auto    it  = buckets_.lower_bound(key);
    if (it != buckets_.end() && it->first == key) {
        return it->second;
    }
    if (buckets_.empty()) {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const costs      unknown  = {cost_table(n_rows_max_, infinity, pass_slope),
                                     cost_table(n_draft_max_, infinity, draft_slope)};
        return buckets_.emplace(key, unknown).first->second;
    }
    const costs neighbour = it == buckets_.begin() ? it->second : std::prev(it)->second;
    return buckets_.emplace(key, neighbour).first->second;
}

void context_costs::add_late(int32_t n_rows, double ms) {
    const double x     = ms > 0.0 ? ms / n_rows : 0.0;  // NaN counts as 0
    const double usual = n_late_ == 0 ? x : std::min(x, late_most * late_per_row_);
    n_late_ += 1;
    late_per_row_ += (usual - late_per_row_) / double(std::min(n_late_, n_late_mean));
}

double context_costs::late_ms(int32_t n_rows) const {
    return late_per_row_ * n_rows;
}

double context_costs::predict(const cost_table costs::* table, int32_t n_context, int32_t count) const {
    const auto it = buckets_.find(bucket_of(n_context));
    if (it == buckets_.end() || count < 1 || count > (it->second.*table).n_most()) {
        return 0.0;
    }
    return (it->second.*table).most_tried() > 0 ? (it->second.*table).mean(count) : 0.0;
}

double context_costs::pass_ms(int32_t n_rows, int32_t n_context) const {
    return predict(&costs::pass, n_context, n_rows);
}

double context_costs::draft_ms(int32_t n_draft, int32_t n_context) const {
    return predict(&costs::draft, n_context, n_draft);
}

}  // namespace dflash2
