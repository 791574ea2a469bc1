// The drafter as the engine sees it. Anything that fills a lattice can stand in for the draft graph: tests use an
// oracle and a garbage drafter.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml_dflash2/lattice.h"

namespace dflash2 {

// Hidden states tapped from the target, row i for position position + i.
struct features {
    std::vector<const float *> tap;  // [n_taps] pointers to [n_embd, n_rows], F32
    int32_t                    n_embd   = 0;
    int32_t                    n_rows   = 0;
    int32_t                    position = 0;  // of row 0
};

// One sequence of a draft pass. The anchor stands at `position`, where the sequence's context ends.
struct draft_job {
    int32_t  seq      = 0;
    token_id anchor   = -1;
    int32_t  position = 0;
};

// Sequences are numbered 0 .. n_seq - 1 and do not see each other.
class drafter {
  public:
    virtual ~drafter() = default;

    // Keeps the sequence's context before `n_keep`. False, and the context is empty, when a later draft would miss
    // positions that matter: they were overwritten, or never injected. n_keep = 0 forgets everything.
    virtual bool truncate(int32_t seq, int32_t n_keep) = 0;

    // Appends accepted rows to the context. f.position must be where the context ends, or anywhere when it is empty.
    // The data is copied before the call returns; the work on it may wait for the next draft.
    virtual void inject(int32_t seq, const features & f) = 0;

    // Does the work that inject() has put off, but for what every draft has room for. Optional: draft() does it too.
    virtual void catch_up(int32_t seq) { (void) seq; }

    // Drafts the n_draft tokens after each anchor in one pass; 1 <= n_draft <= max_draft(), sequences distinct.
    virtual std::vector<lattice> draft(const std::vector<draft_job> & jobs, int32_t n_draft) = 0;

    virtual int32_t max_draft() const      = 0;  // block_size - 1
    virtual int32_t n_seq() const          = 0;
    virtual int32_t context_window() const = 0;  // positions before the anchor worth injecting; 0: all
    virtual const std::vector<int32_t> & target_layers() const = 0;  // taps wanted: indices of layer inputs
};

}  // namespace dflash2
