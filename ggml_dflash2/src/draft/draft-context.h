// What a drafter knows of one sequence: positions begin .. end - 1, those from `injected` on still staged.
#pragma once

#include "draft/draft-cache.h"

namespace dflash2 {

struct draft_context {
    int32_t begin    = 0;
    int32_t end      = 0;
    int32_t injected = 0;
    int32_t high     = 0;  // largest `injected` since begin: what may have been overwritten in the rings

    bool empty() const { return begin == end; }

    int32_t n_staged() const { return end - injected; }

    void restart(int32_t position) { begin = end = injected = high = position; }

    // n staged rows go to the rings.
    void inject(int32_t n);

    // Keeps the positions before n_keep. False, and the context is empty, when the next draft would look at some that
    // were never injected or that the rings of sliding layers no longer hold.
    bool truncate(int32_t n_keep, const draft_hparams & hp, const ring_layout & sliding);
};

}  // namespace dflash2
