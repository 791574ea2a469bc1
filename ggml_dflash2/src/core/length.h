// How many tokens to draft and to verify in each round: the controller of the draft length.
//
//   length_controller length({n_max});
//   per request: length.begin_request();
//   per round:
//     n_draft  = length.draft_width(n_context, n_most, n_put_off);   // 0: plain decoding
//     n_verify = length.verify_length(path_confidence(lat, path));   // the draft is cut to it
//     n_rows   = length.padded_rows(n_verify + 1);                   // rows of the target pass, the rest is padding
//     length.observe({...});
//
// It learns what target passes and drafts cost and how often drafted tokens are accepted, maximises expected tokens per
// millisecond, and pays for trying other lengths out of a purse that a small share of the time goes into. What a draft
// would be like here, it gathers from recent ones and from how sure the target is of its own tokens. Where drafting has
// not paid, it looks early in each request and now and then: drafts, and verifies only if the confidences say that it
// pays here. Pure logic: the same timings and outcomes give the same lengths. Keep one controller for the life of an
// engine, across requests.
//
// Lossless by construction: it never sees a drafted token, and of the target's logits only those of earlier rounds.
// Whether position i is verified depends on earlier rounds and on confidences 0..i, and confidence i is a function of
// the tokens drawn before i only.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace dflash2 {

struct length_params {
    int32_t n_max      = 7;  // tokens drafted at most: block_size - 1
    int32_t n_rows_max = 0;  // rows of a padded target pass at most; 0: max(n_max + 1, 9), since GPU back ends change
                             // to kernels for many rows at 9
    bool    whole  = false;  // drafts are verified whole, verify_length() cuts nothing
    int32_t n_stay = 1;  // rounds at least for which a number of rows is kept; more than 1 where a pass is slow after
                         // a change of it (CUDA graphs are captured anew). Drafts are verified whole then
    double probe_share = 0.006;  // of plain decoding's time, for trying lengths that are not believed to be the best
    double probe_grant = 0.4;    // the same to begin with, in plain rounds
    double look_share  = 0.005;  // of plain decoding's time, for looks
};

struct round_outcome {
    int32_t n_draft   = 0;    // tokens drafted; 0: plain decoding
    int32_t n_verify  = 0;    // of them verified
    int32_t n_accept  = 0;    // of them accepted, before any cut at an end of generation
    int32_t n_rows    = 1;    // rows of the target pass, padding included
    int32_t n_context = 0;    // tokens before the anchor
    int32_t n_put_off = 0;    // rows that plain rounds had put off until then, injected before the draft
    double  ms_late   = 0.0;  // their injection
    double  ms_draft  = 0.0;  // draft, other injection, walk and other work that a round with this width causes
    double  ms_verify = 0.0;  // target pass and acceptance
    double  logit_gap = std::numeric_limits<double>::quiet_NaN();  // of the two largest logits that the last token was
                                                                   // chosen from; NaN: not known
};

class length_controller {
  public:
    // Throws errc::argument.
    explicit length_controller(const length_params & params = {});
    ~length_controller();

    // A target pass that was timed before any round, at its steady pace.
    void know_pass(int32_t n_rows, double ms);

    // What comes is of another request, and of another kind perhaps. Without it no round is a look.
    void begin_request();

    // Begins a round. n_most: tokens that there is room for. n_put_off: rows of plain rounds that a draft would have to
    // inject first. Returns 0..min(n_max, n_most).
    int32_t draft_width(int32_t n_context, int32_t n_most = INT32_MAX, int32_t n_put_off = 0);

    // After the draft: confidence as path_confidence() returns it. Returns 0..confidence.size().
    // Entry i is read only after the tokens before i have been decided to be verified.
    int32_t verify_length(const std::vector<float> & confidence);

    // Rows to run so that n_rows are computed soonest: n_rows, or more where more cost less.
    int32_t padded_rows(int32_t n_rows) const;

    // The same for a pass whose length is not chosen here, by what is known of passes at this context.
    int32_t fastest_rows(int32_t n_rows, int32_t n_context);

    // Ends a round.
    void observe(const round_outcome & outcome);

    // What has been learned, for reports. 0 while nothing is known.
    double pass_ms(int32_t n_rows, int32_t n_context) const;
    double draft_ms(int32_t n_draft, int32_t n_context) const;
    double acceptance(
        int32_t position) const;  // of a draft token when those before it were accepted, typical confidence

  private:
    struct impl;
    std::unique_ptr<impl> impl_;
};

}  // namespace dflash2
