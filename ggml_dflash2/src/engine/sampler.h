// The target's law after the user's whole sampler chain, on libllama's samplers.
#pragma once

#include "core/row-scan.h"
#include "ggml_dflash2/engine.h"
#include "ggml_dflash2/error.h"
#include "llama-cpp.h"

namespace dflash2 {

// No token can follow.
class dead_end final : public error {
  public:
    dead_end() : error(errc::decode, "grammar, logit_bias and ignore_eos exclude every token; relax one of them") {}
};

class law_sampler {
  public:
    // Looks at the prompt for the penalties. Throws errc::argument naming the parameter.
    law_sampler(const target & tgt, const request & req);
    law_sampler(const law_sampler &)             = delete;
    law_sampler & operator=(const law_sampler &) = delete;

    bool greedy() const { return greedy_; }

    // The law depends on that many of the largest logits; 0: on all.
    int32_t n_best() const { return raises_ ? 0 : n_best_; }

    // Both read logits [n_vocab] and keep the chain's state. Throw dead_end, and errc::decode when the logits are not
    // finite.
    token_id           argmax(const logit_row & row);
    const target_law & distribution(const logit_row & row);  // valid until the next call, and as long as the row

    // Advances the chain by a committed token.
    void accept(token_id id);

  private:
    void list(const logit_row & row);
    void list_likely(const float * logits);  // [n_vocab]
    void apply();

    const float *      biased(const float * logits);  // [n_vocab] -> [n_vocab]
    const target_law & whole(const float * logits);   // [n_vocab]

    llama_sampler_ptr             chain_;
    llama_sampler_ptr             grammar_;  // null: none; not part of the chain, since it must not see the prompt
    std::vector<logit_bias>       biases_;
    bool                          greedy_      = true;
    bool                          plain_       = true;   // neither grammar nor penalties, and few biases
    bool                          wide_        = false;  // the law is nothing but a temperature
    int32_t                       n_best_      = 0;  // largest logits that can matter, if no bias raises others; 0: all
    bool                          raises_      = false;  // some bias is positive
    float                         temperature_ = 0.0f;
    bool                          likely_      = false;  // of a whole row only what top_p and min_p leave is listed
    float                         top_p_       = 1.0f;
    float                         min_p_       = 0.0f;
    int32_t                       n_vocab_;
    std::vector<llama_token_data> data_;
    llama_token_data_array        cur_ = {};
    std::vector<int32_t>          best_;
    std::vector<float>            row_;
    law                           law_;
    law_view                      view_{law_};
    wide_law                      wide_law_;
};

}  // namespace dflash2
