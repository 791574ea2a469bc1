// What target passes and drafts cost, by the length of the context.
#pragma once

#include <cstdint>
#include <map>

#include "core/cost.h"

namespace dflash2 {

class context_costs {
  public:
    struct costs {
        cost_table pass, draft;

        // Before any draft: a share of a plain round.
        void guess_draft();
    };

    context_costs(int32_t n_rows_max, int32_t n_draft_max) : n_rows_max_(n_rows_max), n_draft_max_(n_draft_max) {}

    // Contexts within a factor of two share costs. Those entered for the first time begin with what their neighbour
    // knows.
    costs & at(int32_t n_context);

    // Injection of rows that were put off took as long.
    void   add_late(int32_t n_rows, double ms);
    double late_ms(int32_t n_rows) const;

    // ms; 0: nothing is known.
    double pass_ms(int32_t n_rows, int32_t n_context) const;
    double draft_ms(int32_t n_draft, int32_t n_context) const;

  private:
    double predict(const cost_table costs::* table, int32_t n_context, int32_t count) const;

    int32_t                  n_rows_max_, n_draft_max_;
    double                   late_per_row_ = 0.0;  // ms
    int64_t                  n_late_       = 0;
    std::map<int32_t, costs> buckets_;
};

}  // namespace dflash2
