// A sequence of target and drafter: the request on it, and what its memory holds for the next one to take over.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/backlog.h"
#include "engine/sequence.h"

namespace dflash2 {

class slot {
  public:
    // dft may be null. index: number of the sequence in both.
    slot(target & tgt, drafter * dft, int32_t index) : tgt_(tgt), dft_(dft), index_(index) {}

    int32_t    index() const { return index_; }
    bool       running() const { return seq_ && seq_->reason == finish_reason::none; }
    sequence * seq() const { return seq_.get(); }  // running, or the last one that did; null: none yet

    // Tokens that a prompt shares with the memory.
    int32_t shared_prefix(const std::vector<token_id> & prompt) const;

    // Decodes the prompt of a request, as far as the memory does not hold it, and emits its first token. `poll` is
    // called between target passes and may throw. After any exception the memory is empty and the slot free again.
    void start(std::unique_ptr<sequence> seq, const std::function<void()> & poll, std::vector<emitted> & out);

    int32_t n_put_off() const { return backlog_.n_rows(); }

    // Before a draft: the drafter gets what plain rounds have put off.
    void catch_up();

    struct accepted {
        int32_t n_draft;  // tokens of the path
        int32_t n_rows;   // of the pass, to be kept
    };

    // After a pass over [anchor, path] from row `first_row` on: accepts and emits. n_drafted: tokens before the path
    // was shortened. keep() is to follow.
    accepted accept(const draft_path & path, int32_t n_drafted, accept_rule rule, int32_t first_row,
                    std::vector<emitted> & out);

    // Rolls target and drafter to the accepted rows. put_off: the drafter may have them later.
    void keep(int32_t first_row, int32_t n_rows, bool put_off);

    void stop();    // ends the request; its tokens stay in the memory
    void forget();  // ends the request; nothing in the memory can be trusted any more

  private:
    void    inject(const features & f);
    void    forget_features();
    void    hand_over();
    int32_t rewind_drafter(int32_t n_keep);
    int32_t take_over(const sequence & next);
    void    prefill(sequence & next, const std::function<void()> & poll, std::vector<emitted> & out);

    target &                  tgt_;
    drafter *                 dft_;
    int32_t                   index_;
    std::unique_ptr<sequence> seq_;
    std::vector<token_id>     held_;        // decoded tokens, when no request runs
    feature_backlog           backlog_;     // rows that follow the drafter's context
    int32_t                   n_seen_ = 0;  // where the drafter's context ends
};

}  // namespace dflash2
