// The walks that turn a lattice into one path.
#pragma once

#include "core/random.h"
#include "ggml_dflash2/lattice.h"
#include "ggml_dflash2/types.h"

namespace dflash2 {

struct draft_path {
    std::vector<token_id> token;  // [n_pos]
    std::vector<law>      q;      // [n_pos]: the law that token[i] was drawn from, given token[0..i-1]
};

// Takes the best-scored successor at each position (ties: the smaller id). Every q is one-hot.
// Stops before a pick whose softmax probability over the candidates is below p_min, as llama.cpp's --spec-draft-p-min.
// p_min looks at the distributions of greedy picks only; it must not be combined with walk_sample (a length that
// depends on a drawn value biases the output).
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

// [n_pos of the path]: the largest probability in softmax(score) over the candidates, given the token drawn before. The
// same at every temperature, and no function of the token at its own or a later position.
std::vector<float> path_confidence(const lattice & lat, const draft_path & path);

}  // namespace dflash2
