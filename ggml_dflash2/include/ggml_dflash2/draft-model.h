// A DFlash 2 drafter file: hyper-parameters and weights.
//
// Symbols used in shapes (ggml order, ne[0] first):
//   n_embd      hidden size, the same as the target's
//   n_taps      target layers whose input is tapped
//   n_vocab     rows of embedding and selector tables
//   n_head_out  rows of the output head: n_vocab, or fewer with d2t
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;

namespace dflash2 {

struct draft_hparams {
    int32_t n_layer     = 0;
    int32_t n_embd      = 0;
    int32_t n_ff        = 0;
    int32_t n_head      = 0;
    int32_t n_head_kv   = 0;
    int32_t head_dim    = 0;
    int32_t n_rot       = 0;  // rotated dimensions of a head
    int32_t n_vocab     = 0;  // rows of the selector tables
    int32_t n_ctx_train = 0;

    float rms_eps         = 0.0f;
    float rope_freq_base  = 0.0f;
    float logit_scale     = 1.0f;
    float logit_softcap   = 0.0f;  // 0: none
    float embedding_scale = 1.0f;

    bool                 causal         = false;  // inside the block
    int32_t              sliding_window = 0;      // a query at position p sees keys at p - window + 1 and later; 0: all
    std::vector<uint8_t> is_sliding;              // [n_layer]

    int32_t              block_size       = 0;
    int32_t              conv_kernel_size = 0;
    int32_t              conv_group_size  = 0;
    int32_t              selector_rank    = 0;
    int32_t              selector_top_k   = 0;
    int32_t              mask_token_id    = -1;
    std::vector<int32_t> target_layers;  // [n_taps] indices of the target layers whose *input* is tapped (HF ids + 1)

    int32_t n_taps() const { return (int32_t) target_layers.size(); }

    // Context positions before the anchor that a draft can see: window - 1 when every layer slides, else 0 (all).
    int32_t context_window() const;
};

// What the converter recorded about the target (keys dflash2.target.*); empty or 0 in files of other converters.
struct draft_pairing {
    std::string target_name;
    int32_t     target_n_layer = 0;
    uint64_t    vocab_hash     = 0;
};

// Embedding and head of the target, used where the drafter file has none. Not owned; must outlive the drafter.
struct shared_tensors {
    ggml_tensor * tok_embd = nullptr;  // [n_embd, n_vocab]
    ggml_tensor * output   = nullptr;  // [n_embd, n_vocab]
};

class draft_model {
  public:
    // device: a ggml backend device name as llama.cpp's --list-devices prints ("CPU", "CUDA0"); empty: CPU.
    // plan_only: loads no weights; good for a drafter that plans its memory only.
    // Throws error: errc::file, errc::format (names the key or tensor), errc::argument (unknown device), errc::memory.
    explicit draft_model(const std::string & path, const std::string & device = "", bool plan_only = false);
    ~draft_model();
    draft_model(const draft_model &)             = delete;
    draft_model & operator=(const draft_model &) = delete;

    const std::string &   path() const;
    const draft_hparams & hparams() const;
    const draft_pairing & pairing() const;
    bool                  has_head() const;    // own output head
    bool                  has_embd() const;    // own token embedding
    size_t                size_bytes() const;  // of the weights

    struct impl;
    const impl & get() const { return *impl_; }  // for the draft layer only

  private:
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
