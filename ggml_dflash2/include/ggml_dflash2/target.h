// The target model on libllama: decoding with tapped hidden states, roll-back, vocabulary.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ggml_dflash2/draft-model.h"
#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/memory.h"
#include "ggml_dflash2/types.h"

struct llama_vocab;

namespace dflash2 {

struct target_params {
    int32_t n_ctx        = 4096;  // positions of a sequence; 0: from the model
    int32_t n_seq        = 1;     // sequences side by side
    int32_t n_batch      = 512;   // prompt tokens per decode
    int32_t n_rollback   = 0;     // recurrent and hybrid models: positions that truncate() must be able to take back
    int32_t n_threads    = 0;     // 0: half of the logical cores
    int32_t n_gpu_layers = 0;     // -1: all

    // Finds the largest logits of a row where they are computed, instead of copying whole rows. Empty: when the output
    // head is on an accelerator.
    std::optional<bool> backend_sampling;

    bool plan_only = false;  // only says what memory() it would take; loads no weights and cannot decode
};

// One token of a decode.
struct target_row {
    token_id token    = -1;
    int32_t  seq      = 0;
    int32_t  position = 0;
    bool     logits   = false;
};

// The logits of a row, or the largest of them.
struct logit_row {
    const float *    logit = nullptr;  // [n]
    const token_id * id    = nullptr;  // [n] in no particular order; null: 0 .. n - 1, the whole vocabulary
    int32_t          n     = 0;
};

class target {
  public:
    // Throws error: errc::file, errc::format, errc::memory.
    target(const std::string & path, const target_params & params = {});
    ~target();
    target(const target &)             = delete;
    target & operator=(const target &) = delete;

    const std::string & path() const;

    int32_t     n_ctx() const;  // of a sequence
    int32_t     n_seq() const;
    int32_t     n_batch() const;
    int32_t     max_draft_rows() const;  // rows with logits that one decode can hold for every sequence
    int32_t     n_vocab() const;
    int32_t     n_embd() const;
    int32_t     n_layer() const;
    int32_t     n_threads() const;
    std::string description() const;  // e.g. "llama 135M Q4_1"

    // GGUF keys with scalar or string values, as libllama prints them.
    std::map<std::string, std::string> metadata() const;

    // Layer inputs to expose in features(). Throws errc::incompatible when a layer is out of range.
    void set_taps(const std::vector<int32_t> & layers);

    // Appends one row per token. The rows of a sequence are consecutive and continue at its end(). At most n_batch()
    // rows, at most max_draft_rows() * n_seq() of them with logits. Throws errc::argument, errc::context_full,
    // errc::decode; the sequences are unchanged then.
    void decode(const std::vector<target_row> & rows);

    // Tokens of one sequence from `position` on. Rows are whole, with logits of all of them or of the last one.
    void decode(const std::vector<token_id> & tokens, int32_t position, int32_t seq, bool all_logits);

    int32_t end(int32_t seq) const;  // positions decoded
    int32_t n_rows() const;          // of the last decode

    // Rows of the last decode, in its order, valid until the next one.
    logit_row     row(int32_t row) const;                  // with logits
    const float * logits(int32_t row) const;               // [n_vocab], of a row that is not cut
    features      tapped(int32_t first, int32_t n) const;  // rows first .. first + n - 1, of one sequence

    // Later passes may cut the rows of a sequence to their n_best largest logits or more; 0: they are whole.
    void set_row_cut(int32_t seq, int32_t n_best);

    int32_t n_rollback() const;  // positions of a decode that can be taken back; 0: the model cannot verify drafts

    // Whether truncate(seq, n_keep) can work: always for attention; for recurrent and hybrid models that keep
    // snapshots, once after a decode, for up to n_rollback of its rows but the first; else for 0 only.
    bool can_truncate(int32_t seq, int32_t n_keep) const;

    // Keeps the positions before n_keep. Throws errc::incompatible when the model cannot go back there.
    void truncate(int32_t seq, int32_t n_keep);

    std::vector<token_id> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string           piece(token_id id, bool special = false) const;  // bytes; special: text of special tokens too
    bool                  is_eog(token_id id) const;
    token_id              bos() const;         // -1: none
    token_id              eos() const;         // -1: none
    uint64_t              vocab_hash() const;  // FNV-1a over ids, texts and types; see convert/

    shared_tensors      shared() const;
    std::string         head_device() const;  // ggml's name of the device that the output head lies on
    const llama_vocab * vocab() const;

    // Weights, cache, compute buffers, and rows of logits and hidden states for the taps that are set. The compute
    // buffers of a target that plans only leave room for the taps, others take it when they decode.
    std::vector<memory_use> memory() const;

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
