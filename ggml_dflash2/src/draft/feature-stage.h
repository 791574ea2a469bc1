// Tapped rows on the drafter's device that wait to be injected: a few of every sequence, and room for a piece of a
// prompt. Graphs gather what they inject, so that one graph serves all rows.
#pragma once

#include "draft/tensor-buffer.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml_dflash2/draft-model.h"
#include "ggml_dflash2/drafter.h"

namespace dflash2 {

class feature_stage {
  public:
    static constexpr int32_t N_STAGED = 64;  // rows of a sequence

    // Throws errc::memory.
    feature_stage(const draft_hparams & hp, int32_t n_seq, ggml_backend_dev_t device, bool plan_only = false);

    ggml_tensor * rows() const { return rows_; }  // [n_taps * n_embd, rows] F32
    size_t        size_bytes() const { return buffer_.size_bytes(); }

    int32_t n_prompt() const { return n_prompt_; }  // rows of a piece of a prompt
    int32_t row(int32_t seq) const { return seq * N_STAGED; }
    int32_t prompt_row() const { return n_seq_ * N_STAGED; }
    int32_t zero_row() const { return prompt_row() + n_prompt_; }

    // Copies rows first .. first + n - 1 of f to rows `at` and on. Has read f when it returns.
    void put(ggml_backend_t backend, const features & f, int32_t first, int32_t n, int32_t at);

  private:
    int32_t          n_seq_;
    int32_t          n_prompt_;
    ggml_tensor *    rows_ = nullptr;
    ggml_context_ptr ctx_;
    tensor_buffer    buffer_;
};

}  // namespace dflash2
