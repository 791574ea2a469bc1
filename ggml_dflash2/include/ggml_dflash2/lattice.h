// The candidate lattice that one draft pass returns, and the walks that turn it into one path.
#pragma once

#include "ggml_dflash2/random.h"
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

struct draft_path {
    std::vector<token_id> token;  // [n_pos]
    std::vector<law>      q;      // [n_pos]: the law that token[i] was drawn from, given token[0..i-1]
};

// Takes the best-scored successor at each position (ties: the smaller id). Every q is one-hot.
// Stops before a pick whose softmax probability over the candidates is below p_min, as llama.cpp's --spec-draft-p-min.
// p_min looks at the distributions of greedy picks only; it must not be combined with walk_sample (DESIGN: a length
// that depends on a drawn value biases the output).
draft_path walk_greedy(const lattice & lat, float p_min = 0.0f);

// Leaves out candidates before a sampled walk draws, in llama.cpp's order and on the law at temperature 1. The target's
// own values save drafts that it would reject for certain; any values are exact.
struct walk_cut {
    int32_t top_k = 0;     // keep the best; 0: all
    float   top_p = 1.0f;  // keep the smallest set with this probability; 1: all
    float   min_p = 0.0f;  // drop those below this fraction of the best; 0: none
};

// Draws each position from softmax(score / temperature) over its candidates, given the token drawn before it.
// Throws errc::argument unless temperature > 0. position: sequence position of the anchor, so draft token i is drawn
// for position + 1 + i. q lists the kept candidates by (score descending, id ascending) and is what was drawn from, to
// the last bit.
draft_path walk_sample(const lattice & lat, float temperature, const random_source & random, uint32_t position,
                       uint32_t round, const walk_cut & cut = {});

}  // namespace dflash2
