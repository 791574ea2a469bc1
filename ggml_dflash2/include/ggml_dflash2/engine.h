// The lossless round loop over a few sequences: draft, verify, accept, commit.
//
//   engine eng(tgt, &dft);
//   const int64_t id = eng.submit(req);
//   while (!eng.idle()) { for (const progress & p : eng.step()) { ... } }
//
// A request waits until one of the target's sequences is free. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ggml_dflash2/drafter.h"
#include "ggml_dflash2/stats.h"
#include "ggml_dflash2/target.h"

namespace dflash2 {

struct logit_bias {
    token_id id   = -1;
    float    bias = 0.0f;  // -inf: never
};

// Applied in llama.cpp's order: grammar, logit bias, penalties, top_k, typical_p, top_p, min_p, temperature.
struct sampling_params {
    float                   temperature       = 0.0f;  // 0: greedy
    int32_t                 top_k             = 0;     // 0: off
    float                   typical_p         = 1.0f;  // 1: off
    float                   top_p             = 1.0f;  // 1: off
    float                   min_p             = 0.0f;  // 0: off
    float                   repeat_penalty    = 1.0f;  // 1: off
    float                   frequency_penalty = 0.0f;  // 0: off
    float                   presence_penalty  = 0.0f;  // 0: off
    int32_t                 repeat_last_n     = 64;    // tokens that the penalties look back on; -1: the whole context
    std::vector<logit_bias> biases;
    std::string             grammar;  // GBNF with the start symbol "root"; empty: none
    uint64_t                seed = 0;
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
    int32_t                  n_draft_max = -1;  // tokens drafted in every round; -1: as the engine; 0: plain decoding
    bool                     ignore_eos  = false;
};

enum class finish_reason {
    none,
    stop,      // end of generation token or stop string
    length,    // max_tokens
    context,   // full
    dead_end,  // grammar, biases and ignore_eos leave no token that could follow
};

// The token that ends the generation (EOS and the like) is emitted too, as the last one and without text of its own.
struct emitted {
    token_id    id;          // -1: none, at a dead end; it carries the text that was held back
    std::string text;        // whole UTF-8 characters that became safe to show with this token; may be empty
    bool        from_draft;  // drafted and accepted
};

// What one step did for one request.
struct progress {
    int64_t              id = 0;
    std::vector<emitted> tokens;
    finish_reason        reason = finish_reason::none;  // none: goes on
};

struct engine_params {
    int32_t n_draft_max = -1;  // tokens drafted in every round, clamped to what the drafter can (block_size - 1);
                               // -1: chosen in each round by what it costs and what is accepted; see length.h
    float                   p_min             = 0.0f;  // stop a greedy draft below this probability
    float                   draft_temperature = 1.0f;  // the walk samples at this multiple of the request's temperature
    accept_rule             rule              = accept_rule::rejection;
    std::function<double()> clock;  // ms, for the choice of lengths; empty: the steady clock
};

class engine {
  public:
    // dft may be null: plain decoding. Both must outlive the engine. Sets the target's taps.
    // Throws errc::incompatible, errc::argument.
    engine(target & tgt, drafter * dft, const engine_params & params = {});
    ~engine();

    // Checks a request and queues it. Throws errc::argument, errc::context_full.
    int64_t submit(const request & req);

    // Decodes the prompt of the next queued request if a sequence is free and emits its first token, or else runs one
    // round for every running request, which emits at least one token each. `poll` is called between target passes and
    // may throw to interrupt; a request whose prompt was being decoded is dropped then.
    // Throws errc::decode: the requests of the failed pass are dropped.
    std::vector<progress> step(const std::function<void()> & poll = {});

    void cancel(int64_t id);  // no effect on a finished request
    bool idle() const;        // nothing is queued or running

    // Counters of a request that runs or was the last one of its sequence. Throws errc::argument for any other.
    const stats & request_stats(int64_t id) const;
    stats         total_stats() const;  // of all requests
    int32_t       n_draft_max() const;  // effective; the most when it is chosen in each round

#ifdef DFLASH2_BENCH
    // To time synthetic weights: later requests keep draft tokens 0 .. i with probability rates[i], whatever the target
    // says. Their text is wrong. Empty: no more.
    void set_synthetic_acceptance(const std::vector<double> & rates);
#endif

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
