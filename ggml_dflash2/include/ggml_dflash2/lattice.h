// The candidate lattice that one draft pass returns.
#pragma once

#include "ggml_dflash2/types.h"

namespace dflash2 {

// Candidates of the drafted positions and the selector's scores of adjacent pairs.
// Candidates of one position are distinct and in no particular order; no result depends on it.
// A score that is not finite is never picked; when none of a row is finite, the smallest id is.
struct lattice {
    int32_t               top_k = 0;
    int32_t               n_pos = 0;  // drafted positions; the anchor is not counted
    std::vector<token_id> cand;       // [top_k, n_pos]
    std::vector<float>    score;      // [top_k (to), top_k (from), n_pos]; position 0 reads from = 0 only: the anchor
};

// Checks sizes, and that candidates are distinct ids in 0..n_vocab-1: a walk trusts all of that, and the output is
// biased when a candidate is listed twice. For lattices of foreign drafters. Throws errc::argument.
void validate(const lattice & lat, int32_t n_vocab);

}  // namespace dflash2
