#include "draft/draft-context.h"

#include <algorithm>

namespace dflash2 {

void draft_context::inject(int32_t n) {
    injected += n;
    high = std::max(high, injected);
}

bool draft_context::truncate(int32_t n_keep, const draft_hparams & hp, const ring_layout & sliding) {
    if (n_keep == 0) {
        restart(0);
        return true;
    }
    const bool    slides = std::find(hp.is_sliding.begin(), hp.is_sliding.end(), 1) != hp.is_sliding.end();
    const int32_t window = std::max(0, n_keep - std::max(0, hp.sliding_window - 1));
    const int32_t needed = hp.context_window() > 0 ? window : 0;
    if (n_keep < 0 || n_keep > end || needed < begin || (slides && window < sliding.oldest(begin, high))) {
        restart(0);
        return false;
    }
    end      = n_keep;
    injected = std::min(injected, n_keep);
    return true;
}

}  // namespace dflash2
