// The lossless round loop: draft, verify, accept, commit.
//
//   engine eng(tgt, &dft);
//   eng.begin(req);
//   while (!eng.done()) { for (const auto & t : eng.next()) { ... } }
//
// Not thread-safe; one engine is one timeline. begin() may be called at any time and drops what was going on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/stats.h"
#include "ggml_dflash2/target.h"

namespace dflash2 {

// Applied in llama.cpp's order: penalty, top_k, top_p, min_p, temperature.
struct sampling_params {
    float    temperature    = 0.0f;  // 0: greedy
    int32_t  top_k          = 0;     // 0: off
    float    top_p          = 1.0f;  // 1: off
    float    min_p          = 0.0f;  // 0: off
    float    repeat_penalty = 1.0f;  // 1: off
    int32_t  repeat_last_n  = 64;    // tokens that the penalty looks back on; -1: the whole context
    uint64_t seed           = 0;
};

enum class accept_rule {
    rejection,  // sampled walk, accept with min(1, p/q); greedy walk and exact match at temperature 0
    match,      // greedy walk, accept an equal sample, as llama.cpp does; for comparison
};

struct request {
    std::vector<token_id>    prompt;  // not empty
    sampling_params          sampling;
    int32_t                  max_tokens = -1;   // -1: until the context is full
    std::vector<std::string> stop;              // ends before the first of these strings
    int32_t                  n_draft_max = -1;  // tokens drafted per round; -1: the engine's; 0: plain decoding
    bool                     ignore_eos  = false;
};

enum class finish_reason { none, stop, length, context };  // stop: end of generation token or stop string

// The token that ends the generation (EOS and the like) is emitted too, as the last one and without text of its own.
struct emitted {
    token_id    id;
    std::string text;        // whole UTF-8 characters that became safe to show with this token; may be empty
    bool        from_draft;  // drafted and accepted
};

struct engine_params {
    int32_t     n_draft_max = -1;    // -1: all that the drafter can (block_size - 1); larger values are clamped to it
    float       p_min       = 0.0f;  // stop a greedy draft below this probability
    accept_rule rule        = accept_rule::rejection;
};

class engine {
  public:
    // dft may be null: plain decoding. Both must outlive the engine. Sets the target's taps.
    // Throws errc::incompatible, errc::argument.
    engine(target & tgt, drafter * dft, const engine_params & params = {});
    ~engine();

    // Checks the request, decodes the prompt and injects its features. `poll` is called between target passes and may
    // throw to interrupt; the engine is usable afterwards. Throws errc::argument, errc::context_full, errc::decode.
    void begin(const request & req, const std::function<void()> & poll = {});

    // One round: at least one token. Nothing after the end of generation, a stop string or max_tokens.
    // Throws errc::argument when done(), errc::decode.
    std::vector<emitted> next();

    bool          done() const;
    finish_reason reason() const;
    const stats & request_stats() const;  // since begin()
    stats         total_stats() const;    // since construction
    int32_t       n_draft_max() const;    // effective

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
