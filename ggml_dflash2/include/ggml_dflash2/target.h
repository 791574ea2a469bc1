// The target model on libllama: decoding with tapped hidden states, roll-back, vocabulary.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/types.h"

struct llama_vocab;

namespace dflash2 {

struct target_params {
    int32_t n_ctx        = 4096;  // 0: from the model
    int32_t n_batch      = 512;   // prompt tokens per decode
    int32_t n_threads    = 0;     // 0: half of the logical cores
    int32_t n_gpu_layers = 0;     // -1: all
};

class target {
  public:
    // Throws error: errc::file, errc::format, errc::memory.
    target(const std::string & path, const target_params & params = {});
    ~target();
    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    const std::string & path() const;

    int32_t     n_ctx() const;
    int32_t     n_batch() const;
    int32_t     max_logit_rows() const;  // rows that one decode can give logits for
    int32_t     n_vocab() const;
    int32_t     n_embd() const;
    int32_t     n_layer() const;
    int32_t     n_threads() const;
    bool        can_rollback() const;  // false: recurrent, hybrid and encoder models
    std::string description() const;   // e.g. "llama 135M Q4_1"

    // GGUF keys with scalar or string values, as libllama prints them.
    std::map<std::string, std::string> metadata() const;

    // Layer inputs to expose in features(). Throws errc::incompatible when a layer is out of range.
    void set_taps(const std::vector<int32_t> & layers);

    // Appends tokens at `position` (which must be where the sequence ends) and computes one row per token.
    // all_logits: logits for every row (at most max_logit_rows()), else for the last row only. n_tokens <= n_batch().
    // Throws errc::argument, errc::context_full, errc::decode; the sequence is unchanged then.
    void decode(const token_id * tokens, int32_t n_tokens, int32_t position, bool all_logits);

    // Rows of the last decode, valid until the next one.
    const float * logits(int32_t row) const;  // [n_vocab]
    features      tapped() const;             // every row of the last decode

    // Keeps positions < n_keep. Throws errc::incompatible when the model cannot roll back.
    void truncate(int32_t n_keep);

    std::vector<token_id> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string           piece(token_id id, bool special = false) const;  // bytes; special: text of special tokens too
    bool                  is_eog(token_id id) const;
    token_id              bos() const;         // -1: none
    token_id              eos() const;         // -1: none
    uint64_t              vocab_hash() const;  // FNV-1a over ids, texts and types; see convert/

    shared_tensors      shared() const;
    const llama_vocab * vocab() const;

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
