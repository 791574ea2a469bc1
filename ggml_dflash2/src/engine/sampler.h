// The target's law after the user's whole sampler chain, on libllama's samplers.
#pragma once

#include "ggml_dflash2/engine.h"
#include "llama-cpp.h"

namespace dflash2 {

class law_sampler {
  public:
    // Looks at the prompt for the penalties. Throws errc::argument naming the parameter.
    law_sampler(const target & tgt, const request & req);

    bool greedy() const { return greedy_; }

    // Both read logits [n_vocab] and keep the chain's state. Throw errc::decode when the logits are not finite.
    token_id    argmax(const float * logits);
    const law & distribution(const float * logits);  // valid until the next call

    // Advances the chain by a committed token.
    void accept(token_id id);

  private:
    void apply(const float * logits);

    llama_sampler_ptr             chain_;
    llama_sampler_ptr             grammar_;  // null: none; not part of the chain, since it must not see the prompt
    std::vector<logit_bias>       biases_;
    bool                          greedy_ = true;
    bool                          plain_  = true;  // greedy on the logits as they are
    int32_t                       n_vocab_;
    std::vector<llama_token_data> data_;
    llama_token_data_array        cur_ = {};
    law                           law_;
};

}  // namespace dflash2
