// Tapped rows of plain rounds. The drafter gets them before its next draft, so that plain decoding does not pay for
// their injection.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml_dflash2/drafter.h"

namespace dflash2 {

class feature_backlog {
  public:
    // Appends rows; they follow those before. The data is copied.
    void add(const features & f);

    int32_t n_rows() const { return n_rows_; }
    int32_t position() const { return position_; }  // of row 0

    bool full() const;  // it should be emptied now, for the sake of memory

    features rows(int32_t first) const;  // `first` and those after it; a view, valid until the next change
    void     clear();

  private:
    std::vector<std::vector<float>> tap_;  // [n_taps] of [n_embd, n_rows]
    int32_t                         n_embd_   = 0;
    int32_t                         n_rows_   = 0;
    int32_t                         position_ = 0;
};

}  // namespace dflash2
