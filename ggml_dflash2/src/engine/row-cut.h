// Cuts rows of logits to their largest entries on the device that computes them, through libllama's backend sampling
// with a sampler of our own.
#pragma once

#include <cstdint>
#include <vector>

#include "llama-cpp.h"

namespace dflash2 {

class row_cut {
  public:
    row_cut(llama_context * ctx, int32_t n_seq, int32_t n_vocab) : ctx_(ctx), n_vocab_(n_vocab), cuts_(n_seq) {}
    ~row_cut();
    row_cut(const row_cut &)             = delete;
    row_cut & operator=(const row_cut &) = delete;

    // Rows of a sequence's later passes have their n_best largest entries or more; 0: all. Changes make libllama
    // reserve its graphs again, so they are kept few.
    void set(int32_t seq, int32_t n_best);

    bool is_cut(int32_t seq) const { return cuts_[seq].n > 0; }

  private:
    struct cut {
        int32_t           n = 0;
        llama_sampler_ptr chain;
    };

    llama_context *  ctx_;
    int32_t          n_vocab_;
    std::vector<cut> cuts_;  // [n_seq]
};

}  // namespace dflash2
